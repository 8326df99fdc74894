"""Draw sudoku puzzles that are difficult for search: a Markov chain over minimal puzzles, compiled by numba.

    python -m tests.benchmarks.difficult OUT FIRST_SEED LAST_SEED [STEPS]

A step removes one to three cells of a puzzle, adds random cells until there is one solution, and removes
those that are not needed. The chain prefers puzzles for which depth-first search with naked and hidden
singles needs many guesses to prove the solution unique; the rating is the mean logarithm of one plus this
number, over random orders. Each line has a puzzle, its solution, the rating and the seed of its chain.
Needs ``pip install unn[rivals]``.
"""

from __future__ import annotations

import sys

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.int64]

_FULL = 511
"""All nine digits, a bit each."""

_DEEPEST = 82
"""Number of levels of the search."""

_HOTTEST, _COLDEST = 0.3, 0.05
"""Temperatures of the chain, in units of the rating; it falls during the first half of the steps."""

_LEAST = 2.5
"""Smallest rating of the puzzles that are written."""


def _units() -> Array:
    cells = np.arange(81).reshape(9, 9)
    blocks = cells.reshape(3, 3, 3, 3).swapaxes(1, 2).reshape(9, 9)
    return np.concatenate([cells, cells.T, blocks]).astype(np.int64)


def _peers() -> Array:
    units = _units()
    return np.array([sorted({int(o) for u in units if k in u for o in u} - {k}) for k in range(81)])


UNITS = _units()
PEERS = _peers()


@njit(cache=True)
def _propagate(state: Array, done: Array) -> bool:
    """Naked and hidden singles until nothing changes, in place; False at a contradiction."""
    changed = True
    while changed:
        changed = False
        for cell in range(81):
            mask = state[cell]
            if done[cell] or mask & (mask - 1):
                continue
            done[cell] = 1
            for peer in PEERS[cell]:
                if state[peer] & mask:
                    state[peer] &= ~mask
                    if state[peer] == 0:
                        return False
                    changed = True
        for unit in UNITS:
            once, twice = 0, 0
            for cell in unit:
                twice |= once & state[cell]
                once |= state[cell]
            if once != _FULL:
                return False
            once &= ~twice
            if once == 0:
                continue
            for cell in unit:
                mask = state[cell] & once
                if mask and mask != state[cell]:
                    if mask & (mask - 1):
                        return False
                    state[cell] = mask
                    changed = True
    return True


@njit(cache=True)
def _bits(mask: int) -> int:
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@njit(cache=True)
def _search(puzzle: Array, limit: int, most: int, solutions: Array) -> tuple[int, int]:
    """Depth-first search in random order; number of solutions, at most ``limit``, and of guesses.

    Args:
        puzzle: digits, 0 for empty cells, shape ``(81,)``.
        limit: number of solutions after which the search ends.
        most: number of guesses after which the search ends.
        solutions: output, shape ``(limit, 81)``.
    """
    states = np.empty((_DEEPEST, 81), np.int64)
    dones = np.zeros((_DEEPEST, 81), np.int64)
    branches = np.zeros(_DEEPEST, np.int64)
    rest = np.zeros(_DEEPEST, np.int64)
    for cell in range(81):
        states[0, cell] = _FULL if puzzle[cell] == 0 else 1 << (puzzle[cell] - 1)
    depth, count, guesses = 0, 0, 0
    fine = _propagate(states[0], dones[0])
    while True:
        if fine:
            best, branch, ties = 10, -1, 0
            for cell in range(81):
                if dones[depth, cell]:
                    continue
                number = _bits(states[depth, cell])
                if number < best:
                    best, branch, ties = number, cell, 1
                elif number == best:
                    ties += 1
                    if np.random.randint(ties) == 0:
                        branch = cell
            if branch < 0:
                for cell in range(81):
                    solutions[count, cell] = _bits(states[depth, cell] - 1) + 1
                count += 1
                if count >= limit:
                    return count, guesses
                depth -= 1
            else:
                branches[depth], rest[depth] = branch, states[depth, branch]
        else:
            depth -= 1
        while depth >= 0 and rest[depth] == 0:
            depth -= 1
        if depth < 0 or guesses >= most:
            return count, guesses
        options = rest[depth]
        skipped = np.random.randint(_bits(options))
        for _ in range(skipped):
            options &= options - 1
        digit = options & -options
        rest[depth] &= ~digit
        guesses += 1
        states[depth + 1] = states[depth]
        dones[depth + 1] = dones[depth]
        rest[depth + 1] = 0
        states[depth + 1, branches[depth]] = digit
        depth += 1
        fine = _propagate(states[depth], dones[depth])


@njit(cache=True)
def _rating(puzzle: Array, searches: int) -> float:
    """Mean logarithm of one plus the number of guesses that prove a solution unique."""
    solutions = np.empty((2, 81), np.int64)
    total = 0.0
    for _ in range(searches):
        _, guesses = _search(puzzle, 2, 100000, solutions)
        total += np.log1p(guesses)
    return total / searches


@njit(cache=True)
def _completed(puzzle: Array) -> None:
    """Add random cells until there is one solution, then remove cells that are not needed; in place."""
    solutions = np.empty((2, 81), np.int64)
    while _search(puzzle, 2, 1 << 60, solutions)[0] > 1:
        different = np.nonzero(solutions[0] != solutions[1])[0]
        cell = different[np.random.randint(len(different))]
        puzzle[cell] = solutions[0, cell]
    for cell in np.random.permutation(np.nonzero(puzzle)[0]):
        digit = puzzle[cell]
        puzzle[cell] = 0
        if _search(puzzle, 2, 1 << 60, solutions)[0] > 1:
            puzzle[cell] = digit


@njit(cache=True)
def _chain(seed: int, steps: int, searches: int, puzzles: Array, ratings: NDArray[np.float64]) -> int:
    """Number of puzzles that a chain accepts; they are written to ``puzzles`` and ``ratings``."""
    np.random.seed(seed)
    puzzle = np.zeros(81, np.int64)
    _completed(puzzle)
    rating = _rating(puzzle, searches)
    accepted = 0
    for step in range(steps):
        temperature = max(_COLDEST, _HOTTEST * (_COLDEST / _HOTTEST) ** (2 * step / steps))
        proposal = puzzle.copy()
        cells = np.random.permutation(np.nonzero(proposal)[0])
        proposal[cells[: 1 + np.random.randint(3)]] = 0
        _completed(proposal)
        if (proposal == puzzle).all():
            continue
        proposed = _rating(proposal, searches)
        if np.random.random() < np.exp((proposed - rating) / temperature):
            puzzle, rating = proposal, proposed
            puzzles[accepted], ratings[accepted] = puzzle, rating
            accepted += 1
    return accepted


def main(out: str, first: int, last: int, steps: int) -> None:
    """Write the puzzles of some chains."""
    puzzles, ratings = np.empty((steps, 81), np.int64), np.empty(steps)
    solution = np.empty((2, 81), np.int64)
    with open(out, "w") as file:
        for seed in range(first, last):
            for k in range(_chain(seed, steps, 6, puzzles, ratings)):
                if ratings[k] > _LEAST:
                    _search(puzzles[k], 2, 1 << 60, solution)
                    texts = ("".join(map(str, cells)) for cells in (puzzles[k], solution[0]))
                    print(*texts, f"{ratings[k]:.2f}", seed, sep=",", file=file, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if sys.argv[4:] else 8000)
