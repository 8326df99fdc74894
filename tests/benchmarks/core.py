"""How fast coordinate descent is, against the same updates written by hand as the undirected-network papers
write them.

The hand-written loops start from tensors of zeros and compute every message anew in every update. Run as
``python -m tests.benchmarks.core [--quick] [--only NAME]``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

import unn
from factors import Multilinear
from problems.digits import network as digits
from tests.benchmarks import measure as bench
from tests.benchmarks.measure import Case, Figure, Result

Rounds = Callable[[int], Tensor]


@dataclass(frozen=True)
class Model:
    """One network, computed in two ways from the same parameters and inputs.

    Attributes:
        name: for the tables.
        parameters: that gradients are taken of.
        ours: the output after a number of rounds, by the engine.
        other: the same by the hand-written loop.
    """

    name: str
    parameters: tuple[Tensor, ...]
    ours: Rounds
    other: Rounds


# -- models --------------------------------------------------------------------------------------------------


def mlp(
    inputs: int = 784,
    hidden: int = 512,
    labels: int = 10,
    batch: int = 64,
    check_values: bool = True,
    device: str = "cpu",
) -> Model:
    """An undirected network with one hidden layer; order H, Y."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        g = unn.FactorGraph("mlp", input=inputs, hidden=hidden, label=labels)
        X = g.variable("X", "input", unn.SquaredNorm())
        H = g.variable("H", "hidden", unn.NonNegative())
        Y = g.variable("Y", "label", unn.Entropy())
        W, V = g.parameter("W", "hidden input"), g.parameter("V", "label hidden")
        b, c = g.parameter("b", "hidden", init="normal"), g.parameter("c", "label", init="normal")
        g.factor(Multilinear(H["h"], W["h x"], X["x"]))
        g.factor(Multilinear(Y["y"], V["y h"], H["h"]))
        g.factor(Multilinear(b["h"], H["h"]))
        g.factor(Multilinear(c["y"], Y["y"]))
        x = torch.randn(batch, inputs).to(device)
    net = unn.Unrolled(g.to(device), given="X", want="Y", order=["H", "Y"], check_values=check_values)
    weights, outer, bias, label_bias = (g.get_parameter(name) for name in ("W", "V", "b", "c"))

    def by_hand(rounds: int) -> Tensor:
        y = x.new_zeros(batch, labels)
        for _ in range(rounds):
            h = torch.relu(F.linear(x, weights, bias) + y @ outer)
            logits = F.linear(h, outer, label_bias)
            y = torch.softmax(logits, 1)
        return logits

    return Model(
        "mlp",
        tuple(g.parameters()),
        lambda rounds: _tensor(net.preactivations(x, iterations=rounds)),
        by_hand,
    )


