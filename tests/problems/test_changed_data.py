"""Runs whose training data have changed are not resumed, and those whose own files have changed are not
opened; the message says which file."""

import gzip
import json
import math
import re
import shutil
import struct

import numpy as np
import pytest
import torch

from problems.parsing.conllu.treebank import read_conllu
from problems.parsing.toy import generated_treebank
from unn import runs
from unn.cli.main import main

PARSER = [
    "--iterations",
    "1",
    "--encoder",
    "transformer",
    "--no-characters",
    "--hidden",
    "8",
    "--width",
    "8",
    "--epochs",
    "1",
    "--batch",
    "64",
]


def write(path, sentences):
    path.write_text("".join("\n".join(sentence.lines) + "\n\n" for sentence in sentences))


NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def mnist(folder, compressed=False):
    """Four small files in the format of MNIST."""
    for name, shape in zip(NAMES, ((3, 5, 6), (3,), (2, 5, 6), (2,)), strict=True):
        raw = (
            bytes([0, 0, 8, len(shape)])
            + struct.pack(f">{len(shape)}I", *shape)
            + bytes(k % 7 for k in range(math.prod(shape)))
        )
        (folder / (f"{name}.gz" if compressed else name)).write_bytes(
            gzip.compress(raw) if compressed else raw
        )


