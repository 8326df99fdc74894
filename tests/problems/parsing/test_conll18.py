"""Scores of the CoNLL 2018 shared task: values of the official scorer, a plain recount, and relations between
the scores."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from problems.parsing.conllu.treebank import read_conllu
from problems.parsing.metrics.attachment import measure_sentences
from problems.parsing.metrics.conll18 import Score, score
from unn import DataError

# Gold file, system's file, and what the official scorer (version 1.2) counts for words, UAS, LAS and CLAS:
# correct, gold, system, aligned.
# Files are written as form/head/label, words of a multiword token as token=word+word, sentences between bars.
OFFICIAL = [
    ("B=ba/0/root a/1/obl", "Ba/0/root", [(0, 2, 1), (0, 2, 1, 0), (0, 2, 1, 0), (0, 2, 1, 0)]),
    ("a/2/obl b/0/root", "ab=b/0/root+a/1/obl", [(1, 2, 2), (1, 2, 2, 1), (1, 2, 2, 1), (1, 2, 2, 1)]),
    ("B/2/nsubj a=ba/0/root", "Ba/0/root", [(0, 2, 1), (0, 2, 1, 0), (0, 2, 1, 0), (0, 2, 1, 0)]),
    (
        "a/0/root B/1/obl ab/2/obl",
        "aBa/0/root b=b/1/conj",
        [(0, 3, 2), (0, 3, 2, 0), (0, 3, 2, 0), (0, 3, 2, 0)],
    ),
    (
        "Bb/0/root b=b/1/cc+b/2/obl",
        "B=B/0/root b=b/1/cc b/2/obl",
        [(2, 3, 3), (1, 3, 3, 2), (1, 3, 3, 2), (1, 2, 2, 1)],
    ),
    (
        "abcd/0/root ef=cd/1/obj+e/1/case g/1/punct",
        "ab/0/root cd/1/obj ef/2/case g/1/punct",
        [(2, 4, 4), (0, 4, 4, 2), (0, 4, 4, 2), (0, 2, 2, 1)],
    ),
    (
        "ab/0/root cd=cd/1/obj+x/2/nmod:a",
        "ab=cde/2/obj+x/0/root cd/2/nmod",
        [(1, 3, 3), (0, 3, 3, 1), (0, 3, 3, 1), (0, 3, 3, 1)],
    ),
    (
        "ab=x/0/root+y/1/obj cde/1/obj f/3/det",
        "abc=cde/0/root+y/1/obj de=e/1/det f/2/det",
        [(2, 4, 4), (0, 4, 4, 2), (0, 4, 4, 2), (0, 3, 2, 1)],
    ),
    (
        "abcde/0/root f/1/obj",
        "abc=abcde/0/root de=f/1/obj f/2/obj",
        [(2, 2, 3), (1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2)],
    ),
    (
        "a/0/root bc=b/1/obj+c/2/punct",
        "a/0/root b=b/1/obj c=C/2/punct",
        [(3, 3, 3), (3, 3, 3, 3), (3, 3, 3, 3), (2, 2, 2, 2)],
    ),
    (
        "Ab/0/root c/1/obl:arg",
        "A/2/case b/0/root c/2/obl",
        [(1, 2, 3), (0, 2, 3, 1), (0, 2, 3, 1), (0, 2, 2, 1)],
    ),
    (
        "ab=a/2/det+a/0/root+b/2/obj",
        "ab=a/0/root+b/1/obj+a/1/det",
        [(2, 3, 3), (0, 3, 3, 2), (0, 3, 3, 2), (0, 2, 2, 1)],
    ),
    (
        "a/2/zzz b/0/root c/2/aux:pass",
        "a/2/zzz b/0/root c/2/aux",
        [(3, 3, 3), (3, 3, 3, 3), (3, 3, 3, 3), (1, 1, 1, 1)],
    ),
    (
        "b/0/root | ab/0/root BB/1/obl cc/2/obl ba/3/obl b/4/punct | a/0/root a/1/obl | ba/0/root",
        "b=b/0/root ab/1/det B/2/obl B/3/obl | cc/6/zzz b/0/root a/6/obl b=b/5/obj+b/2/nmod:poss a/2/obl:arg "
        "| a/0/root | ba/0/root",
        [(7, 9, 12), (2, 9, 12, 7), (2, 9, 12, 7), (2, 8, 10, 6)],
    ),
    (
        "bBcbB/0/root | caaB/0/root Bc/1/obl",
        "bBcbB=BBCBB/0/root caaB/1/conj | Bc/0/root",
        [(3, 3, 3), (1, 3, 3, 3), (1, 3, 3, 3), (1, 3, 3, 3)],
    ),
    (
        "aB/0/root | Ba/0/root ab/1/obl aa/1/zzz | a/0/root | a/3/obl c/3/obl a/0/root B/3/zzz",
        "aB=B/0/root+ac/1/obj+ba/2/punct Ba/3/obl | abaa/0/root | a/0/root acaB/1/obl",
        [(2, 9, 7), (1, 9, 7, 2), (1, 9, 7, 2), (1, 7, 6, 2)],
    ),
    (
        "c=c/0/root+b/1/obl+c/2/punct ca/3/obl b=cb/4/zzz B/5/punct B/6/cc | a/0/root "
        "ba=b/1/obl+b/2/obl+ba/3/obl",
        "c/0/root | c/3/obl a/3/zzz b/0/root | B=cc/0/root+cc/1/zzz B/2/obj a=a/3/obl+A/4/obl+a/5/obl | "
        "ba/0/root",
        [(4, 11, 11), (1, 11, 11, 4), (1, 11, 11, 4), (1, 7, 9, 3)],
    ),
    (
        "aBccab/0/root abBB/1/obl cacbbc/2/nsubj Bacab/3/obl | BBBac/0/root ca/1/obl | bB/0/root",
        "aBccab/0/root abBB/1/obl cacbbcBacab=cacbbc/2/obl+Bacab/3/root BBBac/4/obl | cabB/0/root",
        [(5, 7, 6), (4, 7, 6, 5), (2, 7, 6, 5), (2, 7, 6, 5)],
    ),
    (
        "a/0/root bBa/1/zzz | B/0/root bb/1/obl aac/2/obl:arg acc/3/obl a/4/obl | c/0/root",
        "a/0/root | bB/2/obl a/0/root | Bbb=B/0/root+bb/1/obl aac/2/nmod acc=a/3/punct+acc/4/obl+ACC/5/obl "
        "ac=a/6/obl+c/7/obl",
        [(7, 8, 11), (4, 8, 11, 7), (3, 8, 11, 7), (3, 7, 10, 7)],
    ),
    (
        "b=b/0/root+b/1/obl+b/2/root Bb=Bb/3/obl",
        "bBb=b/0/root+b/4/conj+b/1/obl+Bb/1/nmod:poss",
        [(4, 4, 4), (1, 4, 4, 4), (1, 4, 4, 4), (1, 4, 4, 4)],
    ),
    (
        "Bcb/0/root | aa/0/root cc/1/obl aBc/2/obl",
        "Bcb/0/root aa=aa/1/obl+b/2/obl cc=CC/3/obl+CC/4/obl+a/5/obl | aBc=ABC/0/root+b/1/nmod+aBc/2/conj",
        [(4, 4, 9), (1, 4, 9, 4), (1, 4, 9, 4), (1, 4, 9, 4)],
    ),
    (
        "cBa/0/root cBc/1/obl cc/2/obl cB/3/zzz a/4/obl | bBB/0/root Ba/1/obl | c/0/root | b/0/root",
        "cBacBc=cBa/0/root+cBc/4/obl cccB=cc/1/obl+cB/1/nmod | a/0/root bBB/1/obl "
        "Ba=b/2/conj+bc/3/obl+B/4/obl c/5/dep | b/0/root",
        [(8, 9, 11), (2, 9, 11, 8), (2, 9, 11, 8), (2, 8, 11, 7)],
    ),
    (
        "caB/0/root ba/1/obl cb/2/case | bc/0/root | B/3/obl ccc/0/root bc/2/obl | ab/2/obl bac=bac/0/root "
        "cc/2/obl",
        "caB/0/root ba/4/cc cb/4/cc bcB/1/obl ccc/1/nsubj bc/1/aux:pass | a/0/root b/1/obl | "
        "baccc=bac/0/root+cc/1/conj",
        [(7, 10, 10), (3, 10, 10, 7), (2, 10, 10, 7), (2, 9, 7, 6)],
    ),
    (
        "Bc/0/root ba/1/obl a/2/obl | B/0/root | b/0/root B/1/obl | ab/0/root | B/0/root",
        "Bc/0/root b/1/obl aaB=a/2/obl+a/3/nmod:poss+B/4/obl b/5/obl | B/0/root a/1/obl | b/0/root | "
        "B/0/root",
        [(6, 8, 10), (2, 8, 10, 6), (2, 8, 10, 6), (2, 8, 10, 6)],
    ),
    (
        "c/0/root aBac/1/det cBccbB/2/root bbcabc/3/obl",
        "c=c/0/root+c/1/nmod:poss aBac/2/obl | cBccbB=c/2/obl+cBccbB/0/root+cBc/2/obl "
        "bbcabc=bcabc/6/obj+b/1/obl+ca/2/obl",
        [(3, 4, 9), (1, 4, 9, 3), (1, 4, 9, 3), (1, 3, 9, 2)],
    ),
]


def read(text):
    """A file from the notation of the table."""
    lines = []
    for sentence in text.split(" | "):
        n = 0
        for token in sentence.split():
            form, several, words = token.rpartition("=")
            parts = words.split("+")
            if several:
                lines.append(f"{n + 1}-{n + len(parts)}\t{form}" + "\t_" * 8)
            for part in parts:
                n += 1
                form, head, label = part.split("/")
                lines.append(f"{n}\t{form}\t_\t_\t_\t_\t{head}\t{label}\t_\t_")
        lines.append("")
    return load("\n".join(lines) + "\n")


def load(text):
    return read_conllu(io.BytesIO(text.encode()), trees=True)


def counts(scores):
    return [
        (s.correct, s.gold, s.system, s.aligned) for s in (scores.words, scores.uas, scores.las, scores.clas)
    ]


@pytest.mark.parametrize(("gold", "system", "expected"), OFFICIAL, ids=range(len(OFFICIAL)))
def test_the_official_scorer_counts_the_same(gold, system, expected):
    assert [
        row[: len(wanted)]
        for row, wanted in zip(counts(score(read(gold), read(system))), expected, strict=True)
    ] == expected


def test_fractions_follow_from_the_counts():
    three = Score(correct=3, gold=4, system=6, aligned=5)
    assert (three.precision, three.recall, three.f1, three.aligned_accuracy) == (0.5, 0.75, 0.6, 0.6)
    nothing = Score(0, 0, 0, 0)
    assert (nothing.precision, nothing.recall, nothing.f1, nothing.aligned_accuracy) == (0.0, 0.0, 0.0, 0.0)


@st.composite
def divided(draw, text, multiword=True):
    """The text as a file in the notation of the table, divided into words and sentences at random, with
    random trees."""
    cuts = sorted(draw(st.sets(st.integers(1, len(text) - 1)))) if len(text) > 1 else []
    tokens = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    sentences, rest = [], tokens
    while rest:
        n = draw(st.integers(1, len(rest)))
        sentences.append(rest[:n])
        rest = rest[n:]
    written = []
    for sentence in sentences:
        words = st.lists(st.sampled_from(["a", "b", "A", "ab"]), min_size=1, max_size=3)
        split = [draw(words) if multiword and draw(st.booleans()) else None for _ in sentence]
        total = sum(len(parts) if parts else 1 for parts in split)
        order = draw(st.permutations(range(1, total + 1)))
        heads = {i: order[draw(st.integers(0, k - 1))] if k else 0 for k, i in enumerate(order)}
        i, out = 0, []
        for token, inside in zip(sentence, split, strict=True):
            parts = []
            for word in inside or [token]:
                i += 1
                parts.append(f"{word}/{heads[i]}/{draw(st.sampled_from(['obj', 'obj:x', 'det', 'odd']))}")
            out.append(f"{token}={'+'.join(parts)}" if inside else parts[0])
        written.append(" ".join(out))
    return " | ".join(written)


texts = st.text("abA", min_size=1, max_size=12)


@given(st.data())
@settings(deadline=None)
def test_words_of_their_own_are_aligned_where_they_stand_for_the_same_characters(data):
    text = data.draw(texts)
    gold, system = (read(data.draw(divided(text, multiword=False))) for _ in range(2))
    both = []
    for treebank in (gold, system):
        spans, words, end = [], [], 0
        for sentence in treebank.sentences:
            first = len(spans)
            for word in sentence.words:
                spans.append((end, end + len(word.form)))
                end += len(word.form)
                words.append((first + word.head - 1 if word.head else None, word.deprel.split(":")[0]))
        both.append(
            {
                span: (spans[head] if head is not None else None, label)
                for span, (head, label) in zip(spans, words, strict=True)
            }
        )
    ours, theirs = both
    aligned = ours.keys() & theirs.keys()
    scores = score(gold, system)
    assert scores.words.correct == len(aligned) == scores.uas.aligned == scores.las.aligned
    assert (scores.uas.gold, scores.uas.system) == (len(ours), len(theirs))
    assert scores.uas.correct == sum(ours[span][0] == theirs[span][0] for span in aligned)
    assert scores.las.correct == sum(ours[span] == theirs[span] for span in aligned)
    content = [span for span in aligned if ours[span][1] == "obj"]
    assert scores.clas.aligned == len(content) and scores.clas.correct == sum(
        ours[span] == theirs[span] for span in content
    )


@given(st.data())
@settings(deadline=None)
def test_a_file_agrees_with_itself_and_no_score_exceeds_the_alignment(data):
    text = data.draw(texts)
    gold, system = (read(data.draw(divided(text))) for _ in range(2))
    itself = score(gold, gold)
    for part in (itself.words, itself.uas, itself.las):
        assert part.f1 == part.precision == part.recall == part.aligned_accuracy == 1.0
    assert itself.clas.correct == itself.clas.gold
    scores = score(gold, system)
    assert (
        scores.clas.correct
        <= scores.las.correct
        <= scores.uas.correct
        <= scores.words.correct
        <= min(scores.words.gold, scores.words.system)
    )


@given(st.data())
@settings(deadline=None)
def test_with_the_same_words_scores_are_plain_attachment_scores(data):
    gold = read(data.draw(divided(data.draw(texts), multiword=False)))
    heads, labels = [], []
    for sentence in gold.sentences:
        n = len(sentence.words)
        root = data.draw(st.integers(1, n))
        heads.append([0 if i == root else root for i in range(1, n + 1)])
        labels.append([data.draw(st.sampled_from(["obj", "obj:y", "det"])) for _ in range(n)])
    system = gold.with_heads(heads, labels)
    scores, plain = score(gold, system), measure_sentences(gold.sentences, system.sentences)
    assert scores.uas.f1 == scores.uas.precision == pytest.approx(plain.uas, abs=1e-12)
    assert scores.las.f1 == scores.las.recall == pytest.approx(plain.las, abs=1e-12)
    assert scores.words.f1 == 1.0


def test_white_space_in_forms_plays_no_part():
    one, other = (
        "1\t10\u00a0000 km\t_\t_\t_\t_\t0\troot\t_\t_\n\n",
        "1\t10000\u3000km\t_\t_\t_\t_\t0\troot\t_\t_\n\n",
    )
    assert score(load(one), load(other)).las.f1 == 1.0


@pytest.mark.parametrize(
    ("gold", "system", "words"),
    [
        (
            "ab/0/root c/1/x",
            "ab/0/root d/1/x",
            "<stream>, line 2: 'd' instead of <stream>, line 2: 'c'. Both files must hold the same text",
        ),
        ("ab/0/root", "ab/0/root d/1/x", "line 2: 'd' instead of <stream>: 'the end'"),
        ("ab/0/root | cd/0/root", "ab/0/root", "<stream>: 'the end' instead of <stream>, line 3: 'cd'"),
        ("ab/0/root", "Ab/0/root", "line 1: 'Ab' instead of <stream>, line 1: 'ab'"),
    ],
)
def test_other_text_is_refused_with_its_place(gold, system, words):
    with pytest.raises(DataError, match=words):
        score(read(gold), read(system))


def test_skipped_sentences_and_missing_heads_are_refused():
    bad = read_conllu(io.BytesIO(b"1\ta\n\n"), trees=True, skip_bad=True)
    with pytest.raises(DataError, match="line 1: the line has 2 columns.*cannot be skipped in scoring"):
        score(bad, bad)
    bare = read_conllu(io.BytesIO(b"1\ta" + b"\t_" * 8 + b"\n\n"), trees=False)
    with pytest.raises(DataError, match="word 1 'a' has no head"):
        score(bare, bare)


@pytest.mark.data
@pytest.mark.parametrize("name", ["pt_bosque-ud-dev", "te_mtg-ud-test", "hu_szeged-ud-test"])
def test_real_files_scored_against_a_chain_have_plain_attachment_scores(name):
    folder = Path(os.environ.get("UNN_DATA", "absent")) / "ud"
    if not folder.is_dir():
        pytest.skip("needs $UNN_DATA/ud")
    gold = read_conllu(folder / f"{name}.conllu.gz", trees=True)
    labels = [[word.deprel if i % 3 else "obj" for i, word in enumerate(s.words)] for s in gold.sentences]
    system = gold.with_heads([range(len(s.words)) for s in gold.sentences], labels)
    scores, plain = score(gold, system), measure_sentences(gold.sentences, system.sentences)
    assert scores.words.f1 == 1.0 and 0.05 < plain.las < plain.uas < 0.6
    assert scores.uas.f1 == pytest.approx(plain.uas, abs=1e-12) and scores.las.f1 == pytest.approx(
        plain.las, abs=1e-12
    )
    assert score(gold, gold).clas.f1 == 1.0