def convolution(
    size: int = 28, channels: int = 32, batch: int = 64, check_values: bool = True, device: str = "cpu"
) -> Model:
    """The network of the digits problem; order H1, H2, label.

    Args:
        size: rows and columns of the images, at least 20.
        channels: of H1; H2 has twice as many.
        batch: images in a call.
        check_values: as in ``Unrolled``.
        device: that both compute on.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        g = digits.declare(size, size, channels=channels)
        images = (torch.rand(batch, 1, size, size) * 2 - 1).to(device)
    net = unn.Unrolled(
        g.to(device), given="image", want="label", order=["H1", "H2", "label"], check_values=check_values
    )
    W1, W2, V, b1, b2, b = (g.get_parameter(name) for name in ("W1", "W2", "V", "b1", "b2", "b"))

    def by_hand(rounds: int) -> Tensor:
        h2 = images.new_zeros(batch, *V.shape[1:])
        y = images.new_zeros(batch, digits.LABELS)
        for _ in range(rounds):
            h1 = torch.tanh(F.conv2d(images, W1, b1, stride=2) + F.conv_transpose2d(h2, W2, stride=2))
            h2 = torch.tanh(F.conv2d(h1, W2, b2, stride=2) + (y @ V.flatten(1)).view_as(h2))
            logits = F.linear(h2.flatten(1), V.flatten(1), b)
            y = torch.softmax(logits, 1)
        return logits

    return Model(
        "convolution",
        tuple(g.parameters()),
        lambda rounds: _tensor(net.preactivations(images, iterations=rounds)),
        by_hand,
    )


def attention(
    width: int = 256,
    length: int = 25,
    missing: int = 3,
    batch: int = 64,
    check_values: bool = True,
    device: str = "cpu",
) -> Model:
    """Undirected self-attention; order Q, K, V, S, H, S, V, K, Q, then the missing rows of X
    (undirected-network paper, Section 4)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        positions = torch.randn(length, width)
        known = torch.rand(batch, length).argsort(1) >= missing
        x = torch.randn(batch, length, width) * known[:, :, None]
        g = _declare_attention(positions).to(device)
    positions, known, x = (tensor.to(device) for tensor in (positions, known, x))
    net = unn.Unrolled(
        g,
        given="X",
        want="X",
        order=unn.ForwardBackward(["Q", "K", "V", "S", "H"], last="X"),
        check_values=check_values,
    )
    seen = unn.Partial(x, known[:, :, None])
    W_Q, W_K, W_V = (g.get_parameter(name) for name in ("W_Q", "W_K", "W_V"))

    def by_hand(rounds: int) -> Tensor:
        z = x
        q = k = v = h = torch.zeros_like(x)
        s = x.new_zeros(batch, length, length)
        for _ in range(rounds):
            q = F.linear(z + positions, W_Q) + s @ k
            k = F.linear(z + positions, W_K) + s.mT @ q
            v = F.linear(z + positions, W_V) + s.mT @ h
            s = torch.softmax((q @ k.mT + h @ v.mT) / math.sqrt(width), 2)
            h = s @ v
            s = torch.softmax((q @ k.mT + h @ v.mT) / math.sqrt(width), 2)
            v = F.linear(z + positions, W_V) + s.mT @ h
            k = F.linear(z + positions, W_K) + s.mT @ q
            q = F.linear(z + positions, W_Q) + s @ k
            z = torch.where(known[:, :, None], x, v @ W_V + q @ W_Q + k @ W_K)
        return z

    return Model(
        "attention", tuple(g.parameters()), lambda rounds: _tensor(net(seen, iterations=rounds)), by_hand
    )


def _declare_attention(positions: Tensor) -> unn.FactorGraph:
    width = positions.shape[1]
    g = unn.FactorGraph("attention", e=width)
    X = g.variable("X", "n d", unn.SquaredNorm())
    Q, K, V, H = (g.variable(name, "n e", unn.SquaredNorm()) for name in ("Q", "K", "V", "H"))
    S = g.variable("S", "n m", unn.Entropy(temperature=math.sqrt(width), over="m"))
    P = g.constant("P", "n d", positions)
    for name, projected in (("W_Q", Q), ("W_K", K), ("W_V", V)):
        # small weights: the energy is unbounded below, and these few rounds must stay finite
        W = g.parameter(name, "e d", init=0.02)
        g.factor(Multilinear(projected["n e"], W["e d"], X["n d"]))
        g.factor(Multilinear(projected["n e"], W["e d"], P["n d"]))
    g.factor(Multilinear(S["n m"], Q["n e"], K["m e"]))
    g.factor(Multilinear(H["n e"], S["n m"], V["m e"]))
    return g


def chain(count: int = 1000, states: int = 4) -> unn.FactorGraph:
    """A chain of variables whose ``count`` pairwise factors share one table."""
    g = unn.FactorGraph("chain", state=states)
    W = g.parameter("W", "state state")
    nodes = [g.variable(f"x{k}", "state", unn.Entropy()) for k in range(count + 1)]
    for left, right in pairwise(nodes):
        g.factor(Multilinear(left["a"], W["a b"], right["b"]))
    return g


# -- cases ---------------------------------------------------------------------------------------------------


def forward(run: Rounds, rounds: int) -> Callable[[], Tensor]:
    """The output alone, without autograd."""

    @torch.no_grad()
    def call() -> Tensor:
        return run(rounds)

    return call


