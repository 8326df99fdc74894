"""Recognition of regular relations: patterns of a child and a parent that describe pairs of their entries.

A template has a letter for each axis of the child and of the parent. Equal letters tie axes, possibly at a
shift (``i+1``); a letter that occurs once runs over all values; an axis may be split into two letters (``(i
c)``). Each template is verified by counting: all its pairs must be among the given ones, so that templates
and remaining pairs together are exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from .tape import Nodes, Shape

MOST_TEMPLATES = 64
"""Largest number of templates; relations with more become lists."""
_BUDGET = 4_000_000
"""Largest number of pairs times ways to tie axes in the search for several templates, about a second."""
_MOST_WAYS = 100_000
"""Largest number of ways to tie axes, which arrays with ten axes together reach."""
_TRIED = 256
"""Number of pairs on which a split is tested before all are checked."""


@dataclass(frozen=True)
class AxisPattern:
    """The letters of an axis: one letter with a shift, or two that split it, slowest first."""

    letters: tuple[int, ...]
    shift: int = 0


@dataclass(frozen=True)
class Template:
    """The patterns of a child and a parent.

    Attributes:
        child: pattern of each axis.
        parent: pattern of each axis.
        sizes: sizes of the letters, by number.
    """

    child: tuple[AxisPattern, ...]
    parent: tuple[AxisPattern, ...]
    sizes: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether each axis of the child has a distinct letter that runs over all its values."""
        letters = [pattern.letters for pattern in self.child]
        shifted = any(pattern.shift for pattern in (*self.child, *self.parent))
        return not shifted and all(len(group) == 1 for group in letters) and len(set(letters)) == len(letters)

    @property
    def tied(self) -> set[int]:
        """The letters that child and parent share."""
        child, parent = (
            {letter for pattern in patterns for letter in pattern.letters}
            for patterns in (self.child, self.parent)
        )
        return child & parent


@dataclass(frozen=True)
class _Part:
    """An axis, or one of its two parts."""

    size: int
    index: Nodes
    split: bool


Ties = tuple[int, ...]
"""Number of the letter of each part, in order of appearance."""


def recognise(child: Shape, parent: Shape, pairs: tuple[Nodes, Nodes]) -> tuple[list[Template], Nodes]:
    """Find templates whose pairs are among the given ones, and the remaining pairs.

    Args:
        child, parent: shapes of the two arrays.
        pairs: flat indices of children and parents, each pair once, shape ``(pairs,)`` each.

    Returns:
        The templates, and the positions of the remaining pairs, shape ``(rest,)``.
    """
    count = len(pairs[0])
    nothing = np.zeros(0, dtype=np.int64)
    if not count:
        return [], nothing
    index = [
        np.asarray(x)
        for shape, flat in ((child, pairs[0]), (parent, pairs[1]))
        if shape
        for x in np.unravel_index(flat, shape)
    ]
    sizes = (*child, *parent)
    # a fixed seed, since any sample serves
    sample = np.random.default_rng(0).permutation(count)[:_TRIED]
    tried = [x[sample] for x in index]
    for splits in _splits(sizes):
        if _single(_parts(sizes, splits, tried), count) is None:
            continue
        match = _single(_parts(sizes, splits, index), count)
        if match is not None:
            return [_template(*match, splits, len(child))], nothing
    parts = _parts(sizes, {}, index)
    covers, rest = _several(parts, count)
    whole = not len(rest) and len(covers) <= MOST_TEMPLATES and (len(covers) < count or len(covers) == 1)
    # a few regular pairs among many others are not informative, nor is a pattern of a single pair
    repeated = [cover for cover in covers if len(cover[3]) > 1]
    partial = (
        len(repeated) <= MOST_TEMPLATES
        and 2 * len(np.unique(np.concatenate([nothing, *(cover[3] for cover in repeated)]))) > count
    )
    chosen = covers if whole else repeated if partial else []
    remaining = np.setdiff1d(np.arange(count), np.concatenate([nothing, *(cover[3] for cover in chosen)]))
    return [
        _template(ties, shifts, letters, {}, len(child)) for ties, shifts, letters, _ in chosen
    ], remaining


