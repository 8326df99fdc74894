"""The problem of pictures: text files, files of training pictures, figures, and bad input."""

import numpy as np
import pytest
import torch
from support.commands import answered, printed, refused

from problems.pictures.files import load_pictures
from problems.pictures.graph import values_of
from problems.pictures.problem import PicturesProblem
from unn.extending import Query

PICTURE = [[1, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]]


def runs_text(rows):
    """The lengths of the runs of ones of each row, a line each."""
    signs = ["".join(map(str, row)).replace("0", " ").split() for row in rows]
    return "\n".join(" ".join(str(len(run)) for run in row) or "0" for row in signs)


def picture_file(tmp_path, grid, name="pictures.npz", **arrays):
    path = tmp_path / name
    np.savez(path, **({} if grid is None else {"grid": np.asarray(grid)}), **arrays)
    return path


def test_a_nonogram_of_any_size_is_solved_as_it_was_drawn(tmp_path, capsys):
    path = tmp_path / "nonogram.txt"
    path.write_text(f"{runs_text(PICTURE)}\n\n{runs_text(np.array(PICTURE).T.tolist())}\n")
    (result,) = answered(capsys, "solve", "pictures", path, "--count", "9")["instances"]
    assert result["answers"] == [PICTURE] and result["complete"] is True
    assert printed(capsys, "solve", "pictures", path).splitlines()[:3] == ["##..", "#..#", "####"]


def test_several_files_of_one_size_are_solved_together_and_sizes_are_not_mixed(tmp_path, capsys):
    one, other, wide = (tmp_path / f"{k}.txt" for k in range(3))
    one.write_text("1\n0\n\n1\n0\n")
    other.write_text("2\n1\n\n2\n1\n")
    wide.write_text("2\n\n1\n1\n")
    data = answered(capsys, "solve", "pictures", one, other)
    assert [x["answers"] for x in data["instances"]] == [[[[1, 0], [0, 0]]], [[[1, 1], [1, 0]]]]
    assert "give one size" in refused(capsys, "solve", "pictures", one, wide)


def test_a_size_that_is_not_that_of_the_file_is_refused(tmp_path, capsys):
    path = tmp_path / "nonogram.txt"
    path.write_text("1\n0\n\n1\n0\n")
    message = refused(capsys, "solve", "pictures", path, "--options", "rows=5")
    assert "2 rows and 2 columns" in message and "leave out rows" in message


def test_runs_that_contradict_each_other_are_impossible_in_words_of_cells(tmp_path, capsys):
    path = tmp_path / "nonogram.txt"
    path.write_text("2\n0\n\n0\n2\n")
    text = printed(capsys, "solve", "pictures", path)
    assert "impossible" in text and "r1c1 white, r1c1 black" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no content"),
        ("1\n\n1\n\n1\n", "3 parts"),
        ("x\n\n1\n", "line 1: 'x' is not the length of a run"),
        ("3\n\n1\n1\n", "need 3 cells"),
        ("1\n" * 11 + "\n11\n", "rows must lie between 1 and 10"),
    ],
)
def test_malformed_files_and_large_ones_are_refused_with_the_reason(text, message, tmp_path, capsys):
    path = tmp_path / "nonogram.txt"
    path.write_text(text)
    assert message in refused(capsys, "solve", "pictures", path)


def test_answers_are_drawn_black_on_white(tmp_path, capsys):
    path = tmp_path / "nonogram.txt"
    path.write_text("1\n0\n\n1\n0\n")
    printed(capsys, "solve", "pictures", path, "--draw", tmp_path / "answer.png")
    assert (tmp_path / "answer.png").stat().st_size
    values = values_of(torch.tensor([[[1, 0], [0, 0]]] * 9))
    figure = PicturesProblem().picture(None, values, {})
    images = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(images) == 8
    assert np.array_equal(images[0], [[0, 1], [1, 1]])


