"""Orders of elimination for sparse symmetric matrices, in rounds of entries that do not meet.

Eliminating an entry couples its neighbours with one another, as in sums over tables. Entries of a round are
not neighbours, so that one batched operation eliminates all those with equally many neighbours: a chain takes
about as many rounds as its length has binary digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InferenceError

_SLACK = 1.25
"""Entries of a round have at most this many times the fewest neighbours, or one more."""

_DENSE = 0.6
"""Share of neighbours from which what remains is factorised as a dense matrix."""

_SMALL = 48
"""Number of remaining entries that are factorised as a dense matrix."""


@dataclass(frozen=True, eq=False)
class Round:
    """Entries that are eliminated together; positions are those of the stored values of the matrix.

    Attributes:
        pivots: the entries, which are the positions of their diagonal values, shape ``(m,)``.
        neighbours: entries that each is coupled with, shape ``(m, d)``.
        column: positions of these couplings, shape ``(m, d)``.
        targets: positions of the couplings between the neighbours, shape ``(m, pairs)``.
        first, second: the two neighbours of each pair, shape ``(pairs,)``.
    """

    pivots: Tensor
    neighbours: Tensor
    column: Tensor
    targets: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True, eq=False)
class Elimination:
    """An order for one pattern of a symmetric matrix; each pair of entries is stored once.

    Attributes:
        entries: number of entries.
        given: number of stored pairs that are not fill: the diagonal first, then the others as given.
        stored: number of all stored pairs.
        rounds: what is eliminated, in order.
        rest: entries that remain, shape ``(r,)``.
        rest_positions: positions of the pairs of remaining entries; ``stored`` where there is none, shape
            ``(r, r)``.
        operations: number of multiplications.
    """

    entries: int
    given: int
    stored: int
    rounds: tuple[Round, ...]
    rest: Tensor
    rest_positions: Tensor
    operations: float


def plan_elimination(pairs: Sequence[tuple[int, int]], entries: int, most: float, where: str) -> Elimination:
    """An order by the fewest neighbours.

    Args:
        pairs: coupled entries, each pair once and the smaller one first, without the diagonal.
        entries: number of entries.
        most: largest number of multiplications.
        where: begins messages.

    Raises:
        InferenceError: for a pattern that needs more multiplications.
    """
    neighbours: list[set[int]] = [set() for _ in range(entries)]
    position = {(k, k): k for k in range(entries)}
    for a, b in pairs:
        position[a, b] = len(position)
        neighbours[a].add(b)
        neighbours[b].add(a)
    given, operations = len(position), 0.0
    remaining = set(range(entries))
    rounds = []
    while len(remaining) > _SMALL:
        degrees = sorted((len(neighbours[k]), k) for k in remaining)
        fewest = degrees[0][0]
        if fewest >= _DENSE * (len(remaining) - 1):
            break
        chosen = _apart(degrees, neighbours, max(fewest + 1, int(_SLACK * fewest)))
        for size in sorted({len(neighbours[k]) for k in chosen}):
            group = [k for k in chosen if len(neighbours[k]) == size]
            rounds.append(_eliminate(group, size, neighbours, position))
            operations += len(group) * (1.0 + size) ** 2 / 2
        remaining.difference_update(chosen)
        if operations > most:
            break
    operations += len(remaining) ** 3 / 3
    if operations > most:
        raise InferenceError(
            f"{where}: elimination needs at least {operations:.1e} multiplications, and {most:.1e} are "
            f"allowed (option operations); {len(remaining)} entries are coupled too densely."
        )
    stored = len(position)
    rest = sorted(remaining)
    table = [[position.get((min(a, b), max(a, b)), stored) for b in rest] for a in rest]
    return Elimination(
        entries,
        given,
        stored,
        tuple(rounds),
        torch.tensor(rest, dtype=torch.long),
        torch.tensor(table, dtype=torch.long).reshape(len(rest), len(rest)),
        operations,
    )


def _apart(degrees: Sequence[tuple[int, int]], neighbours: Sequence[set[int]], limit: int) -> list[int]:
    """Entries with at most ``limit`` neighbours, none of which is a neighbour of another; fewest first.

    Args:
        degrees: number of neighbours and number of each entry, sorted.
        neighbours: neighbours of each entry.
        limit: most neighbours.
    """
    blocked: set[int] = set()
    chosen = []
    for degree, k in degrees:
        if degree > limit:
            break
        if k not in blocked:
            chosen.append(k)
            blocked |= neighbours[k]
    return chosen


def _eliminate(
    group: Sequence[int], size: int, neighbours: Sequence[set[int]], position: dict[tuple[int, int], int]
) -> Round:
    """Remove entries with ``size`` neighbours each, which become neighbours of one another."""
    around, columns, targets = [], [], []
    for k in group:
        near = sorted(neighbours[k])
        around.append(near)
        columns.append([position[min(a, k), max(a, k)] for a in near])
        own = []
        for i, a in enumerate(near):
            neighbours[a].discard(k)
            own.append(a)
            for b in near[i + 1 :]:
                if b not in neighbours[a]:
                    neighbours[a].add(b)
                    neighbours[b].add(a)
                    position[a, b] = len(position)
                own.append(position[a, b])
        targets.append(own)
        neighbours[k].clear()
    first, second = torch.triu_indices(size, size)
    shape = (len(group), size)
    return Round(
        torch.tensor(group),
        torch.tensor(around, dtype=torch.long).reshape(shape),
        torch.tensor(columns, dtype=torch.long).reshape(shape),
        torch.tensor(targets, dtype=torch.long).reshape(len(group), len(first)),
        first,
        second,
    )
