"""unn solve paths: verified shortest paths, grids without one, and bad input."""

import os
from pathlib import Path
from random import Random

import numpy as np
import pytest
from support.commands import answered, printed, refused

from problems.paths.files import grid_of_file, load_grids
from problems.paths.grid import Grid, read_grids
from unn.errors import DataError

GRID = "S-o o-o\n|   |\no-o-o-o\n  | |\no o-o-o\n|     |\no-o-o-E\n"


def test_a_grid_is_solved_and_drawn(tmp_path, capsys):
    path = tmp_path / "grid.txt"
    path.write_text(GRID)
    data = answered(capsys, "solve", "paths", path)
    (edges,) = data["instances"][0]["answers"]
    grid, (instance,) = read_grids(GRID, "grid")
    assert grid.is_shortest(instance, [list(edge) in edges for edge in grid.edges])
    text = printed(capsys, "solve", "paths", path)
    assert text.splitlines()[0] == "S-o o-o" and text.count("=") + text.count('"') == 6


def test_all_shortest_paths_are_listed_and_that_there_are_no_others_is_said(tmp_path, capsys):
    path = tmp_path / "grid.txt"
    path.write_text("S-o-o\n| | |\no-o-E\n")
    result = answered(capsys, "solve", "paths", path, "--count", "9")["instances"][0]
    answers = [sorted(map(tuple, edges)) for edges in result["answers"]]
    assert sorted(answers) == [[(0, 1), (1, 2), (2, 5)], [(0, 1), (1, 4), (4, 5)], [(0, 3), (3, 4), (4, 5)]]
    assert result["complete"] is True
    assert "no other answer" in printed(capsys, "solve", "paths", path, "--count", "9")
    assert not answered(capsys, "solve", "paths", path, "--count", "2")["instances"][0]["complete"]


def test_a_grid_of_another_size_without_a_path_is_impossible(tmp_path, capsys):
    path = tmp_path / "grid.txt"
    path.write_text("S o-o\n    |\no-o-E\n")
    assert answered(capsys, "solve", "paths", path)["impossible"] == 1
    assert "that a path of open edges joins the start and the end cannot hold" in printed(
        capsys, "solve", "paths", path
    )


def test_a_random_grid_is_solved_without_a_file(capsys):
    assert answered(capsys, "solve", "paths", "--options", "rows=3", "columns=5")["solved"] == 1


def test_a_path_longer_than_the_declared_distances_is_refused_with_the_option(tmp_path, capsys):
    path = tmp_path / "grid.txt"
    path.write_text(GRID)
    message = refused(capsys, "solve", "paths", path, "--options", "levels=4")
    assert "more than 3 edges" in message and "--options levels=16" in message
    assert answered(capsys, "solve", "paths", path, "--options", "levels=16")["solved"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["rows=1", "columns=1"], "at least two nodes"),
        (["levels=1"], "at least 2"),
        (["rows=1", "columns=2", "removed=0.9"], "all 1 edges would be removed"),
        (["rows=2", "columns=2", "removed=0.9", "declared=counts"], "all 4 edges would be removed"),
        (["removed=1.5"], "removed"),
        (["grids=missing.npz"], "no grids can be read"),
    ],
)
def test_bad_options_are_refused(options, message, capsys):
    assert message in refused(capsys, "solve", "paths", "--options", *options)


def test_a_file_of_another_kind_is_refused_without_advice_to_unpickle_it(tmp_path, capsys):
    path = tmp_path / "bad.npz"
    path.write_text("text")
    message = refused(capsys, "solve", "paths", "--options", f"grids={path}")
    assert ".npz file" in message and "pickle" not in message


def test_a_solver_of_small_grids_answers_larger_ones_and_is_measured_on_a_file_of_them(tmp_path, capsys):
    folder = tmp_path / "run"
    train = ["train", "paths", "--engine", "solver", "--rows", 3, "--columns", 3, "--steps", 20]
    printed(
        capsys,
        *train,
        "--evaluate-every",
        20,
        "--batch",
        8,
        "--width",
        8,
        "--solving-steps",
        64,
        "--quiet",
        "--folder",
        folder,
    )
    path = tmp_path / "grid.txt"
    path.write_text(GRID)
    (result,) = answered(capsys, "solve", folder, path, "--tries", 64)["instances"]
    grid, (instance,) = read_grids(GRID, "grid")
    assert result["outcome"] == "solved"
    (edges,) = result["answers"]
    assert grid.is_path(instance, [list(edge) in edges for edge in grid.edges])
    larger, random = Grid(2, 5), Random(0)
    drawn = [larger.draw(1 / 4, 10, random) for _ in range(10)]
    data = tmp_path / "grids.npz"
    np.savez(
        data,
        edges=np.array(larger.edges)[::-1],
        endpoints=np.array([[x.start, x.end] for x in drawn]),
        edge_kept=np.array([x.open_edges[::-1] for x in drawn]),
    )
    (figures,) = answered(capsys, "evaluate", folder, "--data", data).values()
    assert set(figures) == {"path", "open", "shortest"}
    np.savez(data, edges=np.array([[0, 1], [0, 3]]), endpoints=[[0, 1]], edge_kept=[[1, 1]])
    assert "those of no grid" in refused(capsys, "evaluate", folder, "--data", data)


