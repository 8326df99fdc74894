"""CoNLL-U: every byte comes back, only what was asked for changes, and whatever is wrong is said with its
line."""

import gzip
import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from problems.parsing.conllu.treebank import (
    Sentence,
    Treebank,
    Word,
    looks_like_conllu,
    read_conllu,
    read_tokens,
)
from unn import DataError

GOOD = """# sent_id = a
# text = Ela abre-o no dia 3.
1\tEla\tela\tPRON\t_\tNumber=Sing\t2\tnsubj\t2:nsubj\t_
2-3\tabre-o\t_\t_\t_\t_\t_\t_\t_\t_
2\tabre\tabrir\tVERB\t_\t_\t0\troot\t0:root\t_
3\to\to\tPRON\t_\t_\t2\tobj\t2:obj\t_
3.1\tvai\tir\tVERB\t_\t_\t_\t_\t2:conj\t_
4-5\tno\t_\t_\t_\t_\t_\t_\t_\t_
4\tem\tem\tADP\t_\t_\t6\tcase\t6:case\t_
5\to\to\tDET\t_\t_\t6\tdet\t6:det\t_
6\tdia\tdia\tNOUN\t_\t_\t2\tobl:arg\t2:obl\t_
7\t3\t3\tNUM\t_\t_\t6\tnummod\t6:nummod\tSpaceAfter=No
8\t.\t.\tPUNCT\t_\t_\t2\tpunct\t2:punct\t_

# sent_id = b
1\tSim\tsim\tINTJ\t_\t_\t0\troot\t_\t_

"""
COUNTS = {
    "af_afribooms-ud-train": (1315, 33894, 0),
    "af_afribooms-ud-dev": (194, 5317, 0),
    "af_afribooms-ud-test": (425, 10065, 0),
    "hu_szeged-ud-train": (910, 20166, 0),
    "hu_szeged-ud-dev": (441, 11418, 0),
    "hu_szeged-ud-test": (449, 10448, 0),
    "te_mtg-ud-train": (1051, 5082, 0),
    "te_mtg-ud-dev": (131, 662, 0),
    "te_mtg-ud-test": (146, 721, 0),
    "en_partut-ud-train": (1781, 43504, 27),
    "en_partut-ud-dev": (156, 2722, 1),
    "en_partut-ud-test": (153, 3408, 4),
    "pt_bosque-ud-train": (8328, 206773, 15367),
    "pt_bosque-ud-dev": (560, 10850, 758),
    "pt_bosque-ud-test": (476, 10202, 744),
}


def read(text, trees=True, **options):
    return read_conllu(io.BytesIO(text.encode() if isinstance(text, str) else text), trees=trees, **options)


def row(i, form="w", head=0, deprel="x", deps="_"):
    return f"{i}\t{form}\t_\tX\t_\t_\t{head}\t{deprel}\t{deps}\t_"


def rows(*heads):
    """One sentence with these heads."""
    return "\n".join(row(i, f"w{i}", head) for i, head in enumerate(heads, 1)) + "\n\n"


# separators of Unicode are legal in fields; white space alone is no form
fields = st.text(
    st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=4
).filter(str.strip)
odd = st.sampled_from(["a\u2028b", "a\u0085b", "a\x0bb", "10\u00a0000", "_", "#", "1-2", "ü", "𝔘", "\ufeff"])


@st.composite
def trees(draw, n):
    """Heads of a random tree."""
    order = draw(st.permutations(range(1, n + 1)))
    heads = {i: order[draw(st.integers(0, k - 1))] if k else 0 for k, i in enumerate(order)}
    return [heads[i] for i in range(1, n + 1)]