def forward_backward(
    run: Rounds, rounds: int, parameters: Sequence[Tensor]
) -> Callable[[], tuple[Tensor, ...]]:
    """The output, and the gradients of its sum with fixed weights, which costs no loss of its own."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        slope = torch.randn_like(run(rounds))

    def call() -> tuple[Tensor, ...]:
        out = run(rounds)
        return (out.detach(), *torch.autograd.grad(out, parameters, slope))

    return call


def cases_of(model: Model, rounds: Sequence[int], limits: Mapping[int, float]) -> list[Case]:
    """Forward, then forward and backward, for each number of rounds.

    Args:
        model: to run.
        rounds: the numbers of rounds, k.
        limits: by number of rounds, where there is one.
    """
    note = "hand-written loop from zeros, every message computed in every update"
    timed_cases = []
    for kind in ("forward", "forward+backward"):
        for k in rounds:
            ours, other = (
                forward(run, k) if kind == "forward" else forward_backward(run, k, model.parameters)
                for run in (model.ours, model.other)
            )
            timed_cases.append(Case(f"{model.name} {kind} k={k}", ours, other, limits.get(k), note))
    return timed_cases


def cases() -> list[Case]:
    """The three models at the sizes of the papers, with the limits that the engine has to keep."""
    return [
        *cases_of(mlp(), range(1, 6), {1: 1.10}),
        *cases_of(convolution(), range(1, 6), {5: 0.60}),
        *cases_of(attention(), range(1, 4), {3: 0.60}),
    ]


# -- absolute figures ----------------------------------------------------------------------------------------


def engine_figures(pairs: int) -> list[Figure]:
    """What the engine adds to the tensor operations themselves, measured where these are as small as can
    be."""
    model = mlp(inputs=2, hidden=2, labels=2, batch=1)

    def surplus(rounds: int) -> float:
        """Microseconds that the engine takes longer."""
        result = bench.measure(
            Case("tiny", forward(model.ours, rounds), forward(model.other, rounds), None, ""), pairs
        )
        return 1e3 * (result.ours_ms - result.other_ms)

    return [
        Figure("engine: surplus per update, 100 rounds of 2 updates", surplus(100) / 200, "us", 30.0),
        Figure("engine: surplus of a call with 1 round of 2 updates", surplus(1), "us"),
    ]


def building_figures(samples: int) -> list[Figure]:
    """Declaring a large graph, and compiling it for the first time."""

    def declare_and_compile() -> unn.Unrolled:
        return unn.Unrolled(chain(), given="x0", want="x1000")

    declaring = 1e3 * bench.median_seconds(chain, samples, warmup=1)
    both = 1e3 * bench.median_seconds(declare_and_compile, samples, warmup=1)
    return [
        Figure("building: declare 1,000 factors", declaring, "ms", 50.0),
        Figure("building: declare and compile 1,000 factors", both, "ms"),
    ]


# -- running -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Measure and print; the names of all cases."""
    return report(__doc__, cases, {"engine": engine_figures, "building": building_figures}, arguments)


def report(
    about: str | None,
    cases: Callable[[], list[Case]],
    groups: Mapping[str, Callable[[int], list[Figure]]],
    arguments: Sequence[str] | None,
    relative: Callable[[Case], float] = lambda case: 1e-4,
) -> list[str]:
    """Measure and print the cases and groups of figures whose names were asked for; nothing if there are
    none.

    Args:
        about: says what is measured.
        cases: to measure.
        groups: of figures, for a number of samples.
        arguments: of the command line.
        relative: how far both ways of a case may differ, as a share of the largest entry.

    Returns:
        The names of all cases and groups, whether they were asked for or not.
    """
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer pairs")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME",
        help="only cases, and groups of figures, whose names contain this",
    )
    options = parser.parse_args(arguments)
    pairs = 5 if options.quick else 15

    bench.keep_memory()
    with bench.one_thread():
        every = cases()
    names = [*(case.name for case in every), *groups]
    if not any(options.only in name for name in names):
        return names
    print(f"{bench.machine()}; float32, one thread, freed memory kept", end="\n\n")
    chosen = [case for case in every if options.only in case.name]
    results = _measured(chosen, pairs, relative)
    if results:
        print(bench.table(results), end="\n\n")
        print(*dict.fromkeys(f"other: {result.case.note}" for result in results), sep="\n", end="\n\n")
    figures = [figure for name, group in groups.items() if options.only in name for figure in group(pairs)]
    if figures:
        print(bench.figure_table(figures))
    return names


def _measured(chosen: Sequence[Case], pairs: int, relative: Callable[[Case], float]) -> list[Result]:
    from tqdm import tqdm

    results = []
    for case in tqdm(chosen, desc="measuring", unit="case", leave=False, disable=None):
        with bench.one_thread():
            bench.require_equal(case, relative(case))
        results.append(bench.measure(case, pairs))
    return results


def _tensor(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    assert isinstance(output, Tensor)
    return output


if __name__ == "__main__":
    main()
