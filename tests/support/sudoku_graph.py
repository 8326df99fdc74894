"""Sudoku as a graph, for tests of engines."""

import unn
from factors import Cardinality


def declare_sudoku(rows, columns):
    """Cells with one digit each; every digit once in each row, column and block."""
    n = rows * columns
    g = unn.FactorGraph("sudoku", row=n, col=n, digit=n, band=n // rows, stack=n // columns)
    X = g.variable("X", "row col | digit", unn.Entropy())
    g.factor(Cardinality(X["r c v"], each="r v", equals=1, name="rows"))
    g.factor(Cardinality(X["r c v"], each="c v", equals=1, name="columns"))
    g.factor(Cardinality(X["(band r) (stack c) v"], each="band stack v", equals=1, name="blocks"))
    return g
