"""Latin squares: the declaration and random squares."""

from __future__ import annotations

import torch

import unn
from factors import AllDifferent

from ..instances import solved


def declare(size: int) -> unn.FactorGraph:
    """One number for each cell; those of each row and of each column differ."""
    g = unn.FactorGraph("latin", row=size, column=size, number=size)
    X = g.variable("X", "row column | number", unn.Entropy())
    g.factor(AllDifferent(X["r c v"], each="r", name="rows"))
    g.factor(AllDifferent(X["r c v"], each="c", name="columns"))
    return g


def draw_square(size: int, generator: torch.Generator) -> list[int]:
    """A square by random search, numbers from 1, row by row; not quite uniform among all squares."""
    seed = int(torch.randint(2**31, (), generator=generator))
    values = solved(declare(size), {}, 1, seed)
    assert values is not None, "every size has a latin square"
    square: list[int] = (values["X"][0].argmax(-1) + 1).flatten().tolist()
    return square
