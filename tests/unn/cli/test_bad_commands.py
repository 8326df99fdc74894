"""Bad command lines: the right error, what was wrong and what to do."""

import errno
import io
import json
import os
import shutil
import sys
import warnings
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import refused
from support.helpers import NAN, mlp
from support.toy_problems import PatternsProblem

import unn
from unn import runs
from unn.cli.main import main
from unn.cli.problem import Problem, Trained
from unn.graph.arrays import Variable
from unn.training import TrainingConfig


@pytest.fixture
def patterns(monkeypatch):
    """The problem of patterns is installed, and no other."""
    entry = EntryPoint("patterns", "support.toy_problems:PatternsProblem", "unn.problems")
    monkeypatch.setattr("unn.cli.problem.entry_points", lambda group: [entry])


@pytest.fixture(scope="module")
def pictures_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "patterns"
    config = PatternsProblem().config_for("descent")(channels=2)
    runs.create_run(folder, "patterns", config, {"image_shape": [8, 8]})
    runs.save_weights(folder, PatternsProblem().network(config, {}))
    return folder


@pytest.mark.usefixtures("patterns")
def test_an_unknown_problem_is_named_with_the_closest_known_one(capsys):
    assert "unknown problem 'pattern'. Did you mean 'patterns'?" in refused(capsys, "train", "pattern")
    assert "unknown problem 'nope'. Known names: patterns." in refused(capsys, "demo", "nope")


@pytest.mark.usefixtures("patterns")
def test_a_command_on_problems_names_the_problem_of_a_run(capsys, pictures_run):
    message = refused(capsys, "show", pictures_run)
    assert "is the folder of a run" in message and "patterns" in message


@pytest.mark.usefixtures("patterns")
def test_a_comparison_names_the_run_that_cannot_be_measured(capsys, pictures_run):
    assert f"{pictures_run}: " in refused(capsys, "compare", pictures_run, "--metric", "bias")


@pytest.mark.parametrize("own", [True, False])
def test_a_warning_of_this_package_is_one_line_without_code(capsys, monkeypatch, own):
    def warn(folder, *arguments):
        where = str(Path(unn.__file__).parent / "graph" / "views.py") if own else __file__
        warnings.warn_explicit("two\nlines", UserWarning, where, 7)
        raise unn.UnnError("stop")

    monkeypatch.setattr("unn.cli.evaluate.open_trained", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # pytest replaces the function that prints
        monkeypatch.setattr(
            warnings,
            "showwarning",
            lambda *x, **_: sys.stderr.write(warnings.formatwarning(*x[:4])),
        )
        assert main(["evaluate", "anything"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert ("unn: warning: two lines" in lines) == own and any("two" in line for line in lines)
    assert lines[-1] == "unn: stop"


def test_commands_name_a_missing_run_folder(capsys, tmp_path):
    folder = tmp_path / "none"
    for arguments in (["evaluate", folder], ["infer", folder, "--given", "label=3", "--want", "image"]):
        message = refused(capsys, *arguments)
        assert str(folder) in message and "no run folder" in message and "unn train" in message


@pytest.mark.usefixtures("patterns")
@pytest.mark.parametrize(
    "command",
    [
        ["evaluate"],
        ["infer", "--given", "label=3", "--want", "image"],
        ["sample"],
    ],
    ids=lambda c: c[0],
)
def test_every_command_that_loads_weights_refuses_those_whose_checksum_differs(
    capsys, pictures_run, tmp_path, command
):
    shutil.copytree(pictures_run, tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x40
    path.write_bytes(content)
    message = refused(capsys, command[0], tmp_path / "run", *command[1:])
    assert "model.safetensors" in message and "checksum" in message and "unn resume" in message


@pytest.mark.usefixtures("patterns")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("label", ["--given takes NAME=VALUE", "label=3", "'label'"]),
        ("=3", ["--given takes NAME=VALUE", "'=3'"]),
        ("label=12", ["label=12", "0 to 9"]),
        ("label=-1", ["label=-1", "(1,)", "expected 10"]),
        ("label=", ["label=", "a category"]),
        ("label=three", ["label=three", "a category"]),
        ("label=²", ["label=²", "a category"]),
        ("lable=3", ["lable", "Did you mean 'label'"]),
        ("H1=3", ["H1=3", "(1,)", "expected 2"]),
        ("image=none.npy", ["there is no file none.npy"]),
        ("image=none.png", ["image=none.png", "numbers", ".npy"]),
    ],
)
def test_what_is_given_on_the_command_line_must_be_readable(capsys, pictures_run, given, words):
    want = "label" if given.startswith("image") else "image"
    message = refused(capsys, "infer", pictures_run, "--given", given, "--want", want)
    assert all(word in message for word in words)


@pytest.mark.usefixtures("patterns")
@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((7, 8)), ["(7, 8)", "8 x 8"]),
        (np.full((8, 8), NAN), ["'image'", "NaN"]),
        (np.full((8, 8), 2.0), ["'image'", "outside the domain"]),
        (np.full((8, 8), "x"), ["x.npy"]),
    ],
)
def test_images_on_the_command_line_must_fit(capsys, pictures_run, tmp_path, array, words):
    np.save(tmp_path / "x.npy", array)
    message = refused(
        capsys, "infer", pictures_run, "--given", f"image={tmp_path / 'x.npy'}", "--want", "label"
    )
    assert all(word in message for word in words)