@st.composite
def sentences(draw, field=fields | odd, bare=False):
    """Lines of a sentence, its forms and heads (None where they are left out)."""
    n = draw(st.integers(1, 6))
    heads = draw(trees(n))
    if bare:
        heads = [head if draw(st.booleans()) else None for head in heads]
    comments = draw(
        st.lists(
            st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=6),
            max_size=2,
        )
    )
    lines, forms, covered = [f"#{comment}" for comment in comments], [], 0
    lines += ["0.1" + f"\t{draw(field)}" * 5 + "\t_" * 4] * draw(st.integers(0, 1))
    for i in range(1, n + 1):
        if i > covered and draw(st.integers(0, 3)) == 0:
            covered = draw(st.integers(i, n))
            lines.append("\t".join([f"{i}-{covered}", draw(field)] + ["_"] * 8))
        values = [draw(field) for _ in range(9)]
        values[5] = "_" if heads[i - 1] is None else str(heads[i - 1])
        forms.append(values[0])
        lines.append("\t".join([str(i), *values]))
        lines += [
            f"{i}.{k}" + f"\t{draw(field)}" * 5 + "\t_" * 4
            for k in range(1, draw(st.sampled_from([1, 1, 1, 2, 3])))
        ]
    return lines, forms, heads


@st.composite
def files(draw, **options):
    """A file with every freedom that it has, and what it holds."""
    content = draw(st.lists(sentences(**options), min_size=1, max_size=4))
    ends = st.sampled_from(draw(st.sampled_from([["\n"], ["\r\n"], ["\n", "\r\n"]])))
    text = draw(st.sampled_from(["", "\ufeff"]))
    last = ""
    for lines, _, _ in content:
        text += last
        if last or draw(st.booleans()):
            text += "".join(draw(ends) for _ in range(draw(st.integers(0 if not last else 1, 3))))
            for comment in draw(st.sampled_from([[], [], ["# no words"], ["#", "# two"]])):
                text += comment + draw(ends) + draw(ends)
        text += "".join(line + draw(ends) for line in lines[:-1]) + lines[-1]
        last = draw(ends)
    text += draw(st.sampled_from(["", last, last + last, last + last + "# the end", last * 4]))
    return text.encode(), content


@given(files())
@settings(deadline=None)
def test_a_file_comes_back_byte_by_byte(case):
    raw, content = case
    for treebank in (read(raw), read(raw, trees=False), read(gzip.compress(raw)), read(raw, skip_bad=True)):
        assert treebank.to_bytes() == raw
        assert not treebank.skipped
        assert [list(s.forms) for s in treebank.sentences] == [forms for _, forms, _ in content]
        assert [list(s.heads) for s in treebank.sentences] == [heads for _, _, heads in content]
        assert [list(s.lines) for s in treebank.sentences] == [lines for lines, _, _ in content]


@given(files(bare=True))
@settings(deadline=None)
def test_every_line_number_is_that_of_the_line_in_the_file(case):
    raw, _ = case
    lines = raw.decode().removeprefix("\ufeff").split("\n")
    for sentence in read(raw, trees=False).sentences:
        for i, line in enumerate(sentence.lines):
            assert lines[sentence.line - 1 + i].removesuffix("\r") == line
        for i, word in enumerate(sentence.words, 1):
            assert lines[word.line - 1].startswith(f"{i}\t{word.form}\t{word.lemma}\t")


@given(files(bare=True), st.data())
@settings(deadline=None)
def test_new_heads_touch_nothing_else(case, data):
    raw, _ = case
    before = read(raw, trees=False)
    heads = [data.draw(trees(len(s.words))) for s in before.sentences]
    labels = (
        [[data.draw(st.sampled_from(["a", "b:c"])) for _ in h] for h in heads]
        if data.draw(st.booleans())
        else None
    )
    after = before.with_heads(heads, labels)
    old, new = raw.decode().split("\n"), after.to_bytes().decode().split("\n")
    assert len(old) == len(new)
    places = {
        word.line - 1: (s, i)
        for s, sentence in enumerate(before.sentences)
        for i, word in enumerate(sentence.words)
    }
    for number, (one, other) in enumerate(zip(old, new, strict=True)):
        if number not in places:
            assert one == other
            continue
        s, i = places[number]
        a, b = one.split("\t"), other.split("\t")
        word, head = before.sentences[s].words[i], heads[s][i]
        assert a[:6] + a[9:] == b[:6] + b[9:]
        assert b[6] == str(head)
        assert b[8] == (a[8] if head == word.head else "_")
        fallback = a[7] if head == word.head and a[7] != "_" else "dep" if head else "root"
        assert b[7] == (labels[s][i] if labels else fallback)
    again = read(after.to_bytes())
    assert again == after and [list(s.heads) for s in again.sentences] == heads


