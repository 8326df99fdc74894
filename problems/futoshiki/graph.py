"""Futoshiki: the declaration."""

from __future__ import annotations

from collections.abc import Sequence

import unn
from factors import Among, Table


def declare(size: int, inequalities: Sequence[tuple[int, int]]) -> unn.FactorGraph:
    """A latin square in which some cells are less than others.

    Args:
        size: number of rows.
        inequalities: pairs of cells, row by row from 0, the lesser one first.
    """
    g = unn.FactorGraph("futoshiki", cell=size * size, number=size)
    X = g.variable("X", "cell | number", unn.Entropy())
    row = g.index("row", "cell", [k // size for k in range(size * size)], into="line")
    column = g.index("column", "cell", [k % size for k in range(size * size)], into="line")
    g.factor(Among(X["cell v"], group=[row], each="v", equals=1, name="rows"))
    g.factor(Among(X["cell v"], group=[column], each="v", equals=1, name="columns"))
    if inequalities:
        g.index("lesser", "pair", [a for a, _ in inequalities], into="cell")
        g.index("greater", "pair", [b for _, b in inequalities], into="cell")
        less = [(v, w) for v in range(size) for w in range(v + 1, size)] or [(0, 0)]
        g.factor(Table(X["lesser[p] v"], X["greater[p] w"], allowed=less, name="inequalities"))
    return g