def test_a_detour_is_said_to_be_one(tmp_path, capsys):
    path = tmp_path / "grid.txt"
    path.write_text("S-o-o\n|   |\nE-o-o\n")
    command = ("solve", "paths", path, "--options", "declared=counts", "--engine", "search", "--count", 2)
    text = printed(capsys, *command)
    assert text.count("a detour of 5 edges, where 1 are enough") == 1
    assert "detour" not in printed(capsys, "solve", "paths", path)


GRIDS = {
    "edges": np.array([[0, 1], [2, 3], [0, 2], [1, 3]]),
    "endpoints": np.array([[0, 3]] * 10),
    "edge_kept": np.ones((10, 4), np.uint8),
}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"edges": np.array([[0, 10**8]])}, "those of no grid"),
        ({"edges": np.zeros((0, 2), int)}, "those of no grid"),
        ({"edges": np.zeros((4, 0), int)}, "edges must have two nodes in a row, got 0"),
        ({"edges": np.hstack([GRIDS["edges"], GRIDS["edges"]])}, "edges must have two nodes in a row, got 4"),
        ({"endpoints": np.ones((10, 2), bool)}, "endpoints must be an array of whole numbers"),
        ({"edge_kept": 7 * GRIDS["edge_kept"]}, "edge_kept must have zeros and ones alone"),
        ({"edge_kept_packed": np.ones((10, 1), int)}, "edge_kept_packed must hold bytes"),
        ({"train_idx": np.ones(10, bool)}, "train_idx must be an array of whole numbers"),
        ({"train_idx": np.zeros(0, int)}, "train_idx is empty"),
        ({"train_idx": np.arange(6), "test_idx": np.arange(5, 10)}, "have grids in common"),
    ],
)
def test_malformed_files_of_grids_are_refused_with_the_reason(arrays, message, tmp_path):
    path = tmp_path / "grids.npz"
    np.savez(path, **{**GRIDS, **arrays})
    with pytest.raises(DataError) as error:
        load_grids(str(path), grid_of_file(str(path)))
    assert message in str(error.value)


def test_the_grid_of_a_file_is_read_from_its_edges(tmp_path):
    path = tmp_path / "grids.npz"
    np.savez(path, **GRIDS)
    assert grid_of_file(str(path)) == Grid(2, 2)
    assert [len(part) for part in vars(load_grids(str(path), Grid(2, 2))).values()] == [8, 2]


def test_missing_and_mixed_files_are_refused(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("S-E\n")
    (tmp_path / "b.txt").write_text(GRID)
    assert "no grid can be read" in refused(capsys, "solve", "paths", tmp_path / "c.txt")
    assert "one size at a time" in refused(capsys, "solve", "paths", tmp_path / "a.txt", tmp_path / "b.txt")


@pytest.mark.skipif("UNN_DATA" not in os.environ, reason="needs the data")
@pytest.mark.parametrize("size", [4])
def test_all_test_grids_of_the_data_are_solved_by_shortest_paths(size):
    import unn
    from problems.paths.files import load_grids
    from problems.paths.graph import declare_distances, given_of, used_edges

    path = f"csp/shortest_path_{size}x{size}.npz"
    if not (Path(os.environ["UNN_DATA"]) / path).exists():
        pytest.skip("needs the data")
    grid = Grid(size, size)
    instances = load_grids(path, grid).test
    search = unn.Search(declare_distances(grid, 4 * size), unn.SearchOptions(mode="depth-first"))
    solutions = unn.solve(search, given_of(grid, instances, "distances"))
    used = used_edges(grid, solutions.values).tolist()
    assert all(grid.is_shortest(i, row) for i, row in zip(instances, used, strict=True))
