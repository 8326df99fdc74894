"""Engines that answer in one step have no number of rounds."""

import pytest
from support.commands import printed, refused

SMALL = ["--rows", "2", "--columns", "2", "--steps", "1", "--evaluate-every", "1", "--quiet"]
ENGINES = {"exact": [], "encoder": ["--width", "8", "--blocks", "1", "--hidden", "8"]}


@pytest.mark.parametrize("engine", ENGINES)
def test_iterations_are_refused_by_engines_that_answer_in_one_step(engine, capsys, tmp_path):
    train = ["train", "ising", "--engine", engine, *SMALL, *ENGINES[engine]]
    printed(capsys, *train, "--folder", tmp_path / "run")
    infer = ["infer", tmp_path / "run", "--given", "X=1,?,?,?", "--want", "X"]
    assert f"answered by engine {engine}." in printed(capsys, *infer)
    for command in ([*infer, "--iterations", "3"], ["evaluate", tmp_path / "run", "--iterations", "1", "3"]):
        assert "in one step" in refused(capsys, *command)
