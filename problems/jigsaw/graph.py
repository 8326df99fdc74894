"""Jigsaw sudoku: the declaration."""

from __future__ import annotations

from collections.abc import Sequence

import unn
from factors import Among


def declare(regions: Sequence[int]) -> unn.FactorGraph:
    """One digit for each cell; each digit once in every row, column and region.

    Args:
        regions: number of the region of each cell, row by row.
    """
    size = round(len(regions) ** 0.5)
    g = unn.FactorGraph("jigsaw", cell=len(regions), digit=size)
    X = g.variable("X", "cell | digit", unn.Entropy())
    cells = range(len(regions))
    row = g.index("row", "cell", [k // size for k in cells], into="line")
    column = g.index("column", "cell", [k % size for k in cells], into="line")
    region = g.index("region", "cell", list(regions), into="area")
    g.factor(Among(X["cell v"], group=[row], each="v", equals=1, name="rows"))
    g.factor(Among(X["cell v"], group=[column], each="v", equals=1, name="columns"))
    g.factor(Among(X["cell v"], group=[region], each="v", equals=1, name="regions"))
    return g