def refused(capsys, folder):
    capsys.readouterr()
    assert main(["resume", str(folder), "--quiet"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "training data have changed" in message
    return message


@pytest.fixture(scope="module")
def parser(tmp_path_factory):
    """A treebank in files, and a parser trained on it."""
    root = tmp_path_factory.mktemp("parser")
    for part, count, seed in (("train", 12, 0), ("dev", 6, 1), ("test", 6, 2)):
        write(root / f"toy-{part}.conllu", generated_treebank(count, seed).sentences)
    assert (
        main(
            [
                "train",
                "parsing",
                "--data",
                str(root / "toy-train.conllu"),
                *PARSER,
                "--quiet",
                "--folder",
                str(root / "run"),
            ]
        )
        == 0
    )
    return root


def other_tree(sentence):
    """The same words with the first and the last word's heads changed, still a tree."""
    root = 1 + sentence.heads.index(0)
    heads = [root if k != root else 0 for k in range(1, len(sentence.heads) + 1)]
    assert heads != list(sentence.heads)
    return sentence.with_heads(heads)


CHANGES = {
    "reversed": ("train", lambda sentences: sentences[::-1]),
    "a tree with the same words": ("train", lambda sentences: (other_tree(sentences[0]), *sentences[1:])),
    "a sentence twice": ("train", lambda sentences: (*sentences, sentences[0])),
    "a tree to choose the best epoch on": (
        "dev",
        lambda sentences: (other_tree(sentences[0]), *sentences[1:]),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_parser_is_not_resumed_on_changed_sentences(capsys, parser, change):
    part, changed = CHANGES[change]
    path = parser / f"toy-{part}.conllu"
    content = path.read_bytes()
    try:
        write(path, changed(read_conllu(path, trees=True).sentences))
        message = refused(capsys, parser / "run")
    finally:
        path.write_bytes(content)
    other = "dev" if part == "train" else "train"
    assert str(path) in message and f"toy-{other}" not in message


def test_a_parser_is_resumed_on_the_same_sentences_and_other_test_sentences(parser):
    write(parser / "toy-test.conllu", generated_treebank(3, 9).sentences)
    assert main(["resume", str(parser / "run"), "--quiet"]) == 0


def test_a_run_from_before_data_had_checksums_is_resumed(parser, tmp_path):
    shutil.copytree(parser / "run", tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    assert set(content["facts"].pop("data")) == {
        str(parser / "toy-train.conllu"),
        f"{parser / 'toy-dev.conllu'} (development part)",
    }
    path.write_text(json.dumps(content))
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_digits_are_not_resumed_on_changed_files_of_mnist(capsys, tmp_path, monkeypatch, number):
    def files(compressed=False):
        shutil.rmtree(tmp_path / "mnist", ignore_errors=True)
        (tmp_path / "mnist").mkdir()
        mnist(tmp_path / "mnist", compressed)

    monkeypatch.setenv("UNN_DATA", str(tmp_path))
    files()
    options = ["--data", "mnist", "--epochs", "1", "--channels", "1", "--iterations", "1", "--quiet"]
    assert main(["train", "digits", *options, "--folder", str(tmp_path / "run")]) == 0
    files(compressed=True)
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    path = tmp_path / "mnist" / NAMES[number]
    files()
    raw = bytearray(path.read_bytes())
    raw[-1] = 9
    path.write_bytes(raw)
    message = refused(capsys, tmp_path / "run")
    assert [name for name in NAMES if name in message] == [NAMES[number]]


def test_digits_are_not_resumed_where_scikit_learn_has_other_images(capsys, tmp_path, monkeypatch):
    from sklearn import datasets

    original = datasets.load_digits
    options = ["--epochs", "1", "--channels", "1", "--iterations", "1", "--batch", "1440", "--quiet"]
    assert main(["train", "digits", *options, "--folder", str(tmp_path / "run")]) == 0

    def others():
        bunch = original()
        bunch.images = bunch.images[::-1]
        return bunch

    monkeypatch.setattr(datasets, "load_digits", others)
    message = refused(capsys, tmp_path / "run")
    assert "training images" in message and "test images" in message and "labels" not in message


def test_sudoku_is_not_resumed_where_other_grids_are_generated(capsys, tmp_path, monkeypatch):
    options = [
        "--steps",
        "1",
        "--width",
        "8",
        "--depth",
        "1",
        "--heads",
        "2",
        "--sampling-steps",
        "1",
        "--batch",
        "2",
        "--quiet",
    ]
    assert main(["train", "sudoku", *options, "--folder", str(tmp_path / "run")]) == 0
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    from problems.sudoku import grids as sudoku

    original = sudoku.draw_grids
    monkeypatch.setattr(sudoku, "draw_grids", lambda *arguments: original(*arguments).flip(1))
    assert "generated grids" in refused(capsys, tmp_path / "run")


def test_checksums_tell_types_shapes_numbers_and_order_apart():
    x = torch.arange(6.0)
    tensors = [
        x,
        x.double(),
        x.view(2, 3),
        x.view(3, 2),
        x.flip(0),
        x + torch.tensor([0.0] * 5 + [1e-6]),
        x[:0],
        torch.tensor(1.0),
    ]
    digests = [runs.tensor_digest(each) for each in tensors]
    assert len(set(digests)) == len(digests) and all(
        re.fullmatch("[0-9a-f]{64}", digest) for digest in digests
    )
    assert runs.tensor_digest(x.view(2, 3).T) == runs.tensor_digest(
        torch.from_numpy(np.ascontiguousarray(x.view(2, 3).T.numpy()))
    )
    texts = [["a", "b"], ["b", "a"], ["ab"], ["a"], []]
    assert len({runs.text_digest(lines) for lines in texts}) == len(texts)


@pytest.mark.slow
def test_tables_are_not_resumed_on_a_changed_copy_of_their_file(capsys, tmp_path):
    model = tmp_path / "net.bif"
    model.write_text(
        "network n { }\nvariable a { type discrete [ 2 ] { y, n }; }\nprobability ( a ) { table 0.9, 0.1; }\n"
    )
    folder = tmp_path / "run"
    train = [
        "train",
        "tables",
        "--file",
        str(model),
        "--engine",
        "encoder",
        "--folder",
        str(folder),
        "--steps",
        "2",
    ]
    assert main([*train, "--quiet"]) == 0
    assert main(["resume", str(folder), "--steps", "3", "--quiet"]) == 0
    copy = folder / "net.bif"
    copy.write_text(copy.read_text().replace("0.9, 0.1", "0.1, 0.9"))
    capsys.readouterr()
    assert main(["resume", str(folder), "--steps", "4", "--quiet"]) == 2
    assert "net.bif" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["changed", "missing and the original changed"])
@pytest.mark.parametrize("command", [["evaluate"], ["sample", "--count", "1"]], ids=lambda x: x[0])
def test_a_run_whose_copy_of_a_file_is_not_that_of_training_is_not_opened(capsys, tmp_path, change, command):
    original, folder = tmp_path / "program.py", tmp_path / "run"
    original.write_text("from unn.programs import Normal\n\ndef f(t):\n    t.sample('x', Normal(0.0, 1.0))\n")
    options = ["--steps", "1", "--width", "8", "--depth", "1", "--heads", "2", "--sampling-steps", "1"]
    assert main(["train", f"{original}:f", *options, "--quiet", "--folder", str(folder)]) == 0
    (copy,) = folder.glob("*.py")
    other = original.read_text().replace("1.0", "2.0")
    if change == "changed":
        copy.write_text(other)
    else:
        copy.unlink()
        original.write_text(other)
    capsys.readouterr()
    name, *rest = command
    assert main([name, str(folder), *rest]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert str(copy) in message and change.split()[0] in message


def test_a_run_without_its_copy_of_a_graph_takes_the_unchanged_original_alone(capsys, tmp_path):
    original, folder = tmp_path / "cycle.txt", tmp_path / "run"
    original.write_text("0 1\n1 2\n2 3\n3 0\n")
    options = ["--engine", "search", "--quiet", "--folder", str(folder)]
    assert main(["train", "colouring", "--graph", str(original), *options]) == 0
    (folder / "cycle.txt").unlink()
    assert main(["evaluate", str(folder), "--count", "1"]) == 0
    original.write_text("0 1\n1 2\n2 3\n3 1\n")
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--count", "1"]) == 2
    message = capsys.readouterr().err
    assert "cycle.txt is missing" in message and "has changed" in message
