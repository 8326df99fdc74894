"""Digits on the command line: what can be given, data that are missing, runs that were tampered with."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import answered, attribute_texts, refused
from support.helpers import NAN

from problems.digits.config import DigitsConfig
from unn import runs
from unn.cli.main import main

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    from problems.digits.problem import DigitsProblem

    folder = tmp_path_factory.mktemp("runs") / "digits"
    config = DigitsProblem().config_for("descent")(channels=2)
    runs.create_run(folder, "digits", config, {"image_shape": [8, 8]})
    runs.save_weights(folder, DigitsProblem().network(config, {"image_shape": [8, 8]}))
    return folder


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


def test_an_archive_of_arrays_is_no_image(capsys, digits_run, tmp_path):
    np.savez(tmp_path / "x.npz", image=np.zeros((8, 8)))
    assert "x.npz" in refused(
        capsys, "infer", digits_run, "--given", f"image={tmp_path / 'x.npz'}", "--want", "label"
    )


def test_training_without_data_says_what_to_download_and_leaves_no_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("UNN_DATA", raising=False)
    message = refused(capsys, "train", "digits", "--data", "mnist", "--folder", tmp_path / "run")
    assert "UNN_DATA" in message and "train-images-idx3-ubyte.gz" in message
    assert not (tmp_path / "run").exists()


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


def test_values_do_not_replace_the_image_that_is_read(capsys, digits_run, tmp_path):
    image = tmp_path / "x.npy"
    np.save(image, np.zeros((8, 8)))
    before = image.read_bytes()
    message = refused(
        capsys, "infer", digits_run, "--given", f"image={image}", "--want", "label", "--out", image
    )
    assert "would replace the file that is read" in message and image.read_bytes() == before


@pytest.mark.parametrize("dtype", [">f8", "<i2", "longdouble", "?"])
def test_arrays_of_every_kind_of_number_are_read(capsys, digits_run, tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.zeros((8, 8), dtype))
    assert main(["infer", str(digits_run), "--given", f"image={tmp_path / 'x.npy'}", "--want", "label"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "digits", "--help"],
        ["show", "digits", "--help"],
        ["train", "digits", "--epochs", "x"],
        ["train", "digits", "--epochs", "0"],
    ],
    ids=" ".join,
)
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("option", "text"),
    list(attribute_texts(DigitsConfig)),
    ids=lambda x: x if "." in x[:-1] and " " not in x else "",
)
def test_help_is_written_in_whole_sentences(option, text):
    assert text[0].isupper() and text.endswith("."), f"{option}: {text}"


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    options = ["--epochs", "2", "--channels", "2", "--iterations", "1", "--folder", str(folder)]
    assert main(["train", "digits", *options]) == 0
    return folder


def test_show_explains_and_draws_the_graph_and_its_adjacency(capsys, tmp_path):
    shown = answered(capsys, "show", "digits", "--channels", "2", "--out", tmp_path, "--theme", "dark")
    assert "softmax" in shown["explanation"] and shown["nodes"] == {
        "image": 64,
        "H1": 72,
        "H2": 64,
        "label": 1,
    }
    assert {path.name for path in tmp_path.iterdir()} == {"graph.svg", "adjacency.png"}
    assert main(["show", "digits", "--channels", "2"]) == 0
    text = capsys.readouterr().out
    assert "Boundedness" in text and "201 nodes" in text and "H2" in text


def test_a_run_says_what_it_was_made_with(trained_run):
    run = runs.open_run(trained_run)
    assert run.config["training"]["epochs"] == 2 and run.facts["image_shape"] == [8, 8]
    assert all(len(checksum) == 64 for checksum in run.facts["data"].values()) and len(run.facts["data"]) == 4
    # packages of torch may leave out what it was built for, such as +cu128
    assert torch.__version__.startswith(run.code["torch"]) and run.code["torch"] and run.code["unn"]
    assert (trained_run / "plots" / "metrics.png").stat().st_size > 1000
