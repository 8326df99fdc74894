"""unn solve colouring: verified colourings of files, options, runs and bad input."""

import re

import pytest
from support.commands import answered, printed, refused

CLIQUE = "p edge 4 6\n" + "".join(f"e {a} {b}\n" for a in range(1, 5) for b in range(a + 1, 5))


def test_a_graph_is_coloured_without_training(tmp_path, capsys):
    path = tmp_path / "cycle.txt"
    path.write_text("".join(f"{k} {(k + 1) % 7}\n" for k in range(7)))
    answer = answered(capsys, "solve", "colouring", path, "--engine", "search")
    assert answer["solved"] == 1
    (colours,) = answer["instances"][0]["answers"]
    assert all(colours[k] != colours[(k + 1) % 7] for k in range(7)) and max(colours) <= 2


def test_the_number_of_colours_is_an_option(tmp_path, capsys):
    path = tmp_path / "clique.col"
    path.write_text(CLIQUE)
    arguments = ["solve", "colouring", str(path), "--engine", "search"]
    three = answered(capsys, *arguments, "--steps", "30", "--tries", "2")
    assert three["unsolved"] == 1 and three["instances"][0]["violations"] == {"edges": 1}
    four = answered(capsys, *arguments, "--options", "colours=4")
    assert sorted(four["instances"][0]["answers"][0]) == [0, 1, 2, 3]


def test_options_of_the_engine_are_options_and_a_tree_proves_that_there_is_no_colouring(tmp_path, capsys):
    path = tmp_path / "clique.col"
    path.write_text(CLIQUE)
    arguments = ["solve", "colouring", path, "--engine", "search", "--options"]
    tree = answered(capsys, *arguments, "mode=depth-first", "solving_steps=1000")
    assert tree["impossible"] == 1
    assert answered(capsys, *arguments, "colours=1")["impossible"] == 1
    message = refused(capsys, *arguments, "mode=depth")
    assert "depth-first" in message and "--options mode=depth" in message


def test_several_different_colourings_are_found_on_request(tmp_path, capsys):
    path = tmp_path / "edge.txt"
    path.write_text("0 1\n")
    arguments = ["--engine", "search", "--count", "6", "--tries", "200"]
    (instance,) = answered(capsys, "solve", "colouring", path, *arguments)["instances"]
    answers = instance["answers"]
    assert len({tuple(a) for a in answers}) == 6 and all(a != b for a, b in answers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.txt"], "none.txt.*No such file"),
        (["a.txt", "b.txt"], "one graph at a time"),
        (["--options", "colour=4"], "colours"),
        (["--options", "colours"], "NAME=VALUE"),
        (["--options", "colours=many"], "int"),
        (["--options", "colours=0"], "colours"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message, capsys):
    error = refused(capsys, "solve", "colouring", "--engine", "search", *arguments)
    assert re.search(message, error)


def test_a_trained_solver_colours_its_graph(tmp_path, capsys):
    folder = tmp_path / "run"
    printed(
        capsys, "train", "colouring", "--engine", "solver", "--nodes", "10", "--degree", "2", "--steps", "20",
        "--width", "8", "--pool", "8", "--evaluate-every", "20", "--folder", folder,
    )  # fmt: skip
    answer = answered(capsys, "solve", folder, "--tries", "50")
    assert answer["solved"] == 1
