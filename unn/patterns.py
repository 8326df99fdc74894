"""Patterns of references: ``"i d"``, ``"(R r) (C c)"``, ``"i+1 j"``.

A pattern names one *dimension* per axis of the array. A dimension is one letter, possibly shifted by an integer, or a
group of letters in parentheses that splits the axis, slowest letter first. Letters are local to the factor, as in
einsum; equal letters at equal shifts tie axes to one size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from .errors import DeclarationError

_TOKEN = re.compile(r"\s*(?:(\()|(\))|([A-Za-z_][A-Za-z_0-9]*)(?:\s*([+-])\s*(\d+))?)")


@dataclass(frozen=True)
class Dimension:
    """One axis of a reference: its letters (several when the axis is split) and the shift of a single letter."""

    letters: tuple[str, ...]
    shift: int = 0

    def __str__(self) -> str:
        if len(self.letters) != 1:
            return f"({' '.join(self.letters)})"
        return self.letters[0] + (f"{self.shift:+d}" if self.shift else "")


@dataclass(frozen=True)
class Pattern:
    """The dimensions of a reference, one for each axis of its array."""

    dimensions: tuple[Dimension, ...]

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """All letters in order, splits flattened; a letter on a diagonal appears once."""
        return tuple(dict.fromkeys(letter for dim in self.dimensions for letter in dim.letters))

    @cached_property
    def plain(self) -> bool:
        """True if every axis is one unshifted letter of its own, so that the array needs no view."""
        named = [dim.letters for dim in self.dimensions]
        return all(len(d.letters) == 1 and not d.shift for d in self.dimensions) and len(set(named)) == len(named)

    def __str__(self) -> str:
        return " ".join(str(dim) for dim in self.dimensions)


@lru_cache(maxsize=4096)
def parse_pattern(text: str) -> Pattern:
    """Parse the text of a reference.

    Raises:
        DeclarationError: at the first character that fits no rule, for empty or nested groups, or for a shift in a group.
    """
    dimensions: list[Dimension] = []
    group: list[str] | None = None
    position = 0
    while position < len(text):
        if text[position:].isspace():
            break
        match = _TOKEN.match(text, position)
        if match is None:
            position += len(text[position:]) - len(text[position:].lstrip())
            raise _bad(text, position, "expected a letter, a shift such as 'i+1', or a group such as '(R r)'")
        start = match.end(0) - len(match.group(0).lstrip())
        opened, closed, letter, sign, amount = match.groups()
        if opened:
            if group is not None:
                raise _bad(text, start, "groups cannot be nested")
            group = []
        elif closed:
            if not group:
                raise _bad(text, start, "an empty or unopened group")
            dimensions.append(Dimension(tuple(group)))
            group = None
        elif group is not None:
            if sign:
                raise _bad(text, start, "a letter inside a group cannot be shifted")
            group.append(letter)
        else:
            if amount and len(amount) > 9:
                raise _bad(text, start, "a shift of more than nine digits")
            dimensions.append(Dimension((letter,), int(sign + amount) if sign else 0))
        position = match.end(0)
    if group is not None:
        raise _bad(text, len(text), "a group is not closed")
    for dim in dimensions:
        if len(dim.letters) != len(set(dim.letters)):
            raise _bad(text, 0, f"the group '{dim}' repeats a letter")
    return Pattern(tuple(dimensions))


def _bad(text: str, position: int, why: str) -> DeclarationError:
    return DeclarationError(f"pattern {text!r} cannot be read at character {position + 1}: {why}.")
