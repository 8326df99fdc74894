"""Attachment scores: reference values, a plain recount in Python, and relations between the scores."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from problems.parsing.conllu.treebank import Sentence, Word
from problems.parsing.metrics.attachment import Attachment, measure, measure_sentences
from unn import DataError

GOLDEN = Path(__file__).parents[2] / "golden" / "metrics.npz"


def golden():
    """Reference values, gold heads and predicted heads of 40 sentences."""
    with np.load(GOLDEN) as file:
        values = dict(file)
    lists = [
        [row[:n].tolist() for row, n in zip(values[key], values["lengths"], strict=True)]
        for key in ("gold_heads", "pred_heads")
    ]
    return values, *lists


def modifiers(heads):
    """The set of modifiers of each word that has some; the root symbol is no word."""
    return {head: {m for m, h in enumerate(heads, 1) if h == head} for head in heads if head}


def test_the_reference_values_are_met():
    values, gold, predicted = golden()
    attachment = measure(gold, predicted)
    assert attachment.uas == pytest.approx(float(values["uas"]), abs=1e-12)
    assert attachment.exact_match == pytest.approx(float(values["exact"]), abs=1e-12)
    assert attachment.modifier_lists == pytest.approx(float(values["modlist_true"]), abs=1e-12)
    assert (attachment.words, attachment.sentences) == (values["n_tokens"], 40)
    assert sum(len(modifiers(heads)) for heads in gold) == values["n_heads_true"]
    assert attachment.las is None and attachment.uas_without_punctuation is None


def test_the_published_code_counts_modifiers_instead_of_comparing_them_which_is_more():
    values, gold, predicted = golden()
    right = total = 0
    for sentence, guess in zip(gold, predicted, strict=True):
        # there the root's head is the root itself, which makes it a modifier of its own
        ours, theirs = (Counter(head or m for m, head in enumerate(heads, 1)) for heads in (sentence, guess))
        right += sum(theirs[head] == count for head, count in ours.items())
        total += len(ours)
    assert total == values["n_heads_coded"]
    assert right / total == pytest.approx(float(values["modlist_as_coded"]), abs=1e-12)
    assert right / total > measure(gold, predicted).modifier_lists


@st.composite
def comparisons(draw):
    """Gold and predicted heads, marks of punctuation, gold and predicted labels."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    parts = []
    for values in (lambda n: st.integers(0, n), lambda n: st.integers(0, n), lambda n: st.booleans()):
        parts.append([draw(st.lists(values(n), min_size=n, max_size=n)) for n in lengths])
    for _ in range(2):
        parts.append(
            [
                draw(st.lists(st.sampled_from(["a", "a:x", "b", "b:x"]), min_size=n, max_size=n))
                for n in lengths
            ]
        )
    if draw(st.booleans()):
        parts[1] = [list(heads) for heads in parts[0]]
    return parts


@given(comparisons())
@settings(deadline=None)
def test_scores_are_those_of_a_plain_recount(case):
    gold, predicted, marks, labels, guesses = case
    attachment = measure(gold, predicted, punctuation=marks, gold_labels=labels, predicted_labels=guesses)
    rows = [
        row
        for parts in zip(gold, predicted, marks, labels, guesses, strict=True)
        for row in zip(*parts, strict=True)
    ]
    assert attachment.words == len(rows) and attachment.sentences == len(gold)
    assert attachment.uas == pytest.approx(sum(g == p for g, p, *_ in rows) / len(rows))
    assert attachment.las == pytest.approx(sum(g == p and a[0] == b[0] for g, p, _, a, b in rows) / len(rows))
    kept = [g == p for g, p, mark, *_ in rows if not mark]
    assert attachment.uas_without_punctuation == (pytest.approx(sum(kept) / len(kept)) if kept else None)
    assert attachment.exact_match == pytest.approx(
        sum(g == p for g, p in zip(gold, predicted, strict=True)) / len(gold)
    )
    lists = [
        modifiers(p).get(head, set()) == wanted
        for g, p in zip(gold, predicted, strict=True)
        for head, wanted in modifiers(g).items()
    ]
    assert attachment.modifier_lists == (pytest.approx(sum(lists) / len(lists)) if lists else None)


