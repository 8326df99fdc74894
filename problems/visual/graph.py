"""The declaration of visual sudoku."""

from __future__ import annotations

import unn
from factors import Cardinality, Depends, Table


def declare(rows: int, columns: int, height: int, width: int) -> unn.FactorGraph:
    """A sudoku, and an image for each cell of its given digit or, in empty cells, of the digit 0.

    Args:
        rows: rows of a block.
        columns: columns of a block.
        height: rows of an image.
        width: columns of an image.
    """
    n = rows * columns
    g = unn.FactorGraph(
        "visual sudoku",
        row=n,
        col=n,
        digit=n,
        sign=n + 1,
        y=height,
        x=width,
        band=n // rows,
        stack=n // columns,
    )
    X = g.variable("X", "row col | digit", unn.Entropy())
    S = g.variable("S", "row col | sign", unn.Entropy())
    image = g.variable("image", "row col | y x", unn.SquaredNorm())
    for name, cells, each in (
        ("rows", "r c v", "r v"),
        ("columns", "r c v", "c v"),
        ("blocks", "(band r) (stack c) v", "band stack v"),
    ):
        g.factor(Cardinality(X[cells], each=each, equals=1, name=name))
    # sign 0 leaves the digit open, sign k is the digit k
    signs = [(0, digit) for digit in range(n)] + [(digit + 1, digit) for digit in range(n)]
    g.factor(Table(S["r c s"], X["r c v"], allowed=signs, name="signs"))
    g.factor(Depends(image["r c y x"], S["r c s"]))
    return g
