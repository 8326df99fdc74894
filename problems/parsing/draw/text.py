"""Dependency trees and probabilities of arcs as text, for terminals."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .sentences import checked_heads, checked_labels, checked_marginals, checked_weights, checked_words

if TYPE_CHECKING:
    from torch import Tensor

SHADES = " ░▒▓█"


def tree_text(
    heads: Sequence[int],
    words: Sequence[str],
    labels: Sequence[str | None] | None = None,
    marginals: Sequence[float] | Tensor | None = None,
) -> str:
    """A dependency tree as text: one word per line, indented under its head, modifiers in the order of the
    sentence.

    Args:
        heads: number of the head of each word from 1, or 0 for the root; shape ``(n,)``. Arcs may cross.
        words: n words.
        labels: label of the arc to each word.
        marginals: probabilities of all arcs, shape ``(n + 1, n)`` as for ``draw_marginals``, or of the arc to
            each word, shape ``(n,)``.

    Returns:
        n lines: number and word, then in columns the label and the probability of its arc, where they are
        given.

    Raises:
        ObservationError: for heads that are not a tree with one root, or arguments of wrong length.
    """
    forms = checked_words("tree_text", words)
    parents = checked_heads("tree_text", heads, forms)
    names = checked_labels("tree_text", labels, forms)
    strengths = (
        None if marginals is None else checked_weights("tree_text", marginals, parents, forms, "marginals")
    )
    modifiers: list[list[int]] = [[] for _ in range(len(forms) + 1)]
    for number, head in enumerate(parents, 1):
        modifiers[head].append(number)
    lines: list[tuple[int, str]] = []
    # an explicit stack, since trees may exceed the recursion limit
    waiting = [(number, "", "") for number in modifiers[0]]
    while waiting:
        number, mark, below = waiting.pop()
        lines.append((number, f"{mark}{number} {forms[number - 1]}"))
        *others, last = modifiers[number] or [0]
        branches = [(k, f"{below}├── ", f"{below}│   ") for k in others] + [
            (last, f"{below}└── ", f"{below}    ")
        ]
        waiting += reversed(branches if last else [])
    wide = max(columns_of(text) for _, text in lines)
    room = max(columns_of(name) for name in names)
    return "\n".join(
        "  ".join(
            [padded(text, wide)]
            + ([padded(names[number - 1], room)] if room else [])
            + ([f"{strengths[number - 1]:.2f}"] if strengths is not None else [])
        ).rstrip()
        for number, text in lines
    )


def heat_text(marginals: Tensor, words: Sequence[str]) -> str:
    """The probabilities of all arcs as text: a shade from blank (below 1/8) over ░, ▒ and ▓ (about 1/4, 1/2,
    3/4) to █ (from 7/8 on).

    Args:
        marginals: in [0, 1], shape ``(n + 1, n)``: a row for each head, the first for the root, and a column
            for each modifier.
        words: n words.

    Returns:
        n + 2 lines: the numbers of the modifiers, then number, word and shades for each head.

    Raises:
        ObservationError: for marginals of another shape, NaN, or what is no probability.
    """
    forms = checked_words("heat_text", words)
    values = checked_marginals("heat_text", marginals, forms)
    digits = len(str(len(forms)))
    # two characters are about as wide as one line is high
    cell = max(2, digits)
    names = [f"{number:>{digits}} {form}" for number, form in enumerate(["root", *forms])]
    wide = max(columns_of(name) for name in names)
    levels = np.floor(values * (len(SHADES) - 1) + 0.5).astype(int)
    lines = [" " * wide + "".join(f" {number:>{cell}}" for number in range(1, len(forms) + 1))]
    lines += [
        padded(name, wide) + "".join(" " + SHADES[level] * cell for level in row)
        for name, row in zip(names, levels, strict=True)
    ]
    return "\n".join(line.rstrip() for line in lines)


def columns_of(text: str) -> int:
    """Width of a text in terminal columns: two for wide characters, none for combining and invisible ones."""
    return sum(_columns(letter) for letter in text)


def padded(text: str, columns: int) -> str:
    """Pad a text with blanks to this number of columns."""
    return text + " " * (columns - columns_of(text))


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
