"""The parser on the command line: files go in, the same files with trees come out, and whatever is wrong is
one line on standard error."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from problems.parsing.conllu.treebank import read_conllu
from problems.parsing.metrics.attachment import measure_sentences
from problems.parsing.metrics.conll18 import score
from problems.parsing.toy import generated_treebank
from unn.cli.main import main

ROOT = Path(__file__).parents[3]
TINY = [
    "--iterations",
    "2",
    "--encoder",
    "transformer",
    "--activation",
    "tanh",
    "--no-characters",
    "--hidden",
    "16",
    "--width",
    "24",
    "--rate",
    "0.01",
    "--batch",
    "16",
]
GOOD = """# sent_id = a
# text = The cat sees the bird.
1-2\tThecat\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tThe\tthe\tDET\tDT\tDefinite=Def\t_\t_\t_\tGloss=x|Y=z
2\tcat\tcat\tNOUN\t_\t_\t_\t_\t_\t_
2.1\tnothing\t_\t_\t_\t_\t_\t_\t3:dep\t_
3\tsees\tsee\tVERB\t_\t_\t_\t_\t_\t_
4\tthe\tthe\tDET\t_\t_\t_\t_\t_\t_
5\tbird\tbird\tNOUN\t_\t_\t_\t_\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t_\t_\t_\t_\t_\t_

# sent_id = b
1\tRun\trun\tVERB\t_\t_\t0\troot\t0:root\t_

# only a comment

# sent_id = c
1\ta\u2028b\u00a0c\t_\tX\t_\t_\t2\tnmod:x\t2:nmod\t_
2\t\U0001d518\u0301\t_\tX\t_\t_\t0\troot\t0:root\tNotHead=1
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with labels, trained on the generated language."""
    folder = tmp_path_factory.mktemp("runs") / "parsing"
    assert (
        main(["train", "parsing", *TINY, "--labels", "--epochs", "2", "--folder", str(folder), "--quiet"])
        == 0
    )
    return folder


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    """A run without labels whose energy has no minimum for all weights."""
    folder = tmp_path_factory.mktemp("runs") / "unlabelled"
    options = [
        "--encoder",
        "bilstm",
        "--hidden",
        "8",
        "--width",
        "8",
        "--no-characters",
        "--batch",
        "100",
        "--epochs",
        "1",
        "--tags",
    ]
    assert main(["train", "parsing", *options, "--folder", str(folder), "--quiet"]) == 0
    return folder


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.conllu"
    path.write_bytes(GOOD.encode())
    return path


def done(capsys, *arguments):
    """What a command prints, as bytes, and what it says on standard error."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err.decode()


