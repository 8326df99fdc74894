"""Nonograms of one size: runs of lines, the declaration, and pictures that their runs determine."""

from collections import Counter
from itertools import groupby, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from problems.pictures.graph import (
    declare,
    determined_line_by_line,
    draw_determined,
    given_of,
    move_pictures,
    number_of_runs,
    numbers_of,
    runs_of_lines,
    values_of,
)

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))


def runs(line):
    """Lengths of the runs of ones, independent of the module."""
    return tuple(len(list(run)) for cell, run in groupby(line) if cell)


def all_runs(picture):
    return [runs(line) for lines in (picture, picture.T) for line in lines.tolist()]


def noise(rows, columns, seed, count=8):
    return torch.randint(2, (count, rows, columns), generator=torch.Generator().manual_seed(seed))


@given(SIZES)
def test_numbers_stand_for_the_runs_of_rows_and_columns(size):
    pictures = noise(*size)
    by_row, by_column = numbers_of(pictures)
    for picture, rows, columns in zip(pictures, by_row.tolist(), by_column.tolist(), strict=True):
        named = [runs_of_lines(size[1])[k] for k in rows] + [runs_of_lines(size[0])[k] for k in columns]
        assert named == all_runs(picture)


@pytest.mark.parametrize("length", range(1, 11))
def test_every_line_has_one_number_and_every_number_a_line(length):
    lines = list(product((0, 1), repeat=length))
    numbers = number_of_runs(length).tolist()
    assert [runs_of_lines(length)[k] for k in numbers] == [*map(runs, lines)]
    assert set(numbers) == set(range(len(runs_of_lines(length))))


@given(SIZES, st.integers(0, 35))
@settings(deadline=None)
def test_constraints_are_violated_where_the_runs_of_a_line_are_others(size, cell):
    pictures = noise(*size)
    graph, values = declare(*size[:2]), values_of(pictures)
    assert all(int(c.violations_of(values).sum()) == 0 for c in graph.constraints)
    changed = pictures.clone()
    changed.flatten(1)[:, cell % (size[0] * size[1])] ^= 1
    values["X"] = values_of(changed)["X"]
    violations = torch.stack([c.violations_of(values) for c in graph.constraints]).sum(0)
    for number, before, after in zip(violations.tolist(), pictures, changed, strict=True):
        pairs = zip(all_runs(before), all_runs(after), strict=True)
        assert number == sum(x != y for x, y in pairs)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 3), (3, 4)])
def test_a_picture_that_is_determined_is_the_only_one_with_its_runs(rows, columns):
    pictures = torch.tensor(list(product((0, 1), repeat=rows * columns))).view(-1, rows, columns)
    known = [str(all_runs(picture)) for picture in pictures]
    alone = torch.tensor([Counter(known)[key] == 1 for key in known])
    determined = determined_line_by_line(pictures)
    assert not (determined & ~alone).any()
    # on so few cells hardly any needs a guess
    assert determined.sum() > 0.9 * alone.sum()


def test_random_pictures_have_one_solution_which_the_search_gives():
    pictures = draw_determined(20, 5, 6, torch.Generator().manual_seed(0))
    search = unn.Search(declare(5, 6), unn.SearchOptions(mode="depth-first"))
    solutions = unn.solve(search, given_of(*numbers_of(pictures), 5, 6), count=20)
    assert bool(solutions.solved.all())
    assert solutions.values["X"].argmax(-1).equal(pictures)


@given(SIZES)
def test_random_pictures_are_as_many_as_asked_for_and_equal_under_a_seed(size):
    rows, columns, seed = size
    drawn = [draw_determined(5, rows, columns, torch.Generator().manual_seed(seed)) for _ in range(2)]
    assert drawn[0].shape == (5, rows, columns) and drawn[0].equal(drawn[1])
    assert bool(determined_line_by_line(drawn[0]).all())


def test_squares_are_moved_to_all_eight_images_and_others_to_four():
    square = torch.tensor([[[1, 1, 0], [1, 0, 0], [0, 0, 0]]])
    corner = torch.tensor([[[1, 1, 0], [0, 1, 0], [0, 0, 0]]])
    oblong = torch.tensor([[[1, 1, 0], [0, 0, 0]]])
    generator = torch.Generator().manual_seed(0)
    for picture, images in ((square, 4), (corner, 8), (oblong, 4)):
        moved = move_pictures(picture.expand(200, -1, -1), generator)
        assert len(moved.unique(dim=0)) == images
        assert bool((moved.sum((1, 2)) == picture.sum()).all())
