"""How fast chains, colour classes and gradients at the fixed point are, against loops written by hand.

Run as ``python -m tests.benchmarks.equilibrium [--quick] [--only NAME]``. The checkerboard loop draws the
same numbers as our chains, so that both end at the same spins.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

import unn
from factors import Multilinear, bounded_attention
from tests.benchmarks import measure as bench
from tests.benchmarks.core import report
from tests.benchmarks.measure import Case, Figure
from unn.gibbs.chains import Chains

SIDE, COUPLING, CHAINS, SWEEPS = 64, 0.4, 64, 5


def grid(side: int) -> unn.FactorGraph:
    """An Ising grid."""
    g = unn.FactorGraph("grid", row=side, column=side)
    s = g.variable("S", "row column", unn.SignedEntropy())
    j = g.constant("J", "", torch.tensor(COUPLING))
    g.factor(Multilinear(j[""], s["r c"], s["r+1 c"]))
    g.factor(Multilinear(j[""], s["r c"], s["r c+1"]))
    return g


def run_chains(chains: Chains) -> Tensor:
    """Sweeps from all spins up, with the noise of one seed."""
    torch.manual_seed(0)
    chains.assign("S", torch.ones(CHAINS, SIDE, SIDE))
    for _ in range(SWEEPS):
        chains.sweep()
    return chains.state.values["S"]


def checkerboard() -> Tensor:
    """The same by hand."""
    torch.manual_seed(0)
    x = torch.ones(CHAINS, SIDE, SIDE)
    place = torch.arange(SIDE)
    even = (place[:, None] + place) % 2 == 0
    for _ in range(SWEEPS):
        for mask in (even, ~even):
            t = torch.zeros_like(x)
            t[:, 1:] += x[:, :-1]
            t[:, :-1] += x[:, 1:]
            t[:, :, 1:] += x[:, :, :-1]
            t[:, :, :-1] += x[:, :, 1:]
            t *= COUPLING
            drawn = (torch.rand(x.shape) < (2 * t).sigmoid()).to(x.dtype).mul_(2).sub_(1)
            x = torch.where(mask, drawn, x)
    return x


def cells(side: int) -> list[unn.Block]:
    """Every node of a grid as a block of its own, those of even places first."""
    place = torch.arange(side)
    parity = (place[:, None] + place) % 2
    blocks = []
    for k in (0, 1):
        for row, column in (parity == k).nonzero().tolist():
            nodes = torch.zeros(side, side, dtype=torch.bool)
            nodes[row, column] = True
            blocks.append(unn.Block("S", nodes))
    return blocks


def descend(g: unn.FactorGraph, order: list[unn.Block] | unn.Coloured, start: Tensor) -> Tensor:
    """A round of updates of all nodes of a grid."""
    return unn.infer(g, {}, initial={"S": start}, order=order, iterations=1, trace=False)["S"]


def attention_figures(samples: int) -> list[Figure]:
    """Bounded attention of the size of the undirected-network paper, 64 sequences run to a tolerance, against
    three of the paper's passes."""
    length, batch = 25, 64
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        g = unn.FactorGraph("attention", d=256)
        X, P = g.variable("X", "n d", unn.SquaredNorm()), g.constant("P", "n d", torch.randn(length, 256))
        attention = bounded_attention(g, [X, P])
        x = torch.randn(batch, length, 256)
        seen = unn.Partial(x, (torch.rand(batch, length).argsort(1) >= 3)[:, :, None])
    order = (*attention.order, "X")
    settled = unn.Unrolled(g, "X", "X", order, iterations=1000, until=1e-4)
    passes = unn.Unrolled(g, "X", "X", unn.ForwardBackward(attention.order, last="X"), iterations=3)

    def run(network: unn.Unrolled) -> object:
        with torch.no_grad():
            return network(seen)

    case = Case("bounded attention", lambda: run(settled), lambda: run(passes), None, "three passes")
    with torch.no_grad():
        rounds = unn.infer(g, {"X": seen}, order=order, until=1e-4, trace=False).rounds
    return [
        Figure("equilibrium: bounded attention to 1e-4 / three passes", bench.measure(case).ratio, "x", 3.0),
        Figure("equilibrium: rounds of bounded attention to 1e-4", rounds, "rounds"),
    ]


def cases() -> list[Case]:
    """Gibbs sampling on a grid, and its nodes in colours against one after another."""
    g = grid(SIDE)
    chains = Chains(g, {}, 1, CHAINS)
    start, blocks = 0.1 * torch.ones(1, SIDE, SIDE), cells(SIDE)
    coloured = unn.Coloured(blocks)
    return [
        Case(
            f"equilibrium: {SWEEPS} sweeps of {CHAINS} chains, Ising {SIDE} x {SIDE}",
            lambda: run_chains(chains),
            checkerboard,
            2.0,
            "checkerboard loop",
        ),
        Case(
            f"equilibrium: {SIDE} x {SIDE} nodes in colours",
            lambda: descend(g, coloured, start),
            lambda: descend(g, blocks, start),
            0.1,
            "one after another",
        ),
    ]


def layers(size: int = 256) -> unn.Unrolled:
    """Two layers that interact."""
    torch.manual_seed(0)
    g = unn.FactorGraph("layers", x=size, a=size, b=size)
    x = g.variable("X", "x", unn.SignedEntropy())
    a, b = g.variable("A", "a", unn.SignedEntropy()), g.variable("B", "b", unn.SignedEntropy())
    g.factor(Multilinear(x["x"], g.parameter("W", "x a")["x a"], a["a"]))
    g.factor(Multilinear(a["a"], g.parameter("V", "a b")["a b"], b["b"]))
    return unn.Unrolled(g, "X", "B", ["A", "B"], gradient=unn.Implicit(1e-30))


def memory_figures(samples: int) -> list[Figure]:
    """Memory of a training step at the fixed point, against one round, and of unrolling."""
    network, x = layers(), torch.rand(128, 256)
    peaks = {}
    with warnings.catch_warnings():
        # the tolerance is never met, so that all rounds are run
        warnings.simplefilter("ignore", unn.ConvergenceWarning)
        for rounds in (1, 50):
            peaks[rounds] = bench.peak_memory(
                lambda rounds=rounds: network(x, iterations=rounds).square().sum().backward()
            )
    unrolled = unn.Unrolled(network.graph, "X", "B", ["A", "B"], 50)
    unrolled_peak = bench.peak_memory(lambda: unrolled(x).square().sum().backward())
    return [
        Figure("equilibrium: memory of Implicit, 50 rounds / 1 round", peaks[50] / peaks[1], "x", 1.2),
        Figure("equilibrium: memory of 50 rounds, Implicit / unrolled", peaks[50] / unrolled_peak, "x"),
    ]


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Measure and print; the names of all cases."""
    return report(
        __doc__,
        cases,
        {"equilibrium: memory": memory_figures, "equilibrium: bounded attention": attention_figures},
        arguments,
    )


if __name__ == "__main__":
    main()