@given(comparisons(), st.randoms())
@settings(deadline=None)
def test_the_order_of_sentences_plays_no_part_and_a_perfect_prediction_has_perfect_scores(case, random):
    gold, predicted, marks, labels, guesses = case
    attachment = measure(gold, predicted, punctuation=marks, gold_labels=labels, predicted_labels=guesses)
    order = list(range(len(gold)))
    random.shuffle(order)
    gold, predicted, marks, labels, guesses = ([part[i] for i in order] for part in case)
    assert (
        measure(gold, predicted, punctuation=marks, gold_labels=labels, predicted_labels=guesses)
        == attachment
    )
    assert attachment.exact_match <= attachment.uas or attachment.exact_match < 1
    assert attachment.las <= attachment.uas
    assert set(vars(measure(gold, gold, gold_labels=labels, predicted_labels=labels)).values()) <= {
        1.0,
        None,
        attachment.words,
        attachment.sentences,
    }
    arrays = measure([np.array(heads) for heads in gold], [np.array(heads) for heads in predicted])
    assert arrays == measure(gold, predicted)


def test_one_word_for_another_with_the_same_number_of_modifiers_is_wrong():
    # words 1 and 2 swap the heads of words 3 and 4: counts stay, sets do not
    attachment = measure([[0, 1, 1, 2]], [[0, 1, 2, 1]])
    assert attachment.modifier_lists == 0.0 and attachment.uas == 0.5


def test_a_word_that_has_modifiers_only_in_the_prediction_does_not_count():
    attachment = measure([[0, 1, 1]], [[0, 1, 2]])
    assert attachment.modifier_lists == 0.0
    attachment = measure([[0, 1, 2, 1, 4]], [[0, 1, 2, 1, 3]])
    assert attachment.modifier_lists == pytest.approx(2 / 3)


def sentence(heads, forms=None, tags=None, labels=None):
    words = [
        Word(
            forms[i] if forms else f"w{i}",
            "_",
            tags[i] if tags else "X",
            "_",
            "_",
            head,
            labels[i] if labels else "_",
            "_",
            "_",
            i + 1,
        )
        for i, head in enumerate(heads)
    ]
    return Sentence(tuple("" for _ in heads), tuple(words), 1)


def test_sentences_bring_their_punctuation_and_labels():
    gold = [sentence([2, 0, 2], tags=["X", "X", "PUNCT"], labels=["a:b", "root", "punct"])]
    attachment = measure_sentences(gold, [sentence([2, 0, 1], labels=["a", "root", "punct"])])
    assert attachment == Attachment(2 / 3, 1.0, 0.0, 0.0, 2 / 3, 3, 1)
    assert measure_sentences(gold, [sentence([2, 0, 1])]).las is None
    with pytest.raises(
        DataError, match="sentence 1 .lines 1 and 1. .*words.*problems.parsing.metrics.conll18"
    ):
        measure_sentences(gold, [sentence([2, 0, 2], forms=["a", "b", "c"])])
    with pytest.raises(DataError, match="line 2: word 2 'w1' has no head"):
        measure_sentences([sentence([0, None])], [sentence([0, 1])])
    with pytest.raises(DataError, match="predicted has 0 sentences, gold 1"):
        measure_sentences(gold, [])


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([], []), {}, "no sentences to compare. Give at least one"),
        (([[0]], [[0], [0]]), {}, "predicted has 2 sentences, gold 1"),
        (([[0], [0]], [[0], [0, 1]]), {}, "sentence 2: predicted has 2 words, gold 1"),
        (([[0]], [[0]]), {"punctuation": [[True, False]]}, "sentence 1: punctuation has 2 words"),
        (([[0]], [[0]]), {"gold_labels": [["a"]]}, "labels are given on one side only"),
        (([[0]], [[0]]), {"gold_labels": [["a"]], "predicted_labels": [[]]}, "predicted_labels has 0 words"),
        (([[0], [0, 1], []], [[0], [0, 1], []]), {}, "sentence 3 has no words"),
        (([[0], [0, 3]], [[0], [0, 1]]), {}, "sentence 2: gold head 3 of 2 words. Give heads 0 .root. to 2"),
        (([[0], [3, 0]], [[0], [0, 1]]), {}, "sentence 2: gold head 3 of 2 words"),
        (([[0], [0, 1]], [[0], [0, -1]]), {}, "sentence 2: predicted head -1 of 2 words"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, options, words):
    with pytest.raises(DataError, match=words):
        measure(*arguments, **options)
