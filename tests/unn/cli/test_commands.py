"""The command line: what it prints, for people and for machines; what it imports; a problem of somebody
else's."""

import ast
import inspect
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.commands import answered, attribute_texts
from support.toy import without_times

import unn
from unn import draw as drawing
from unn import runs
from unn.cli.main import main, parse, verbs
from unn.cli.train import Train
from unn.extending import DenoiserOptions, DescentOptions, RegressorOptions, VAEACOptions
from unn.training import TrainingConfig

ROOT = Path(__file__).parents[3]


def unn_process(*arguments, folder=None, path=(), **options):
    """Start the command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, os.environ["PYTHONPATH"])))}
    return subprocess.Popen(
        [sys.executable, "-m", "unn", *map(str, arguments)], cwd=folder, env=environment, text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )  # fmt: skip


def finished(process, code=0):
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    return out


@pytest.fixture(scope="module")
def pictures_run(tmp_path_factory, toys_of_module):
    folder = tmp_path_factory.mktemp("runs") / "patterns"
    assert (
        main(
            [
                "train",
                "patterns",
                "--epochs",
                "2",
                "--channels",
                "2",
                "--iterations",
                "1",
                "--folder",
                str(folder),
            ]
        )
        == 0
    )
    return folder


# -- before torch --------------------------------------------------------------------------------------------

WITHOUT_TORCH = [
    ["--help"],
    ["train", "--help"],
    ["train", "patterns", "--help"],
    ["show", "patterns", "--help"],
    ["infer", "--help"],
    ["train", "patterns", "--epochs", "x"],
    ["train", "patterns", "--epochs", "0"],
    ["evaluate", "nowhere"],
    ["--tyro-print-completion", "bash"],
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", WITHOUT_TORCH, ids=" ".join)
def test_arguments_are_read_without_importing_torch(arguments):
    script = f"""
