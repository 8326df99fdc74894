"""The best arborescences of many sentences at once, by contraction of cycles (Chu and Liu, 1965; Edmonds, 1967).

All cycles of all sentences are contracted in each step, so that few steps do for a batch. Matrices keep their size: what is contracted is a set of
nodes with the same label, and the score of what enters it is the score of an arc less those of the arcs that it displaces.

Where there must be one root, it is a second key that comes before the score: an arc from the root is taken only by a set that no other arc enters.
That costs no digits, other than a penalty on the scores of such arcs (Zmigrod, Vieira and Cotterell, 2020).

Displaced arcs are subtracted, so that a soft mask which every tree must break would absorb the scores beside it. Sentences where a displaced arc is
that large are solved again in integers, which are exact.
"""

from __future__ import annotations

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
"""The largest score of a displaced arc, in nats, whose rounding in float64 (1e-10) makes no difference."""


def best_trees(scores: Scores, sizes: Heads, single_root: bool) -> tuple[Heads, Flags]:
    """The heads of the best arborescence of each sentence, and whether there is one.

    Args:
        scores: shape ``(batch, n, n)``, packed; -inf forbids.
        sizes: the number of nodes of each sentence, shape ``(batch,)``.
        single_root: exactly one node hangs on the root; else at least one.

    Returns:
        Shapes ``(batch, n)``, a root its own head and -1 in padding, and ``(batch,)``, boolean.
    """
    batch, n = scores.shape[:2]
    if not batch or not n:
        return np.full((batch, n), -1), np.ones(batch, dtype=bool)
    rooted = _rooted(scores, sizes)
    arcs = rooted > -np.inf
    heads, large = _contracted(rooted, arcs, -np.inf, single_root)
    for b in large.nonzero()[0]:
        integers = as_integers(rooted[b])
        # what is displaced can at most double with each contraction
        lowest = -(1 << (n + 2)) * (1 + abs(integers).max())
        heads[b] = _contracted(integers[None], arcs[b : b + 1], lowest, single_root)[0][0]
    nodes = np.arange(n)
    inside = nodes < sizes[:, None]
    own = heads[:, 1:] - 1
    roots = inside & (own == -1)
    exists: Flags = np.asarray((own >= -1).all(1))
    if single_root:
        exists = exists & (roots.sum(1) == 1) | (sizes == 0)
    return np.where(exists[:, None] & inside, np.where(roots, nodes, own), -1), exists


def as_integers(scores: Scores) -> Exact:
    """Scores times a power of two that makes all finite ones whole: exact, as Python's integers; 0 for -inf."""
    fractions, exponents = np.frexp(np.where(np.isfinite(scores), scores, 0.0))
    used = fractions != 0
    least = exponents[used].min() if used.any() else 0
    whole = np.ldexp(fractions, 53).astype(np.int64).astype(object)
    result: Exact = whole << np.where(used, exponents - least, 0).astype(object)
    return result


def _rooted(scores: Scores, sizes: Heads) -> Scores:
    """Scores by modifier and head, the root of all as node 0, and padding on it."""
    batch, n = scores.shape[:2]
    nodes = np.arange(n)
    inside = nodes < sizes[:, None]
    full = np.full((batch, n + 1, n + 1), -np.inf)
    full[:, 1:, 1:] = np.where(inside[:, :, None] & inside[:, None], scores.transpose(0, 2, 1), -np.inf)
    full[:, nodes + 1, nodes + 1] = -np.inf
    full[:, 1:, 0] = np.where(inside, scores[:, nodes, nodes], 0.0)
    return full


_Entrances = tuple[Heads, Heads, NDArray[Any]]
"""Where the best arc into each set begins and ends, and its score less what it displaces; shape ``(batch, n)`` each."""


@dataclass(frozen=True)
class _Step:
    """One step of contraction. Sets of nodes are numbered by one of their nodes; entries of other numbers mean nothing.

    Attributes:
        label: the set of each node, shape ``(batch, n)``.
        head: the node at which the best arc into each set begins, likewise, -1 where there is none.
        gate: the node at which it ends, likewise.
    """

    label: Heads
    head: Heads
    gate: Heads

    def of(self, rows: Flags) -> _Step:
        """That of some sentences."""
        return _Step(self.label[rows], self.head[rows], self.gate[rows])