def test_figures_count_runs_pictures_and_cells():
    problem = PicturesProblem()
    config = problem.config_for(None)(rows=2, columns=2)
    problem.check(config)
    truth = torch.tensor([[[1, 0], [0, 1]]] * 4)
    # the right picture; another with the same runs; a wrong cell; all cells wrong and the same runs of rows
    answers = torch.tensor([[[1, 0], [0, 1]], [[0, 1], [1, 0]], [[1, 1], [0, 1]], [[0, 1], [0, 1]]])
    values = values_of(truth)
    query = Query({name: values[name] for name in ("rows", "columns")}, values)
    figures = problem.metrics(config, query, values_of(answers))
    assert figures == {"solved": 0.5, "pictures": 0.25, "cells": pytest.approx((4 + 0 + 3 + 2) / 16)}


TRAIN = ("train", "pictures", "--engine", "recurrent", "--steps", 2, "--evaluate-every", 2, "--batch", 4,
         "--width", 8, "--recurrences", 2, "--rows", 3, "--columns", 3, "--quiet")  # fmt: skip


def test_a_run_learns_from_a_file_and_is_evaluated_on_its_last_pictures(tmp_path, capsys):
    grid = np.random.default_rng(0).integers(2, size=(10, 3, 3))
    path = picture_file(tmp_path, grid)
    folder = tmp_path / "run"
    printed(capsys, *TRAIN, "--pictures", path, "--folder", folder)
    (figures,) = answered(capsys, "evaluate", folder).values()
    assert set(figures) == {"solved", "pictures", "cells"}
    problem = PicturesProblem()
    config = problem.config_for(None)(rows=3, columns=3, pictures=str(path))
    query = problem.test_queries(config, 4, torch.Generator())[""]
    assert query.truth["X"].argmax(-1).tolist() == np.concatenate([grid[8:], grid[8:]]).tolist()
    drawn = problem.generate(config, 50, torch.Generator().manual_seed(0), {})["X"].argmax(-1)
    orbit = {str(np.rot90(turned, k).tolist()) for x in grid[:8] for turned in (x, x.T) for k in range(4)}
    assert all(str(picture) in orbit for picture in drawn.tolist())


def test_a_run_is_not_resumed_with_other_pictures(tmp_path, capsys):
    grid = np.random.default_rng(0).integers(2, size=(10, 3, 3))
    path, folder = picture_file(tmp_path, grid), tmp_path / "run"
    printed(capsys, *TRAIN, "--pictures", path, "--folder", folder)
    picture_file(tmp_path, 1 - grid)
    load_pictures.cache_clear()
    assert "pictures" in refused(capsys, "resume", folder, "--steps", 4)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (None, "lacks the array 'grid'"),
        (np.full((5, 3, 3), 2), "zeros and ones alone"),
        (np.zeros((5, 9), int), "shape (pictures, rows, columns)"),
        (np.zeros((5, 3, 3)), "zeros and ones alone"),
        (np.zeros((5, 4, 3), int), "4 rows and 3 columns, but those of the run 3 and 3"),
        (np.zeros((4, 3, 3), int), "at least five"),
    ],
)
def test_files_of_pictures_are_refused_with_the_reason(grid, message, tmp_path, capsys):
    path = picture_file(tmp_path, grid)
    assert message in refused(capsys, *TRAIN, "--pictures", path, "--folder", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_and_damaged_files_of_pictures_are_refused(tmp_path, capsys):
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(picture_file(tmp_path, np.zeros((9, 3, 3), int)).read_bytes()[:100])
    for path in (tmp_path / "missing.npz", damaged):
        assert "no pictures can be read" in refused(
            capsys, *TRAIN, "--pictures", path, "--folder", tmp_path / "run"
        )


def test_sizes_out_of_range_are_refused(tmp_path, capsys):
    assert "columns must lie between 1 and 10" in refused(
        capsys, "train", "pictures", "--columns", 11, "--folder", tmp_path / "run"
    )