def _splits(sizes: Sequence[int]) -> Iterator[dict[int, int]]:
    """Sizes of the slower parts of split axes, by axis: no split, then one axis, then two, each in all
    ways."""
    yield {}
    ways = {axis: [part for part in range(2, size) if size % part == 0] for axis, size in enumerate(sizes)}
    for many in (1, 2):
        for axes in combinations(range(len(sizes)), many):
            for parts in product(*(ways[axis] for axis in axes)):
                splits = dict(zip(axes, parts, strict=True))
                whole = [
                    (splits[axis], size // splits[axis]) if axis in splits else (size,)
                    for axis, size in enumerate(sizes)
                ]
                # a part can be tied only to a part of equal size
                if all(
                    any(part in other for k, other in enumerate(whole) if k != axis for part in whole[axis])
                    for axis in splits
                ):
                    yield splits


def _parts(sizes: Sequence[int], splits: dict[int, int], index: Sequence[Nodes]) -> list[_Part]:
    parts = []
    for axis, (size, along) in enumerate(zip(sizes, index, strict=True)):
        if axis in splits:
            fast = size // splits[axis]
            parts += [_Part(splits[axis], along // fast, True), _Part(fast, along % fast, True)]
        else:
            parts.append(_Part(size, along, False))
    return parts


def _single(parts: Sequence[_Part], count: int) -> tuple[Ties, tuple[int, ...], tuple[int, ...]] | None:
    """Ties, shifts and sizes of letters of the single template with exactly ``count`` pairs, if it exists.

    It ties parts whose indices have a constant difference over all pairs.
    """
    ties: list[int] = []
    shifts: list[int] = []
    first: list[int] = []
    for k, part in enumerate(parts):
        letter = len(first)
        for known, j in enumerate(first):
            # an axis of size one cannot be tied
            if part.size == 1 or parts[j].size == 1:
                continue
            by = part.index - parts[j].index
            if (by == by[0]).all():
                letter = known
                break
        if letter == len(first):
            first.append(k)
        ties.append(letter)
        shifts.append(int(part.index[0] - parts[first[letter]].index[0]))
    sizes = _letter_sizes(parts, ties, shifts)
    return (
        (tuple(ties), tuple(shifts), sizes)
        if sizes is not None and int(np.prod(sizes, dtype=np.int64)) == count
        else None
    )


def _several(
    parts: Sequence[_Part], count: int
) -> tuple[list[tuple[Ties, tuple[int, ...], tuple[int, ...], Nodes]], Nodes]:
    """Greedy cover of the pairs by templates: ties, shifts, sizes of letters and pairs of each, and the
    uncovered pairs."""
    candidates: list[tuple[Ties, tuple[int, ...], tuple[int, ...], Nodes]] = []
    for spent, ties in enumerate(_partitions(len(parts)), start=1):
        if spent * count > _BUDGET:
            break
        firsts = [parts[ties.index(letter)] for letter in ties]
        # encode the differences of a pair as one number
        key = np.zeros(count, dtype=np.int64)
        for part, first in zip(parts, firsts):
            if part is not first:
                key = key * (part.size + first.size) + part.index - first.index + first.size
        _, start, which = np.unique(key, return_index=True, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        shifts = np.stack(
            [part.index[start] - first.index[start] for part, first in zip(parts, firsts)], axis=1
        )
        groups = np.split(order, np.cumsum(np.bincount(which.ravel()))[:-1])
        for by, members in zip(shifts.tolist(), groups):
            sizes = _letter_sizes(parts, ties, by)
            if sizes and int(np.prod(sizes, dtype=np.int64)) == len(members):
                candidates.append((ties, tuple(by), sizes, members))
    covered = np.zeros(count, dtype=bool)
    # gains never grow, so a stale gain at the top of the heap only needs to be recomputed
    heap = [(-len(cover[3]), k) for k, cover in enumerate(candidates)]
    heapq.heapify(heap)
    chosen = []
    while heap:
        stale, k = heapq.heappop(heap)
        added = int((~covered[candidates[k][3]]).sum())
        if added == -stale:
            chosen.append(candidates[k])
            covered[candidates[k][3]] = True
        elif added:
            heapq.heappush(heap, (-added, k))
    return chosen, np.flatnonzero(~covered)


def _partitions(count: int) -> Iterator[Ties]:
    """All assignments of letters to parts, fewer ties first."""
    ways: list[Ties] = [()]
    for _ in range(count):
        ways = [(*way, letter) for way in ways for letter in range(max(way, default=-1) + 2)]
        ways = ways[:_MOST_WAYS]
    yield from sorted(ways, key=lambda way: (-len(set(way)), way))


def _letter_sizes(
    parts: Sequence[_Part], ties: Sequence[int], shifts: Sequence[int]
) -> tuple[int, ...] | None:
    """Number of values of each letter, from the shifts of its parts; None if no pattern describes them."""
    sizes = []
    for letter in range(max(ties, default=-1) + 1):
        members = [k for k, own in enumerate(ties) if own == letter]
        low = min(shifts[k] for k in members)
        known: dict[int, int] = {}
        for k in members:
            by, part = shifts[k] - low, parts[k]
            # equal shifts tie sizes, and letters in a group have no shift
            if known.setdefault(by, part.size) != part.size or (by and any(parts[j].split for j in members)):
                return None
        extent = min(size - by for by, size in known.items())
        if extent <= 0 or (len(members) > 1 and any(parts[k].size == 1 for k in members)):
            return None
        sizes.append(extent)
    return tuple(sizes)


def _template(
    ties: Sequence[int],
    shifts: Sequence[int],
    sizes: tuple[int, ...],
    splits: dict[int, int],
    child_axes: int,
) -> Template:
    low = [min(shift for shift, own in zip(shifts, ties) if own == letter) for letter in range(len(sizes))]
    patterns: list[AxisPattern] = []
    k = 0
    while k < len(ties):
        if len(patterns) in splits:
            patterns.append(AxisPattern((ties[k], ties[k + 1])))
            k += 2
        else:
            patterns.append(AxisPattern((ties[k],), shifts[k] - low[ties[k]]))
            k += 1
    return Template(tuple(patterns[:child_axes]), tuple(patterns[child_axes:]), sizes)
