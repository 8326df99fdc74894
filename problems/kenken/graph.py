"""KenKen: the declaration."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    # the sum or the product of the numbers so far bounds the next one
    begun: list[tuple[int, ...]] = [()]
    for k, (row, column) in enumerate(places):
        others = [j for j in range(k) if places[j][0] == row or places[j][1] == column]
        rest = len(places) - k - 1
        begun = [
            (*numbers, x)
            for numbers in begun
            for x in range(1, size + 1)
            if all(numbers[j] != x for j in others) and _can_end((*numbers, x), cage, rest, size)
        ]
    return [tuple(x - 1 for x in numbers) for numbers in begun if has_result(numbers, cage)]


def _can_end(numbers: Sequence[int], cage: Cage, rest: int, size: int) -> bool:
    """Whether as many further numbers can give the result of a cage, by its sum or product so far."""
    if cage.operation == "+":
        return rest <= cage.result - sum(numbers) <= rest * size
    if cage.operation == "x":
        product = math.prod(numbers)
        return cage.result % product == 0 and cage.result // product <= size**rest
    return True


def has_result(numbers: Sequence[int], cage: Cage) -> bool:
    """Whether numbers from 1 have the result of a cage."""
    small, large = min(numbers), max(numbers)
    results = {
        "+": sum(numbers),
        "x": math.prod(numbers),
        "-": large - small,
        "/": large // small if large % small == 0 else -1,
        "=": sum(numbers),
    }
    return results[cage.operation] == cage.result
