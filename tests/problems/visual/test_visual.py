"""Visual sudoku: boards, labels, pictures of boards, and bad input."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imsave
from support.commands import printed, refused

import unn
from problems.visual.data import digits_of, draw_boards, labels_of, listed_boards, values_of
from problems.visual.graph import declare
from problems.visual.problem import VisualProblem, without_labels
from unn.extending import open_trained
from unn.perception.model import possible_values

DATA = Path(os.environ.get("UNN_DATA", ""))
EMBEDDED = digits_of("embedded")
WITH_BOARDS = pytest.mark.skipif(
    not (DATA / "csp" / "visual_sudoku_idx.npz").exists() or not (DATA / "mnist").exists(),
    reason="no boards under $UNN_DATA",
)


def boards(count=6, given=0.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return draw_boards(count, 2, 2, given, labels_of(EMBEDDED, "train"), generator)


def test_boards_meet_the_constraints_and_show_images_of_their_signs():
    drawn = boards()
    values = values_of(drawn, EMBEDDED, "train")
    for constraint in declare(2, 2, 8, 8).constraints:
        assert not constraint.violations_of(values).any()
    assert torch.equal(EMBEDDED.train_labels[drawn.images], drawn.signs)
    assert ((drawn.signs > 0).flatten(1).sum(1) == 8).all()
    shown = EMBEDDED.train_images[drawn.images[3, 1, 2], 0]
    assert torch.equal(values["image"][3, 1, 2], shown)


def test_without_labels_of_given_cells_the_truth_stays_possible_and_much_else_is_excluded():
    values = values_of(boards(50, 0.3), EMBEDDED, "train")
    hidden = without_labels(values)
    given = values["S"].argmax(-1) > 0
    assert (hidden["X"][given] == 1).all() and torch.equal(hidden["X"][~given], values["X"][~given])
    # the digits of given cells are used nowhere
    other = {**values, "S": torch.where(given[..., None], values["S"].roll(1, -1), values["S"])}
    other["S"][..., 0] = values["S"][..., 0]
    network = unn.Perception(declare(2, 2, 8, 8), unn.PerceptionOptions(filters=2, hidden=8))
    layout, _ = network.layouts({})
    possible = possible_values(layout, hidden)
    truth = layout.frame.flatten({"X": values["X"], "S": values["S"]})
    assert possible[truth == 1].all()
    signs = possible[:, layout.frame.slots["S"].numbers].view(50, 4, 4, 5)[given]
    assert not signs[:, 0].any() and (signs.sum(-1) == 1).float().mean() > 0.9


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that reads the 8 x 8 digits well."""
    folder = tmp_path_factory.mktemp("visual") / "run"
    from unn.cli.main import main

    options = ["--steps", "200", "--evaluate-every", "200", "--given-share", "0.4", "--quiet"]
    options += ["--ema", "0.9", "--shift", "0", "--filters", "16"]
    assert not main(["train", "visual", "--folder", str(folder), *options])
    return folder


@pytest.mark.slow
def test_images_without_labels_are_learned_and_boards_solved(trained, capsys):
    figures = json.loads(printed(capsys, "evaluate", trained, "--json"))
    (metrics,) = figures.values()
    assert metrics["valid"] > 0.97 and metrics["given_cells"] > 0.95


