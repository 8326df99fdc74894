"""The pairs of nodes of a graph as few dense pieces: along axes of the declaration where they are regular, one by one where not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...graph.adjacency import Adjacency, Nodes
from ...graph.interactions import Relation, Side

_FEW = 200
"""Terms of fewer pairs are not worth operations of their own."""


@dataclass(frozen=True)
class Window:
    """Some nodes as an array with an axis for each letter, a view of the array of all nodes.

    Attributes:
        offset: the number of the first node.
        sizes: of the letters; 1 for a letter that the nodes do not depend on.
        strides: by how much the number of the node grows along each letter.
        count: of all nodes.
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    count: int

    def of(self, x: Tensor) -> Tensor:
        """A view of contiguous values, shape ``(batch, nodes, ...)``, as ``(batch, *sizes, ...)``."""
        width = x.shape[2] if x.ndim == 3 else 1
        last: tuple[int, ...] = (x.shape[2],) if x.ndim == 3 else ()
        strides = (self.count * width, *(stride * width for stride in self.strides), *(1 for _ in last))
        return x.as_strided((len(x), *self.sizes, *last), strides, x.storage_offset() + self.offset * width)


@dataclass(frozen=True, eq=False)
class Aligned:
    """Each node of the smaller side meets several of the larger, or one: products of vectors, entry by entry.

    Attributes:
        queries: who attends.
        keys: to whom; the letters of both are the same and in the order of the larger side.
        query_sum: axes along which a query meets several keys, counting the batch.
        key_sum: axes along which a key meets several queries.
        hidden: which pairs other terms have, shape ``(*letters)``; None for none.
    """

    queries: Window
    keys: Window
    query_sum: tuple[int, ...]
    key_sum: tuple[int, ...]
    hidden: Tensor | None

    @property
    def pairs(self) -> int:
        """How many pairs there are, hidden ones included."""
        return int(np.prod([max(a, b) for a, b in zip(self.queries.sizes, self.keys.sizes, strict=True)], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Grouped:
    """In each group several nodes meet several others: products of matrices.

    Attributes:
        queries: who attends, letters of the group first.
        keys: to whom, letters of the group first.
        groups: how many letters index groups.
        hidden: which pairs other terms have, shape ``(groups, m, n)``; None for none.
    """

    queries: Window
    keys: Window
    groups: int
    hidden: Tensor | None

    @property
    def pairs(self) -> int:
        """How many pairs there are, hidden ones included."""
        return int(np.prod(self.queries.sizes + self.keys.sizes[self.groups :], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Listed:
    """Pairs one by one.

    Attributes:
        queries: who attends, shape ``(pairs,)``.
        keys: to whom, shape ``(pairs,)``.
    """

    queries: Tensor
    keys: Tensor

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return len(self.queries)


Term = Aligned | Grouped | Listed


def to_device(term: Term, device: torch.device) -> Term:
    """The same term with its tensors on a device."""
    if isinstance(term, Listed):
        return Listed(term.queries.to(device), term.keys.to(device))
    hidden = None if term.hidden is None else term.hidden.to(device)
    if isinstance(term, Aligned):
        return Aligned(term.queries, term.keys, term.query_sum, term.key_sum, hidden)
    return Grouped(term.queries, term.keys, term.groups, hidden)


def _listed_terms(adjacency: Adjacency) -> list[Term]:
    """All pairs one by one."""
    return [Listed(torch.from_numpy(adjacency.rows), torch.from_numpy(adjacency.columns))] if len(adjacency.rows) else []


def terms_of(adjacency: Adjacency) -> list[Term]:
    """Disjoint terms that have every pair once, from the relations of the declaration."""
    if not adjacency.relations:
        return _listed_terms(adjacency)
    starts, count = adjacency.starts, adjacency.count
    seen = _Seen(count)
    terms: list[Term] = []
    rows: list[Nodes] = []
    columns: list[Nodes] = []
    relations = [turned for relation in adjacency.relations for turned in (relation, relation.turned())]
    # the largest first, so that what they leave to the others is little
    for relation in sorted(relations, key=lambda r: -r.one.nodes.shape[1] * r.other.nodes.shape[1]):
        i = relation.one.nodes[:, :, None] + starts[relation.one.variable]
        j = relation.other.nodes[:, None, :] + starts[relation.other.variable]
        hidden = seen.take(i * count + j, relation.kept)
        left = hidden.size - int(hidden.sum())
        if not left:
            continue
        if left < _FEW or relation.one.layout is None or relation.other.layout is None:
            i, j = np.broadcast_arrays(i, j)
            rows.append(i[~hidden])
            columns.append(j[~hidden])
        else:
            terms.append(_regular(relation, hidden if left < hidden.size else None, starts, count))
    for start, stop in _runs(seen.alone()):
        if stop - start < _FEW:
            rows.append(np.arange(start, stop))
            columns.append(np.arange(start, stop))
        else:
            here = Window(start, (stop - start,), (1,), count)
            terms.append(Aligned(here, here, (), (), None))
    if rows:
        terms.append(Listed(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(columns))))
    return terms


class _Seen:
    """Which pairs some term has already."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.flat: dict[tuple[int, int], Nodes] = {}
        self.itself = np.zeros(count, dtype=bool)

    def take(self, flat: Nodes, kept: np.ndarray | None) -> np.ndarray:
        """Which of some pairs, as row times count plus column, are not to be had any more or not to be had at all; the rest is taken."""
        hidden = np.zeros(flat.shape, dtype=bool) if kept is None else ~kept
        if not flat.size:
            return hidden
        where = (int(flat.min()), int(flat.max()))
        for (low, high), other in self.flat.items():
            if where[0] <= high and low <= where[1]:
                hidden |= np.isin(flat, other)
        fresh = flat[~hidden]
        self.flat[where] = np.concatenate([self.flat[where], fresh]) if where in self.flat else fresh
        rows, columns = np.divmod(fresh, self.count)
        self.itself[rows[rows == columns]] = True
        return hidden

    def alone(self) -> Nodes:
        """The nodes that no term lets see themselves."""
        return np.flatnonzero(~self.itself)


def _runs(nodes: Nodes) -> list[tuple[int, int]]:
    """Consecutive numbers as ranges."""
    if not nodes.size:
        return []
    ends = np.flatnonzero(np.diff(nodes) != 1)
    firsts, lasts = np.concatenate([[0], ends + 1]), np.concatenate([ends, [len(nodes) - 1]])
    return [(int(nodes[a]), int(nodes[b]) + 1) for a, b in zip(firsts, lasts, strict=True)]


def _regular(relation: Relation, hidden: np.ndarray | None, starts: Mapping[str, int], count: int) -> Term:
    one, other = relation.one, relation.other
    assert one.layout is not None and other.layout is not None
    m, n = one.nodes.shape[1], other.nodes.shape[1]
    if m > 1 and n > 1:
        shown = None if hidden is None else torch.from_numpy(hidden)
        return Grouped(_window(one, starts, count), _window(other, starts, count), one.layout.groups, shown)
    large, small = (one, other) if n == 1 else (other, one)
    wide, narrow = _window(large, starts, count), _window(small, starts, count)
    assert large.layout is not None and small.layout is not None
    groups = small.layout.groups
    extra = len(wide.sizes) - groups
    narrow = Window(narrow.offset, narrow.sizes[:groups] + (1,) * extra, narrow.strides[:groups] + (0,) * extra, count)
    # the order of the larger side's axes, in which it lies in memory
    order = np.argsort(large.layout.order)
    free = tuple(1 + int(k) for k, letter in enumerate(order) if letter >= groups)
    wide, narrow = _reordered(wide, order), _reordered(narrow, order)
    shown = None
    if hidden is not None:
        letters = _window(large, starts, count).sizes
        shown = torch.from_numpy(np.ascontiguousarray(hidden.reshape(letters).transpose(order)))
    if n == 1:
        return Aligned(wide, narrow, (), free, shown)
    return Aligned(narrow, wide, free, (), shown)


def _window(side: Side, starts: Mapping[str, int], count: int) -> Window:
    layout = side.layout
    assert layout is not None
    strides = [int(np.prod(layout.sizes[k + 1 :], dtype=np.int64)) for k in range(len(layout.sizes))]
    offset = starts[side.variable] + sum(a * b for a, b in zip(layout.starts, strides, strict=True))
    return _reordered(Window(offset, layout.lengths, tuple(strides), count), layout.order)


def _reordered(window: Window, order: Iterable[int]) -> Window:
    places = [int(k) for k in order]
    return Window(window.offset, tuple(window.sizes[k] for k in places), tuple(window.strides[k] for k in places), window.count)
