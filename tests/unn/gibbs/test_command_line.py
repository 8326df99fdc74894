"""Runs of the engine on the command line."""

import json

import pytest
from support.commands import printed, refused


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from unn.cli.main import main

    folder = tmp_path_factory.mktemp("runs") / "ising"
    options = ["--rows", "2", "--columns", "2", "--chains", "8", "--burn-in", "5", "--chain-draws", "4"]
    command = ["train", "ising", "--engine", "gibbs", "--steps", "2", "--evaluate-every", "2", "--quiet"]
    assert main([*command, *options, "--folder", str(folder)]) == 0
    return folder


def test_inference_says_which_engine_answered_where_there_are_no_rounds(capsys, run):
    text = printed(capsys, "infer", run, "--given", "X=1,1,?,?", "--want", "X")
    assert "answered by engine gibbs." in text
    assert "round" not in text
    text = printed(capsys, "infer", run, "--given", "X=1,1,?,?", "--want", "X", "--iterations", "7")
    assert "answered by engine gibbs with --iterations 7." in text


def test_samples_keep_what_is_given_and_are_the_same_under_a_seed(capsys, run):
    command = ["sample", run, "--given", "X=1,0,?,?", "--count", 3, "--seed", 5, "--json"]
    first, second = (json.loads(printed(capsys, *command)) for _ in range(2))
    assert first["values"] == second["values"]
    (values,) = first["values"].values()
    assert all([row[0][0], row[0][1]] == [1, 0] for row in values)


def test_options_of_denoising_are_refused(capsys, run):
    assert "sampler" in refused(capsys, "sample", run, "--sampler", "ddim")
