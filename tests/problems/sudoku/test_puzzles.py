"""Files of puzzles: read with their solutions, split, and part of training."""

import gzip

import pytest
import torch
from support.helpers import says

import unn
from problems.sudoku.grids import all_grids, move_grids, violated_pairs
from problems.sudoku.problem import SudokuConfig, SudokuProblem
from problems.sudoku.puzzles import load_puzzles, merge_puzzles

GRIDS = all_grids(2, 2)[::29].flatten(1) + 1


def lines(solved=True):
    """Ten puzzles of 4 x 4 with ten cells given."""
    puzzles = []
    for k, grid in enumerate(GRIDS.tolist()):
        cells = [digit if (cell * 7 + k) % 16 < 10 else 0 for cell, digit in enumerate(grid)]
        puzzle = "".join(map(str, cells))
        puzzles.append(puzzle + ("," + "".join(map(str, grid)) if solved else ""))
    return puzzles


def written(folder, name="some.txt", text=None):
    path = folder / name
    content = "\n".join(lines() if text is None else text).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


def test_puzzles_are_split_by_their_text_whatever_the_order_and_compression_of_the_file(tmp_path):
    split = load_puzzles(written(tmp_path), 2, 2)["some"]
    other = load_puzzles(written(tmp_path, "some.csv.gz", lines()[::-1]), 2, 2)["some"]
    for ours, theirs in ((split.training, other.training), (split.held_out, other.held_out)):
        assert torch.equal(ours.grids, theirs.grids) and torch.equal(ours.given, theirs.given)
    assert len(split.held_out.grids) == 2 and len(split.training.grids) == len(GRIDS) - 2
    every = merge_puzzles([split.training, split.held_out])
    assert (violated_pairs(every.grids, 2, 2) == 0).all() and (every.given.flatten(1).sum(1) == 10).all()
    assert {tuple(grid) for grid in (every.grids.flatten(1) + 1).tolist()} == {
        tuple(grid) for grid in GRIDS.tolist()
    }


def test_folders_have_a_split_for_each_file_and_missing_solutions_are_found(tmp_path):
    written(tmp_path, "one.txt")
    # of a grid with two empty cells in different rows, columns and digits there is one completion
    puzzles = [
        "".join("0" if cell in (0, 15) else str(digit) for cell, digit in enumerate(grid))
        for grid in GRIDS.tolist()
    ]
    written(tmp_path, "two.txt", puzzles)
    splits = load_puzzles(str(tmp_path), 2, 2)
    assert list(splits) == ["one", "two"]
    every = merge_puzzles([splits["two"].training, splits["two"].held_out])
    assert {tuple(grid) for grid in (every.grids.flatten(1) + 1).tolist()} == {
        tuple(grid) for grid in GRIDS.tolist()
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ([], ["0 puzzles"]),
        (["0" * 16, "0" * 16], ["several solutions"]),
        (["11" + "0" * 14, "11" + "0" * 14], ["no solution"]),
        ([line.replace(",", ",1") for line in lines()], ["cells"]),
        ([line.split(",")[0] + "," + "1" * 16 for line in lines()], ["breaks a rule"]),
        ([line.split(",")[0] + "," + "0" * 16 for line in lines()], ["empty cells"]),
    ],
    ids=["empty", "several", "none", "length", "wrong", "unsolved"],
)
def test_malformed_files_are_refused_with_their_name(tmp_path, text, words):
    path = written(tmp_path, "bad.txt", text)
    with pytest.raises(unn.errors.DataError, match=says("bad.txt", *words)):
        load_puzzles(path, 2, 2)


def test_missing_truncated_and_empty_sources_are_refused(tmp_path):
    with pytest.raises(unn.errors.DataError, match=says("no puzzles can be read")):
        load_puzzles(str(tmp_path / "none.txt"), 2, 2)
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"0" * 100)[:-8])
    with pytest.raises(unn.errors.DataError, match=says("cut.txt.gz")):
        load_puzzles(str(tmp_path / "cut.txt.gz"), 2, 2)
    (tmp_path / "folder").mkdir()
    with pytest.raises(unn.errors.DataError, match=says("no file of puzzles")):
        load_puzzles(str(tmp_path / "folder"), 2, 2)


def test_half_of_the_examples_of_training_are_puzzles_and_the_files_are_found_in_the_data_folder(
    tmp_path, monkeypatch
):
    written(tmp_path)
    monkeypatch.setenv("UNN_DATA", str(tmp_path))
    problem, config = SudokuProblem(), SudokuConfig(puzzles="some.txt")
    values, observed = problem.examples(config, 40, torch.Generator().manual_seed(0), {})
    grids = values["X"].argmax(3)
    assert (violated_pairs(grids, 2, 2) == 0).all()
    assert (observed["X"][:20].flatten(1).sum(1) == 10).all() and not (
        observed["X"][20:].flatten(1).sum(1) == 10
    ).all()
    queries = problem.test_queries(config, 8, torch.Generator().manual_seed(0))
    assert list(queries) == ["", "half given", "some"]
    assert (queries["some"].given["X"].mask.flatten(1).sum(1) == 10).all()
    monkeypatch.delenv("UNN_DATA")
    with pytest.warns(UserWarning, match="some.txt, do not exist"):
        queries = problem.test_queries(config, 8, torch.Generator().manual_seed(0))
    assert list(queries) == ["", "half given"]


def test_moved_puzzles_stay_puzzles_of_the_moved_grid():
    grids = GRIDS.view(-1, 4, 4) - 1
    given = torch.rand(grids.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    moved, kept = move_grids(grids, given, 2, 2, torch.Generator().manual_seed(1))
    assert (violated_pairs(moved, 2, 2) == 0).all() and torch.equal(
        kept.flatten(1).sum(1), given.flatten(1).sum(1)
    )
    again, _ = move_grids(grids, None, 2, 2, torch.Generator().manual_seed(1))
    assert torch.equal(again, moved)
