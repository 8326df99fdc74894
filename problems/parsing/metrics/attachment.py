"""Agreement of predicted and gold heads on the same words.

For different words (another tokeniser), use ``problems.parsing.metrics.conll18``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unn.errors import DataError

from ..conllu.treebank import Sentence


@dataclass(frozen=True)
class Attachment:
    """Fractions in [0, 1]; None where there is nothing to count.

    Attributes:
        uas: fraction of words with the correct head.
        uas_without_punctuation: UAS without words of UPOS ``PUNCT``; None if punctuation is not specified.
        modifier_lists: fraction of words with at least one gold modifier whose set of modifiers is correct.
            The root symbol is not a word; words that have modifiers only in the prediction do not count.
        exact_match: fraction of sentences in which all heads are correct.
        las: fraction of words with the correct head and label, ignoring subtypes (``nmod:poss``) as in the
            CoNLL 2018 shared task; None without labels.
        words: number of words.
        sentences: number of sentences.
    """

    uas: float
    uas_without_punctuation: float | None
    modifier_lists: float | None
    exact_match: float
    las: float | None
    words: int
    sentences: int


def measure(
    gold: Sequence[Sequence[int]],
    predicted: Sequence[Sequence[int]],
    *,
    punctuation: Sequence[Sequence[bool]] | None = None,
    gold_labels: Sequence[Sequence[str]] | None = None,
    predicted_labels: Sequence[Sequence[str]] | None = None,
) -> Attachment:
    """Compare heads of sentences: all arguments are lists, by sentence, of lists, by word.

    Args:
        gold: heads 0 (root) to n for a sentence of n words.
        predicted: predicted heads; they need not form a tree.
        punctuation: mask of punctuation.
        gold_labels: gold labels; give both labels or none.
        predicted_labels: predicted labels.

    Raises:
        DataError: if there is nothing to compare, numbers of sentences or words differ, or a head is not in 0
            to n.
    """
    if (gold_labels is None) != (predicted_labels is None):
        raise DataError(
            "labels are given on one side only. Give both gold_labels and predicted_labels, or none."
        )
    if not gold:
        raise DataError("there are no sentences to compare. Give at least one.")
    lengths = np.array([len(heads) for heads in gold])
    for name, lists in (
        ("predicted", predicted),
        ("punctuation", punctuation),
        ("gold_labels", gold_labels),
        ("predicted_labels", predicted_labels),
    ):
        if lists is not None:
            _check_lengths(name, lists, lengths)
    if not lengths.all():
        raise DataError(f"sentence {int(np.argmin(lengths)) + 1} has no words. Leave it out.")
    starts = np.cumsum(lengths) - lengths
    gold_heads, predicted_heads = _flat("gold", gold, lengths), _flat("predicted", predicted, lengths)
    right = gold_heads == predicted_heads
    counted = (
        None if punctuation is None else ~np.concatenate([np.asarray(marks, bool) for marks in punctuation])
    )
    las = None
    if gold_labels is not None and predicted_labels is not None:
        same = [
            _universal(a) == _universal(b)
            for s, t in zip(gold_labels, predicted_labels, strict=True)
            for a, b in zip(s, t, strict=True)
        ]
        las = float((right & np.array(same)).mean())
    return Attachment(
        uas=float(right.mean()),
        uas_without_punctuation=None
        if counted is None or not counted.any()
        else float(right[counted].mean()),
        modifier_lists=_modifier_lists(gold_heads, predicted_heads, np.repeat(starts, lengths)),
        exact_match=float(np.logical_and.reduceat(right, starts).mean()),
        las=las,
        words=len(right),
        sentences=len(lengths),
    )


def measure_sentences(gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> Attachment:
    """Compare sentences of files: punctuation by the gold UPOS, labels if all words have a DEPREL.

    Raises:
        DataError: if words differ, or a head is missing.
    """
    for number, (first, second) in enumerate(zip(gold, predicted), 1):
        if first.forms != second.forms:
            raise DataError(
                f"sentence {number} (lines {first.line} and {second.line}) has different words. "
                "Score it by problems.parsing.metrics.conll18."
            )
    labelled = all(word.deprel != "_" for sentence in (*gold, *predicted) for word in sentence.words)
    return measure(
        [sentence.heads for sentence in gold],
        [sentence.heads for sentence in predicted],
        punctuation=[[word.upos == "PUNCT" for word in sentence.words] for sentence in gold],
        gold_labels=[[word.deprel for word in sentence.words] for sentence in gold] if labelled else None,
        predicted_labels=[[word.deprel for word in sentence.words] for sentence in predicted]
        if labelled
        else None,
    )


def _modifier_lists(
    gold: NDArray[np.int64], predicted: NDArray[np.int64], first: NDArray[np.int64]
) -> float | None:
    """A set is correct if no wrong word has this head on either side, so none is missing or added.

    Shapes: heads of all words and the position of the first word of their sentence, each ``(words,)``.
    """
    n = len(gold)
    wrong = gold != predicted
    # position 0 stands for the root symbols, position i + 1 for word i
    gold_at, predicted_at = (np.where(heads > 0, first + heads, 0) for heads in (gold, predicted))
    spoiled = np.bincount(gold_at[wrong], minlength=n + 1) + np.bincount(predicted_at[wrong], minlength=n + 1)
    modified = np.bincount(gold_at, minlength=n + 1)[1:] > 0
    return float((spoiled[1:][modified] == 0).mean()) if modified.any() else None


def _universal(label: str) -> str:
    """A label without its subtype."""
    return label.partition(":")[0]


def _check_lengths(name: str, lists: Sequence[Sequence[object]], lengths: NDArray[np.int64]) -> None:
    if len(lists) != len(lengths):
        raise DataError(
            f"{name} has {len(lists)} sentences, gold {len(lengths)}. Give the same sentences in the same "
            "order."
        )
    for number, (values, n) in enumerate(zip(lists, lengths, strict=True), 1):
        if len(values) != n:
            raise DataError(
                f"sentence {number}: {name} has {len(values)} words, gold {n}. Score different words by "
                "problems.parsing.metrics.conll18."
            )


def _flat(name: str, lists: Sequence[Sequence[int]], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    heads = np.concatenate([np.asarray(values, np.int64) for values in lists])
    wrong = (heads < 0) | (heads > np.repeat(lengths, lengths))
    if wrong.any():
        at = int(np.argmax(wrong))
        number = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        raise DataError(
            f"sentence {number + 1}: {name} head {heads[at]} of {lengths[number]} words. Give heads 0 (root) "
            f"to {lengths[number]}."
        )
    return heads
