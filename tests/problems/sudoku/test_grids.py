"""Grids: valid, drawn uniformly, completed, and counted against the rules."""

import itertools
import math
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from scipy.stats import chisquare
from support.puzzles import SEVENTEEN, SOLUTION, digits_of, is_grid

from problems.sudoku import grids as sudoku


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


BLOCKS = pytest.mark.parametrize(
    ("rows", "columns"), [(2, 2), (2, 3), (3, 3), (3, 2), (1, 4), (4, 1), (1, 2), (2, 5), (5, 3), (4, 4)]
)


@BLOCKS
def test_grids_are_valid_and_differ(rows, columns):
    n = rows * columns
    grids = sudoku.draw_grids(40, rows, columns, generator(0))
    assert grids.shape == (40, n, n) and grids.dtype == torch.int64
    assert all(is_grid(grid, rows, columns) for grid in grids)
    assert len({tuple(grid.flatten().tolist()) for grid in grids}) > (1 if n == 2 else 30)
    assert not sudoku.violated_pairs(grids, rows, columns).any()
    assert torch.equal(sudoku.draw_grids(40, rows, columns, generator(0)), grids)
    X = sudoku.one_hot(grids, n)
    assert X.shape == (40, n, n, n) and torch.equal(X.argmax(3), grids) and (X.sum(3) == 1).all()
    graph = sudoku.declare(rows, columns)
    assert not any(factor.violations(X).any() for factor in graph.factors.values())
    # every digit is as likely in every cell
    draws = 2000
    share = sudoku.one_hot(sudoku.draw_grids(draws, rows, columns, generator(1)), n).mean(0)
    assert (share - 1 / n).abs().max() < 5.5 * math.sqrt((1 / n) * (1 - 1 / n) / draws)


@pytest.mark.parametrize(
    ("rows", "columns", "count"), [(2, 2, 288), (1, 4, 576), (4, 1, 576), (1, 3, 12), (1, 2, 2), (1, 1, 1)]
)
def test_small_grids_are_all_known_and_drawn_uniformly(rows, columns, count):
    n = rows * columns
    every = sudoku.all_grids(rows, columns)
    assert every.shape == (count, n, n) and len({tuple(grid.flatten().tolist()) for grid in every}) == count
    assert all(is_grid(grid, rows, columns) for grid in every)
    draws = 100 * count
    drawn_grids = sudoku.draw_grids(draws, rows, columns, generator(0)).flatten(1)
    weights = n ** torch.arange(n * n)
    hits = (
        torch.searchsorted((every.flatten(1) * weights).sum(1).sort().values, (drawn_grids * weights).sum(1))
        .bincount(minlength=count)
        .double()
    )
    # chi-square, four standard deviations above its mean
    assert len(hits) == count and float(((hits - 100) ** 2 / 100).sum()) <= count - 1 + 4 * math.sqrt(
        2 * (count - 1)
    )


@pytest.mark.parametrize(
    ("puzzle", "count"),
    [
        ("." * 16, 288),
        ("1" + "." * 15, 72),
        ("1234" + "." * 12, 12),
        ("1.......2.......", None),
        ("12..34..2...4...", None),
        ("11..............", 0),
        ("1...1...........", 0),
        ("1....1..........", 0),
        ("123....4........", 0),
        ("12....34..1.....", None),
    ],
)
def test_all_completions_are_found(puzzle, count):
    given_digits = digits_of(puzzle)
    completions = list(sudoku.completions(given_digits, 2, 2))
    every = (sudoku.all_grids(2, 2) + 1).flatten(1).tolist()
    expected = [grid for grid in every if all(d in (0, e) for d, e in zip(given_digits, grid, strict=True))]
    assert sorted(completions) == sorted(expected) and (count is None or len(completions) == count)
    shuffled = list(sudoku.completions(given_digits, 2, 2, Random(0)))
    assert sorted(shuffled) == sorted(completions)


