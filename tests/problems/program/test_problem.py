"""Programs of one's own on the command line: their graph, training, samples, and what is refused."""

import json

import numpy as np
import pytest
import torch

from problems.program.problem import ProgramConfig, ProgramProblem
from unn import runs
from unn.cli.main import main
from unn.extending import Query

MODEL = """
from unn.programs import Bernoulli, Uniform

def model(t, m=2, n=2, k=2):
    A = t.sample("A", Uniform(0, 1), shape=(m, k))
    R = t.sample("R", Bernoulli(0.3), shape=(k, n))
    C, E = t.empty("C", (m, n, k)), t.empty("E", (m, n))
    for i in range(m):
        for j in range(n):
            for l in range(k):
                C[i, j, l] = t.deterministic(A[i, l] * R[l, j])
            E[i, j] = t.deterministic(sum(C[i, j, l] for l in range(k)))

number = 3
"""
TINY = [
    "--steps",
    "2",
    "--evaluate-every",
    "2",
    "--width",
    "8",
    "--depth",
    "1",
    "--heads",
    "2",
    "--sampling-steps",
    "2",
    "--quiet",
]


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_program_is_shown_trained_measured_and_sampled(program, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["show", f"{program}:model"]) == 0 and "4 variables" in capsys.readouterr().out
    assert main(["train", f"{program}:model", "--observe", "E", "--folder", str(run), *TINY]) == 0
    assert main(["evaluate", str(run)]) == 0 and "worst_mean" in capsys.readouterr().out
    assert main(["sample", str(run), "--count", "2", "--seed", "1", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert torch.tensor(values["E"]).shape == (2, 2, 2) and set(values) == {"A", "R", "C", "E"}
    given = ["--given", "A=0.5,0.5,0.5,0.5", "R=1,1,1,1", "C=0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5"]
    assert main(["sample", str(run), *given, "E=1,1,?,1"]) == 0
    assert main(["sample", str(run), *given, "E=1,1,?,2"]) == 2
    assert "'E[1,1]' is computed from values that are given" in capsys.readouterr().err


def test_its_samples_are_draws_from_the_program_of_the_sizes_that_are_asked_for(program):
    problem, config = ProgramProblem(), ProgramConfig(program=f"{program}:model", arguments="m=3, n=1")
    values = problem.generate(config, 5, torch.Generator().manual_seed(0), {})
    assert values["E"].shape == (5, 3, 1)
    torch.testing.assert_close(values["A"] @ values["R"], values["E"])
    every = problem.observed(config, 7, torch.Generator().manual_seed(0), {})
    assert {name: tuple(x.shape) for name, x in every.items()} == {
        name: (7, *values[name].shape[1:]) for name in values
    }


def test_a_program_that_has_changed_is_not_taken_for_the_one_that_was_trained(program, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", f"{program}:model", "--folder", str(run), *TINY]) == 0
    (run / "program.py").write_text(MODEL.replace("0.3", "0.4"))
    capsys.readouterr()
    for command in ("sample", "evaluate", "resume"):
        assert main([command, str(run)]) == 2
        message = capsys.readouterr().err
        assert "program.py" in message and "changed since the run was" in message and str(run) in message


@pytest.mark.slow
def test_a_run_opens_its_own_copy_of_the_program_from_anywhere(program, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "model.py:model", "--folder", "run", *TINY]) == 0
    assert (tmp_path / "run" / "program.py").read_text() == MODEL
    assert runs.open_run(tmp_path / "run").config["program"] == "model.py:model"
    program.write_text(MODEL.replace("0.3", "0.4"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    program.unlink()
    for command in (
        ["sample", "--seed", "1"],
        ["evaluate"],
        ["resume", "--quiet"],
        ["resume", "--steps", "3", "--quiet"],
    ):
        assert main([command[0], "../run", *command[1:]]) == 0, capsys.readouterr().err
    # another run of another program in the same process keeps apart
    program.write_text(MODEL.replace('"R"', '"Q"'))
    assert main(["train", f"{program}:model", "--folder", "other", *TINY]) == 0
    capsys.readouterr()
    names = []
    for folder in ("../run", "other"):
        assert main(["sample", folder, "--json"]) == 0
        names.append(set(json.loads(capsys.readouterr().out)["values"]))
    assert names == [{"A", "R", "C", "E"}, {"A", "Q", "C", "E"}]


@pytest.mark.slow
def test_a_run_from_before_programs_were_copied_opens_where_the_program_is(
    program, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "model.py:model", "--folder", "run", *TINY]) == 0
    (tmp_path / "run" / "program.py").unlink()
    assert main(["evaluate", "run"]) == 0
    program.unlink()
    capsys.readouterr()
    assert (
        main(["evaluate", "run"]) == 2 and "model.py: the program cannot be read" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}:other"], "no function 'other'"),
        (["{}:number"], "no function 'number'"),
        (["{}:model", "--observe", "F"], "'F'"),
        (["{}:model", "--arguments", "3"], "NAME=VALUE"),
        (["{}:model", "--arguments", "q=3"], "q"),
        (["nowhere.py:model"], "cannot be read"),
    ],
)
def test_what_is_no_program_is_refused(program, tmp_path, capsys, words, message):
    words = [word.format(program) for word in words]
    assert main(["train", *words, "--folder", str(tmp_path / "run"), *TINY]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("statement", "error"),
    [("{}['k']", "KeyError: 'k'"), ("1 / 0", "ZeroDivisionError"), ("sys.exit(3)", "SystemExit: 3")],
)
def test_a_program_that_fails_says_so_with_its_line(tmp_path, capsys, statement, error):
    file = tmp_path / "broken.py"
    file.write_text(f"import sys\n\ndef f(t):\n    {statement}\n")
    assert main(["train", "program", "--program", f"{file}:f"]) == 2
    message = capsys.readouterr().err
    assert f"broken.py:f, line 4: {error}" in message and len(message.splitlines()) == 1


def test_a_function_with_bound_arguments_is_a_program(tmp_path, capsys):
    file = tmp_path / "bound.py"
    file.write_text(
        "import functools\nfrom unn.programs import Normal\n\n"
        "def mean(t, points):\n    t.sample('x', Normal(0.0, 1.0), points)\n\n"
        "three = functools.partial(mean, points=3)\n"
    )
    assert main(["show", f"{file}:three"]) == 0
    assert "three" in capsys.readouterr().out


def test_a_program_that_fails_says_so_with_its_file(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("def model(t):\n    return 1 +\n")
    assert main(["show", f"{path}:model"]) != 0
    error = capsys.readouterr().err
    assert "broken.py" in error and "SyntaxError" in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--arguments", "m=2,m=3"], "arguments names 'm' twice"),
        (["--arguments", "m=2", "--plates", "m=1-3"], "arguments and plates both name 'm'"),
        (["--plates", "mm=1-3"], "plates names 'mm', but"),
        (["--observe", "A,R,C,E"], "names all variables"),
    ],
)
def test_options_of_a_program_that_contradict_it_or_each_other_are_refused(
    program, tmp_path, capsys, options, words
):
    assert main(["train", f"{program}:model", *options, "--folder", str(tmp_path / "run"), *TINY]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("function", ["async def model(t):\n    ", "def model(t):\n    yield "])
def test_a_program_that_does_not_run_when_it_is_called_is_refused(tmp_path, capsys, function):
    path = tmp_path / "later.py"
    path.write_text(f"from unn.programs import Normal\n\n{function}t.sample('x', Normal(0.0, 1.0))\n")
    assert main(["show", f"{path}:model"]) == 2
    assert "yield or async" in capsys.readouterr().err


PLATES = """
from unn.programs import Normal

def mean(t, points):
    m = t.sample("m", Normal(0.0, 1.0))
    t.sample("x", Normal(m, 1.0), points)
"""


@pytest.mark.slow
def test_plates_have_any_size_of_training(tmp_path, capsys):
    file, folder = tmp_path / "plates.py", str(tmp_path / "run")
    file.write_text(PLATES)
    # enough steps that each size is drawn
    steps = ["--steps", "60", "--evaluate-every", "60"]
    assert main(["train", f"{file}:mean", "--plates", "points=1-5", "--folder", folder, *TINY, *steps]) == 0
    for given in ("x=0.1,0.2", "x=0.1,0.2,0.3,0.4"):
        assert main(["sample", folder, "--given", given, "--count", "2", "--seed", "1"]) == 0
    assert main(["evaluate", folder, "--metric", "bias", "spread", "--count", "2", "--draws", "50"]) == 0
    capsys.readouterr()
    assert main(["sample", folder, "--given", "x=1,2,3,4,5,6"]) == 2
    assert "6 points" in capsys.readouterr().err
    for plates in ("points", "points=1", "points=5-1", "points=0-2"):
        assert (
            main(["train", f"{file}:mean", "--plates", plates, "--folder", str(tmp_path / "x"), *TINY]) == 2
        )
        assert "points" in capsys.readouterr().err


def test_rows_of_a_file_are_evidence_of_one_sample_each(tmp_path, capsys):
    file, folder = tmp_path / "plates.py", str(tmp_path / "run")
    file.write_text(PLATES)
    assert main(["train", f"{file}:mean", "--plates", "points=3-5", "--folder", folder, *TINY]) == 0
    rows = tmp_path / "rows.npy"
    np.save(rows, np.array([[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]], dtype=np.float32))
    capsys.readouterr()
    assert main(["sample", folder, "--given", f"x={rows}", "--count", "2", "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)
    assert len(samples["values"]["m"]) == 2
    assert samples["values"]["x"][1] == [1.0, 2.0, 3.0]
    assert main(["sample", folder, "--given", f"x={rows}", "--count", "3"]) == 2
    assert "2 batch elements are given" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_from_before_plates_opens(tmp_path, capsys):
    file, folder = tmp_path / "model.py", tmp_path / "run"
    file.write_text(MODEL)
    assert main(["train", f"{file}:model", "--folder", str(folder), *TINY]) == 0
    content = json.loads((folder / "config.json").read_text())
    del content["config"]["plates"], content["config"]["model"]["coordinates"]
    (folder / "config.json").write_text(json.dumps(content))
    assert main(["sample", str(folder), "--count", "1", "--seed", "1"]) == 0
    run = runs.open_run(folder)
    assert ProgramProblem().earlier_config(run.config)["model"]["coordinates"] == "linear"


COMPUTED = """
from unn.programs import Normal

def computed(t):
    m = t.sample("m", Normal())
    d = t.deterministic(m * 2, name="d")
    t.sample("x", Normal(d, 1.0), 2)
"""


@pytest.mark.slow
def test_programs_with_computed_variables_are_measured_against_their_posteriors(tmp_path, capsys):
    file, folder = tmp_path / "computed.py", str(tmp_path / "run")
    file.write_text(COMPUTED)
    assert main(["train", f"{file}:computed", "--folder", folder, *TINY]) == 0
    assert main(["evaluate", folder, "--metric", "bias", "spread", "--count", "6", "--draws", "50"]) == 0
    capsys.readouterr()
    for metric in ("bias", "spread"):
        assert main(["evaluate", folder, "--metric", metric, "--count", "2", "--draws", "1"]) == 2
        assert f"{metric}: at least 2 samples" in capsys.readouterr().err
    assert main(["evaluate", folder, "--metric", "coverage", "--count", "1"]) == 2
    assert "--metric coverage needs --count 16" in capsys.readouterr().err
    assert main(["compare", folder, "--metric", "spread", "--draws", "0"]) == 2
    assert "draws" in capsys.readouterr().err


def test_a_variable_that_is_equal_in_all_draws_has_no_error_in_its_deviations(tmp_path):
    path = tmp_path / "constant.py"
    path.write_text(
        "from unn.programs import Normal\n\ndef f(t):\n    x = t.sample('x', Normal(0.0, 1.0))\n"
        "    one = t.sample('one', Normal(1.0, 1e-12))\n    y = t.sample('y', Normal(3.0 * x, 1e-3))\n"
    )
    problem, config = ProgramProblem(), ProgramConfig(program=f"{path}:f")
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    constant = torch.full_like(x, 1.01)
    values = {"x": x, "one": constant, "y": 3 * x}
    assert problem.metrics(config, Query({}), values)["worst_mean"] < 0.2
    assert problem.metrics(config, Query({}), {**values, "y": 3 * x + 3})["worst_mean"] > 0.8
