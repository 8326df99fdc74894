"""Sudoku with blocks of any shape: the declaration, grids drawn at random, all completions of small ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from random import Random

import torch
from torch import Tensor

import unn
from factors import Cardinality

Grid = list[int]
"""Digits 1, 2, ... row by row; 0 for empty cells."""

_SEARCHED = 500
"""Number of grids filled by search; the others are their images under the symmetries of sudoku."""

_CHAINED = 64
"""Number of states of the Markov chain, for grids that are too large to be filled by search."""

_CHAIN_WORK = 60_000_000
"""Work of all its steps together, in looked up cells: one or two seconds."""


def declare(rows: int, columns: int) -> unn.FactorGraph:
    """Cells with one digit each; every digit once in each row, column and block.

    Args:
        rows: rows of a block.
        columns: columns of a block; the grid has ``rows * columns`` rows, columns and digits.
    """
    n = rows * columns
    g = unn.FactorGraph("sudoku", row=n, col=n, digit=n, band=n // rows, stack=n // columns)
    X = g.variable("X", "row col | digit", unn.Entropy())
    g.factor(Cardinality(X["r c v"], each="r v", equals=1, name="rows"))
    g.factor(Cardinality(X["r c v"], each="c v", equals=1, name="columns"))
    g.factor(Cardinality(X["(band r) (stack c) v"], each="band stack v", equals=1, name="blocks"))
    return g


def completions(grid: Grid, rows: int, columns: int, random: Random | None = None) -> Iterator[Grid]:
    """All completions of a grid, by depth-first search on the cell with the fewest options.

    Args:
        grid: given cells.
        rows, columns: size of a block.
        random: random number generator for a random order; None for a fixed one.
    """
    n = rows * columns
    peers = _peers(rows, columns)
    options = [(1 << n) - 1 for _ in grid]
    filled = [0] * (n * n)

    def assign(cell: int, digit: int, undo: list[tuple[int, int]]) -> bool:
        filled[cell] = digit
        bit = 1 << (digit - 1)
        for other in peers[cell]:
            if options[other] & bit:
                undo.append((other, options[other]))
                options[other] &= ~bit
                if not filled[other] and not options[other]:
                    return False
            elif filled[other] == digit:
                return False
        return True

    def search() -> Iterator[Grid]:
        empty = [k for k in range(n * n) if not filled[k]]
        if not empty:
            yield list(filled)
            return
        if random is not None:
            random.shuffle(empty)
        cell = min(empty, key=lambda k: options[k].bit_count())
        digits = [d for d in range(1, n + 1) if options[cell] >> (d - 1) & 1]
        if random is not None:
            random.shuffle(digits)
        for digit in digits:
            undo: list[tuple[int, int]] = []
            if assign(cell, digit, undo):
                yield from search()
            filled[cell] = 0
            for other, before in reversed(undo):
                options[other] = before

    for cell, digit in enumerate(grid):
        if digit and (not options[cell] >> (digit - 1) & 1 or not assign(cell, digit, [])):
            return
    yield from search()


def draw_grids(count: int, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Filled grids, digits from 0, shape ``(count, n, n)``.

    Uniform among all grids up to 4 x 4. Grids up to 12 x 12 are filled by random search, larger ones are
    states of a Markov chain, and both are transformed by random symmetries: permutations of digits, of rows
    within bands, bands, columns within stacks and stacks, and transposition for square blocks. Their
    distribution is not quite uniform.
    """
    n = rows * columns
    base = all_grids(rows, columns) if n <= 4 else _base_grids(rows, columns)
    grids = base[torch.randint(len(base), (count,), generator=generator)]
    return grids if n <= 4 else move_grids(grids, None, rows, columns, generator)[0]