def test_the_same_heads_change_nothing():
    treebank = read(GOOD)
    assert treebank.with_heads([s.heads for s in treebank.sentences]) == treebank


edit = st.tuples(
    st.sampled_from(["set", "insert", "delete", "swap"]),
    st.integers(0, 2000),
    st.integers(0, 255),
    st.integers(1, 9),
)


@given(
    st.sampled_from([GOOD, GOOD.replace("\n", "\r\n"), "\ufeff" + GOOD * 3]),
    st.lists(edit, max_size=5),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_a_damaged_file_is_read_or_refused_but_never_crashes_and_comes_back(
    text, changes, insert_trees, pack
):
    raw = bytearray(text.encode())
    for kind, place, byte, count in changes:
        place %= len(raw) or 1
        if kind == "set" and raw:
            raw[place] = byte
        elif kind == "insert":
            raw[place:place] = bytes([byte if byte > 127 else b"\t\n\r 0123456789-._#"[byte % 17]]) * count
        elif kind == "delete":
            del raw[place : place + count]
        else:
            raw[place : place + count] = raw[place + count : place + 2 * count]
    raw = bytes(raw)
    packed = gzip.compress(raw) if pack else raw
    refused = ""
    try:
        assert read(packed, trees=insert_trees).to_bytes() == raw
    except DataError as error:
        refused = str(error)
    whole = ""
    try:
        treebank = read(packed, trees=insert_trees, skip_bad=True)
        assert treebank.to_bytes() == raw
        assert bool(treebank.skipped) == bool(refused)
        if refused:
            assert f"<stream>, line {treebank.skipped[0].line}: {treebank.skipped[0].reason}" == refused
    except DataError as error:
        whole = str(error)
    assert not whole or whole == refused
    assert not refused or (refused.startswith("<stream>, line ") and refused.endswith("."))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(raw):
    for attempt in (
        lambda: read(raw, trees=False),
        lambda: read(raw, skip_bad=True),
        lambda: read_tokens(io.BytesIO(raw)),
    ):
        message = "<stream>"
        try:
            assert isinstance(attempt(), Treebank)
        except DataError as error:
            message = str(error)
        assert message.startswith("<stream>")
    assert looks_like_conllu(raw) in (True, False)


FAULTS = {
    "1\tw\t_\t_\n\n": "line 1: the line has 4 columns, not 10. Write ID to MISC",
    rows(0)[:-1] + "\textra\n\n": "line 2: the line has 2 columns, not 10|column 1 .ID. is empty",
    "1 w _ X _ _ 0 root _ _\n\n": "line 1: the line has 1 column, not 10: they seem to be separated by "
    "spaces. Separate them by tabs",
    "1\tw _\tX\t_\t_\t0\troot\t_\t_\n\n": "line 1: the line has 9 columns, not 10: some seem to be separated "
    "by spaces",
    "word\n\n": "line 1: the line has 1 column, not 10. Write ID",
    row(1, form="").replace("\tX", "\tX") + "\n": r"line 1: column 2 \(FORM\) is empty. Write _",
    row(1, form="\u3000") + "\n": r"line 1: column 2 \(FORM\) is empty",
    row(1).replace("\tX\t", "\t\t") + "\n": r"line 1: column 4 \(UPOS\) is empty",
    row(1)
    + "\n"
    + row(3, head=1)
    + "\n": "line 2: id 3 cannot follow 1: ids are consecutive. The next word is 2",
    row(1)
    + "\n"
    + row(2, head=1)
    + "\n"
    + row(2, head=1)
    + "\n": "line 3: id 2 stands twice. The next word is 3",
    rows(0)[:-1] + rows(0): "line 2: ids begin again at 1 after word 1. Put a blank line between sentences",
    row("01") + "\n": "line 1: id '01' is neither a number",
    row("x") + "\n": "line 1: id 'x' is neither a number .3. nor a range .3-4. nor an empty node",
    row("٣") + "\n": "line 1: id '٣' is neither",
    row("9" * 5000) + "\n": "line 1: id 9{20} cannot follow 0",
    row("2-1") + "\n" + rows(0, 1): "line 1: range 2-1 goes backwards",
    row("1-2")
    + "\n"
    + row(1)
    + "\n"
    + row("2-3")
    + "\n"
    + row(2, head=1)
    + "\n"
    + row(3, head=1): "line 3: range 2-3 overlaps with 1-2",
    row("2-3") + "\n" + rows(0, 1, 1): "line 1: range 2-3 is out of place: the next word is 1",
    row(1)
    + "\n"
    + row("1-2")
    + "\n"
    + row(2, head=1): "line 2: range 1-2 is out of place: the next word is 2",
    row("1-3") + "\n" + rows(0, 1): "line 1: range 1-3 exceeds the sentence of 2 words",
    row("1.1")
    + "\n"
    + rows(0): r"line 1: empty node 1.1 is out of place. After word 0 and its empty nodes comes 0.1",
    row(1) + "\n" + row("1.2"): "line 2: empty node 1.2 is out of place. After word 1 .* comes 1.1",
    row("1-2") + "\n" + row("0.1") + "\n" + rows(0, 1): "line 2: empty node 0.1 is out of place",
    row(1)
    + "\n# comment\n"
    + row(2, head=1): "line 2: a comment stands among the words. Put it before the first, or a blank line",
    row("0.1") + "\n\n": "line 1: the sentence has no words",
    rows(0) + " \t\n" + rows(0): "line 3: the line has only white space",
    rows(
        2, 3, 1, 0
    ): "line 1: heads form a cycle: word 1 'w1' -> word 2 'w2' -> word 3 'w3' -> word 1 'w1'. Give one of "
    "these",
    rows(0, 2): "line 2: word 2 'w2' is its own head",
    rows(0, 1, 0): "line 3: several roots: word 1 'w1' and word 3 'w3' have head 0. A tree has one root",
    rows(2, 3, 1): "line 1: no word has head 0",
    rows(0, 3): r"line 2: HEAD 3 of word 2 'w2' is out of range. Heads are 0 \(root\) to 2",
    rows(0, 9**3000): "line 2: HEAD [0-9]{20} of word 2 'w2' is out of range",
    rows(0, -1): "line 2: HEAD '-1' of word 2 'w2' is not a number",
    rows(0, "1.0"): "line 2: HEAD '1.0' of word 2 'w2' is not a number",
    rows(0, "²"): "line 2: HEAD '²' of word 2 'w2' is not a number",
    rows(0, " 1"): "line 2: HEAD ' 1' of word 2 'w2' is not a number",
    rows(
        0, *range(1, 10)
    ): "line 10: the sentence has more than 9 words. Split it, or allow longer sentences",
    "# a\rb\n" + rows(0): "line 1: a carriage return stands inside the line",
    "# a\rb\n\n" + rows(0): "line 1: a carriage return stands inside the line",
    rows(0).rstrip("\n") + "\r\r\n": "line 1: a carriage return stands inside the line",
}


@pytest.mark.parametrize(("text", "words"), FAULTS.items(), ids=range(len(FAULTS)))
def test_whatever_is_wrong_with_a_sentence_is_said_with_its_line_and_can_be_skipped(tmp_path, text, words):
    path = tmp_path / "some.conllu"
    text = rows(0) + text + ("" if text.endswith("\n\n") else "\n\n") + rows(0, 1)
    path.write_bytes(text.encode())
    place, _, words = words.removeprefix("line ").partition(": ")
    with pytest.raises(DataError, match=f"some.conllu, line {int(place) + 2}: {words}") as error:
        read_conllu(path, trees=True, longest=9)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
    treebank = read_conllu(path, trees=True, skip_bad=True, longest=9)
    assert treebank.to_bytes() == text.encode()
    assert len(treebank.skipped) == 1 and treebank.skipped[0].index in (0, 1, 2)
    assert f"line {treebank.skipped[0].line}: {treebank.skipped[0].reason}" in str(error.value)
    assert treebank.with_heads(
        [[0] if len(s.words) == 1 else [2, 0] for s in treebank.sentences]
    ).to_bytes() == text.encode()[: -len(rows(0, 1))] + (
        rows(2, 0).replace("2\tx", "2\tdep").replace("0\tx", "0\troot").encode()
    )


def test_a_head_may_be_missing_only_where_no_tree_is_needed():
    text = rows("_", 1)
    sentence = read(text, trees=False).sentences[0]
    assert [word.head for word in sentence.words] == [None, 1] and not sentence.has_tree
    with pytest.raises(DataError, match="line 1: word 1 'w1' has no head"):
        _ = sentence.heads
    with pytest.raises(
        DataError, match=r"line 1: word 1 'w1' has no head \(HEAD is _\). Give every word a head"
    ):
        read(text)
    assert read(rows("_", "_", 2), trees=False).to_bytes() == rows("_", "_", 2).encode()
    with pytest.raises(DataError, match="line 1: no word has head 0"):
        read(rows(2, 1), trees=False)
    for bad, words in (
        (rows("_", 0, 0), "several roots"),
        (rows("_", 3, 2), "cycle"),
        (rows("_", 2), "own head"),
        (rows("_", 3), "out of range"),
    ):
        with pytest.raises(DataError, match=words):
            read(bad, trees=False)


def test_a_carriage_return_that_ends_the_file_alone_is_no_line_end():
    with pytest.raises(DataError, match="line 3: a carriage return stands inside the line"):
        read(rows(0) + row(1) + "\r")


def test_a_long_cycle_is_shortened():
    with pytest.raises(DataError, match="word 7 'w7' -> 44 more -> word 1 'w1'"):
        read(rows(*range(2, 52), 1, 0))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "line 1: the file is empty. Check"),
        (gzip.compress(b""), "line 1: the file is empty"),
        (b"\n\n\n", "line 1: the file has no sentences"),
        (b"# only\n# comments\n\n", "line 1: the file has no sentences, only blank lines or comments"),
        ("\ufeff".encode(), "line 1: the file has no sentences"),
        (
            GOOD.encode("utf-16"),
            "line 1: the file is UTF-16, by its byte order mark. Convert it to UTF-8: iconv",
        ),
        (GOOD.encode("utf-32"), "line 1: the file is UTF-32"),
        (b"\xfe\xff" + GOOD.encode("utf-16-be"), "line 1: the file is UTF-16"),
        (GOOD.encode("utf-16-le"), "line 1: byte 2 of the line is NUL"),
        (
            GOOD.replace("\tdia", "\tdìa").encode("latin-1"),
            r"line 11: byte 4 of the line \(0xec\) is not UTF-8 \(invalid .*\). Convert",
        ),
        (
            GOOD.encode()[:-3] + b"\xc3",
            r"line 16: byte 29 of the line \(0xc3\) is not UTF-8 \(unexpected end of data\)",
        ),
        (GOOD.replace("Sim", "S\0m").encode(), "line 16: byte 4 of the line is NUL"),
        (
            GOOD.replace("\n", "\r").encode(),
            "line 1: lines end with a carriage return alone. Convert the line ends",
        ),
        (gzip.compress(GOOD.encode())[:-9], "cannot be decompressed .*end-of-stream.*again"),
        (gzip.compress(GOOD.encode())[:-5] + b"\0\0\0\0\0", "cannot be decompressed"),
        (b"\x1f\x8bgarbage", "cannot be decompressed"),
        (gzip.compress(GOOD.encode()) + b"abc", "cannot be decompressed"),
    ],
    ids=range(17),
)
def test_what_is_wrong_with_a_file_as_a_whole_is_never_skipped(tmp_path, raw, words):
    path = tmp_path / "some.conllu"
    path.write_bytes(raw)
    for attempt in (read_conllu, lambda path, **options: read_conllu(path, skip_bad=True, **options)):
        with pytest.raises(DataError, match=f"some.conllu[,:] {words}"):
            attempt(path, trees=False)
    if "no sentences" not in words:
        with pytest.raises(DataError, match=f"some.conllu[,:] {words}"):
            read_tokens(path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    for path, words in ((tmp_path / "absent", "No such file"), (tmp_path, "directory"), ("a\0b", "null")):
        with pytest.raises(DataError, match=f"cannot be read .*{words}.*Check the path"):
            read_conllu(path, trees=True)
    with pytest.raises(DataError, match="gives text, not bytes"):
        read_conllu(io.StringIO(GOOD), trees=True)


def test_a_stream_is_called_by_its_name_and_a_path_may_be_text(tmp_path):
    path = tmp_path / "some.conllu"
    read(GOOD).write(path)
    assert path.read_bytes() == GOOD.encode()
    with path.open("rb") as stream:
        assert read_conllu(stream, trees=True) == read_conllu(str(path), trees=True)
    assert read(GOOD).source == "<stream>"
    out = io.BytesIO()
    read(GOOD).write(out)
    assert out.getvalue() == GOOD.encode()


def test_words_ranges_and_trees_of_an_example():
    first, second = read(GOOD).sentences
    assert first.words[5] == Word("dia", "dia", "NOUN", "_", "_", 2, "obl:arg", "2:obl", "_", 11)
    assert first.ranges == ((2, 3, "abre-o"), (4, 5, "no"))
    assert first.heads == (2, 0, 2, 6, 6, 2, 6, 2) and first.has_tree and first.line == 1
    assert second.forms == ("Sim",) and second.line == 15 and len(second.lines) == 2


def test_the_more_frequent_line_end_is_known():
    assert read(GOOD).line_end == "\n" and read(GOOD.replace("\n", "\r\n")).line_end == "\r\n"
    assert read(GOOD.replace("\n", "\r\n", 3)).line_end == "\n"
    assert read(row(1)).line_end == "\n"


@pytest.mark.parametrize(
    ("heads", "labels", "words"),
    [
        ([0], None, "1 heads for a sentence of 2 words"),
        ([0, 3], None, "head 3 for word 2 'w2' of 2"),
        ([0, -1], None, "head -1"),
        ([0, 1], ["root"], "1 labels for a sentence of 2 words"),
        ([0, 1], ["root", ""], "label '' is empty"),
        ([0, 1], ["root", "a\tb"], r"label 'a\\tb' is empty or has white space"),
        ([0, 1], ["root", "a\n"], r"label 'a\\n'"),
    ],
)
def test_heads_and_labels_that_cannot_be_are_refused(heads, labels, words):
    with pytest.raises(DataError, match=words):
        read(rows(0, 1)).sentences[0].with_heads(heads, labels)


def test_heads_of_another_number_of_sentences_are_refused():
    treebank = read(rows(0) * 2)
    with pytest.raises(DataError, match="another number of sentences than 2"):
        treebank.with_heads([[0]])
    with pytest.raises(DataError, match="1 sentences for a file of 2"):
        Treebank(treebank.sentences[:1], gaps=treebank.gaps)
    assert Treebank(treebank.sentences[:1]).to_bytes() == rows(0).encode()


tokens = st.text(st.characters(exclude_characters="\0\ufeff", exclude_categories=["Cs"]), max_size=5).filter(
    lambda text: text.split() == [text]
)


@given(st.lists(st.lists(tokens, max_size=5), min_size=1, max_size=5), st.data())
@settings(deadline=None)
def test_raw_tokens_become_sentences_without_annotation(lines, data):
    assume(any(lines))
    space = st.sampled_from([" ", "\t", "  ", "\u3000"])
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    text = "".join("".join(token + data.draw(space) for token in line) + end for line in lines)
    treebank = read_tokens(io.BytesIO(text.encode()))
    assert [list(s.forms) for s in treebank.sentences] == [line for line in lines if line]
    assert [s.line for s in treebank.sentences] == [i for i, line in enumerate(lines, 1) if line]
    assert treebank.line_end == end
    again = read(treebank.to_bytes(), trees=False)
    assert [s.forms for s in again.sentences] == [s.forms for s in treebank.sentences]
    assert [s.lines for s in again.sentences] == [s.lines for s in treebank.sentences]
    heads = [[0] * len(s.words) for s in treebank.sentences]
    assert treebank.with_heads(heads).sentences[0].words[0].deprel == "root"


def test_raw_tokens_of_an_example():
    treebank = read_tokens(io.BytesIO(b"\xef\xbb\xbfEla  dorme .\n\nSim\n"))
    wanted = "# text = Ela dorme .\n1\tEla{}\n2\tdorme{}\n3\t.{}\n\n# text = Sim\n1\tSim{}\n\n"
    assert treebank.to_bytes().decode() == wanted.replace("{}", "\t_" * 8)
    parsed = treebank.with_heads([[2, 0, 2], [0]])
    assert parsed.to_bytes().decode().split("\n")[2] == "2\tdorme\t_\t_\t_\t_\t0\troot\t_\t_"
    with pytest.raises(DataError, match="line 2: the sentence has more than 3 words"):
        read_tokens(io.BytesIO(b"a\na b c d\n"), longest=3)
    with pytest.raises(DataError, match="line 1: the file has no tokens. Give one sentence"):
        read_tokens(io.BytesIO(b" \n\n"))


@given(files(bare=True), st.integers(0, 5000))
@settings(deadline=None)
def test_the_beginning_of_a_file_tells_the_format(case, cut):
    raw, content = case
    assert looks_like_conllu(raw) and looks_like_conllu(gzip.compress(raw))
    tokens = "\n".join(" ".join(form.split()[0] for form in forms) for _, forms, _ in content)
    assert not looks_like_conllu(b"Ela dorme .\n" + tokens.encode())


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (b"", False),
        (b"\n\n", False),
        (b"# sent_id = 1\n# text = ", True),
        (b"# hello\n", False),
        (b"# one two\nthree four\n", False),
        (b"1\tEla", True),
        (b"1-2\tno", True),
        (b"0.1\tno", True),
        (b"1 Ela ela PRON _ _ 2 nsubj _ _\n", True),
        (b"1 of 10 a b c d e f g\n", False),
        (b"1 one", False),
        (b"\x1f\x8bgarbage", False),
        (gzip.compress(GOOD.encode())[:-20], True),
    ],
)
def test_formats_that_are_told_apart(first, answer):
    assert looks_like_conllu(first) is answer


