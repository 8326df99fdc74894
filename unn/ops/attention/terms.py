"""Decomposition of a mask into dense terms along declared axes, and a list of the irregular pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...graph.adjacency import Adjacency, Nodes
from ...graph.interactions import Relation, Side

_FEW = 200
"""Terms with fewer pairs are added to the list of pairs."""


@dataclass(frozen=True)
class Window:
    """Strided view of the array of all nodes, with one axis per letter.

    Attributes:
        offset: index of the first node.
        sizes: size of each letter; 1 for a letter that the nodes do not depend on.
        strides: stride of each letter, in nodes.
        count: number of all nodes.
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    count: int

    def of(self, x: Tensor) -> Tensor:
        """View contiguous values, shape ``(batch, nodes, ...)``, as ``(batch, *sizes, ...)``."""
        width = x.shape[2] if x.ndim == 3 else 1
        last: tuple[int, ...] = (x.shape[2],) if x.ndim == 3 else ()
        strides = (self.count * width, *(stride * width for stride in self.strides), *(1 for _ in last))
        return x.as_strided((len(x), *self.sizes, *last), strides, x.storage_offset() + self.offset * width)


@dataclass(frozen=True, eq=False)
class Aligned:
    """One-to-many pairs, computed by elementwise products of broadcast windows.

    Attributes:
        queries: window of the queries.
        keys: window of the keys; both have the same letters, in the order of the larger side.
        query_sum: axes along which a query has several keys, counting the batch axis.
        key_sum: axes along which a key has several queries, counting the batch axis.
        hidden: mask of pairs that are excluded or in other terms, shape ``(*letters)``; None for none.
    """

    queries: Window
    keys: Window
    query_sum: tuple[int, ...]
    key_sum: tuple[int, ...]
    hidden: Tensor | None

    @property
    def pairs(self) -> int:
        """Number of pairs, including hidden ones."""
        return int(np.prod([max(a, b) for a, b in zip(self.queries.sizes, self.keys.sizes, strict=True)], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Grouped:
    """Many-to-many pairs within groups, computed by batched matrix products.

    Attributes:
        queries: window of the queries, group letters first.
        keys: window of the keys, group letters first.
        groups: number of letters that index groups.
        hidden: mask of pairs that are excluded or in other terms, shape ``(groups, m, n)``; None for none.
    """

    queries: Window
    keys: Window
    groups: int
    hidden: Tensor | None

    @property
    def pairs(self) -> int:
        """Number of pairs, including hidden ones."""
        return int(np.prod(self.queries.sizes + self.keys.sizes[self.groups :], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Listed:
    """List of pairs.

    Attributes:
        queries: query of each pair, shape ``(pairs,)``.
        keys: key of each pair, shape ``(pairs,)``.
    """

    queries: Tensor
    keys: Tensor

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return len(self.queries)


Term = Aligned | Grouped | Listed


def to_device(term: Term, device: torch.device) -> Term:
    """Move the tensors of a term to a device."""
    if isinstance(term, Listed):
        return Listed(term.queries.to(device), term.keys.to(device))
    hidden = None if term.hidden is None else term.hidden.to(device)
    if isinstance(term, Aligned):
        return Aligned(term.queries, term.keys, term.query_sum, term.key_sum, hidden)
    return Grouped(term.queries, term.keys, term.groups, hidden)


def _listed_terms(adjacency: Adjacency) -> list[Term]:
    """All pairs as a single list."""
    return [Listed(torch.from_numpy(adjacency.rows), torch.from_numpy(adjacency.columns))] if len(adjacency.rows) else []


def terms_of(adjacency: Adjacency) -> list[Term]:
    """Disjoint terms that cover every pair, from the relations of the declaration."""
    if not adjacency.relations:
        return _listed_terms(adjacency)
    starts, count = adjacency.starts, adjacency.count
    covered = _CoveredPairs(count)
    terms: list[Term] = []
    rows: list[Nodes] = []
    columns: list[Nodes] = []
    relations = [directed for relation in adjacency.relations for directed in (relation, relation.turned())]
    # the largest first, so that few pairs remain for the others
    for relation in sorted(relations, key=lambda r: -r.one.nodes.shape[1] * r.other.nodes.shape[1]):
        i = relation.one.nodes[:, :, None] + starts[relation.one.variable]
        j = relation.other.nodes[:, None, :] + starts[relation.other.variable]
        hidden = covered.take(i * count + j, relation.kept)
        remaining = hidden.size - int(hidden.sum())
        if not remaining:
            continue
        if remaining < _FEW or relation.one.layout is None or relation.other.layout is None:
            i, j = np.broadcast_arrays(i, j)
            rows.append(i[~hidden])
            columns.append(j[~hidden])
        else:
            terms.append(_dense_term(relation, hidden if remaining < hidden.size else None, starts, count))
    for start, stop in _runs(covered.missing_diagonal()):
        if stop - start < _FEW:
            rows.append(np.arange(start, stop))
            columns.append(np.arange(start, stop))
        else:
            window = Window(start, (stop - start,), (1,), count)
            terms.append(Aligned(window, window, (), (), None))
    if rows:
        terms.append(Listed(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(columns))))
    return terms


class _CoveredPairs:
    """Set of the pairs that are already covered by a term."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.flat: dict[tuple[int, int], Nodes] = {}
        self.diagonal = np.zeros(count, dtype=bool)

    def take(self, flat: Nodes, kept: np.ndarray | None) -> np.ndarray:
        """Mask of pairs that are excluded by ``kept`` or already covered; marks the others as covered.

        Args:
            flat: pairs, as row * count + column.
            kept: mask of pairs that belong to the relation; None for all.
        """
        hidden = np.zeros(flat.shape, dtype=bool) if kept is None else ~kept
        if not flat.size:
            return hidden
        bounds = (int(flat.min()), int(flat.max()))
        for (low, high), covered in self.flat.items():
            if bounds[0] <= high and low <= bounds[1]:
                hidden |= np.isin(flat, covered)
        new = flat[~hidden]
        self.flat[bounds] = np.concatenate([self.flat[bounds], new]) if bounds in self.flat else new
        rows, columns = np.divmod(new, self.count)
        self.diagonal[rows[rows == columns]] = True
        return hidden

    def missing_diagonal(self) -> Nodes:
        """Nodes whose diagonal pair no term covers."""
        return np.flatnonzero(~self.diagonal)


def _runs(nodes: Nodes) -> list[tuple[int, int]]:
    """Half-open ranges of consecutive numbers."""
    if not nodes.size:
        return []
    ends = np.flatnonzero(np.diff(nodes) != 1)
    firsts, lasts = np.concatenate([[0], ends + 1]), np.concatenate([ends, [len(nodes) - 1]])
    return [(int(nodes[a]), int(nodes[b]) + 1) for a, b in zip(firsts, lasts, strict=True)]


def _dense_term(relation: Relation, hidden: np.ndarray | None, starts: Mapping[str, int], count: int) -> Term:
    query, key = relation.one, relation.other
    assert query.layout is not None and key.layout is not None
    m, n = query.nodes.shape[1], key.nodes.shape[1]
    if m > 1 and n > 1:
        mask = None if hidden is None else torch.from_numpy(hidden)
        return Grouped(_window(query, starts, count), _window(key, starts, count), query.layout.groups, mask)
    large, small = (query, key) if n == 1 else (key, query)
    wide, narrow = _window(large, starts, count), _window(small, starts, count)
    assert large.layout is not None and small.layout is not None
    groups = small.layout.groups
    extra = len(wide.sizes) - groups
    narrow = Window(narrow.offset, narrow.sizes[:groups] + (1,) * extra, narrow.strides[:groups] + (0,) * extra, count)
    # the memory order of the larger side's axes
    order = np.argsort(large.layout.order)
    free = tuple(1 + int(k) for k, letter in enumerate(order) if letter >= groups)
    wide, narrow = _permute(wide, order), _permute(narrow, order)
    mask = None
    if hidden is not None:
        letters = _window(large, starts, count).sizes
        mask = torch.from_numpy(np.ascontiguousarray(hidden.reshape(letters).transpose(order)))
    if n == 1:
        return Aligned(wide, narrow, (), free, mask)
    return Aligned(narrow, wide, free, (), mask)


def _window(side: Side, starts: Mapping[str, int], count: int) -> Window:
    layout = side.layout
    assert layout is not None
    strides = [int(np.prod(layout.sizes[k + 1 :], dtype=np.int64)) for k in range(len(layout.sizes))]
    offset = starts[side.variable] + sum(a * b for a, b in zip(layout.starts, strides, strict=True))
    return _permute(Window(offset, layout.lengths, tuple(strides), count), layout.order)


def _permute(window: Window, order: Iterable[int]) -> Window:
    axes = [int(k) for k in order]
    sizes, strides = tuple(window.sizes[k] for k in axes), tuple(window.strides[k] for k in axes)
    return Window(window.offset, sizes, strides, window.count)
