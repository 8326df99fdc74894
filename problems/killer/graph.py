"""Killer sudoku: the declaration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import unn
from factors import Among

from ..regions import Cage


def declare(rows: int, columns: int, cages: Sequence[Cage]) -> unn.FactorGraph:
    """A sudoku in which the digits of each cage differ and have its sum.

    A variable for the cages chooses the set of digits of each. In a cage with k cells a digit is either in
    exactly one of them, or not in the chosen set.

    Args:
        rows, columns: size of a block.
        cages: cages with their sums; at least one.
    """
    n = rows * columns
    cells = range(n * n)
    sets = [sets_of(cage, n) for cage in cages]
    widest = max(1, *map(len, sets))
    g = unn.FactorGraph("killer", cell=n * n, digit=n, cage=len(cages), choice=widest)
    X = g.variable("X", "cell | digit", unn.Entropy())
    for name, line in {
        "rows": [k // n for k in cells],
        "columns": [k % n for k in cells],
        "blocks": [k // n // rows * rows + k % n // columns for k in cells],
    }.items():
        index = g.index(f"{name}_of", "cell", line, into="line")
        g.factor(Among(X["cell v"], group=[index], each="v", equals=1, name=name))
    S = g.variable("S", "cage | choice", unn.Entropy())
    inside = [(k, d, c * n + d) for c, cage in enumerate(cages) for k in cage.cells for d in range(n)]
    g.index("cell_of", "inside", [k for k, _, _ in inside], into="cell")
    g.index("digit_of", "inside", [d for _, d, _ in inside], into="digit")
    ones = g.index("pair_of", "inside", [group for _, _, group in inside], into="pair")
    outside = [
        (c, s, c * n + d)
        for c in range(len(cages))
        for s, x in enumerate(sets[c])
        for d in range(n)
        if d not in x
    ]
    g.index("cage_of", "outside", [c for c, _, _ in outside], into="cage")
    g.index("choice_of", "outside", [s for _, s, _ in outside], into="choice")
    others = g.index("pair_without", "outside", [group for _, _, group in outside], into="pair")
    g.factor(
        Among(
            X["cell_of[i] digit_of[i]"],
            S["cage_of[o] choice_of[o]"],
            group=[ones, others],
            equals=1,
            name="cages",
        )
    )
    absent = [(c, s) for c in range(len(cages)) for s in range(len(sets[c]), widest)]
    if absent:
        g.index("cage_without", "absent", [c for c, _ in absent], into="cage")
        g.index("absent_choice", "absent", [s for _, s in absent], into="choice")
        all_absent = g.index("none", "absent", [0] * len(absent), into="all")
        g.factor(Among(S["cage_without[a] absent_choice[a]"], group=[all_absent], equals=0, name="choices"))
    return g


def sets_of(cage: Cage, n: int) -> list[tuple[int, ...]]:
    """Sets of different digits, from 0, with the sum of a cage."""
    return [
        tuple(digit - 1 for digit in digits)
        for digits in combinations(range(1, n + 1), len(cage.cells))
        if sum(digits) == cage.result
    ]
