"""Queens on a chessboard: the declaration."""

from __future__ import annotations

import unn
from factors import Among


def declare(size: int) -> unn.FactorGraph:
    """Whether each square has a queen; one in each row and column, at most one on each diagonal."""
    g = unn.FactorGraph("queens", square=size * size)
    X = g.variable("X", "square", unn.BinaryEntropy())
    squares = [divmod(k, size) for k in range(size * size)]
    row = g.index("row", "square", [r for r, _ in squares], into="line")
    column = g.index("column", "square", [c for _, c in squares], into="line")
    falling = g.index("falling", "square", [r - c + size - 1 for r, c in squares], into="diagonal")
    rising = g.index("rising", "square", [r + c for r, c in squares], into="diagonal")
    g.factor(Among(X["s"], group=[row], equals=1, name="rows"))
    g.factor(Among(X["s"], group=[column], equals=1, name="columns"))
    g.factor(Among(X["s"], group=[falling], at_most=1, name="falling diagonals"))
    g.factor(Among(X["s"], group=[rising], at_most=1, name="rising diagonals"))
    return g
