"""The graphs of the package's problems and values that satisfy them, for tests of what problems are built on.

These tests import no problem, so the graphs are declared once more; ``tests/problems/test_declared_again.py``
compares them with the problems' own.
"""

import itertools
from functools import cache

import torch

import unn
from factors import Cardinality, Clique, Conv2d, Depends, Multilinear, SumOfProducts

# -- sudoku --------------------------------------------------------------------------------------------------


def sudoku(rows, columns):
    """Cells with one digit each; every digit once in each row, column and block of rows x columns cells."""
    n = rows * columns
    g = unn.FactorGraph("sudoku", row=n, col=n, digit=n, band=n // rows, stack=n // columns)
    X = g.variable("X", "row col | digit", unn.Entropy())
    g.factor(Cardinality(X["r c v"], each="r v", equals=1, name="rows"))
    g.factor(Cardinality(X["r c v"], each="c v", equals=1, name="columns"))
    g.factor(Cardinality(X["(band r) (stack c) v"], each="band stack v", equals=1, name="blocks"))
    return g


@cache
def all_grids(rows=2, columns=2):
    """All filled grids, digits from 0, shape ``(grids, n, n)``, in order; for n of at most 4."""
    n = rows * columns
    grids = [[]]
    for row in range(n):
        top = row - row % rows
        grids = [
            [*grid, line]
            for grid in grids
            for line in itertools.permutations(range(n))
            if all(above[c] != line[c] for above in grid for c in range(n))
            and all(
                above[c] != line[d]
                for above in grid[top:]
                for c, d in itertools.product(range(n), repeat=2)
                if c // columns == d // columns
            )
        ]
    return torch.tensor(grids)


def draw_grids(count, rows, columns, generator):
    """Grids drawn uniformly from all; for n of at most 4."""
    every = all_grids(rows, columns)
    return every[torch.randint(len(every), (count,), generator=generator)]


def one_hot_grids(grids, n):
    """Digits from 0, shape ``(count, n, n)``, as values of X, shape ``(count, n, n, n)``."""
    return torch.nn.functional.one_hot(grids, n).float()


# -- sorting -------------------------------------------------------------------------------------------------


def sorting(n, intermediate=True, order="chain"):
    """A permutation P that sorts the list u to s; n is None for lists of any length."""
    g = unn.FactorGraph("sorting", **({} if n is None else {"i": n, "j": n}))
    u, s = g.variable("u", "j", unn.SquaredNorm()), g.variable("s", "i", unn.SquaredNorm())
    P = g.variable("P", "i j", unn.BinaryEntropy())
    if intermediate:
        C = g.variable("C", "i j", unn.SquaredNorm())
        g.factor(Depends(C["i j"], P["i j"], u["j"]))
        g.factor(Depends(s["i"], C["i j"], ordered="i"))
    else:
        g.factor(Depends(s["i"], P["i j"], u["j"], ordered="i"))
    g.factor(Clique(P["i j"], each="i"))
    g.factor(Clique(P["i j"], each="j"))
    if order == "chain":
        g.factor(Clique(s["i+1"], s["i"], each="i"))
    elif order == "clique":
        g.factor(Clique(s["i"], ordered="i"))
    return g


# -- factorisation -------------------------------------------------------------------------------------------


def factorisation(kind="binary", intermediate=True, rank=None):
    """E = A R of dynamic sizes; "binary", "inversion", or "hierarchical", in which the rank is a variable."""
    sizes = {"k": rank, "option": rank} if kind == "hierarchical" and rank is not None else {}
    g = unn.FactorGraph("inversion" if kind == "inversion" else f"{kind}_factorisation", **sizes)
    A = g.variable("A", "i k", unn.SquaredNorm())
    R = g.variable("R", "k j", unn.SquaredNorm() if kind == "inversion" else unn.BinaryEntropy())
    C = g.variable("C", "i j k", unn.SquaredNorm()) if intermediate else None
    E = g.variable("E", "i j", unn.SquaredNorm())
    if kind == "hierarchical":
        K = g.variable("K", "option", unn.Entropy())
        if intermediate:
            D = g.variable("D", "k", unn.BinaryEntropy())
            g.factor(Depends(D["k"], K["c"], ordered="k"))
            g.factor(Depends(A["i k"], D["k"]))
            g.factor(Depends(R["k j"], D["k"]))
        else:
            g.factor(Depends(A["i k"], K["c"], ordered="k"))
            g.factor(Depends(R["k j"], K["c"]))
    if intermediate:
        g.factor(Depends(C["i j k"], A["i k"], R["k j"]))
        g.factor(Depends(E["i j"], C["i j k"]))
    else:
        g.factor(Depends(E["i j"], A["i k"], R["k j"]))
    g.factor(SumOfProducts(E["i j"], A["i k"], R["k j"], within=0.1))
    return g


def draw_products(count, rows, columns, rank, generator):
    """A with entries between 0 and 1, binary R with a share of 0.3 of ones, and E = A R."""
    A = torch.rand(count, rows, rank, generator=generator)
    R = (torch.rand(count, rank, columns, generator=generator) < 0.3).float()
    return {"A": A, "R": R, "E": (A[:, :, None, :] * R.mT[:, None]).sum(3)}


# -- circuits ------------------------------------------------------------------------------------------------


def circuit(depth, intermediate=True):
    """Layers of gates with two inputs each; else the output depends on all inputs."""
    g = unn.FactorGraph("boolean", two=2, **{f"n{layer}": 2 ** (depth - layer) for layer in range(depth + 1)})
    numbers = range(depth + 1) if intermediate else (0, depth)
    layers = [g.variable(f"L{k}", f"n{k}", unn.BinaryEntropy()) for k in numbers]
    for inputs, outputs in itertools.pairwise(layers):
        if intermediate:
            g.factor(Depends(outputs["i"], inputs["(i two)"], ordered="i two"))
        else:
            g.factor(Depends(outputs["o"], inputs["i"], ordered="o i"))
    return g


# -- digits --------------------------------------------------------------------------------------------------


def convolutional(rows=28, columns=28, channels=32):
    """image, two convolutions to H1 and H2, and a dense factor to label."""
    small = min(rows, columns) < 20
    kernels, stride = ((3, 3), 1) if small else ((6, 4), 2)
    sizes = {"channel1": channels, "channel2": 2 * channels, "kernel1": kernels[0], "kernel2": kernels[1]}
    g = unn.FactorGraph("digits", channel=1, row=rows, column=columns, label=10, **sizes)
    image = g.variable("image", "channel row column", unn.SignedEntropy())
    H1 = g.variable("H1", "channel1 row1 column1", unn.SignedEntropy())
    H2 = g.variable("H2", "channel2 row2 column2", unn.SignedEntropy())
    label = g.variable("label", "label", unn.Entropy())
    W1 = g.parameter("W1", "channel1 channel kernel1 kernel1")
    W2 = g.parameter("W2", "channel2 channel1 kernel2 kernel2")
    V = g.parameter("V", "label channel2 row2 column2")
    b1, b2, b = g.parameter("b1", "channel1"), g.parameter("b2", "channel2"), g.parameter("b", "label")
    g.factor(Conv2d(H1, W1, image, stride=stride))
    g.factor(Conv2d(H2, W2, H1, stride=stride))
    g.factor(Multilinear(label["y"], V["y c i j"], H2["c i j"]))
    g.factor(Multilinear(b1["c"], H1["c i j"]))
    g.factor(Multilinear(b2["c"], H2["c i j"]))
    g.factor(Multilinear(b["y"], label["y"]))
    return g