def test_a_board_is_solved_from_its_picture(trained, capsys, tmp_path):
    data = json.loads(printed(capsys, "solve", trained, "test:3", "--json"))
    problem = VisualProblem()
    config = problem.config_for("perception")(given_share=0.4)
    (query,) = problem.test_queries(config, 4, torch.Generator()).values()
    picture = query.given["image"][3].transpose(1, 2).reshape(32, 32).numpy()
    imsave(tmp_path / "board.png", (picture + 1) / 2, cmap="gray", vmin=0, vmax=1)
    np.save(tmp_path / "board.npy", picture)
    for name in ("board.png", "board.npy"):
        again = json.loads(printed(capsys, "solve", trained, tmp_path / name, "--json"))
        assert again["instances"][0]["answers"] == data["instances"][0]["answers"]
    text = printed(capsys, "solve", trained, tmp_path / "board.png", "--draw", tmp_path / "answer.png")
    assert "1 solved of 1" in text and (tmp_path / "answer.png").stat().st_size > 1000
    answer = data["instances"][0]["answers"][0]
    for line in (*answer["solution"], *zip(*answer["solution"], strict=True)):
        assert sorted(line) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (None, "none.png", "no picture can be read"),
        (b"", "empty.png", "no picture can be read"),
        (b"\x89PNG\r\n\x1a\nbroken", "broken.png", "no picture can be read"),
        (b"1234", "digits.txt", "no picture can be read"),
        (np.zeros((32, 31)), "narrow.npy", "32 x 31 pixels"),
        (np.full((32, 32), np.nan), "nan.npy", "must lie in"),
        (np.full((32, 32), 255.0), "bytes.npy", "must lie in"),
        (np.zeros(()), "number.npy", "holds no picture"),
        (np.array([["a"]]), "text.npy", "holds no picture"),
        (np.array([{}], dtype=object), "object.npy", "no picture can be read"),
    ],
)
def test_a_picture_that_cannot_be_read_is_refused_with_its_file(
    trained, capsys, tmp_path, content, name, words
):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    message = refused(capsys, "solve", trained, path)
    assert name in message and words in message


def test_an_unknown_test_board_and_no_board_are_refused(trained, capsys):
    for text in ("test:9999999", "test:-1", "test:x"):
        assert "test boards go from test:0" in refused(capsys, "solve", trained, text)
    assert "give a picture of a board" in refused(capsys, "solve", trained)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--block-rows", "2", "--block-columns", "5"], "at most nine digits"),
        (["--boards", "easy"], "images=mnist"),
        (["--given-share", "1.5"], "given_share"),
    ],
)
def test_options_that_do_not_fit_are_refused(capsys, tmp_path, options, words):
    message = refused(capsys, "train", "visual", *options, "--folder", tmp_path / "run")
    assert words in message and not (tmp_path / "run").exists()


def test_engines_of_discrete_values_refuse_images_and_name_who_does_not():
    verdicts = VisualProblem().verdicts()
    assert verdicts["perception"] and verdicts["denoiser"]
    for name in ("solver", "search", "recurrent"):
        assert "'image'" in verdicts[name].reason


def test_boards_of_a_file_need_the_file(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("UNN_DATA", str(tmp_path))
    listed_boards.cache_clear()
    sizes = ["--images", "mnist", "--block-rows", "3", "--block-columns", "3"]
    command = ["train", "visual", "--boards", "hard", *sizes, "--folder", tmp_path / "run", "--quiet"]
    assert "visual_sudoku_idx.npz" in refused(capsys, *command)
    (tmp_path / "csp").mkdir()
    (tmp_path / "csp" / "visual_sudoku_idx.npz").write_bytes(b"PK\x03\x04")
    assert "no boards can be read" in refused(capsys, *command)
    listed_boards.cache_clear()


@pytest.mark.data
@WITH_BOARDS
def test_the_listed_boards_have_images_of_their_signs_and_solutions():
    digits = digits_of("mnist")
    for kind, least, most in (("easy", 31, 42), ("hard", 17, 34)):
        listed = listed_boards(kind, "test")
        assert len(listed.signs) == 1000
        assert torch.equal(digits.test_labels[listed.images], listed.signs)
        givens = (listed.signs > 0).flatten(1).sum(1)
        assert least <= int(givens.min()) and int(givens.max()) <= most
        agrees = (listed.signs == 0) | (listed.signs == listed.solutions)
        assert bool(agrees.all())


def test_the_packaged_weights_answer_a_picture_without_any_data(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("UNN_DATA", raising=False)
    listed_boards.cache_clear()
    np.save(tmp_path / "board.npy", np.full((252, 252), -1.0))
    data = json.loads(printed(capsys, "solve", "visual", tmp_path / "board.npy", "--tries", 1, "--json"))
    assert data["solved"] + data["unsolved"] == 1
    assert "UNN_DATA" in refused(capsys, "solve", "visual", "test:0")


@pytest.mark.data
@WITH_BOARDS
def test_the_packaged_weights_read_and_solve_nine_of_ten_boards():
    problem, run = open_trained("visual", "perception")
    (query,) = problem.test_queries(run.config, 100, torch.Generator()).values()
    solutions = unn.solve(run.network, query.given, options=unn.SolvingOptions(tries=1))
    assert problem.metrics(run.config, query, solutions.values)["boards"] > 0.9
