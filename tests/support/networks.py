"""Graphs to build denoisers over, and denoisers in which no weight is small."""

import pytest
import torch

import unn
from factors import Depends
from support.problem_graphs import circuit, factorisation, sorting, sudoku
from unn.networks import Denoiser

STRUCTURES = ["graph", "dense", "directed", "random"]
EMBEDDINGS = ["exchangeable", "array", "independent"]

GRAPHS = {
    "factorisation": (lambda: factorisation("binary", True), {"i": 3, "j": 4, "k": 2}),
    "factorisation without products": (
        lambda: factorisation("binary", False),
        {"i": 2, "j": 4, "k": 3},
    ),
    "factorisation of unknown rank": (
        lambda: factorisation("hierarchical", True, 3),
        {"i": 3, "j": 2},
    ),
    "inversion": (lambda: factorisation("inversion", True), {"i": 3, "j": 3, "k": 3}),
    "sorting": (lambda: sorting(4, True, "chain"), {}),
    "sorting without products": (lambda: sorting(4, False, "none"), {}),
    "sorting of any length": (lambda: sorting(None, True, "clique"), {"i": 4, "j": 4}),
    "sudoku": (lambda: sudoku(2, 3), {}),
    "circuit": (lambda: circuit(3, True), {}),
}

EVERY_GRAPH = pytest.mark.parametrize("name", GRAPHS)


def mixed(n=3):
    """One variable of every kind, with and without axes: real, real vectors, binary, categories, one
    category, one number."""
    g = unn.FactorGraph("mixed", **{} if n is None else {"n": n}, d=2, c=4, e=3)
    A, V = g.variable("A", "n", unn.SquaredNorm()), g.variable("V", "n | d e", unn.SquaredNorm())
    B, K = g.variable("B", "n m", unn.BinaryEntropy()), g.variable("K", "n | c", unn.Entropy())
    Z, T = g.variable("Z", "c", unn.Entropy()), g.variable("T", "", unn.SquaredNorm())
    g.factor(Depends(A["i"], V["i p q"], B["i j"], K["i v"], Z["w"], T[""]))
    return g


SIZES = {"m": 2}


def values_of_mixed(batch, n=3, m=2, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)

    def category(*shape):
        return torch.nn.functional.one_hot(torch.randint(4, (batch, *shape), generator=generator), 4).to(
            dtype
        )

    return {
        "A": torch.randn(batch, n, generator=generator, dtype=dtype),
        "V": torch.randn(batch, n, 2, 3, generator=generator, dtype=dtype),
        "B": torch.randint(2, (batch, n, m), generator=generator).to(dtype),
        "K": category(n),
        "Z": category(),
        "T": torch.randn(batch, generator=generator, dtype=dtype),
    }


def randomise(module, seed=0):
    """Weights of a network in which nothing is small, so that a leak or a broken symmetry is seen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            scale = p.shape[-1] ** -0.5 if p.ndim > 1 else 0.5
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return module


def network(graph, seed=0, **options):
    return randomise(
        Denoiser(graph, **{"width": 16, "depth": 2, "heads": 2, **options}).double(), seed
    ).eval()


def named(name, **options):
    """A network for one of the graphs above, its frame, and an input."""
    make, sizes = GRAPHS[name]
    net = network(make(), sizes=sizes, **options)
    frame = net.frame(**sizes)
    return net, frame, inputs(frame)


def output(name, **options):
    net, frame, given = named(name, **options)
    return net(*given, frame)


def inputs(frame, batch=2, seed=0):
    """Rows, levels, and what is observed."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(batch, frame.numbers, generator=generator, dtype=torch.float64)
    level = torch.randn(batch, generator=generator, dtype=torch.float64)
    return rows, level, torch.rand(batch, frame.nodes, generator=generator) < 0.4


def moved_numbers(frame, moved):
    """Where each number goes when node k becomes ``moved[k]``."""
    channels = torch.bincount(frame.node_of_number, minlength=frame.nodes)
    start = channels.cumsum(0) - channels
    within = torch.arange(frame.numbers) - start[frame.node_of_number]
    return start[moved[frame.node_of_number]] + within


def change_under(net, frame, given, moved):
    """How far the output of moved inputs is from the moved output, at most."""
    rows, level, observed = given
    numbers = moved_numbers(frame, moved)
    there, seen = torch.empty_like(rows), torch.empty_like(observed)
    there[:, numbers], seen[:, moved] = rows, observed
    with torch.no_grad():
        return float(
            (net(there, level, seen, frame)[:, numbers] - net(rows, level, observed, frame)).abs().max()
        )


def without_fixed_points(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(size, generator=generator)
        if not (order == torch.arange(size)).any():
            return order
