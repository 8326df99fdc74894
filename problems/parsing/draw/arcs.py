"""Layout of dependency arcs: levels, ends, words and labels. All lengths are in inches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

STEP, PLAIN_STEP, FIRST = (
    0.21,
    0.14,
    0.22,
)  # between levels with and without labels; of the first above the words
APART, GAP, CROWD = (
    0.075,
    0.13,
    1.5,
)  # between ends of arcs at a word, between words, of all ends at a word at most


@dataclass(frozen=True)
class DrawnArc:
    """An arc to be drawn.

    Attributes:
        head: number of the head word from 1, or 0 for the root.
        modifier: number of the modifier word from 1.
        kind: ``"arc"``, ``"wrong"`` if missing in the gold tree, ``"gold"`` if only in the gold tree.
        label: label, may be empty.
        width: width of the label.
        weight: weight in [0, 1].
    """

    head: int
    modifier: int
    kind: str = "arc"
    label: str = ""
    width: float = 0.0
    weight: float = 1.0

    @property
    def span(self) -> tuple[int, int]:
        """Numbers of the left and the right word."""
        return min(self.head, self.modifier), max(self.head, self.modifier)


@dataclass(frozen=True)
class ArcLayout:
    """Positions, relative to the left end of the first word and the top of the words.

    Attributes:
        words: centre of each word.
        ends: positions of the left and right end of each arc; equal for a root.
        tops: height of each arc.
        labels: centre of each label.
        left: extent of ends and labels to the left of 0.
        right: extent to the right.
    """

    words: list[float]
    ends: list[tuple[float, float]]
    tops: list[float]
    labels: list[float]
    left: float
    right: float


def layout_arcs(arcs: Sequence[DrawnArc], widths: Sequence[float], root: float) -> ArcLayout:
    """Place words, arcs and labels such that every label fits above its arc.

    Args:
        arcs: any, several to one word as well.
        widths: of the words.
        root: width of the word "root" above a vertical arrow.
    """
    inner = [k for k, arc in enumerate(arcs) if arc.head]
    levels = dict(zip(inner, arc_levels([arcs[k].span for k in inner]), strict=True))
    offsets, reach = _ends(arcs, levels, widths)
    words = _words(arcs, widths, offsets, reach)
    ends = [
        (words[arc.span[0] - 1] + offsets[k][0], words[arc.span[1] - 1] + offsets[k][1])
        for k, arc in enumerate(arcs)
        if arc.head
    ]
    between = dict(zip(inner, ends, strict=True))
    places = [between.get(k, (words[arc.modifier - 1] + offsets[k][1],) * 2) for k, arc in enumerate(arcs)]
    above = [(left, right, levels[k]) for k, (left, right) in between.items()]
    for k, arc in enumerate(arcs):
        if not arc.head:
            # above all arcs and other roots that cross above the word
            low, high = places[k][0] - root / 2 - 0.05, places[k][0] + root / 2 + 0.05
            levels[k] = 1 + max(
                (level for left, right, level in above if left < high and right > low), default=0
            )
            above.append((low, high, levels[k]))
    labels = [_label_place(k, arcs, places, levels) for k in range(len(arcs))]
    step = STEP if any(arc.label for arc in arcs) else PLAIN_STEP
    edges = [(x - reach[k], x + reach[k]) for k, x in enumerate(words)]
    edges += [
        (place - wide / 2, place + wide / 2)
        for arc, place in zip(arcs, labels, strict=True)
        for wide in [arc.width if arc.head else root]
    ]
    tops = [FIRST + step * (levels[k] - 1) for k in range(len(arcs))]
    return ArcLayout(
        words, places, tops, labels, -min(edge for edge, _ in edges), max(edge for _, edge in edges)
    )


def arc_levels(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Level of each arc, from 1: above all arcs below it, and different from overlapping arcs.

    Args:
        spans: the left and the right word of each arc; arcs that meet at a word do not overlap.
    """
    levels = [0] * len(spans)
    done: list[int] = []
    for k in sorted(range(len(spans)), key=lambda k: (spans[k][1] - spans[k][0], spans[k][0])):
        left, right = spans[k]
        overlapping = [j for j in done if spans[j][0] < right and left < spans[j][1]]
        level = 1 + max(
            (levels[j] for j in overlapping if left <= spans[j][0] and spans[j][1] <= right), default=0
        )
        taken = {levels[j] for j in overlapping}
        while level in taken:
            level += 1
        levels[k] = level
        done.append(k)
    return levels


def _ends(
    arcs: Sequence[DrawnArc], levels: dict[int, int], widths: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """Offsets of both ends of each arc from the middle of their words, and half widths of words with ends.

    From left to right: arcs to the left from low to high, roots, arcs to the right from high to low; so arcs
    of a word do not cross.
    """
    at: list[list[tuple[int, int, int, int]]] = [[] for _ in widths]
    for k, arc in enumerate(arcs):
        left, right = arc.span
        at[right - 1].append((0, levels[k], k, 1) if left else (1, 0, k, 1))
        if left:
            at[left - 1].append((2, -levels[k], k, 0))
    offsets = [[0.0, 0.0] for _ in arcs]
    reach = []
    for ends, width in zip(at, widths, strict=True):
        apart = min(APART, CROWD / len(ends)) if ends else 0.0
        for place, (_, _, k, side) in enumerate(sorted(ends)):
            offsets[k][side] = apart * (place - (len(ends) - 1) / 2)
        reach.append(max(width / 2, apart * (len(ends) - 1) / 2))
    return offsets, reach


def _words(
    arcs: Sequence[DrawnArc],
    widths: Sequence[float],
    offsets: Sequence[Sequence[float]],
    reach: Sequence[float],
) -> list[float]:
    """Centres of the words from left to right, as close as words and labels allow."""
    words: list[float] = []
    for k in range(len(widths)):
        place = words[-1] + reach[k - 1] + GAP + reach[k] if words else reach[0]
        for j, arc in enumerate(arcs):
            left, right = arc.span
            if left and right == k + 1 and arc.label:
                place = max(place, words[left - 1] + offsets[j][0] + arc.width + 0.06 - offsets[j][1])
        words.append(place)
    return words


def _label_place(
    k: int, arcs: Sequence[DrawnArc], places: Sequence[tuple[float, float]], levels: dict[int, int]
) -> float:
    """Label position closest to the middle of an arc that no arc crosses; the middle if there is none."""
    left, right = places[k]
    middle, half = (left + right) / 2, arcs[k].width / 2 + 0.03
    ups = {x for j, ends in enumerate(places) if levels[j] > levels[k] for x in ends if left < x < right}
    walls = sorted([left, right, *ups])
    free = [(a + half, b - half) for a, b in pairwise(walls) if b - a >= 2 * half - 1e-9]
    return min(
        (min(max(middle, low), high) for low, high in free),
        key=lambda place: abs(place - middle),
        default=middle,
    )