def move_grids(
    grids: Tensor, given: Tensor | None, rows: int, columns: int, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Apply random symmetries of sudoku to grids and their masks of given cells.

    Args:
        grids: digits from 0, shape ``(count, n, n)``.
        given: masks of given cells, shape ``(count, n, n)``; None to omit.
        rows, columns: size of a block.
        generator: random number generator, of the device of the grids.
    """
    (count, n), device = grids.shape[:2], generator.device
    names = torch.rand(count, n, generator=generator, device=device).argsort(1)
    lines = _moves(count, n // rows, rows, generator)[:, :, None].expand(-1, -1, n)
    stacks = _moves(count, n // columns, columns, generator)[:, None].expand(-1, n, -1)
    transposed = torch.rand(count, generator=generator, device=device)[:, None, None] < (
        0.5 if rows == columns else 0
    )

    def move(x: Tensor) -> Tensor:
        moved = x.gather(1, lines).gather(2, stacks)
        return torch.where(transposed, moved.mT, moved)

    renamed = names.gather(1, grids.flatten(1)).view(count, n, n)
    return move(renamed), None if given is None else move(given)


@lru_cache(maxsize=4)
def all_grids(rows: int, columns: int) -> Tensor:
    """All filled grids, digits from 0, shape ``(grids, n, n)``; for small n only (288 for 2 x 2 blocks)."""
    n = rows * columns
    return torch.tensor(list(completions([0] * (n * n), rows, columns))).view(-1, n, n) - 1


@lru_cache(maxsize=4)
def _base_grids(rows: int, columns: int) -> Tensor:
    random = Random(0)
    n = rows * columns
    if n <= 12:
        count = _SEARCHED if n <= 9 else 20
        grids = [next(completions([0] * (n * n), rows, columns, random)) for _ in range(count)]
    else:
        # search without given cells is slow beyond 12 x 12
        swaps = max(1, _CHAIN_WORK // (6 * n * n * _CHAINED))
        grids = list(islice(swap_chain(rows, columns, swaps, random), _CHAINED))
    return torch.tensor(grids).view(-1, n, n) - 1


def swap_chain(rows: int, columns: int, swaps: int, random: Random) -> Iterator[Grid]:
    """States of a Markov chain over filled grids, from a cyclic one, whose limit is uniform on the grids that
    it reaches: all grids of 4 x 4.

    A step exchanges two digits in a Kempe chain: the cells that are connected through rows, columns and
    blocks in which both digits occur. The grid stays valid, and the reverse step has the same probability.

    Args:
        rows, columns: size of a block, of at least two cells.
        swaps: number of steps from one state to the next.
        random: random number generator.
    """
    n = rows * columns
    peers = _peers(rows, columns)
    grid = [(columns * (r % rows) + r // rows + c) % n + 1 for r in range(n) for c in range(n)]
    while True:
        for _ in range(swaps):
            first = random.randrange(n * n)
            total = grid[first] + random.choice([d for d in range(1, n + 1) if d != grid[first]])
            chain, waiting = {first}, [first]
            while waiting:
                cell = waiting.pop()
                other = total - grid[cell]
                near = [k for k in peers[cell] if grid[k] == other and k not in chain]
                chain.update(near)
                waiting += near
            for cell in chain:
                grid[cell] = total - grid[cell]
        yield list(grid)


def _moves(count: int, groups: int, size: int, generator: torch.Generator) -> Tensor:
    """Permutations of ``groups * size`` lines that keep groups together, shape ``(count, groups * size)``."""
    device = generator.device
    outer = torch.rand(count, groups, generator=generator, device=device).argsort(1)
    inner = torch.rand(count, groups, size, generator=generator, device=device).argsort(2)
    return (outer[:, :, None] * size + inner).flatten(1)


@lru_cache(maxsize=8)
def _peers(rows: int, columns: int) -> list[list[int]]:
    n = rows * columns
    place = [(k // n, k % n) for k in range(n * n)]
    return [
        [
            o
            for o, (p, q) in enumerate(place)
            if o != k and (p == r or q == c or (p // rows == r // rows and q // columns == c // columns))
        ]
        for k, (r, c) in enumerate(place)
    ]


def one_hot(grids: Tensor, n: int) -> Tensor:
    """Digits from 0, shape ``(count, n, n)``, as values of X, shape ``(count, n, n, n)``."""
    return torch.nn.functional.one_hot(grids, n).float()


def violated_pairs(grids: Tensor, rows: int, columns: int) -> Tensor:
    """Number of pairs of cells in a common row, column or block with equal digits, shape ``(count,)``."""
    flat = grids.flatten(1)
    i, j = _pairs(rows, columns)
    return (flat[:, i] == flat[:, j]).sum(1)


@lru_cache(maxsize=8)
def _pairs(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    pairs = [(a, b) for a, others in enumerate(_peers(rows, columns)) for b in others if a < b]
    indices = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    return indices[:, 0], indices[:, 1]


def coverage(samples: Tensor, possible: Tensor) -> dict[str, float]:
    """Divergence of valid samples from the uniform distribution over all possible grids.

    Args:
        samples: digits, shape ``(count, n, n)``.
        possible: all completions of the given cells, shape ``(grids, n, n)``.

    Returns:
        Three figures: valid, the fraction of samples that are possible; kl, the divergence of their
        frequencies from uniform, in nats; expected_kl, the mean divergence of as many uniform draws (to first
        order).
    """
    same = (samples.flatten(1)[:, None] == possible.flatten(1)[None]).all(2)
    hits = same.sum(0).double()
    total = hits.sum()
    if not total:
        return {"valid": 0.0, "kl": float("inf"), "expected_kl": float("nan")}
    share = hits / total
    kl = float((torch.special.xlogy(share, share * len(possible))).sum())
    return {
        "valid": float(same.any(1).float().mean()),
        "kl": kl,
        "expected_kl": float((len(possible) - 1) / (2 * total)),
    }
