"""How fast marginals of trees are, against torch-struct and against a factorisation shifted by the largest
score; and a structured network, against the same updates written by hand. Run as ``python -m
tests.benchmarks.trees [--quick] [--only NAME]``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import unn
from factors import Multilinear, TreeEntropy
from factors.trees.decoding import decode
from factors.trees.matrix_tree import log_partition_and_marginals
from tests.benchmarks import measure as bench
from tests.benchmarks.core import Model, cases_of, report
from tests.benchmarks.measure import Case, Figure

SIZES = ((32, 20), (32, 60), (8, 150))


def by_torch_struct(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals as torch-struct computes them, 1e-5 added to every weight."""
    import torch_struct

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trees = torch_struct.NonProjectiveDependencyCRF(scores)
        return trees.partition, trees.marginals


def by_shifted_factorisation(scores: Tensor) -> tuple[Tensor, Tensor]:
    """One factorisation in float64 of the Laplacian with its first row replaced (Koo et al., 2007), scores
    less their largest, nothing checked."""
    wide = scores.double()
    shift = wide.detach().amax((1, 2), keepdim=True)
    weights = (wide - shift).exp()
    roots = weights.diagonal(dim1=1, dim2=2)
    arcs = weights - torch.diag_embed(roots)
    laplacian = torch.diag_embed(arcs.sum(1)) - arcs
    matrix = torch.cat([roots[:, None], laplacian[:, 1:]], 1)
    inverse = matrix.inverse()
    own = inverse.diagonal(dim1=1, dim2=2).clone()
    own[:, 0] = 0
    across = inverse.mT.clone()
    across[:, 0] = 0
    marginals = arcs * (own[:, None] - across) + torch.diag_embed(roots * inverse[:, :, 0])
    partition = torch.linalg.slogdet(matrix).logabsdet + scores.shape[1] * shift[:, 0, 0]
    return partition.to(scores.dtype), marginals.to(scores.dtype)


def ours(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals by the package."""
    return log_partition_and_marginals(scores)


def forward(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], scores: Tensor
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Log-partition and marginals without autograd."""

    @torch.no_grad()
    def call() -> tuple[Tensor, Tensor]:
        return function(scores)

    return call


def forward_backward(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], scores: Tensor, slope: Tensor
) -> Callable[[], Tensor]:
    """The gradient of the log-partition and of the marginals in a fixed direction."""

    def call() -> Tensor:
        leaf = scores.clone().requires_grad_()
        partition, arcs = function(leaf)
        (gradient,) = torch.autograd.grad(partition.sum() + (arcs * slope).sum(), leaf)
        return gradient

    return call


def marginal_cases() -> list[Case]:
    """Each size, against both others."""
    generator = torch.Generator().manual_seed(0)
    timed_cases = []
    for kind, limit in (("forward", 0.7), ("forward+backward", 0.9)):
        for batch, n in SIZES:
            scores, slope = torch.randn(2, batch, n, n, generator=generator)
            for name, other, bound in (
                ("torch-struct", by_torch_struct, limit),
                ("shifted LU", by_shifted_factorisation, None),
            ):
                if kind == "forward":
                    calls = forward(ours, scores), forward(other, scores)
                else:
                    calls = forward_backward(ours, scores, slope), forward_backward(other, scores, slope)
                timed_cases.append(
                    Case(
                        f"trees {kind} ({batch}, {n}) against {name}",
                        *calls,
                        bound,
                        f"{name}: {(other.__doc__ or '').splitlines()[0]}",
                    )
                )
    return timed_cases


def structured_network(n: int, batch: int = 32, width: int = 400, hidden: int = 400) -> Model:
    """The network of the parser without its encoder; order H, M, Y."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        g = unn.FactorGraph("structured", width=width, hidden=hidden, modifier_hidden=hidden)
        X = g.variable("X", "word width", unn.SquaredNorm())
        H = g.variable("H", "word hidden", unn.NonNegative())
        M = g.variable("M", "word modifier_hidden", unn.NonNegative())
        Y = g.variable("Y", "word modifier", TreeEntropy())
        W_H, W_M = g.parameter("W_H", "hidden width"), g.parameter("W_M", "modifier_hidden width")
        b_H, b_M = (
            g.parameter("b_H", "hidden", init="normal"),
            g.parameter("b_M", "modifier_hidden", init="normal"),
        )
        V = g.parameter("V", "hidden modifier_hidden", init="normal")
        g.factor(Multilinear(H["i d"], W_H["d e"], X["i e"]))
        g.factor(Multilinear(M["j d"], W_M["d e"], X["j e"]))
        g.factor(Multilinear(b_H["d"], H["i d"]))
        g.factor(Multilinear(b_M["d"], M["j d"]))
        g.factor(Multilinear(Y["i j"], H["i d"], V["d e"], M["j e"]))
        x = torch.randn(batch, n, width)
    net = unn.Unrolled(g, given="X", want="Y", order=["H", "M", "Y"])
    w_h, w_m, c_h, c_m, v = (g.get_parameter(name) for name in ("W_H", "W_M", "b_H", "b_M", "V"))

    def by_hand(rounds: int) -> Tensor:
        y, m = x.new_zeros(batch, n, n), x.new_zeros(batch, n, hidden)
        for _ in range(rounds):
            h = torch.relu(x @ w_h.mT + c_h + y @ (m @ v.mT))
            m = torch.relu(x @ w_m.mT + c_m + y.mT @ (h @ v))
            y = log_partition_and_marginals((h @ v) @ m.mT)[1]
        return y

    def by_engine(rounds: int) -> Tensor:
        marginals = net(x, iterations=rounds)
        assert isinstance(marginals, Tensor)
        return marginals

    return Model(f"structured n={n}", tuple(g.parameters()), by_engine, by_hand)


def cases() -> list[Case]:
    """Marginals of trees, and the structured network."""
    networks = [
        case
        for n in (20, 40)
        for case in cases_of(structured_network(n), (1, 5), {5: 0.60})
        if "backward" in case.name
    ]
    return [*marginal_cases(), *networks]


def decoding_figures(samples: int) -> list[Figure]:
    """Exact decoding of many sentences."""
    scores = torch.randn(1000, 25, 25, generator=torch.Generator().manual_seed(0))

    def time_of(given: Tensor) -> float:
        return 1e3 * bench.median_seconds(lambda: decode(given), min(samples, 5), warmup=1)

    likely = scores + 6 * torch.nn.functional.one_hot(decode(scores), 25).mT
    return [
        Figure("decoding: 1,000 sentences of 25 words, random scores", time_of(scores), "ms", 1000.0),
        Figure("decoding: the same, scores as of a trained parser", time_of(likely), "ms"),
    ]


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Measure and print; the names of all cases."""
    # what is added to weights by torch-struct moves its results by more than rounding does
    return report(
        __doc__,
        cases,
        {"decoding": decoding_figures},
        arguments,
        lambda case: 2e-2 if "torch-struct" in case.name else 1e-3,
    )


if __name__ == "__main__":
    main()