@given(files(field=st.sampled_from(["a", "ü", "_", "b c"])))
@settings(deadline=None, max_examples=50)
def test_an_independent_reader_agrees(case):
    conllu = pytest.importorskip("conllu")
    raw, _ = case
    text = re.sub(
        r"^#( no words| two)?\n", "", raw.decode().removeprefix("\ufeff").replace("\r\n", "\n"), flags=re.M
    )
    agree(conllu, read(raw).sentences, text)


def agree(conllu, sentences, text):
    theirs = [
        [token for token in sentence if isinstance(token["id"], int)]
        for sentence in conllu.parse(text)
        if sentence
    ]
    assert len(theirs) == len(sentences)
    for sentence, tokens in zip(sentences, theirs, strict=True):
        assert [(w.form, w.head, w.deprel) for w in sentence.words] == [
            (t["form"], t["head"], t["deprel"]) for t in tokens
        ]


def treebanks():
    folder = Path(os.environ.get("UNN_DATA", "absent")) / "ud"
    if not folder.is_dir():
        pytest.skip("needs $UNN_DATA/ud")
    return folder


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", COUNTS)
def test_real_treebanks_are_read_whole_and_come_back(name):
    path = treebanks() / f"{name}.conllu.gz"
    treebank = read_conllu(path, trees=True)
    every_sentence = treebank.sentences
    assert (
        len(every_sentence),
        sum(len(s.words) for s in every_sentence),
        sum(len(s.ranges) for s in every_sentence),
    ) == COUNTS[name]
    raw = gzip.decompress(path.read_bytes())
    assert treebank.to_bytes() == raw and looks_like_conllu(raw[:4096])
    assert treebank.with_heads([s.heads for s in every_sentence]).to_bytes() == raw
    if "train" not in name:
        agree(pytest.importorskip("conllu"), every_sentence, raw.decode())


def test_a_sentence_made_by_hand_can_be_written():
    words = (Word("a", "_", "_", "_", "_", None, "_", "_", "_", 1),)
    treebank = Treebank((Sentence(("1\ta" + "\t_" * 8,), words, 1),))
    assert treebank.with_heads([[0]]).to_bytes() == b"1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n\n"
