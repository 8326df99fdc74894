"""The best arborescences of many sentences at once, by contraction of cycles (Chu and Liu, 1965; Edmonds,
1967).

All cycles of all sentences are contracted in each step, so that a batch takes few steps. Matrices keep their
size: a contracted set is a label shared by its nodes, and the score of entering it is the score of an arc
minus those of the arcs that it displaces.

Single-root trees use a second key before the score: an arc from the root is used only for a set that no other
arc enters. Unlike a penalty on the scores of such arcs, this loses no precision (Zmigrod, Vieira and
Cotterell, 2020).

Displaced arcs are subtracted, so a soft mask that every tree must break would absorb the other scores.
Sentences with such large displaced arcs are solved again in exact integers.
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
    heads, large = _contract(rooted, arcs, -np.inf, single_root)
    for b in large.nonzero()[0]:
        integers = as_integers(rooted[b])
        # displaced scores at most double with each contraction
        lowest = -(1 << (n + 2)) * (1 + abs(integers).max())
        heads[b] = _contract(integers[None], arcs[b : b + 1], lowest, single_root)[0][0]
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


_Entrances = tuple[Heads, Heads, NDArray[Any]]
"""Tail and end of the best arc into each set, and its score minus the displaced one; each ``(batch, n)``."""


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


def _contract(scores: NDArray[Any], arcs: Flags, lowest: Any, single_root: bool) -> tuple[Heads, Flags]:
    """Heads of all nodes, -2 without an arborescence, and a mask of sentences too large for float64.

    Args:
        scores: scores by modifier and head, shape ``(batch, n, n)``; node 0 is the root.
        arcs: mask of allowed arcs, shape ``(batch, n, n)``.
        lowest: lower bound of all scores minus displaced ones.
        single_root: arcs from the root rank after all others.
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
            entrances = _update_entrances(entrances, merged, scores, arcs, label, displaced, single_root)
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
            heads[left[finished]] = _expand([step.select(finished) for step in steps])
        on = ~stuck & ~finished & ~large[left]
        displaced = displaced + np.where(cyclic, entered, 0)[rows, label]
        merged = np.take_along_axis(cyclic, label, 1)
        label = _merge_labels(label, above, cyclic)
        if not on.all():
            left, scores, arcs, label, displaced, merged = (
                x[on] for x in (left, scores, arcs, label, displaced, merged)
            )
            steps = [step.select(on) for step in steps]
            entrances = (head[on], gate[on], entered[on])
    return heads, large


def _best_entrances(
    scores: NDArray[Any], arcs: Flags, lowest: Any, label: Heads, displaced: NDArray[Any], single_root: bool
) -> tuple[Heads, Heads, NDArray[Any]]:  # fmt: skip
    """Find the best arc into each set."""
    usable = arcs & (label[:, :, None] != label[:, None])
    members = label[:, None] == np.arange(label.shape[1])[:, None]
    if single_root:
        others = usable.copy()
        others[:, :, 0] = False
        # a set with any other entering arc cannot be attached to the root
        entered_by_others = (others.any(2)[:, None] & members).any(2)
        usable[:, :, 0] &= ~np.take_along_axis(entered_by_others, label, 1)
    gains = np.where(usable, scores - displaced[:, :, None], lowest)
    head = gains.argmax(2)
    gain = np.take_along_axis(gains, head[:, :, None], 2)[:, :, 0]
    gate = np.where(members, gain[:, None], lowest).argmax(2)
    head = np.where(usable.any(2), head, -1)
    return np.take_along_axis(head, gate, 1), gate, np.take_along_axis(gain, gate, 1)


def _update_entrances(
    before: _Entrances,
    merged: Flags,
    scores: Scores,
    arcs: Flags,
    label: Heads,
    displaced: Scores,
    single_root: bool,
) -> _Entrances:
    """Update the entrances of merged sets only; those of other sets are unchanged. In float64 only.

    Args:
        before: entrances before the merge.
        merged: mask of the nodes of merged sets, shape ``(batch, n)``.
        scores, arcs, label, displaced, single_root: as for ``_best_entrances``.
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
    # in this order, the last entry of each set has the largest gain
    order = np.lexsort((gain, place))
    best = order[np.append(place[order][1:] != place[order][:-1], True)]
    head, gate, entered = (x.copy() for x in before)
    where = batch[best], own[best]
    head[where], gate[where], entered[where] = nearest[best], node[best], gain[best]
    return head, gate, entered


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
