"""Validation of the input of drawings: words, heads, arc probabilities."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unn.draw.values import as_array, described
from unn.errors import ObservationError

from ..conllu.words import find_cycle

ROUNDING = 1e-4
"""Tolerance of probabilities beyond 0 and 1, for rounding in single precision."""


def checked_words(caller: str, words: Sequence[str]) -> list[str]:
    """Validate words and make each printable in one line.

    Raises:
        ObservationError: for an empty sequence, or items that are not strings.
    """
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise ObservationError(
            f"{caller} takes a sequence of words, such as ['a', 'tree'], got {words!r:.80}."
        )
    if not len(words):
        raise ObservationError(f"{caller} got an empty sentence; a tree needs at least one word.")
    return [printable(word) for word in words]


def checked_labels(caller: str, labels: Sequence[str | None] | None, words: Sequence[str]) -> list[str]:
    """Validate labels, one per word; empty where there is none.

    Raises:
        ObservationError: if the numbers of labels and words differ.
    """
    if labels is None:
        return [""] * len(words)
    if isinstance(labels, str) or not all(label is None or isinstance(label, str) for label in labels):
        raise ObservationError(f"{caller} takes a sequence of labels, one for each word, got {labels!r:.80}.")
    if len(labels) != len(words):
        raise ObservationError(
            f"{caller} got {len(words)} words, but {len(labels)} labels; pass one for the arc to each word."
        )
    return [printable(label or "") for label in labels]


def checked_heads(caller: str, heads: object, words: Sequence[str], argument: str = "heads") -> list[int]:
    """Validate the heads of a tree with one root.

    Args:
        caller: name of the function, for messages.
        heads: number of the head of each word from 1, 0 for the root; integers of shape ``(n,)``.
        words: n words.
        argument: name of the argument, for messages.

    Raises:
        ObservationError: for another shape, an invalid head, a cycle, or several roots, with the words.
    """
    array = as_array(heads)
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
        raise ObservationError(
            f"{caller}: {argument} are integers of shape (n,), one for each word, 0 for the root, got "
            f"{described(heads)}."
        )
    if len(array) != len(words):
        raise ObservationError(
            f"{caller} got {len(words)} words, but {len(array)} {argument}; pass one for each word."
        )
    parsed = [int(head) for head in array]
    for number, head in enumerate(parsed, 1):
        if not 0 <= head <= len(words):
            known = f"heads are words from 1 to {len(words)}, or 0 for the root"
            raise ObservationError(
                f"{caller}: {argument} give {_named(number, words)} the head {head}; {known}."
            )
    if cycle := find_cycle(parsed):
        problem = f"{_named(cycle[0], words)} is its own head"
        if len(cycle) > 1:
            links = [f"{_named(word, words)} has the head {parsed[word - 1]}" for word in cycle[:5]]
            problem = f"they have a cycle: {', '.join(links)}{', ...' if len(cycle) > 5 else ''}"
        raise ObservationError(f"{caller}: {argument} are not a tree: {problem}.")
    roots = [number for number, head in enumerate(parsed, 1) if head == 0]
    if len(roots) > 1:
        listed = ", ".join(_named(number, words) for number in roots[:4]) + (
            ", ..." if len(roots) > 4 else ""
        )
        raise ObservationError(
            f"{caller}: {argument} are not a tree: {len(roots)} words have the head 0, {listed}; one root is "
            "needed."
        )
    return parsed


def checked_marginals(
    caller: str, marginals: object, words: Sequence[str], argument: str = "marginals"
) -> NDArray[np.float64]:
    """Validate arc probabilities, shape ``(n + 1, n)``; rounding errors beyond 0 and 1 are clipped.

    Raises:
        ObservationError: for another shape, NaN, or values outside [0, 1], with the arc.
    """
    array = as_array(marginals)
    n = len(words)
    if array is None or array.shape != (n + 1, n) or array.dtype.kind == "b":
        layout = "a row for each head, the first for the root, and a column for each modifier"
        raise ObservationError(
            f"{caller}: {argument} of {n} words have shape {(n + 1, n)}, {layout}; got "
            f"{described(marginals)}."
        )
    wrong = ~((array >= -ROUNDING) & (array <= 1 + ROUNDING))
    if wrong.any():
        head, modifier = (int(k) for k in np.argwhere(wrong)[0])
        arc = f"the arc from {_named(head, words)} to {_named(modifier + 1, words)}"
        raise ObservationError(
            f"{caller}: {argument} are probabilities in [0, 1], but {arc} has {array[head, modifier]}."
        )
    return np.clip(array.astype(np.float64), 0.0, 1.0)


def checked_weights(
    caller: str, weights: object, heads: Sequence[int], words: Sequence[str], argument: str = "weights"
) -> list[float]:
    """Probability of the arc to each word, from one value per word or from all marginals.

    Args:
        caller: name of the function, for messages.
        weights: one per word, shape ``(n,)``, or the marginals, shape ``(n + 1, n)``.
        heads: heads of the tree.
        words: n words.
        argument: name of the argument, for messages.

    Raises:
        ObservationError: for another shape, NaN, or values outside [0, 1], with the word.
    """
    array = as_array(weights)
    if array is not None and array.ndim == 2:
        marginals = checked_marginals(caller, weights, words, argument)
        return [float(marginals[head, k]) for k, head in enumerate(heads)]
    if array is None or array.shape != (len(words),) or array.dtype.kind == "b":
        n = len(words)
        raise ObservationError(
            f"{caller}: {argument} of {n} words have shape {(n,)}, or as marginals {(n + 1, n)}, got "
            f"{described(weights)}."
        )
    for number, weight in enumerate(array, 1):
        if not -ROUNDING <= weight <= 1 + ROUNDING:
            raise ObservationError(
                f"{caller}: {argument} are probabilities in [0, 1], but the arc to {_named(number, words)} "
                f"has {weight}."
            )
    return [float(weight) for weight in np.clip(array.astype(np.float64), 0.0, 1.0)]


def printable(text: str) -> str:
    """Collapse white space to single spaces; replace control characters and lone surrogates."""
    return "".join(
        "\ufffd" if unicodedata.category(letter) in ("Cc", "Cs") else letter
        for letter in " ".join(text.split())
    )


def _named(number: int, words: Sequence[str]) -> str:
    return f"word {number} {words[number - 1]!r}" if number else "the root"
