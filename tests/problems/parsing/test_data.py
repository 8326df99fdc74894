"""Treebanks as the data of a run: what is wrong with them is said before a folder is made."""

import pytest
from support.commands import refused


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
