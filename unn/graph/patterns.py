"""Patterns of references: ``"i d"``, ``"(R r) (C c)"``, ``"i+1 j"``, ``"src[e] d"``.

A pattern has one *dimension* per axis of the array. A dimension is a letter, possibly shifted by an
integer; a group of letters in parentheses that splits the axis, slowest letter first; or the name of an
index followed by a letter in brackets, which gathers entries of the axis. Letters are local to
the factor, as in einsum; equal letters at equal shifts tie axes to one size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..errors import DeclarationError

_TOKEN = re.compile(r"\s*(?:(\()|(\))|([A-Za-z_][A-Za-z_0-9]*)(?:\s*([+-])\s*(\d+))?)")
_LOOKUP = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*)\s*\[([^\[\]]*)(\]?)")
_LETTER = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*)(?:\s*([+-])\s*(\d{1,9}))?\s*")


@dataclass(frozen=True)
class Dimension:
    """One axis of a reference.

    Attributes:
        letters: letters of the axis; several if it is split.
        shift: shift of a single letter.
        index: name of the index that gathers entries of the axis; None without one.
    """

    letters: tuple[str, ...]
    shift: int = 0
    index: str | None = None

    def __str__(self) -> str:
        if len(self.letters) != 1:
            return f"({' '.join(self.letters)})"
        letter = self.letters[0] + (f"{self.shift:+d}" if self.shift else "")
        return letter if self.index is None else f"{self.index}[{letter}]"


@dataclass(frozen=True)
class Pattern:
    """The dimensions of a reference, one for each axis of its array."""

    dimensions: tuple[Dimension, ...]

    def __post_init__(self) -> None:
        if any(dim.index is not None for dim in self.dimensions):
            # now, because torch.compile can read a cached property and cannot make it
            _ = self.gathering.rest.letters

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """All letters in order, splits flattened; a letter on a diagonal appears once."""
        return tuple(dict.fromkeys(letter for dim in self.dimensions for letter in dim.letters))

    @cached_property
    def plain(self) -> bool:
        """True if every axis has a distinct unshifted letter, so that the array needs no view."""
        named = [dim.letters for dim in self.dimensions]
        simple = all(len(d.letters) == 1 and not d.shift and d.index is None for d in self.dimensions)
        return simple and len(set(named)) == len(named)

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """Distinct names of the indices used."""
        return tuple(dict.fromkeys(dim.index for dim in self.dimensions if dim.index is not None))

    @cached_property
    def gathering(self) -> Gathering:
        """The axes that are gathered by indices, and the others."""
        groups: list[tuple[set[int], set[str]]] = []
        for axis, dim in enumerate(self.dimensions):
            axes, letters = {axis}, set(dim.letters)
            for group in [g for g in groups if g[1] & letters]:
                groups.remove(group)
                axes, letters = axes | group[0], letters | group[1]
            groups.append((axes, letters))
        with_index = {axis for axis, dim in enumerate(self.dimensions) if dim.index is not None}
        indexed = [axes for axes, _ in groups if axes & with_index]
        lookups = tuple(
            Lookup(
                tuple(sorted(axes)),
                tuple(dict.fromkeys(x for axis in sorted(axes) for x in self.dimensions[axis].letters)),
            )
            for axes in sorted(indexed, key=min)
        )
        looked_up = {axis for lookup in lookups for axis in lookup.axes}
        others = tuple(axis for axis in range(len(self.dimensions)) if axis not in looked_up)
        return Gathering(lookups, Pattern(tuple(self.dimensions[axis] for axis in others)), others)

    def __str__(self) -> str:
        return " ".join(str(dim) for dim in self.dimensions)


@dataclass(frozen=True)
class Lookup:
    """Axes that are gathered together because they share letters: one index, or several at the same letter.

    Attributes:
        axes: positions in the pattern.
        letters: letters that run over the gathered entries.
    """

    axes: tuple[int, ...]
    letters: tuple[str, ...]


@dataclass(frozen=True)
class Gathering:
    """How a pattern with indices is viewed.

    Attributes:
        lookups: axes that are gathered.
        rest: pattern of the other axes.
        others: their positions.
    """

    lookups: tuple[Lookup, ...]
    rest: Pattern
    others: tuple[int, ...]


@lru_cache(maxsize=4096)
def parse_pattern(text: str) -> Pattern:
    """Parse the text of a reference.

    Raises:
        DeclarationError: for a syntax error (names the first character), empty or nested groups, or a shift
            in a group.
    """
    dimensions: list[Dimension] = []
    group: list[str] | None = None
    position = 0
    while position < len(text):
        if text[position:].isspace():
            break
        lookup = _LOOKUP.match(text, position)
        if lookup is not None:
            start = lookup.end(0) - len(lookup.group(0).lstrip())
            if group is not None:
                raise _syntax_error(text, start, "a letter inside a group cannot be looked up in an index")
            dimensions.append(_parse_lookup(text, start, lookup))
            position = lookup.end(0)
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            position += len(text[position:]) - len(text[position:].lstrip())
            raise _syntax_error(
                text,
                position,
                "expected a letter, a shift such as 'i+1', a group such as '(R r)', or an index such as "
                "'src[e]'",
            )
        start = match.end(0) - len(match.group(0).lstrip())
        opened, closed, letter, sign, amount = match.groups()
        if opened:
            if group is not None:
                raise _syntax_error(text, start, "groups cannot be nested")
            group = []
        elif closed:
            if not group:
                raise _syntax_error(text, start, "an empty or unopened group")
            dimensions.append(Dimension(tuple(group)))
            group = None
        elif group is not None:
            if sign:
                raise _syntax_error(text, start, "a letter inside a group cannot be shifted")
            group.append(letter)
        else:
            if amount and len(amount) > 9:
                raise _syntax_error(text, start, "a shift of more than nine digits")
            dimensions.append(Dimension((letter,), int(sign + amount) if sign else 0))
        position = match.end(0)
    if group is not None:
        raise _syntax_error(text, len(text), "a group is not closed")
    for dim in dimensions:
        if len(dim.letters) != len(set(dim.letters)):
            raise _syntax_error(text, 0, f"the group '{dim}' repeats a letter")
    return Pattern(tuple(dimensions))


def _parse_lookup(text: str, start: int, match: re.Match[str]) -> Dimension:
    name, inside, closed = match.groups()
    letter = _LETTER.fullmatch(inside)
    if letter is None or not closed:
        raise _syntax_error(text, start, f"an index holds one letter in brackets, such as '{name}[e]'")
    own, sign, amount = letter.groups()
    return Dimension((own,), int(sign + amount) if sign else 0, name)


def _syntax_error(text: str, position: int, why: str) -> DeclarationError:
    return DeclarationError(f"pattern {text!r} cannot be read at character {position + 1}: {why}.")
