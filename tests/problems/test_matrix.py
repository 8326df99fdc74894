"""Every problem with every engine trains and answers, or is refused with the reason and the engines that
can."""

import json
import re
from functools import cache

import pytest
import torch
from support.commands import printed, refused

from unn.cli.open import open_trained
from unn.cli.problem import load_problem, problem_names
from unn.cli.problems import problems
from unn.extending import CanInfer, CanLearn, CanSample, CanSolve, engine_names, load_engine

FAST = ("ising", "sorting")

MATRIX = [
    pytest.param(problem, engine, marks=() if problem in FAST else pytest.mark.slow)
    for problem in problem_names()
    for engine in engine_names()
]

SMALL = {
    "denoiser": ["--width", "8", "--depth", "2", "--heads", "2", "--sampling-steps", "2"],
    "regressor": ["--width", "8", "--depth", "2", "--heads", "2"],
    "vaeac": ["--width", "8", "--depth", "1"],
    "descent": ["--iterations", "2"],
    "belief": ["--rounds", "20"],
    "encoder": ["--width", "8", "--blocks", "1", "--hidden", "8"],
    "exact": [],
    "gibbs": ["--chains", "4", "--burn-in", "2", "--chain-draws", "4"],
    "latent": ["--width", "8", "--keys", "4", "--spatial-keys", "4", "--particles", "2"],
    "untied": ["--iterations", "2"],
    "recurrent": ["--width", "8", "--heads", "2", "--recurrences", "2"],
    "perception": ["--filters", "2", "--hidden", "8"],
    "search": [],
    "solver": ["--width", "8", "--pool", "4"],
}

OPTIONS = {
    "digits": ["--channels", "2"],
    "boltzmann": ["--units", "4", "--annealing-steps", "5"],
    "sudoku": ["--batch", "4"],
    "hopfield": ["--units", "6"],
    "colouring": ["--nodes", "8", "--degree", "4", "--examples", "16"],
    "latin": ["--size", "3", "--examples", "8"],
    "queens": ["--size", "4", "--queens", "1", "--examples", "8"],
    "jigsaw": ["--size", "4", "--examples", "8"],
    "killer": ["--size", "4", "--examples", "8"],
    "futoshiki": ["--size", "3", "--examples", "8"],
    "kenken": ["--size", "3", "--examples", "8"],
    "visual": ["--given-share", "0.7"],
    "paths": ["--rows", "2", "--columns", "2", "--levels", "4", "--examples", "8"],
    "pictures": ["--rows", "3", "--columns", "3"],
    "tables": ["--nodes", "5"],
    "gaussian": ["--rows", "2", "--columns", "2"],
    "nonogram": ["--rows", "3", "--columns", "3", "--examples", "8"],
}

GIVEN = {
    "boolean": "L0=1,0,1,0,1,1,1,0",
    "digits": "image=test:3",
    "hopfield": "x=0,1,1,0,1,1",
    "ising": None,
    "program": "slope=0.5",
    "sorting": "u=3,1,2,5,4",
    "sudoku": "1..." + "." * 12,
}


@cache
def verdicts_of(name):
    """Which engines serve a problem; a large declaration takes seconds to ask."""
    return load_problem(name).verdicts()


@pytest.mark.parametrize(("name", "engine"), MATRIX)
def test_every_cell_of_the_matrix_trains_and_answers_or_says_why_not_and_who_can(
    name, engine, tmp_path, capsys
):
    problem = load_problem(name)
    if problem.own_engine:
        # a network of the problem's own is trained in its own tests
        if engine != problem.own_engine:
            assert "network of its own" in refused(capsys, "train", name, "--engine", engine)
        elif name == "parsing":
            # its own engine may be named
            options = ["--steps", 1, "--evaluate-every", 1, "--quiet", "--json"]
            trained = printed(
                capsys, "train", name, "--engine", engine, *options, "--folder", tmp_path / "run"
            )
            assert json.loads(trained)["step"] == 1
        return
    verdict = verdicts_of(name)[engine]
    # what an engine refuses at the default size of a problem it may serve at a smaller one
    options = [*SMALL[engine], *(OPTIONS.get(name, []) if verdict else [])]
    train = [
        "train",
        name,
        "--engine",
        engine,
        "--steps",
        2,
        "--batch",
        4,
        "--evaluate-every",
        2,
        *options,
        "--quiet",
    ]
    if not verdict:
        message = refused(capsys, *train, "--folder", tmp_path / "run")
        able = [other for other, each in verdicts_of(name).items() if each]
        assert verdict.reason in message and all(other in message for other in able)
        assert not (tmp_path / "run").exists()
        return
    report = json.loads(printed(capsys, *train, "--folder", tmp_path / "run", "--json"))
    _, run = open_trained(tmp_path / "run")
    # a graph of constraints or constants alone has nothing to learn by descent or exact inference
    if load_engine(engine).trains and any(True for _ in run.network.parameters()):
        assert report["step"] == 2 and torch.tensor(report["loss"]).isfinite()
    figures = json.loads(printed(capsys, "evaluate", tmp_path / "run", "--json"))
    assert figures
    assert isinstance(run.network, CanLearn) and isinstance(run.network, CanInfer | CanSample | CanSolve)
    answers = load_engine(engine).answers
    assert ("solve" in answers) == isinstance(run.network, CanSolve)
    assert ("infer" in answers) == isinstance(run.network, CanInfer)
    assert ("sample" in answers) == isinstance(run.network, CanSample)
    given_text = GIVEN.get(name)
    if "sample" in answers:
        given_options = ["--given", given_text] if given_text else []
        data = json.loads(
            printed(capsys, "sample", tmp_path / "run", *given_options, "--count", 2, "--seed", 0, "--json")
        )
        assert all(len(value) == 2 for value in data["values"].values())
    else:
        assert engine in refused(capsys, "sample", tmp_path / "run")
    if "infer" in answers and given_text:
        want = {"digits": "label", "sudoku": "X"}.get(name)
        if want:
            data = json.loads(
                printed(capsys, "infer", tmp_path / "run", "--given", given_text, "--want", want, "--json")
            )
            assert torch.tensor(data[want]).isfinite().all()
    if "solve" in answers:
        instances = {"sudoku": ["1..." + "." * 12], "visual": ["test:0"]}.get(name, [])
        data = json.loads(printed(capsys, "solve", tmp_path / "run", *instances, "--tries", 1, "--json"))
        assert data["solved"] + data["unsolved"] == 1
    if "infer" not in answers:
        message = refused(capsys, "infer", tmp_path / "run", "--given", "A=1", "--want", "B")
        assert engine in message
        assert set(re.findall(r"unn (\w+)", message)) == {"sample", "solve"}.intersection(answers)


@pytest.mark.slow
def test_all_problems_are_listed_and_the_matrix_is_printed_with_the_reasons():
    answer = problems()
    text, data = "\n".join(answer.lines), answer.data
    assert set(data["matrix"]) == set(problem_names()) and set(data["engines"]) == set(engine_names())
    for name in problem_names():
        assert f"  {name} " in text and load_problem(name).summary in text
    for name, row in data["matrix"].items():
        assert set(row) == set(engine_names())
        assert row[data["defaults"][name]] is None
        assert all(reason is None or reason in text for reason in row.values())


def test_digits_answer_in_both_directions_with_descent_and_with_the_denoiser():
    matrix = load_problem("digits").verdicts()
    assert matrix["descent"] and matrix["denoiser"]
