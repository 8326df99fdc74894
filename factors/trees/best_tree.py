"""The best arborescences of many sentences at once, by contraction of cycles (Chu and Liu, 1965; Edmonds,
1967).

All cycles of all sentences are contracted in each step, so that a batch takes few steps. Matrices keep their
size: a contracted set is a label shared by its nodes, and the gain of entering it is the score of an arc
minus those of the arcs that it displaces.

Single-root trees use a second key before the score: an arc from the root is used only for a set that no other
arc enters. Unlike a penalty on the scores of such arcs, this loses no precision (Zmigrod, Vieira and
Cotterell, 2020).

Displaced arcs are subtracted, so a soft mask that every tree must break would absorb the other scores.
Sentences with such large displaced arcs are solved again in exact integers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Exact = NDArray[np.object_]
Heads = NDArray[np.int64]
Flags = NDArray[np.bool_]

_LARGE = 1e6
"""Largest score of a displaced arc, in nats, whose float64 rounding error (1e-10) is negligible."""


def best_trees(scores: Scores, sizes: Heads, single_root: bool) -> tuple[Heads, Flags]:
    """The heads of the best arborescence of each sentence, and whether there is one.

    Args:
        scores: shape ``(batch, n, n)``, packed; -inf forbids.
        sizes: the number of nodes of each sentence, shape ``(batch,)``.
        single_root: exactly one node is attached to the root; otherwise at least one.

    Returns:
        Shapes ``(batch, n)``, a root its own head and -1 in padding, and ``(batch,)``, boolean.
    """
    batch, n = scores.shape[:2]
    if not batch or not n:
        return np.full((batch, n), -1), np.ones(batch, dtype=bool)
    rooted = _add_root(scores, sizes)
    arcs = rooted > -np.inf
    heads, large = _contract(_Rounded(rooted.copy()), single_root)
    for b in large.nonzero()[0]:
        integers = as_integers(rooted[b])
        # displaced scores at most double with each contraction
        lowest = -(1 << (n + 2)) * (1 + abs(integers).max())
        heads[b] = _contract(_Whole(integers[None], arcs[b : b + 1], lowest), single_root)[0][0]
    nodes = np.arange(n)
    inside = nodes < sizes[:, None]
    own = heads[:, 1:] - 1
    roots = inside & (own == -1)
    exists: Flags = np.asarray((own >= -1).all(1))
    if single_root:
        exists = exists & (roots.sum(1) == 1) | (sizes == 0)
    return np.where(exists[:, None] & inside, np.where(roots, nodes, own), -1), exists


def as_integers(scores: Scores) -> Exact:
    """Scale scores by a power of two to exact Python integers; 0 for -inf."""
    fractions, exponents = np.frexp(np.where(np.isfinite(scores), scores, 0.0))
    used = fractions != 0
    least = exponents[used].min() if used.any() else 0
    whole = np.ldexp(fractions, 53).astype(np.int64).astype(object)
    result: Exact = whole << np.where(used, exponents - least, 0).astype(object)
    return result


def _add_root(scores: Scores, sizes: Heads) -> Scores:
    """Scores by modifier and head, with the root as node 0; padded nodes are attached to it."""
    batch, n = scores.shape[:2]
    nodes = np.arange(n)
    inside = nodes < sizes[:, None]
    full = np.full((batch, n + 1, n + 1), -np.inf)
    full[:, 1:, 1:] = np.where(inside[:, :, None] & inside[:, None], scores.transpose(0, 2, 1), -np.inf)
    full[:, nodes + 1, nodes + 1] = -np.inf
    full[:, 1:, 0] = np.where(inside, scores[:, nodes, nodes], 0.0)
    return full


@dataclass(frozen=True)
class _Step:
    """One contraction step. Sets are numbered by one of their nodes; entries at other numbers are unused.

    Attributes:
        label: number of the set of each node, shape ``(batch, n)``.
        head: node at which the best arc into each set begins, -1 where there is none, shape ``(batch, n)``.
        gate: node at which it ends, shape ``(batch, n)``.
    """

    label: Heads
    head: Heads
    gate: Heads

    def select(self, rows: Flags) -> _Step:
        """Select sentences."""
        return _Step(self.label[rows], self.head[rows], self.gate[rows])


def _contract(entrances: _Entrances, single_root: bool) -> tuple[Heads, Flags]:
    """Heads of all nodes, -2 without an arborescence, and a mask of sentences too large for float64.

    Args:
        entrances: arcs into the nodes; node 0 is the root.
        single_root: arcs from the root rank after all others.
    """
    batch, n = entrances.shape
    heads, large = np.full((batch, n), -2), np.zeros(batch, dtype=bool)
    left, label = np.arange(batch), np.tile(np.arange(n), (batch, 1))
    steps: list[_Step] = []
    while len(left):
        rows = np.arange(len(left))[:, None]
        head, gate, entered = entrances.best(label, single_root)
        steps.append(_Step(label, head, gate))
        sets = (label == np.arange(n)) & (np.arange(n) > 0)
        stuck = (sets & (head < 0)).any(1)
        large[left] = entrances.are_large(np.where(sets & (head >= 0), entered, 0))
        above = np.where(sets & (head >= 0), label[rows, np.maximum(head, 0)], 0)
        cyclic = _on_cycles(above)
        finished = ~stuck & ~cyclic.any(1)
        if finished.any():
            heads[left[finished]] = _expand([step.select(finished) for step in steps])
        on = ~stuck & ~finished & ~large[left]
        if not on.all():
            left, label, above, cyclic, entered = (x[on] for x in (left, label, above, cyclic, entered))
            steps = [step.select(on) for step in steps]
            entrances.select(on)
        merged = _merge_labels(label, above, cyclic)
        entrances.merge(label, merged, cyclic, entered)
        label = merged
    return heads, large


class _Entrances(ABC):
    """Arcs into the sets of all sentences, and their gains: scores less those of the displaced arcs.

    Attributes:
        shape: number of sentences, and of nodes with the root.
    """

    shape: tuple[int, int]

    @abstractmethod
    def best(self, label: Heads, single_root: bool) -> tuple[Heads, Heads, NDArray[Any]]:
        """The tail of the best arc into each set, -1 where there is none, the node at which it ends, and its
        gain; shape ``(batch, n)`` each."""

    @abstractmethod
    def merge(self, label: Heads, merged: Heads, cyclic: Flags, entered: NDArray[Any]) -> None:
        """Merge the sets of each cycle; an arc into one of them displaces the arc of the cycle.

        Args:
            label: sets of the nodes before, shape ``(batch, n)``.
            merged: sets of the nodes after.
            cyclic: mask of the sets on cycles, by number.
            entered: gain of the best arc into each set.
        """

    @abstractmethod
    def select(self, on: Flags) -> None:
        """Continue with some sentences."""

    def are_large(self, entered: NDArray[Any]) -> Flags:
        """Mask of the sentences whose rounding errors may matter, shape ``(batch,)``."""
        return np.zeros(len(entered), dtype=bool)


class _Rounded(_Entrances):
    """In float64: a row of gains for each set. Merging sets costs a row for each of them, so that all
    contractions of a sentence together cost no more than its scores.

    Args:
        scores: scores by modifier and head, shape ``(batch, n, n)``, -inf without an arc; overwritten.
    """

    def __init__(self, scores: Scores) -> None:
        self.shape = scores.shape[:2]
        self.gains = scores
        n = self.shape[1]
        self.ends = np.broadcast_to(np.arange(n, dtype=np.int32)[:, None], scores.shape).copy()
        # rows whose best arc is not known yet
        self.new = np.ones(self.shape, dtype=bool)
        self.known: tuple[Heads, Heads, Scores] = (
            np.full(self.shape, -1), np.zeros(self.shape, dtype=np.int64), np.full(self.shape, -np.inf)
        )  # fmt: skip

    def best(self, label: Heads, single_root: bool) -> tuple[Heads, Heads, NDArray[Any]]:
        where = self.new.nonzero()
        rows = self.gains[where]
        index = np.arange(len(rows))
        head = rows.argmax(1)
        if single_root and rows.shape[1] > 1:
            others = rows[:, 1:].argmax(1) + 1
            # an arc from the root only into a set that no other arc enters
            head = np.where(rows[index, others] > -np.inf, others, head)
        gain = rows[index, head]
        heads, gates, entered = self.known[0].copy(), self.known[1].copy(), self.known[2].copy()
        gates[where] = self.ends[where][index, head]
        heads[where] = np.where(gain > -np.inf, head, -1)
        entered[where] = gain
        self.known = heads, gates, entered
        return self.known

    def merge(self, label: Heads, merged: Heads, cyclic: Flags, entered: NDArray[Any]) -> None:
        batch, number = cyclic.nonzero()
        own = merged[batch, number]
        order = np.lexsort((own, batch))
        batch, number, own = batch[order], number[order], own[order]
        first = np.ones(len(own), dtype=bool)
        first[1:] = (batch[1:] != batch[:-1]) | (own[1:] != own[:-1])
        starts, group = first.nonzero()[0], first.cumsum() - 1
        self.new = np.zeros(cyclic.shape, dtype=bool)
        if not len(own):
            return
        gains = self.gains[batch, number] - entered[batch, number][:, None]
        best = np.maximum.reduceat(gains, starts)
        chosen = np.where(gains == best[group], np.arange(len(own))[:, None], len(own))
        source = np.minimum.reduceat(chosen, starts)
        where = batch[starts], own[starts]
        ends = self.ends[batch, number]
        self.ends[where] = np.take_along_axis(ends, source, 0)
        best[merged[batch[starts]] == own[starts][:, None]] = -np.inf
        self.gains[where] = best
        self.new[where] = True

    def select(self, on: Flags) -> None:
        self.gains, self.ends, self.new = self.gains[on], self.ends[on], self.new[on]
        head, gate, entered = self.known
        self.known = head[on], gate[on], entered[on]
        self.shape = self.gains.shape[:2]

    def are_large(self, entered: NDArray[Any]) -> Flags:
        large: Flags = (np.abs(entered) > _LARGE).any(1)
        return large


class _Whole(_Entrances):
    """In exact integers: gains are computed anew in each step.

    Args:
        scores: scores by modifier and head, shape ``(batch, n, n)``.
        arcs: mask of allowed arcs, the same shape.
        lowest: lower bound of all gains.
    """

    def __init__(self, scores: Exact, arcs: Flags, lowest: int) -> None:
        self.shape = scores.shape[:2]
        self.scores, self.arcs, self.lowest = scores, arcs, lowest
        self.displaced = np.zeros(self.shape, dtype=object)

    def best(self, label: Heads, single_root: bool) -> tuple[Heads, Heads, NDArray[Any]]:
        usable = self.arcs & (label[:, :, None] != label[:, None])
        members = label[:, None] == np.arange(label.shape[1])[:, None]
        if single_root:
            others = usable.copy()
            others[:, :, 0] = False
            # a set with any other entering arc cannot be attached to the root
            entered_by_others = (others.any(2)[:, None] & members).any(2)
            usable[:, :, 0] &= ~np.take_along_axis(entered_by_others, label, 1)
        gains = np.where(usable, self.scores - self.displaced[:, :, None], self.lowest)
        head = gains.argmax(2)
        gain = np.take_along_axis(gains, head[:, :, None], 2)[:, :, 0]
        gate = np.where(members, gain[:, None], self.lowest).argmax(2)
        head = np.where(usable.any(2), head, -1)
        return np.take_along_axis(head, gate, 1), gate, np.take_along_axis(gain, gate, 1)

    def merge(self, label: Heads, merged: Heads, cyclic: Flags, entered: NDArray[Any]) -> None:
        rows = np.arange(len(label))[:, None]
        self.displaced = self.displaced + np.where(cyclic, entered, 0)[rows, label]

    def select(self, on: Flags) -> None:
        self.scores, self.arcs, self.displaced = self.scores[on], self.arcs[on], self.displaced[on]
        self.shape = self.scores.shape[:2]


def _on_cycles(above: Heads) -> Flags:
    """Mask of nodes on cycles of a function on nodes, except node 0; shape ``(batch, n)``."""
    # after n steps of the function every image lies on a cycle, and every node of a cycle is an image
    for _ in range(above.shape[1].bit_length()):
        above = np.take_along_axis(above, above, 1)
    reached = np.zeros(above.shape, dtype=bool)
    np.put_along_axis(reached, above, True, 1)
    reached[:, 0] = False
    return reached


def _merge_labels(label: Heads, above: Heads, cyclic: Flags) -> Heads:
    """Give all sets of a cycle the label of its first one."""
    n = label.shape[1]
    first = np.tile(np.arange(n), (len(label), 1))
    for _ in range(n.bit_length()):
        first = np.minimum(first, np.take_along_axis(first, above, 1))
        above = np.take_along_axis(above, above, 1)
    return np.take_along_axis(np.where(cyclic, first, np.arange(n)), label, 1)


def _expand(steps: Sequence[_Step]) -> Heads:
    """Expand contractions to heads: a set is entered by its best arc at one node, other parts by their
    own."""
    rows, nodes = np.arange(len(steps[-1].label))[:, None], np.arange(steps[-1].label.shape[1])
    head, gate = steps[-1].head, steps[-1].gate
    for part, whole in zip(reversed(steps[:-1]), reversed(steps[1:]), strict=True):
        outer_head, outer_gate = head[rows, whole.label], gate[rows, whole.label]
        here = part.label[rows, outer_gate] == nodes
        head, gate = np.where(here, outer_head, part.head), np.where(here, outer_gate, part.gate)
    return head
