"""Bad command lines: the right error, what was wrong and what to do."""

import errno
import io
import json
import os
import shutil
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from support.helpers import NAN, mlp

import unn
from unn import runs
from unn.cli.main import main
from unn.cli.problem import Problem, Trained
from unn.graph.arrays import Variable
from unn.training import TrainingConfig


@pytest.fixture
def digits(monkeypatch):
    """The digits problem is installed."""
    entry = EntryPoint("digits", "problems.digits.problem:DigitsProblem", "unn.problems")
    monkeypatch.setattr("unn.cli.problem.entry_points", lambda group: [entry])


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    from problems.digits.problem import DigitsProblem

    folder = tmp_path_factory.mktemp("runs") / "digits"
    config = DigitsProblem().config_for("descent")(channels=2)
    runs.create_run(folder, "digits", config, {"image_shape": [8, 8]})
    runs.save_weights(folder, DigitsProblem().network(config, {"image_shape": [8, 8]}))
    return folder


def refused(capsys, *arguments):
    """What the command says on standard error; it exits with code 2 and prints nothing else."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 2 and not out
    assert err.startswith("unn: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


@pytest.mark.usefixtures("digits")
def test_an_unknown_problem_is_named_with_the_closest_known_one(capsys):
    assert "unknown problem 'digit'. Did you mean 'digits'?" in refused(capsys, "train", "digit")
    assert "unknown problem 'nope'. Known names: digits." in refused(capsys, "demo", "nope")


@pytest.mark.usefixtures("digits")
def test_commands_name_a_missing_run_folder(capsys, tmp_path):
    folder = tmp_path / "none"
    for arguments in (["evaluate", folder], ["infer", folder, "--given", "label=3", "--want", "image"]):
        message = refused(capsys, *arguments)
        assert str(folder) in message and "no run folder" in message and "unn train" in message


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    "command",
    [
        ["evaluate"],
        ["infer", "--given", "label=3", "--want", "image"],
        ["sample"],
        ["parse", "sentences.conllu"],
    ],
    ids=lambda c: c[0],
)
def test_every_command_that_loads_weights_refuses_those_whose_checksum_differs(
    capsys, digits_run, tmp_path, command
):
    shutil.copytree(digits_run, tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x40
    path.write_bytes(content)
    message = refused(capsys, command[0], tmp_path / "run", *command[1:])
    assert "model.safetensors" in message and "checksum" in message and "unn resume" in message


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("label", ["--given takes NAME=VALUE", "label=3", "'label'"]),
        ("=3", ["--given takes NAME=VALUE", "'=3'"]),
        ("label=12", ["label=12", "0 to 9"]),
        ("label=-1", ["label=-1", "0 to 9"]),
        ("label=", ["label=", "0 to 9"]),
        ("label=three", ["label=three", "0 to 9"]),
        ("label=²", ["label=²", "0 to 9"]),
        ("lable=3", ["lable", "image and label", "Did you mean 'label'"]),
        ("H1=3", ["H1", "image and label"]),
        ("image=test:359", ["test:359", "test:0 to test:358"]),
        ("image=test:-1", ["test:-1", "test:0 to test:358"]),
        ("image=test:x", ["test:x", "test:0 to test:358"]),
        ("image=test:²", ["test:²", "test:0 to test:358"]),
        ("image=none.npy", ["there is no file none.npy"]),
        ("image=none.png", ["image=none.png", "test:NUMBER", ".npy file"]),
    ],
)
def test_what_is_given_on_the_command_line_must_be_readable(capsys, digits_run, given, words):
    want = "label" if given.startswith("image") else "image"
    message = refused(capsys, "infer", digits_run, "--given", given, "--want", want)
    assert all(word in message for word in words)


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((7, 8)), ["(7, 8)", "(8, 8)"]),
        (np.full((8, 8), NAN), ["'image'", "NaN"]),
        (np.full((8, 8), 2.0), ["'image'", "outside the domain"]),
        (np.full((8, 8), "x"), ["x.npy"]),
    ],
)
def test_images_on_the_command_line_must_fit(capsys, digits_run, tmp_path, array, words):
    np.save(tmp_path / "x.npy", array)
    message = refused(
        capsys, "infer", digits_run, "--given", f"image={tmp_path / 'x.npy'}", "--want", "label"
    )
    assert all(word in message for word in words)


@pytest.mark.usefixtures("digits")
def test_an_archive_of_arrays_is_no_image(capsys, digits_run, tmp_path):
    np.savez(tmp_path / "x.npz", image=np.zeros((8, 8)))
    assert "x.npz" in refused(
        capsys, "infer", digits_run, "--given", f"image={tmp_path / 'x.npz'}", "--want", "label"
    )


@pytest.mark.usefixtures("digits")
def test_wants_on_the_command_line_must_make_sense(capsys, digits_run):
    assert "Did you mean 'image'" in refused(
        capsys, "infer", digits_run, "--given", "label=3", "--want", "imag"
    )
    assert "is given" in refused(capsys, "infer", digits_run, "--given", "label=3", "--want", "label")


@pytest.mark.usefixtures("digits")
def test_a_variable_is_given_once_on_the_command_line(capsys, digits_run):
    assert "label" in refused(capsys, "infer", digits_run, "--given", "label=3", "label=4", "--want", "H1")


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("rounds", ["-1", "0"])
def test_iterations_on_the_command_line_are_at_least_one(capsys, digits_run, rounds):
    assert "iterations" in refused(capsys, "evaluate", digits_run, "--iterations", rounds)
    message = refused(
        capsys, "infer", digits_run, "--given", "label=3", "--want", "H1", "--iterations", rounds
    )
    assert "iterations" in message and rounds in message


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("out", ["none/x.png", "x.xyz"])
def test_a_picture_that_cannot_be_written_is_an_error_of_one_line(capsys, digits_run, tmp_path, out):
    message = refused(
        capsys, "infer", digits_run, "--given", "label=3", "--want", "image", "--out", tmp_path / out
    )
    assert out.rpartition("/")[2] in message


@pytest.mark.usefixtures("digits")
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
        "digits",
        "--folder",
        folder,
        *(part for name, text in options.items() for part in (f"--{name}", text)),
    )
    assert option in message
    assert not folder.exists()


@pytest.mark.usefixtures("digits")
def test_training_does_not_write_into_a_folder_that_holds_a_run(capsys, digits_run):
    before = (digits_run / "model.safetensors").read_bytes()
    assert "holds a run already" in refused(
        capsys, "train", "digits", "--epochs", "1", "--folder", digits_run
    )
    assert (digits_run / "model.safetensors").read_bytes() == before


@pytest.mark.usefixtures("digits")
def test_training_without_data_says_what_to_download_and_leaves_no_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("UNN_DATA", raising=False)
    message = refused(capsys, "train", "digits", "--data", "mnist", "--folder", tmp_path / "run")
    assert "UNN_DATA" in message and "train-images-idx3-ubyte.gz" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    "change",
    [
        {"facts": {}},
        {"facts": {"image_shape": "ab"}},
        {"facts": {"image_shape": [8, 8, 8]}},
        {"facts": {"image_shape": [2, 2]}},
        {"problem": "digts"},
        {"problem": None},
        {"config": {"channels": 3}},
        {"config": {"channels": "x"}},
        {"config": {"data": "nope"}},
    ],
    ids=str,
)
def test_a_run_whose_configuration_was_tampered_with_is_refused(capsys, digits_run, tmp_path, change):
    content = json.loads((digits_run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, **change}))
    (tmp_path / "model.safetensors").write_bytes((digits_run / "model.safetensors").read_bytes())
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
    message = refused(capsys, verb, "digits")
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


@pytest.mark.usefixtures("digits")
def test_a_place_to_write_to_that_nothing_is_written_to_is_an_error(capsys, digits_run, tmp_path):
    given = ["infer", digits_run, "--given", "label=3"]
    assert "has no picture" in refused(capsys, *given, "--want", "H1", "--out", tmp_path / "h.txt")
    assert "give two files" in refused(
        capsys, *given, "--want", "image", "--out", tmp_path / "x.png", "--energy", tmp_path / "x.png"
    )
    assert main([*map(str, given), "--want", "image", "--out", str(tmp_path / "x.npy"), "--json"]) == 0
    assert np.load(tmp_path / "x.npy").shape == (1, 1, 8, 8)
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "x.npy")]


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("dtype", [">f8", "<i2", "longdouble", "?"])
def test_arrays_of_every_kind_of_number_are_read(capsys, digits_run, tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.zeros((8, 8), dtype))
    assert main(["infer", str(digits_run), "--given", f"image={tmp_path / 'x.npy'}", "--want", "label"]) == 0


@pytest.mark.usefixtures("digits")
def test_more_rounds_than_anybody_waits_for_are_refused(capsys, digits_run):
    for command in (["evaluate", digits_run], ["infer", digits_run, "--given", "label=3", "--want", "H1"]):
        assert "between 1 and" in refused(capsys, *command, "--iterations", "99999999999999999999999")


@pytest.mark.usefixtures("digits")
def test_an_output_that_takes_nothing_is_an_error_of_one_line(capsys, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", Full())
        assert main(["problems"]) == 2
    assert "No space left" in capsys.readouterr().err


@pytest.mark.usefixtures("digits")
def test_a_picture_that_fails_does_not_make_a_training_fail(capsys, monkeypatch, tmp_path):
    def broken(*arguments, **options):
        raise RuntimeError("no fonts")

    monkeypatch.setattr("unn.draw.draw_metrics", broken)
    assert (
        main(
            [
                "train",
                "digits",
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


@pytest.mark.usefixtures("digits")
def test_other_processes_of_a_training_print_nothing(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert main(["problems", "--json"]) == 0 and not capsys.readouterr().out


# -- what is missing or misspelt -----------------------------------------------------------------------------


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


def conllu(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


TREE = "1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("such.conllu", None, ["such.conllu", "No such file"]),
        ("such-train.conllu", None, ["such-train.conllu", "No such file"]),
        ("empty.conllu", "", ["empty.conllu", "empty"]),
        ("blank.conllu", "\n\n", ["blank.conllu", "no sentences"]),
        ("prose.conllu", "The cat sees a bird.\n", ["prose.conllu", "line 1"]),
        ("good.conllu", TREE, ["good.conllu", "does not say 'train'", "--dev"]),
        ("good-train.conllu", TREE, ["good-dev.conllu", "No such file"]),
    ],
    ids=lambda x: x if isinstance(x, str) and "conllu" in x else "",
)
def test_what_is_wrong_with_a_treebank_is_said_before_what_is_wrong_with_its_name(
    capsys, tmp_path, name, text, words
):
    path = tmp_path / name if text is None else conllu(tmp_path, name, text)
    message = refused(capsys, "train", "parsing", "--data", path, "--folder", tmp_path / "run")
    assert all(word in message for word in words), message
    assert not (tmp_path / "run").exists()


def test_a_name_is_suggested_only_where_it_is_like_the_one_that_was_typed(capsys):
    for name in ("nothing", "xyz", "training"):
        message = refused(capsys, "show", name)
        assert f"unknown problem {name!r}. Known names:" in message and "Did you mean" not in message
    for name, meant in (
        ("sodoku", "sudoku"),
        ("digit", "digits"),
        ("parsin", "parsing"),
        ("factorization", "factorisation"),
    ):
        assert f"Did you mean '{meant}'?" in refused(capsys, "show", name)


@pytest.mark.parametrize("text", ["12", "1" * 80, "1" * 82, ".", "1" * 300])
def test_a_puzzle_in_a_line_needs_as_many_symbols_as_cells(capsys, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, "sample", "sudoku", "--given", text)
    assert f"{len(text)} symbols" in message and "has 81" in message
    assert "nowhere.txt" in refused(capsys, "sample", "sudoku", "--given", "nowhere.txt")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("runs/digits-01", "runs/digits-001"),
        ("runs/digit-001", "runs/digits-001"),
        ("digits-001", "runs/digits-001"),
        ("runs/other", None),
    ],
)
def test_a_run_of_a_similar_name_is_suggested(capsys, digits_run, tmp_path, monkeypatch, typed, meant):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(digits_run, "runs/digits-001")
    message = refused(capsys, "evaluate", typed)
    assert "no run folder" in message
    assert f"Did you mean {meant}?" in message if meant else "Did you mean" not in message


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ([], "ran 3 rounds;"),
        (["--iterations", "1"], "ran 1 round;"),
        (["--iterations", "7"], "ran 7 rounds;"),
    ],
)
def test_inference_speaks_of_options_of_the_command_line_and_takes_the_rounds_of_the_run(
    capsys, digits_run, options, rounds
):
    assert main(["infer", str(digits_run), "--given", "label=3", "--want", "H1", *options]) == 0
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