@pytest.mark.usefixtures("patterns")
def test_an_archive_of_arrays_is_no_image(capsys, pictures_run, tmp_path):
    np.savez(tmp_path / "x.npz", image=np.zeros((8, 8)))
    assert "x.npz" in refused(
        capsys, "infer", pictures_run, "--given", f"image={tmp_path / 'x.npz'}", "--want", "label"
    )


@pytest.mark.usefixtures("patterns")
def test_wants_on_the_command_line_must_make_sense(capsys, pictures_run):
    assert "Did you mean 'image'" in refused(
        capsys, "infer", pictures_run, "--given", "label=3", "--want", "imag"
    )
    assert "is given" in refused(capsys, "infer", pictures_run, "--given", "label=3", "--want", "label")


@pytest.mark.usefixtures("patterns")
def test_a_variable_is_given_once_on_the_command_line(capsys, pictures_run):
    assert "label" in refused(capsys, "infer", pictures_run, "--given", "label=3", "label=4", "--want", "H1")


@pytest.mark.usefixtures("patterns")
def test_values_of_a_repeated_option_belong_together(capsys, pictures_run):
    from unn.cli.main import _joined

    typed = ["sample", "r", "--given", "a=1", "b=2", "--seed", "3", "--given=c=4", "--given", "d=5"]
    assert _joined(typed) == ["sample", "r", "--given", "a=1", "b=2", "c=4", "d=5", "--seed", "3"]
    typed = ["train", "p", "--steps", "1", "--steps", "2"]
    assert _joined(typed) == typed
    typed = ["infer", "r", "--want", "a", "--want", "b", "--iterations", "1", "--iterations", "2"]
    assert _joined(typed) == ["infer", "r", "--want", "a", "b", *typed[6:]]
    typed = ["evaluate", "r", "--iterations", "1", "--iterations", "2"]
    assert _joined(typed) == ["evaluate", "r", "--iterations", "1", "2"]
    arguments = ["infer", pictures_run, "--given", "image=0", "--given", "image=1", "--want", "label"]
    assert "image" in refused(capsys, *arguments)


@pytest.mark.usefixtures("patterns")
def test_an_empty_name_is_not_the_current_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = ("train", "patterns")
    named = ((*train, "--folder", ""), (*train, "--folder="), ("evaluate", ""), ("compare", "a", ""))
    for command in named:
        assert "is empty" in refused(capsys, *command)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("patterns")
@pytest.mark.parametrize("rounds", ["-1", "0"])
def test_iterations_on_the_command_line_are_at_least_one(capsys, pictures_run, rounds):
    assert "iterations" in refused(capsys, "evaluate", pictures_run, "--iterations", rounds)
    message = refused(
        capsys, "infer", pictures_run, "--given", "label=3", "--want", "H1", "--iterations", rounds
    )
    assert "iterations" in message and rounds in message


@pytest.mark.usefixtures("patterns")
@pytest.mark.parametrize("out", ["none/x.png", "x.xyz"])
def test_a_picture_that_cannot_be_written_is_an_error_of_one_line(capsys, pictures_run, tmp_path, out):
    message = refused(
        capsys, "infer", pictures_run, "--given", "label=3", "--want", "image", "--out", tmp_path / out
    )
    assert out.rpartition("/")[2] in message


