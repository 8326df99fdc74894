"""KenKen: the declaration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import unn
from factors import Among, Table

from ..regions import Cage


def declare(size: int, cages: Sequence[Cage]) -> unn.FactorGraph:
    """A latin square in which the numbers of each cage have its result.

    Args:
        size: number of rows.
        cages: cages that have a solution.
    """
    g = unn.FactorGraph("kenken", cell=size * size, number=size)
    X = g.variable("X", "cell | number", unn.Entropy())
    row = g.index("row", "cell", [k // size for k in range(size * size)], into="line")
    column = g.index("column", "cell", [k % size for k in range(size * size)], into="line")
    g.factor(Among(X["cell v"], group=[row], each="v", equals=1, name="rows"))
    g.factor(Among(X["cell v"], group=[column], each="v", equals=1, name="columns"))
    for c, cage in enumerate(cages):
        cells = []
        for k, cell in enumerate(cage.cells):
            g.index(f"cell{c}_{k}", f"cage{c}", [cell], into="cell")
            cells.append(X[f"cell{c}_{k}[c] v{k}"])
        g.factor(Table(*cells, allowed=combinations_of(cage, size), name=f"cage {c + 1}"))
    return g


def combinations_of(cage: Cage, size: int) -> list[tuple[int, ...]]:
    """Numbers of the cells of a cage, from 0, that have its result and differ in rows and columns."""
    places = [divmod(cell, size) for cell in cage.cells]
    alike = [
        (i, j)
        for i in range(len(places))
        for j in range(i)
        if places[i][0] == places[j][0] or places[i][1] == places[j][1]
    ]
    return [
        tuple(x - 1 for x in numbers)
        for numbers in product(range(1, size + 1), repeat=len(places))
        if has_result(numbers, cage) and all(numbers[i] != numbers[j] for i, j in alike)
    ]


def has_result(numbers: Sequence[int], cage: Cage) -> bool:
    """Whether numbers from 1 have the result of a cage."""
    small, large = min(numbers), max(numbers)
    results = {
        "+": sum(numbers),
        "x": math.prod(numbers),
        "-": large - small,
        "/": large // small if large % small == 0 else 0,
        "=": sum(numbers),
    }
    return results[cage.operation] == cage.result