def _contracted(scores: NDArray[Any], arcs: Flags, lowest: Any, single_root: bool) -> tuple[Heads, Flags]:
    """The heads of all nodes, and which sentences have displaced arcs too large for float64. Without an arborescence, heads are -2.

    Args:
        scores: shape ``(batch, n, n)``, modifiers and heads; node 0 is the root of all.
        arcs: which of them exist, likewise.
        lowest: less than any score less what it displaces.
        single_root: arcs from the root come after all others.
    """
    batch, n = scores.shape[:2]
    heads, large = np.full((batch, n), -2), np.zeros(batch, dtype=bool)
    left, label = np.arange(batch), np.tile(np.arange(n), (batch, 1))
    displaced = np.zeros((batch, n), dtype=scores.dtype)
    steps: list[_Step] = []
    entrances: _Entrances | None = None
    merged = np.ones((batch, n), dtype=bool)
    while len(left):
        rows = np.arange(len(left))[:, None]
        if entrances is None or scores.dtype == object:
            entrances = _best_entrances(scores, arcs, lowest, label, displaced, single_root)
        else:
            entrances = _renewed_entrances(entrances, merged, scores, arcs, label, displaced, single_root)
        head, gate, entered = entrances
        steps.append(_Step(label, head, gate))
        sets = (label == np.arange(n)) & (np.arange(n) > 0)
        stuck = (sets & (head < 0)).any(1)
        if scores.dtype != object:
            large[left] = (np.abs(np.where(sets & (head >= 0), entered, 0.0)) > _LARGE).any(1)
        above = np.where(sets & (head >= 0), label[rows, np.maximum(head, 0)], 0)
        cyclic = _on_cycles(above)
        finished = ~stuck & ~cyclic.any(1)
        if finished.any():
            heads[left[finished]] = _expanded([step.of(finished) for step in steps])
        on = ~stuck & ~finished & ~large[left]
        displaced = displaced + np.where(cyclic, entered, 0)[rows, label]
        merged = np.take_along_axis(cyclic, label, 1)
        label = _merged(label, above, cyclic)
        if not on.all():
            left, scores, arcs, label, displaced, merged = (x[on] for x in (left, scores, arcs, label, displaced, merged))
            steps = [step.of(on) for step in steps]
            entrances = (head[on], gate[on], entered[on])
    return heads, large


def _best_entrances(
    scores: NDArray[Any], arcs: Flags, lowest: Any, label: Heads, displaced: NDArray[Any], single_root: bool
) -> tuple[Heads, Heads, NDArray[Any]]:  # fmt: skip
    """Where the best arc into each set begins and ends, and its score less what it displaces; shape ``(batch, n)`` each."""
    usable = arcs & (label[:, :, None] != label[:, None])
    members = label[:, None] == np.arange(label.shape[1])[:, None]
    if single_root:
        others = usable.copy()
        others[:, :, 0] = False
        # a set that anything else enters leaves the root to others
        entered_by_others = (others.any(2)[:, None] & members).any(2)
        usable[:, :, 0] &= ~np.take_along_axis(entered_by_others, label, 1)
    gains = np.where(usable, scores - displaced[:, :, None], lowest)
    head = gains.argmax(2)
    gain = np.take_along_axis(gains, head[:, :, None], 2)[:, :, 0]
    gate = np.where(members, gain[:, None], lowest).argmax(2)
    head = np.where(usable.any(2), head, -1)
    return np.take_along_axis(head, gate, 1), gate, np.take_along_axis(gain, gate, 1)


def _renewed_entrances(
    before: _Entrances, merged: Flags, scores: Scores, arcs: Flags, label: Heads, displaced: Scores, single_root: bool
) -> _Entrances:
    """The same where some sets are new: the best arc into any other set is the one before. In float64 only.

    Args:
        before: of the sets before.
        merged: the nodes of new sets, shape ``(batch, n)``.
        scores, arcs, label, displaced, single_root: as there.
    """
    batch, node = merged.nonzero()
    own = label[batch, node]
    usable = arcs[batch, node] & (label[batch] != own[:, None])
    place = batch * label.shape[1] + own
    if single_root:
        entered_by_others = np.zeros(label.size, dtype=bool)
        entered_by_others[place[usable[:, 1:].any(1)]] = True
        usable[:, 0] &= ~entered_by_others[place]
    gains = np.where(usable, scores[batch, node] - displaced[batch, node][:, None], -np.inf)
    nearest = gains.argmax(1)
    gain = gains[np.arange(len(node)), nearest]
    nearest = np.where(usable.any(1), nearest, -1)
    # the last of each set in this order has its largest gain
    order = np.lexsort((gain, place))
    best = order[np.append(place[order][1:] != place[order][:-1], True)]
    head, gate, entered = (x.copy() for x in before)
    where = batch[best], own[best]
    head[where], gate[where], entered[where] = nearest[best], node[best], gain[best]
    return head, gate, entered


def _on_cycles(above: Heads) -> Flags:
    """Which nodes are on cycles of a function on nodes, other than that of node 0; shape ``(batch, n)``."""
    # after as many steps as there are nodes all are on cycles, and all nodes of cycles are reached
    for _ in range(above.shape[1].bit_length()):
        above = np.take_along_axis(above, above, 1)
    reached = np.zeros(above.shape, dtype=bool)
    np.put_along_axis(reached, above, True, 1)
    reached[:, 0] = False
    return reached


def _merged(label: Heads, above: Heads, cyclic: Flags) -> Heads:
    """Labels in which all sets of a cycle have that of its first."""
    n = label.shape[1]
    first = np.tile(np.arange(n), (len(label), 1))
    for _ in range(n.bit_length()):
        first = np.minimum(first, np.take_along_axis(first, above, 1))
        above = np.take_along_axis(above, above, 1)
    return np.take_along_axis(np.where(cyclic, first, np.arange(n)), label, 1)


def _expanded(steps: Sequence[_Step]) -> Heads:
    """The heads of all nodes: a set is entered by its best arc at one node, and its other parts by theirs."""
    rows, nodes = np.arange(len(steps[-1].label))[:, None], np.arange(steps[-1].label.shape[1])
    head, gate = steps[-1].head, steps[-1].gate
    for part, whole in zip(reversed(steps[:-1]), reversed(steps[1:]), strict=True):
        outer_head, outer_gate = head[rows, whole.label], gate[rows, whole.label]
        here = part.label[rows, outer_gate] == nodes
        head, gate = np.where(here, outer_head, part.head), np.where(here, outer_gate, part.gate)
    return head