@pytest.mark.usefixtures("patterns")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", "0"),
        ("epochs", "-1"),
        ("batch", "0"),
        ("batch", "-5"),
        ("channels", "0"),
        ("channels", "-1"),
        ("dropout", "1.5"),
        ("iterations", "0"),
        ("rate", "nan"),
        ("rate", "-1"),
        ("threads", "-1"),
        ("gamma", "nan"),
    ],
)
def test_options_out_of_range_are_refused_before_a_run_folder_is_made(capsys, tmp_path, option, value):
    options = {"epochs": "1", "channels": "2", "batch": "1437", option: value}
    folder = tmp_path / "run"
    message = refused(
        capsys,
        "train",
        "patterns",
        "--folder",
        folder,
        *(part for name, text in options.items() for part in (f"--{name}", text)),
    )
    assert option in message
    assert not folder.exists()


@pytest.mark.usefixtures("patterns")
def test_training_does_not_write_into_a_folder_that_holds_a_run(capsys, pictures_run):
    before = (pictures_run / "model.safetensors").read_bytes()
    assert "holds a run already" in refused(
        capsys, "train", "patterns", "--epochs", "1", "--folder", pictures_run
    )
    assert (pictures_run / "model.safetensors").read_bytes() == before


@pytest.mark.usefixtures("patterns")
@pytest.mark.parametrize(
    "change",
    [
        {"problem": "pictres"},
        {"problem": None},
        {"config": {"channels": 3}},
        {"config": {"channels": "x"}},
        {"config": {"data": "nope"}},
    ],
    ids=str,
)
def test_a_run_whose_configuration_was_tampered_with_is_refused(capsys, pictures_run, tmp_path, change):
    content = json.loads((pictures_run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, **change}))
    (tmp_path / "model.safetensors").write_bytes((pictures_run / "model.safetensors").read_bytes())
    refused(capsys, "evaluate", tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--frob"], ["infer", "run", "--want", "image"], ["evaluate"], ["evaluate", "run", "--frob"]],
)
def test_commands_that_cannot_be_parsed_exit_with_code_2_and_say_where_help_is(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and not out and "--help" in err


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("evalute", "Did you mean 'evaluate'?"),
        ("trian", "Did you mean 'train'?"),
        ("frob", "Known names:"),
        ("nonsense", "Known names:"),
    ],
)
def test_an_unknown_command_is_named_in_one_line_with_the_closest_known_one(capsys, verb, words):
    message = refused(capsys, verb, "patterns")
    assert f"unknown command {verb!r}" in message and words in message and "unn --help" in message


class Named(Problem):
    name, summary, config = "named", "a problem", None

    def declare(self, config):
        raise NotImplementedError

    task = network = declare


def installed(monkeypatch, **attributes):
    """Install a problem with these attributes under the name "named"."""
    kind = type("Installed", (Named,), attributes)
    monkeypatch.setattr("unn.cli.problem.entry_points", lambda group: [FakeEntry("named", kind)])


@dataclass(frozen=True)
class FakeEntry:
    name: str
    kind: type
    value: str = "somewhere:Installed"

    def load(self):
        return self.kind


@dataclass(frozen=True)
class Bare:
    """Without training."""

    size: int = 3


@dataclass(frozen=True)
class Clashing:
    """With an option of training."""

    batch: int = 3
    training: TrainingConfig = TrainingConfig()


@dataclass(frozen=True)
class Counting:
    """With an option of a command."""

    count: int = 3
    training: TrainingConfig = TrainingConfig()


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, "must be a dataclass"),
        ({"config": int}, "must be a dataclass"),
        ({"config": Bare}, "needs a field training"),
        ({"config": Clashing}, "'batch'"),
        ({"config": Counting}, "'count'"),
        ({"config": Bare, "name": "other"}, "needs name = 'named'"),
    ],
)
def test_a_problem_that_cannot_be_used_says_why_and_spares_the_others(capsys, monkeypatch, attributes, words):
    installed(monkeypatch, **attributes)
    assert words in refused(capsys, "train", "named")
    assert main(["problems"]) == 0 and words in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert not stop.value.code


@pytest.mark.usefixtures("patterns")
def test_a_place_to_write_to_that_nothing_is_written_to_is_an_error(capsys, pictures_run, tmp_path):
    given = ["infer", pictures_run, "--given", "label=3"]
    assert "has no picture" in refused(capsys, *given, "--want", "H1", "--out", tmp_path / "h.txt")
    assert "give two files" in refused(
        capsys, *given, "--want", "image", "--out", tmp_path / "x.png", "--energy", tmp_path / "x.png"
    )
    assert main([*map(str, given), "--want", "image", "--out", str(tmp_path / "x.npy"), "--json"]) == 0
    assert np.load(tmp_path / "x.npy").shape == (1, 8, 8)
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "x.npy")]