import sys
from unn.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    pass
heavy = {{"torch", "matplotlib", "sklearn", "numpy"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_comparing_runs_does_not_import_torch(pictures_run):
    script = (
        f"import sys; from unn.cli.main import main; main(['compare', {str(pictures_run)!r}]); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "test_accuracy" in done.stdout


def test_options_of_a_problem_are_those_of_its_dataclasses():
    command, problem = parse(
        ["train", "patterns", "--gamma", "0.5", "--epochs", "7", "--precision", "bfloat16", "--quiet"]
    )
    assert problem.name == "patterns" and isinstance(command, Train) and command.quiet
    assert (
        command.config.gamma == 0.5
        and command.config.training.epochs == 7
        and command.config.training.precision == "bfloat16"
    )
    assert command.config.training.batch == 64 and command.folder is None


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_words_complete_for_every_command_and_option(capsys, shell):
    with pytest.raises(SystemExit) as stop:
        main(["--tyro-print-completion", shell])
    script = capsys.readouterr().out
    assert not stop.value.code
    words = (
        "problems show train baselines resume evaluate infer compare bench doctor patterns gamma epochs given"
    )
    assert all(word in script for word in words.split())


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"unn {unn.__version__}\n"


def test_help_lists_every_command_and_those_of_everyday_use_first(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    out = capsys.readouterr().out
    assert not stop.value.code
    listed = re.search(r"\{([\w,]+)\}", out).group(1).split(",")
    assert listed == list(verbs()) and listed[:5] == ["show", "train", "evaluate", "infer", "sample"]
    assert "--version" in out


def test_a_package_does_not_replace_a_command(monkeypatch):
    monkeypatch.setattr("unn.cli.main.verb_names", lambda: ["train", "parse"])
    assert verbs()["train"] is Train and "parse" in verbs()


def help_texts():
    """What ``--help`` says of each option, by option."""
    files = [ROOT / "unn" / "cli" / "options.py", *(Path(inspect.getfile(kind)) for kind in verbs().values())]
    trees = [ast.parse(file.read_text()) for file in files]
    nodes = [node for tree in trees for node in tree.body]
    for kind in (node for node in nodes if isinstance(node, ast.ClassDef) and node.decorator_list):
        for field, text in pairwise(kind.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                yield f"{kind.name}.{field.target.id}", text.value.value
        yield kind.name, ast.get_docstring(kind)
    for call in (
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "arg"
    ):
        yield from (
            (f"arg at line {call.lineno}", word.value.value) for word in call.keywords if word.arg == "help"
        )
    for config in (
        TrainingConfig,
        DescentOptions,
        DenoiserOptions,
        RegressorOptions,
        VAEACOptions,
    ):
        yield from attribute_texts(config)


@pytest.mark.parametrize(
    ("option", "text"), list(help_texts()), ids=lambda x: x if "." in x[:-1] and " " not in x else ""
)
def test_help_is_written_in_whole_sentences(option, text):
    assert text[0].isupper() and text.endswith("."), f"{option}: {text}"


# -- each command --------------------------------------------------------------------------------------------


def test_problems_are_listed_with_their_summaries(capsys, monkeypatch):
    monkeypatch.setattr("unn.cli.problems.problem_names", lambda: ["patterns", "sums"])
    assert "ten noisy patterns" in answered(capsys, "problems")["problems"]["patterns"]
    assert main(["problems"]) == 0 and re.search("^ *patterns +ten noisy", capsys.readouterr().out, re.M)


def test_show_explains_and_draws_the_graph_and_its_adjacency(capsys, tmp_path):
    shown = answered(capsys, "show", "patterns", "--channels", "2", "--out", tmp_path, "--theme", "dark")
    assert "softmax" in shown["explanation"] and shown["nodes"] == {"image": 64, "H1": 2, "label": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"graph.svg", "adjacency.png"}
    assert main(["show", "patterns", "--channels", "2"]) == 0
    text = capsys.readouterr().out
    assert "Boundedness" in text and "67 nodes" in text and "H1" in text


def test_a_theme_that_does_not_exist_is_named(capsys, tmp_path):
    assert main(["show", "patterns", "--out", str(tmp_path), "--theme", "drak"]) == 2
    assert "dark" in capsys.readouterr().err


def test_a_run_says_what_it_was_made_with(pictures_run):
    run = runs.open_run(pictures_run)
    assert run.config["training"]["epochs"] == 2 and run.facts["image_shape"] == [8, 8]
    assert all(len(checksum) == 64 for checksum in run.facts["data"].values()) and len(run.facts["data"]) == 2
    # packages of torch may leave out what it was built for, such as +cu128
    assert torch.__version__.startswith(run.code["torch"]) and run.code["torch"] and run.code["unn"]
    assert (pictures_run / "plots" / "metrics.png").stat().st_size > 1000


def test_inference_draws_the_energy_by_factor_and_saves_values(capsys, pictures_run, tmp_path):
    values = answered(
        capsys,
        "infer",
        pictures_run,
        "--given",
        "label=3",
        "--want",
        "H1",
        "--out",
        tmp_path / "h.npy",
        "--energy",
        tmp_path / "e.png",
    )
    import numpy as np

    assert np.load(tmp_path / "h.npy").shape == (1, 2) and len(values["H1"]) == 2
    assert (tmp_path / "e.png").stat().st_size > 1000


def test_runs_are_compared_by_the_options_in_which_they_differ(capsys, pictures_run, tmp_path):
    other = tmp_path / "other"
    answered(
        capsys,
        "train",
        "patterns",
        "--epochs",
        "1",
        "--channels",
        "2",
        "--iterations",
        "2",
        "--folder",
        other,
    )
    rows = answered(capsys, "compare", pictures_run, other, "--out", tmp_path / "both.png")["runs"]
    assert [row["model.iterations"] for row in rows] == [1, 2] and [
        row["training.epochs"] for row in rows
    ] == [2, 1]
    assert "channels" not in rows[0] and rows[0]["test_accuracy"] > 0
    assert (tmp_path / "both.png").stat().st_size > 1000
    assert main(["compare", str(tmp_path)]) == 2 and "no run folder" in capsys.readouterr().err


def test_the_plot_of_compared_runs_leaves_out_the_learning_rate(capsys, pictures_run, tmp_path, monkeypatch):
    drawn = []

    def draw_metrics(histories, **options):
        drawn.extend(histories.values())
        return draw_all(histories, **options)

    draw_all = drawing.draw_metrics
    monkeypatch.setattr("unn.draw.draw_metrics", draw_metrics)
    answered(capsys, "compare", pictures_run, "--out", tmp_path / "one.png")
    names = {name for history in drawn for entry in history for name in entry}
    assert "loss" in names and "rate" not in names


def test_the_doctor_names_versions_devices_problems_and_data(capsys, tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("UNN_DATA", str(tmp_path))
    report = answered(capsys, "doctor")
    version = report["versions"]["torch"]
    assert version and torch.__version__.startswith(version) and report["problems"]["patterns"] == "loads"
    assert report["data"] == {"UNN_DATA": str(tmp_path), "folders": ["mnist"]} and not report["faults"]
    assert report["devices"][0].startswith("cpu")
    assert main(["doctor"]) == 0 and "no faults found" in capsys.readouterr().out


def test_a_broken_problem_of_somebody_else_is_named_by_the_doctor_and_spares_the_others(capsys, monkeypatch):
    from importlib.metadata import EntryPoint

    values = {"broken": "no_such_module:Problem", "patterns": "support.toy_problems:PatternsProblem"}
    entries = [EntryPoint(name, value, "unn.problems") for name, value in values.items()]
    monkeypatch.setattr("unn.cli.problem.entry_points", lambda group: entries)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "fault: problem 'broken'" in out and "no_such_module" in out and "patterns: loads" in out
    assert main(["problems"]) == 0 and "no_such_module" in capsys.readouterr().out
    assert main(["train", "broken"]) == 2 and "no_such_module" in capsys.readouterr().err


# -- terminals -----------------------------------------------------------------------------------------------

QUICK = ["--epochs", "2", "--channels", "2", "--iterations", "1"]


@pytest.mark.slow
def test_training_is_quiet_when_its_output_is_no_terminal(tmp_path):
    process = unn_process("train", "patterns", *QUICK, folder=tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and not err and "run folder runs/patterns-001" in out


@pytest.mark.slow
def test_training_shows_a_bar_on_a_terminal(tmp_path):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = unn_process("train", "patterns", *QUICK, folder=tmp_path, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    finished(process)
    os.close(ours)
    assert b"training" in shown and b"step" in shown


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_resuming_gives_the_numbers_of_one_that_was_not(number, tmp_path):
    options = [
        "train",
        "patterns",
        "--epochs",
        "40",
        "--channels",
        "2",
        "--iterations",
        "1",
        "--threads",
        "1",
        "--checkpoint-every",
        "1000000",
    ]
    process = unn_process(*options, "--folder", tmp_path / "run")
    begun = time.monotonic()
    while len(runs.read_metrics(tmp_path / "run")) < 3 and time.monotonic() - begun < 120:
        time.sleep(0.01)
    process.send_signal(number)
    out = finished(process, 130)
    assert "interrupted after step" in out and "unn resume" in out
    steps = runs.checkpoint_steps(tmp_path / "run")
    assert len(steps) == 1 and 3 * 23 <= steps[0] < 40 * 23
    finished(unn_process("resume", tmp_path / "run"))
    finished(unn_process(*options, "--folder", tmp_path / "whole"))
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert without_times(runs.read_metrics(tmp_path / "run")) == without_times(
        runs.read_metrics(tmp_path / "whole")
    )


def test_a_run_that_has_not_finished_can_be_evaluated_from_its_checkpoint(capsys, pictures_run, tmp_path):
    import shutil

    shutil.copytree(pictures_run, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    assert answered(capsys, "evaluate", tmp_path / "run") == answered(capsys, "evaluate", pictures_run)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "neither final weights nor a checkpoint" in capsys.readouterr().err


# -- somebody else's package ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A package with a problem and a factor of its own, installed by pip into a folder."""
    target = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--disable-pip-version-check",
    ]
    source = ROOT / "tests" / "third_party" / "phases"
    done = subprocess.run(
        [*pip, "--target", str(target), str(source)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_a_problem_and_factor_of_another_package_have_all_commands(installed, tmp_path):
    def data(*arguments):
        return json.loads(finished(unn_process(*arguments, "--json", folder=tmp_path, path=[installed])))

    assert set(data("problems")["problems"]) >= {"patterns", "phases"}
    assert "--size" in finished(unn_process("train", "phases", "--help", path=[installed]))
    report = data("train", "phases", "--size", "3", "--folder", "run")
    assert report["error"] < 0.05 and report["step"] == 200
    assert data("evaluate", "run")["error"] == report["error"]
    inferred = data("infer", "run", "--given", "source=0.1,0.2,-0.3", "--want", "output")
    assert inferred["output"] == pytest.approx([0.2913, 0.5370, -0.7163], abs=0.02)
    assert data("show", "phases")["nodes"] == {"source": 4, "output": 4}
    assert data("resume", "run")["step"] == 200
    assert data("size", "run") == {"parameters": 3} and "Count the parameters" in finished(
        unn_process("--help", path=[installed])
    )
    for arguments, words in (
        (("broken", "run"), ["'broken' (phases.verb:Missing) cannot be loaded"]),
        (("sample", "run"), ["'phases' has no generative model", "sums"]),
    ):
        process = unn_process(*arguments, folder=tmp_path, path=[installed])
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2 and all(word in errors for word in words) and "Traceback" not in errors
    code = runs.open_run(tmp_path / "run").code
    assert code["unn"] and "phases" not in code["commits"]


@pytest.mark.slow
def test_an_engine_and_a_problem_of_another_package_have_all_commands_and_each_other(installed, tmp_path):
    def run(*arguments, path=(installed,)):
        return finished(unn_process(*map(str, arguments), folder=tmp_path, path=list(path)))

    def refusal(*arguments, path=(installed,)):
        process = unn_process(*arguments, folder=tmp_path, path=list(path))
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2 and len(errors.strip().splitlines()) == 1 and "Traceback" not in errors
        return errors

    matrix = json.loads(run("problems", "--json"))["matrix"]
    assert matrix["waves"]["neighbours"] is None and matrix["waves"]["descent"] is None
    assert matrix["sums"]["neighbours"] is None and "cannot be loaded" in matrix["sums"]["broken"]
    assert "--bandwidth" in run("train", "waves", "--engine", "neighbours", "--help")
    report = json.loads(
        run("train", "waves", "--engine", "neighbours", "--steps", 30, "--folder", "near", "--json")
    )
    assert report["rmse"] < 0.4
    assert json.loads(run("evaluate", "near", "--json"))["1"]["rmse"] < 0.4
    values = json.loads(run("sample", "near", "--given", "phase=0,1", "--count", 2, "--seed", 1, "--json"))[
        "values"
    ]
    assert values["phase"] == [[0, 1]] * 2 and abs(values["x"][0][0]) < 0.3
    assert json.loads(run("resume", "near", "--steps", 40, "--json"))["step"] == 40
    for words in ("neighbours", "unn sample", "descent"):
        assert words in refusal("infer", "near", "--given", "phase=0,1", "--want", "x")
    # an engine of another package on a problem of a third one, and an engine of this one on its problem
    report = json.loads(
        run("train", "sums", "--engine", "neighbours", "--steps", 5, "--folder", "summed", "--json")
    )
    assert report["rmse"] >= 0
    trained = run(
        "train", "waves", "--engine", "descent", "--steps", 100, "--rate", "0.05", "--folder", "descent"
    )
    assert "rmse" in trained
    assert "phase" in run("infer", "descent", "--given", "x=0,0.8,0.9,0.1,-0.8,-1", "--want", "phase")
    assert "descent" in refusal("sample", "descent")
    # without the package
    message = refusal("evaluate", "summed", path=())
    assert "unknown engine 'neighbours'" in message and "Install" in message
    assert "AttributeError" in refusal("train", "sums", "--engine", "broken")