def refused(capsys, *arguments):
    """What the command says on standard error; it exits with code 2 and prints nothing else."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 2 and not out, out
    text = err.decode()
    assert text.startswith("unn: ") and text.count("\n") == 1 and "Traceback" not in text, text
    return text


def read(raw, **options):
    return read_conllu(io.BytesIO(raw), **{"trees": True, **options})


def heads_of(raw):
    return [sentence.heads for sentence in read(raw).sentences]


def rows(*heads, misc="_"):
    return "".join(f"{i}\tw{i}\t_\tX\t_\t_\t{h}\tdep\t_\t{misc}\n" for i, h in enumerate(heads, 1)) + "\n"


def only_trees_differ(before, after):
    """All bytes are the same but those of HEAD, DEPREL and DEPS in the lines of words."""
    one, other = before.split(b"\n"), after.split(b"\n")
    assert len(one) == len(other)
    for old, new in zip(one, other, strict=True):
        if old == new:
            continue
        a, b = old.split(b"\t"), new.split(b"\t")
        assert a[0].isdigit() and a[:6] == b[:6] and a[9:] == b[9:] and len(b) == 10, (old, new)


# -- training and measuring ----------------------------------------------------------------------------------


def test_training_makes_a_run_and_says_how_good_it_is(capsysbinary, tmp_path):
    options = [*TINY, "--epochs", "1", "--batch", "100", "--folder", tmp_path / "run", "--json"]
    report = json.loads(done(capsysbinary, "train", "parsing", *options)[0])
    assert 0 < report["dev_uas"] < 1 and report["folder"] == str(tmp_path / "run")
    assert {"config.json", "metrics.jsonl", "model.safetensors"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert "dev_uas" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_training_learned_something(run, capsysbinary):
    report = json.loads(done(capsysbinary, "evaluate", run, "--json")[0])
    assert (
        report["iterations"]["2"]["uas"] > 0.5
        and report["iterations"]["2"]["las"] > 0.4
        and report["skipped"] == 0
    )


def test_several_numbers_of_iterations_are_compared(run, capsysbinary):
    text = done(capsysbinary, "evaluate", run, "--iterations", 1, 2, 3)[0].decode()
    assert all(f"{k} iterations (trained with 2): UAS " in text for k in (1, 2, 3))
    assert "generated sentences: 60 sentences, 0 skipped" in text
    data = json.loads(done(capsysbinary, "evaluate", run, "--iterations", 1, 2, 3, "--json")[0])
    assert list(data["iterations"]) == ["1", "2", "3"]


@pytest.mark.parametrize("labelled", [True, False])
def test_what_evaluate_says_is_what_the_written_trees_score(
    run, unlabelled, labelled, capsysbinary, tmp_path
):
    gold = generated_treebank(30, 7)
    path, out = tmp_path / "gold.conllu", tmp_path / "out.conllu"
    gold.write(path)
    folder = run if labelled else unlabelled
    for k in (1, 2):
        done(capsysbinary, "parse", folder, path, "--out", out, "--iterations", k)
        system = read_conllu(out, trees=True)
        said = json.loads(
            done(capsysbinary, "evaluate", folder, "--data", path, "--iterations", k, "--json")[0]
        )["iterations"][str(k)]
        measured, shared = measure_sentences(gold.sentences, system.sentences), score(gold, system)
        assert said["uas"] == measured.uas == pytest.approx(shared.uas.f1)
        assert (
            said["modifier_lists"] == measured.modifier_lists and said["exact_match"] == measured.exact_match
        )
        assert said["las"] == (pytest.approx(shared.las.f1) if labelled else None)
        assert said["sentences"] == 30 and said["words"] == shared.words.gold


def test_data_to_measure_on_need_trees(run, capsysbinary, good, tmp_path):
    message = refused(capsysbinary, "evaluate", run, "--data", good)
    assert str(good) in message and "line 4" in message and "no head" in message
    assert "none.conllu" in refused(capsysbinary, "evaluate", run, "--data", tmp_path / "none.conllu")


@pytest.mark.parametrize(
    "options", ["--width 9 --encoder bilstm", "--dropout 1", "--hidden 0", "--data none-train.conllu"]
)
def test_options_that_cannot_be_are_refused_before_a_run_folder_is_made(capsysbinary, tmp_path, options):
    name, value, *_ = options.split()
    message = refused(capsysbinary, "train", "parsing", *options.split(), "--folder", tmp_path / "run")
    assert (name.removeprefix("--") in message or value in message) and not (tmp_path / "run").exists()


def test_a_file_for_training_whose_companions_cannot_be_guessed_is_refused(capsysbinary, tmp_path):
    path = tmp_path / "trees.conllu"
    path.write_text(rows(0))
    message = refused(capsysbinary, "train", "parsing", "--data", path, "--folder", tmp_path / "run")
    assert "train" in message and "--dev" in message


def test_training_says_which_sentences_it_leaves_out(capsysbinary, tmp_path):
    train, dev = (
        write(tmp_path / "x-train.conllu", rows(0) + rows(0, 0) + rows(0, 1)),
        write(tmp_path / "x-dev.conllu", rows(2, 0)),
    )
    command = ["train", "parsing", "--data", train, *TINY, "--epochs", "1", "--folder", tmp_path / "run"]
    message = refused(capsysbinary, *command)
    assert f"{train}, line 4" in message and "several roots" in message and not (tmp_path / "run").exists()
    _, err = done(capsysbinary, *command, "--skip-bad", "--quiet")
    assert (
        f"{train}, line 4: skipped: several roots" in err
        and f"{train}: 1 of 3 sentences skipped, left out" in err
    )
    assert "no test trees" in refused(capsysbinary, "evaluate", tmp_path / "run")
    assert b"1 sentences, 0 skipped" in done(capsysbinary, "evaluate", tmp_path / "run", "--data", dev)[0]


# -- what comes out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("last", ["", "\n"], ids=["open end", "blank line"])
def test_every_byte_but_those_of_the_tree_is_kept(run, capsysbinary, tmp_path, end, last):
    raw = (GOOD + last).replace("\n", end).encode()
    path = tmp_path / "in.conllu"
    path.write_bytes(raw)
    out, _ = done(capsysbinary, "parse", run, path)
    only_trees_differ(raw, out)
    assert [len(sentence.heads) for sentence in read(out).sentences] == [6, 1, 2]
    assert out.startswith(b"# sent_id = a") and out.count(b"\r") == raw.count(b"\r")


def test_a_byte_order_mark_is_kept(run, capsysbinary, tmp_path):
    path = tmp_path / "in.conllu"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    out, _ = done(capsysbinary, "parse", run, path)
    only_trees_differ(path.read_bytes(), out)


def test_the_file_that_is_written_is_what_would_be_printed(run, capsysbinary, good, tmp_path):
    printed, _ = done(capsysbinary, "parse", run, good)
    said, _ = done(capsysbinary, "parse", run, good, "--out", tmp_path / "out.conllu")
    assert (tmp_path / "out.conllu").read_bytes() == printed and b"3 sentences parsed, written to" in said
    done(capsysbinary, "parse", run, good, "--out", good)
    assert good.read_bytes() == printed
    done(capsysbinary, "parse", run, good, "--out", tmp_path / "out.conllu.gz")
    assert gzip.decompress((tmp_path / "out.conllu.gz").read_bytes()) == printed


def test_parsing_again_gives_the_same_trees(run, capsysbinary, good, tmp_path):
    out, _ = done(capsysbinary, "parse", run, good)
    (tmp_path / "again.conllu").write_bytes(out)
    assert done(capsysbinary, "parse", run, tmp_path / "again.conllu")[0] == out


@pytest.mark.parametrize("batch", [1, 17, 300, 100_000])
def test_trees_and_their_order_do_not_depend_on_how_many_words_are_parsed_at_once(
    run, capsysbinary, tmp_path, batch
):
    treebank = generated_treebank(25, 5)
    path = tmp_path / "in.conllu"
    treebank.write(path)
    whole, batched = (
        done(capsysbinary, "parse", run, path, *options)[0] for options in ([], ["--batch", batch])
    )
    assert whole == batched and [s.forms for s in read(batched).sentences] == [
        s.forms for s in treebank.sentences
    ]
    assert "--batch" in refused(capsysbinary, "parse", run, path, "--batch", "0")


def test_raw_tokens_become_sentences(run, capsysbinary, tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("the cat sees a bird .\n\nRun\n")
    out, _ = done(capsysbinary, "parse", run, path)
    sentences = read(out).sentences
    assert [s.forms for s in sentences] == [("the", "cat", "sees", "a", "bird", "."), ("Run",)] and sentences[
        0
    ].lines[0] == "# text = the cat sees a bird ."
    assert heads_of(out)[1] == (0,)
    as_tokens = done(capsysbinary, "parse", run, path, "--format", "tokens")[0]
    assert as_tokens == out and "line 1" in refused(capsysbinary, "parse", run, path, "--format", "conllu")


def test_the_same_comes_out_of_a_file_a_compressed_file_a_pipe_and_standard_input(
    run, capsysbinary, good, tmp_path, monkeypatch
):
    expected, _ = done(capsysbinary, "parse", run, good)
    compressed = tmp_path / "in.bin"
    compressed.write_bytes(gzip.compress(good.read_bytes()))
    assert done(capsysbinary, "parse", run, compressed)[0] == expected
    for raw in (good.read_bytes(), compressed.read_bytes()):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        assert done(capsysbinary, "parse", run, "-")[0] == expected
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(good.read_bytes(),))
    writer.start()
    assert done(capsysbinary, "parse", run, pipe)[0] == expected
    writer.join()


def test_what_is_wrong_with_standard_input_is_said_with_its_line(run, capsysbinary, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows(0).encode() + rows(1).encode())))
    message = refused(capsysbinary, "parse", run, "-")
    assert "<stdin>, line 3" in message and "its own head" in message
    monkeypatch.setattr(sys, "stdin", None)
    assert "closed" in refused(capsysbinary, "parse", run, "-")


def test_trees_and_marginals_are_shown_as_text(run, capsysbinary, good, tmp_path):
    tree, _ = done(capsysbinary, "parse", run, good, "--show", "tree")
    heads = heads_of(done(capsysbinary, "parse", run, good)[0])
    assert all(form in tree.decode() for form in ("The", "cat", "sees", "bird", "Run"))
    assert tree.decode().count("──") == sum(len(h) for h in heads) - len(heads)
    heat, _ = done(capsysbinary, "parse", run, good, "--show", "heat", "--out", tmp_path / "heat.txt")
    assert b"written to" in heat and "root" in (tmp_path / "heat.txt").read_text()


def test_every_sentence_is_drawn(run, capsysbinary, good, tmp_path):
    data = json.loads(done(capsysbinary, "parse", run, good, "--draw", tmp_path / "a" / "b", "--json")[0])
    names = [f"{k}-{kind}.svg" for k in (1, 2, 3) for kind in ("tree", "marginals")]
    assert data["files"] == [str(tmp_path / "a" / "b" / name) for name in names]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted(names)
    assert all("<svg" in Path(name).read_text() for name in data["files"])


def test_machines_get_the_trees_as_data(run, capsysbinary, good):
    data = json.loads(done(capsysbinary, "parse", run, good, "--json")[0])
    expected = read(done(capsysbinary, "parse", run, good)[0]).sentences
    assert [tuple(s["heads"]) for s in data["sentences"]] == [s.heads for s in expected]
    assert [s["labels"] for s in data["sentences"]] == [[w.deprel for w in s.words] for s in expected]
    assert [s["line"] for s in data["sentences"]] == [1, 12, 17] and data["skipped"] == []


def test_without_labels_of_its_own_a_parser_keeps_those_of_heads_that_stay(unlabelled, capsysbinary, good):
    sentences = read(done(capsysbinary, "parse", unlabelled, good)[0]).sentences
    assert sentences[1].words[0].deprel == "root" and sentences[1].words[0].deps == "0:root"
    assert all((word.deprel == "root") == (word.head == 0) for word in sentences[0].words)


# -- completing ----------------------------------------------------------------------------------------------


def test_heads_that_are_given_are_kept_and_forbidden_ones_avoided(run, capsysbinary, tmp_path):
    path = tmp_path / "in.conllu"
    free = read(done(capsysbinary, "parse", run, write(path, blank(6)))[0]).sentences[0].heads
    # what the parser would choose is forbidden, and something else is given
    other = next(h for h in range(1, 7) if h not in (free[0], 1) and not hangs_on(free, h, 1))
    raw = blank(6, {1: other}, {m: f"Gloss=x|NotHead={free[m - 1]}" for m in (3, 5)})
    before = done(capsysbinary, "parse", run, write(path, raw))[0]
    assert read(before).sentences[0].heads == free
    out, _ = done(capsysbinary, "parse", run, path, "--complete")
    sentence = read(out).sentences[0]
    assert sentence.heads[0] == other and sentence.heads[2] != free[2] and sentence.heads[4] != free[4]
    assert sentence.words[0].deprel == "given" and sentence.words[2].misc == f"Gloss=x|NotHead={free[2]}"
    only_trees_differ(raw.encode(), out)


def test_a_sentence_whose_heads_are_all_given_stays_as_it_is(run, unlabelled, capsysbinary, tmp_path):
    treebank = generated_treebank(12, 9)
    path = tmp_path / "in.conllu"
    treebank.write(path)
    for folder in (run, unlabelled):
        assert done(capsysbinary, "parse", folder, path, "--complete")[0] == treebank.to_bytes()


def test_completing_does_not_depend_on_the_batch(run, capsysbinary, tmp_path):
    lines = generated_treebank(12, 11).to_bytes().decode().split("\n")
    holes = [
        [*part[:6], "_", "_", *part[8:]] if len(part) == 10 and k % 3 else part
        for k, part in enumerate(line.split("\t") for line in lines)
    ]
    path = write(tmp_path / "in.conllu", "\n".join("\t".join(part) for part in holes))
    whole, single = (
        done(capsysbinary, "parse", run, path, "--complete", "--batch", batch)[0] for batch in (10_000, 1)
    )
    assert whole == single
    only_trees_differ(path.read_bytes(), whole)
    given, completed = read(path.read_bytes(), trees=False).sentences, read(whole).sentences
    assert all(
        w.head in (None, v.head)
        for s, t in zip(given, completed, strict=True)
        for w, v in zip(s.words, t.words, strict=True)
    )


def blank(n, given=None, misc=None):
    """A sentence of n words with some heads (labelled "given") and some MISC."""
    given, misc = given or {}, misc or {}
    trees = {i: f"{given[i]}\tgiven" if i in given else "_\t_" for i in range(1, n + 1)}
    return (
        "".join(f"{i}\tw{i}\t_\tX\t_\t_\t{tree}\t_\t{misc.get(i, '_')}\n" for i, tree in trees.items()) + "\n"
    )


def write(path, text):
    path.write_text(text)
    return path


def hangs_on(heads, word, above):
    while word and word != above:
        word = heads[word - 1]
    return word == above


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (blank(3, {1: 2}, {1: "NotHead=2"}), 3, ["given and forbidden"]),
        (blank(3, {}, {2: "NotHead=0,1,2,3"}), 2, ["no tree agrees"]),
        (blank(3, {}, {2: "NotHead=0,1|A=b|NotHead=3"}), 2, ["no tree agrees"]),
        (blank(3, {1: 2}, {1: "NotHead=3|NotHead=2"}), 3, ["given and forbidden"]),
        (blank(3, {}, {1: "NotHead=0", 2: "NotHead=0", 3: "NotHead=0"}), 2, ["no tree agrees"]),
        (blank(3, {}, {3: "NotHead=4"}), 5, ["NotHead=4", "0 to 3"]),
        (blank(3, {}, {3: "NotHead=x"}), 5, ["NotHead=x"]),
        (blank(3, {}, {3: "NotHead="}), 5, ["NotHead="]),
        (blank(3, {}, {3: "NotHead=²"}), 5, ["NotHead=²"]),
        (blank(3, {}, {3: "A=b|NotHead=-1"}), 5, ["NotHead=-1"]),
        (blank(3, {1: 2, 2: 1}), 3, ["cycle"]),
        (blank(3, {1: 0, 3: 0}), 5, ["several roots"]),
        (blank(3, {1: 4}), 3, ["out of range"]),
        (blank(2, {1: 2}, {2: "NotHead=0"}), 2, ["no tree agrees"]),
        (blank(2, {1: 2}).replace("given", "no label"), 3, ["label 'no label'", "white space"]),
    ],
)  # fmt: skip
def test_annotations_that_contradict_each_other_are_refused_with_their_line(
    run, capsysbinary, tmp_path, text, line, words
):
    path = write(tmp_path / "in.conllu", rows(0) + text + rows(0, 1))
    # the sentence begins at line 3
    line += 1 if "no tree" in words[0] else 0
    message = refused(capsysbinary, "parse", run, path, "--complete", "--out", tmp_path / "out")
    assert message.startswith(f"unn: {path}, line {line}: ") and all(word in message for word in words)
    assert not (tmp_path / "out").exists()


# -- what is malformed ---------------------------------------------------------------------------------------

BAD = {
    "empty": (b"", 1, "empty"),
    "blank": (b"\n\n\n", 1, "no tokens"),
    "comments": (b"# sent_id = 1\n\n", 1, "no sentences"),
    "latin-1": (rows(0).encode() + "1\tü\t_\t_\t_\t_\t0\t_\t_\t_\n".encode("latin-1"), 3, "UTF-8"),
    "utf-16": (GOOD.encode("utf-16"), 1, "UTF-16"),
    "nul": (b"1\ta\0\t_\t_\t_\t_\t0\t_\t_\t_\n", 1, "NUL"),
    "nine columns": (rows(0).encode() + b"1\ta\t_\t_\t_\t_\t0\t_\t_\n", 3, "9 columns"),
    "spaces": (b"1 a _ _ _ _ 0 _ _ _\n", 1, "spaces"),
    "no form": (b"1\t\t_\t_\t_\t_\t0\t_\t_\t_\n", 1, "column 2"),
    "cycle": (rows(0).encode() + rows(2, 3, 1, 0).encode(), 3, "cycle"),
    "own head": (rows(0, 2).encode(), 2, "own head"),
    "several roots": (rows(0, 1, 0).encode(), 3, "several roots"),
    "no root": (rows(2, 1).encode(), 1, "no word has head 0"),
    "head out of range": (rows(0, 9).encode(), 2, "out of range"),
    "head no number": (rows(0, "x").encode(), 2, "not a number"),
    "ids": (b"1\ta\t_\t_\t_\t_\t0\t_\t_\t_\n3\tb\t_\t_\t_\t_\t1\t_\t_\t_\n", 2, "consecutive"),
    "range": (b"1-3\tab\t_\t_\t_\t_\t_\t_\t_\t_\n1\ta\t_\t_\t_\t_\t0\t_\t_\t_\n", 1, "exceeds"),
    "old Mac": (rows(0).replace("\n", "\r").encode(), 1, "carriage return"),
    "too many words": (rows(0, *[1] * 1000).encode(), 1001, "more than 1000 words"),
    "too many tokens": (b"a\n" + b"w " * 1001, 2, "more than 1000 words"),
    "broken gzip": (gzip.compress(GOOD.encode())[:-9], None, "decompressed"),
    "gzip of nothing": (gzip.compress(b""), 1, "empty"),
}


@pytest.mark.parametrize("which", BAD)
def test_malformed_files_are_refused_with_file_line_and_reason_and_nothing_is_written(
    run, capsysbinary, tmp_path, which
):
    raw, line, reason = BAD[which]
    path, new, old = tmp_path / "bad.conllu", tmp_path / "new", tmp_path / "old"
    path.write_bytes(raw)
    old.write_text("precious")
    for out in ([], ["--out", new], ["--out", old], ["--out", path]):
        message = refused(capsysbinary, "parse", run, path, *out)
        assert f"{path}, line {line}: " in message if line else f"{path}: " in message
        assert reason in message and len(message) < 600
    assert not new.exists() and old.read_text() == "precious" and path.read_bytes() == raw
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.conllu", "old"]


def test_bad_sentences_are_copied_counted_and_listed_where_that_is_asked_for(run, capsysbinary, tmp_path):
    bad = [rows(0, 1, 0), rows(2, 1), "1\ta\t_\n\n"]
    path = write(tmp_path / "in.conllu", bad[0] + rows(0, 1) + bad[1] + "# comment\n" + rows(2, 0) + bad[2])
    out, err = done(capsysbinary, "parse", run, path, "--skip-bad")
    only_trees_differ(path.read_bytes(), out)
    assert all(text.encode() in out for text in bad)
    assert err.splitlines() == [
        f"unn: {path}, line 3: skipped: several roots: word 1 'w1' and word 3 'w3' have head 0. A tree has "
        "one root: give the others another head.",
        f"unn: {path}, line 8: skipped: no word has head 0. A tree has one root: give it head 0.",
        f"unn: {path}, line 15: skipped: the line has 3 columns, not 10. Write ID to MISC, separated by "
        "tabs, _ for what is not known.",
        f"unn: {path}: 3 of 5 sentences skipped, copied unchanged",
    ]
    data = json.loads(done(capsysbinary, "parse", run, path, "--skip-bad", "--json")[0])
    assert [entry["line"] for entry in data["skipped"]] == [3, 8, 15] and len(data["sentences"]) == 2


def test_a_file_of_bad_sentences_alone_comes_back_as_it_was(run, capsysbinary, tmp_path):
    path = write(tmp_path / "in.conllu", rows(0, 0) * 2)
    for more in ([], ["--complete"]):
        out, err = done(capsysbinary, "parse", run, path, "--skip-bad", *more)
        assert out == path.read_bytes() and "2 of 2" in err


def test_words_of_any_length_and_sentences_of_many_words_are_parsed(run, capsysbinary, tmp_path):
    path = write(tmp_path / "in.txt", f"{'x' * 200_000} is long\n{'word ' * 250}\n")
    out, _ = done(capsysbinary, "parse", run, path)
    assert [len(heads) for heads in heads_of(out)] == [3, 250]


def test_a_thousand_times_the_same_word_is_parsed(run, capsysbinary, tmp_path):
    path = write(tmp_path / "in.txt", "word " * 1000)
    assert len(heads_of(done(capsysbinary, "parse", run, path)[0])[0]) == 1000


# -- runs and outputs that cannot be used --------------------------------------------------------------------


def changed(run, folder, change):
    """A copy of a run with other weights."""
    folder.mkdir()
    (folder / "config.json").write_bytes((run / "config.json").read_bytes())
    tensors = load_file(run / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_other_problems_and_folders_do_not_parse(capsysbinary, good, tmp_path):
    folder = tmp_path / "digits"
    done(
        capsysbinary,
        "train",
        "digits",
        "--epochs",
        "1",
        "--channels",
        "2",
        "--iterations",
        "1",
        "--batch",
        "1437",
        "--folder",
        folder,
    )
    assert "'digits' does not parse sentences" in refused(capsysbinary, "parse", folder, good)
    assert "no run folder" in refused(capsysbinary, "parse", tmp_path / "none", good)


def test_a_run_without_weights_or_with_those_of_another_is_refused(
    run, unlabelled, capsysbinary, good, tmp_path
):
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    assert "neither final weights nor a checkpoint" in refused(capsysbinary, "parse", tmp_path, good)
    (tmp_path / "model.safetensors").write_bytes((unlabelled / "model.safetensors").read_bytes())
    assert "another graph" in refused(capsysbinary, "parse", tmp_path, good)
    (tmp_path / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:900])
    assert "corrupt" in refused(capsysbinary, "parse", tmp_path, good)


@pytest.mark.parametrize("name", ["graph.V", "label_form", "graph.encoder.embedding.form.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(run, capsysbinary, good, tmp_path, name, value):
    folder = changed(run, tmp_path / "run", lambda tensors: tensors[name].view(-1)[0].fill_(value))
    for command in (["parse", folder, good, "--out", tmp_path / "out"], ["evaluate", folder]):
        message = refused(capsysbinary, *command)
        assert str(folder) in message and name in message and "NaN" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_energy_that_falls_for_ever_is_an_error_for_people_or_gives_a_tree(
    unlabelled, capsysbinary, tmp_path
):
    def grow(tensors):
        tensors["graph.V"].fill_(1e3)
        tensors["graph.b_H"].fill_(3.0)
        tensors["graph.b_M"].fill_(3.0)

    folder = changed(unlabelled, tmp_path / "run", grow)
    path = write(tmp_path / "in.txt", "the cat sees a bird\nthe old teacher reads\n")
    messages = []
    for k in (1, 2, 3, 4, 5, 1000):
        capsysbinary.readouterr()
        code = main(["parse", str(folder), str(path), "--iterations", str(k)])
        out, err = capsysbinary.readouterr()
        if code == 0:
            assert [sentence.count(0) for sentence in heads_of(out)] == [1, 1]
        else:
            messages.append(err.decode())
            assert (
                code == 2
                and not out
                and re.match(
                    f"unn: {path}, line [12]: after {k} iterations .* fewer --iterations", messages[-1]
                )
            )
    assert messages


def test_many_iterations_of_a_bounded_energy_give_trees(run, capsysbinary, good):
    out, _ = done(capsysbinary, "parse", run, good, "--iterations", 300)
    assert len(heads_of(out)) == 3
    for k in ("0", "-1", "100001"):
        assert "--iterations" in refused(capsysbinary, "parse", run, good, "--iterations", k)


@pytest.mark.parametrize("out", ["none/out.conllu", "folder", "good.conllu/out"])
def test_a_result_that_cannot_be_written_is_an_error_of_one_line(run, capsysbinary, good, tmp_path, out):
    (tmp_path / "folder").mkdir()
    message = refused(capsysbinary, "parse", run, good, "--out", tmp_path / out)
    assert str(tmp_path / out) in message and "cannot be written" in message
    assert "cannot be made" in refused(capsysbinary, "parse", run, good, "--draw", good)


def test_pipes_and_links_are_written_through_and_not_replaced(run, capsysbinary, good, tmp_path):
    expected, _ = done(capsysbinary, "parse", run, good)
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    seen = []
    reader = threading.Thread(target=lambda: seen.append(pipe.read_bytes()))
    reader.start()
    done(capsysbinary, "parse", run, good, "--out", pipe)
    reader.join()
    assert seen == [expected] and pipe.is_fifo()
    target.write_text("old")
    link.symlink_to(target)
    done(capsysbinary, "parse", run, good, "--out", link)
    assert link.is_symlink() and target.read_bytes() == expected


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_an_error_of_one_line(run, capsysbinary, good, monkeypatch):
    assert "No space left" in refused(capsysbinary, "parse", run, good, "--out", "/dev/full")
    with monkeypatch.context() as patch, open("/dev/full", "w") as full:
        patch.setattr(sys, "stdout", full)
        assert main(["parse", str(run), str(good)]) == 2
        patch.setattr(sys, "stdout", None)
        assert main(["parse", str(run), str(good)]) == 2
        # what could not be flushed is tried again when the file is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    err = capsysbinary.readouterr().err.decode()
    assert "No space left" in err and "closed" in err


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_has_had_enough_ends_the_command_quietly(run, tmp_path, unbuffered):
    # more than any pipe holds
    path = write(tmp_path / "in.txt", ("x" * 100_000 + "\n") * 200)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": unbuffered,
    }
    command = [sys.executable, "-m", "unn", "parse", str(run), str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout.read(9) == b"# text = "
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_stream_that_takes_a_part_at_a_time_gets_everything(run, capsysbinary, good, monkeypatch):
    class Slow(io.BytesIO):
        def write(self, content):
            return super().write(bytes(content)[:7])

    expected, _ = done(capsysbinary, "parse", run, good)
    slow = Slow()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(slow))
    assert main(["parse", str(run), str(good)]) == 0
    assert slow.getvalue() == expected


# -- inferring -----------------------------------------------------------------------------------------------


def test_words_and_trees_are_given_to_unn_infer_as_text(run, capsysbinary):
    out, _ = done(capsysbinary, "infer", run, "--given", "words=the cat sees a bird", "--want", "Y")
    assert b"1<-" in out and b"5<-" in out
    data = json.loads(
        done(
            capsysbinary,
            "infer",
            run,
            "--given",
            "words=the cat sees",
            "Y=2,3,0",
            "--want",
            "H",
            "M",
            "--json",
        )[0]
    )
    assert torch.tensor(data["H"]).shape == (4, 16) and torch.tensor(data["M"]).shape == (3, 16)
    for given, words in (
        ("Y=2,1,0", "from word 1 to 2 to 1 and"),
        ("Y=2,3,2", "from word 2 to 3 to 2 and"),
        ("Y=1,0,2", "from word 1 to 1 and"),
        ("Y=0,0,0", "domain"),
        ("Y=2,0", "size"),
        ("Y=2,9,0", "0 (the root) to n"),
        ("Y=", "0 (the root) to n"),
        ("Y=²,0,1", "0 (the root) to n"),
    ):
        assert words in refused(
            capsysbinary, "infer", run, "--given", "words=the cat sees", given, "--want", "H"
        )
    assert "words of one sentence" in refused(capsysbinary, "infer", run, "--given", "words= ", "--want", "Y")


# -- real data -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.data
def test_a_real_treebank_is_trained_on_measured_and_parsed(capsysbinary, tmp_path):
    folder = Path(os.environ.get("UNN_DATA", "absent")) / "ud"
    if not folder.is_dir():
        pytest.skip("needs $UNN_DATA/ud")
    train, test, out = (
        folder / "te_mtg-ud-train.conllu.gz",
        folder / "te_mtg-ud-test.conllu.gz",
        tmp_path / "out.conllu",
    )
    options = [
        "--iterations",
        "2",
        "--hidden",
        "32",
        "--width",
        "48",
        "--epochs",
        "2",
        "--rate",
        "0.01",
        "--labels",
        "--folder",
        tmp_path / "run",
    ]
    done(capsysbinary, "train", "parsing", "--data", train, *options, "--quiet")
    said = json.loads(done(capsysbinary, "evaluate", tmp_path / "run", "--json")[0])
    assert said["file"] == str(test)
    done(capsysbinary, "parse", tmp_path / "run", test, "--out", out)
    gold, system = read_conllu(test, trees=True), read_conllu(out, trees=True)
    only_trees_differ(gold.to_bytes(), system.to_bytes())
    assert (
        said["iterations"]["2"]["uas"] == pytest.approx(score(gold, system).uas.f1)
        and score(gold, system).uas.f1 > 0.6
    )
    assert done(capsysbinary, "parse", tmp_path / "run", test, "--complete")[0] == gold.to_bytes()