@pytest.mark.usefixtures("patterns")
@pytest.mark.parametrize("dtype", [">f8", "<i2", "longdouble", "?"])
def test_arrays_of_every_kind_of_number_are_read(capsys, pictures_run, tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.zeros((8, 8), dtype))
    assert (
        main(["infer", str(pictures_run), "--given", f"image={tmp_path / 'x.npy'}", "--want", "label"]) == 0
    )


@pytest.mark.usefixtures("patterns")
def test_more_rounds_than_anybody_waits_for_are_refused(capsys, pictures_run):
    for command in (
        ["evaluate", pictures_run],
        ["infer", pictures_run, "--given", "label=3", "--want", "H1"],
    ):
        assert "between 1 and" in refused(capsys, *command, "--iterations", "99999999999999999999999")


@pytest.mark.usefixtures("patterns")
def test_an_output_that_takes_nothing_is_an_error_of_one_line(capsys, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", Full())
        assert main(["problems"]) == 2
    assert "No space left" in capsys.readouterr().err


@pytest.mark.usefixtures("patterns")
def test_a_picture_that_fails_does_not_make_a_training_fail(capsys, monkeypatch, tmp_path):
    def broken(*arguments, **options):
        raise RuntimeError("no fonts")

    monkeypatch.setattr("unn.draw.draw_metrics", broken)
    assert (
        main(
            [
                "train",
                "patterns",
                "--epochs",
                "1",
                "--channels",
                "2",
                "--iterations",
                "1",
                "--folder",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert "trained 23 steps" in out and "no fonts" in err


@pytest.mark.usefixtures("patterns")
def test_other_processes_of_a_training_print_nothing(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert main(["problems", "--json"]) == 0 and not capsys.readouterr().out


# -- what is missing or misspelt -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("only", ["NONSENSE", "core mlp", "sudoku 16x16, batch 4"])
def test_benchmarks_without_a_case_of_that_name_are_an_error_that_lists_the_cases(capsys, monkeypatch, only):
    from tests.benchmarks import attention, core, undirected_attention

    one = core.Case("attention sudoku 16x16, batch 1: auto against dense", int, int, None, "")
    monkeypatch.setattr(attention, "cases", lambda quick: [one])
    monkeypatch.setattr(undirected_attention, "cases", lambda: [])
    assert "core" in only or only not in one.name
    message = refused(capsys, "bench", only, "--quick")
    words = [
        repr(only),
        one.name,
        "mlp forward k=1",
        "trees forward",
        "attention growth",
        "Sections: core",
        "--quick leaves some out",
    ]
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("runs/patterns-01", "runs/patterns-001"),
        ("runs/pattern-001", "runs/patterns-001"),
        ("patterns-001", "runs/patterns-001"),
        ("runs/other", None),
    ],
)
def test_a_run_of_a_similar_name_is_suggested(capsys, pictures_run, tmp_path, monkeypatch, typed, meant):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pictures_run, "runs/patterns-001")
    message = refused(capsys, "evaluate", typed)
    assert "no run folder" in message
    assert f"Did you mean {meant}?" in message if meant else "Did you mean" not in message


@pytest.mark.usefixtures("patterns")
@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ([], "ran 3 rounds;"),
        (["--iterations", "1"], "ran 1 round;"),
        (["--iterations", "7"], "ran 7 rounds;"),
    ],
)
def test_inference_speaks_of_options_of_the_command_line_and_takes_the_rounds_of_the_run(
    capsys, pictures_run, options, rounds
):
    assert main(["infer", str(pictures_run), "--given", "label=3", "--want", "H1", *options]) == 0
    out = capsys.readouterr().out
    assert rounds in out and "--iterations" in out and "until=" not in out and "as asked" not in out


@pytest.mark.parametrize(("iterations", "expected"), [(5, 5), (range(2, 7), 4), (None, 10)])
def test_rounds_of_inference_are_those_of_the_network(iterations, expected):
    g = mlp()
    unrolled = unn.Unrolled(
        g, given="X", want="Y", order=["H", "Y"], **({"iterations": iterations} if iterations else {})
    )
    network = torch.nn.ModuleDict({"inner": unrolled}) if iterations else g
    run = Trained(Path(), Bare(), {}, network)
    assert Named().iterations(run) == expected


def test_every_error_of_this_package_is_one_class():
    for error in (unn.DeclarationError, unn.ObservationError, unn.InferenceError, unn.DataError):
        assert issubclass(error, unn.UnnError) and issubclass(error, ValueError)
    assert isinstance(mlp()["X"], Variable)