def test_completions_of_larger_puzzles():
    assert list(sudoku.completions(digits_of(SEVENTEEN), 3, 3)) == [digits_of(SOLUTION)]
    # one clue that contradicts the solution leaves none
    wrong = [9 if k == 0 else d for k, d in enumerate(digits_of(SEVENTEEN))]
    assert list(sudoku.completions(wrong, 3, 3)) == []
    assert list(sudoku.completions(digits_of(SOLUTION), 3, 3)) == [digits_of(SOLUTION)]
    assert list(sudoku.completions([5, *digits_of(SOLUTION)[1:]], 3, 3)) == []
    first = next(sudoku.completions([0] * 36, 2, 3, Random(1)))
    assert is_grid((torch.tensor(first).view(6, 6) - 1).tolist(), 2, 3)
    shuffled = [next(sudoku.completions([0] * 36, 2, 3, Random(seed))) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1] != shuffled[2]


@given(rows=st.integers(1, 3), columns=st.integers(1, 3), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_violated_pairs_are_counted_once_each(rows, columns, seed):
    n = rows * columns
    grids = torch.randint(n, (3, n, n), generator=generator(seed))
    expected = []
    for grid in grids.tolist():
        cells = [(r, c) for r in range(n) for c in range(n)]
        expected.append(
            sum(
                (r == p or c == q or (r // rows == p // rows and c // columns == q // columns))
                and grid[r][c] == grid[p][q]
                for (r, c), (p, q) in itertools.combinations(cells, 2)
            )
        )
    assert sudoku.violated_pairs(grids, rows, columns).tolist() == expected


def test_coverage_measures_how_evenly_samples_are_spread():
    every = sudoku.all_grids(2, 2)
    even = sudoku.coverage(every.repeat(3, 1, 1), every)
    assert (
        even["valid"] == 1
        and even["kl"] == pytest.approx(0, abs=1e-12)
        and even["expected_kl"] == pytest.approx(287 / (2 * 864))
    )
    one = sudoku.coverage(every[:1].expand(50, -1, -1), every)
    assert one["valid"] == 1 and one["kl"] == pytest.approx(math.log(288))
    half = sudoku.coverage(every[:144], every)
    assert half["kl"] == pytest.approx(math.log(2))
    wrong = torch.zeros(30, 4, 4, dtype=torch.int64)
    mixed = sudoku.coverage(torch.cat([wrong, every[:10]]), every)
    assert mixed["valid"] == 0.25 and mixed["kl"] == pytest.approx(math.log(28.8))
    nothing = sudoku.coverage(wrong, every)
    assert nothing["valid"] == 0 and nothing["kl"] == math.inf and math.isnan(nothing["expected_kl"])
    # uniform draws are about as uneven as they should be
    coverages = [sudoku.coverage(sudoku.draw_grids(3000, 2, 2, generator(seed)), every) for seed in range(5)]
    assert sum(c["kl"] for c in coverages) / 5 == pytest.approx(coverages[0]["expected_kl"], rel=0.1)


@pytest.fixture(scope="module")
def grids(runs):
    """A run of sudoku with blocks of 2 x 2 cells."""
    return runs("sudoku")


@given(st.sampled_from([(2, 2), (2, 3), (3, 3), (3, 5), (4, 4)]), st.integers(0, 1000), st.integers(1, 40))
@settings(max_examples=30)
def test_exchanges_of_digits_in_kempe_chains_leave_grids_valid(shape, seed, swaps):
    rows, columns = shape
    grids = torch.tensor(list(itertools.islice(sudoku.swap_chain(*shape, swaps, Random(seed)), 4)))
    n = rows * columns
    assert (sudoku.violated_pairs(grids.view(-1, n, n) - 1, rows, columns) == 0).all()


def test_the_chain_visits_all_small_grids_equally_often():
    states = itertools.islice(sudoku.swap_chain(2, 2, 10, Random(0)), 288 * 40)
    counts = np.array(list(Counter(map(tuple, states)).values()))
    assert len(counts) == 288
    assert chisquare(counts).pvalue > 1e-3


def test_large_grids_are_no_images_of_one_another():
    """The number of Kempe chains of all pairs of digits is the same for images under symmetries."""
    grids = sudoku.draw_grids(12, 4, 4, generator(0)).flatten(1).tolist()
    row, column = np.divmod(np.arange(256), 16)
    block = row // 4 * 4 + column // 4
    near = (row[:, None] == row) | (column[:, None] == column) | (block[:, None] == block)

    def chains(digits):
        return sum(
            connected_components(near[np.ix_(cells, cells)])[0]
            for pair in itertools.combinations(range(16), 2)
            for cells in [np.isin(digits, pair)]
        )

    assert len({chains(np.array(digits)) for digits in grids}) > 4
