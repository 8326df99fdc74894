"""Decomposition of a mask into dense terms along declared axes, and a list of the irregular pairs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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


class Term(ABC):
    """Pairs of queries and keys whose scores are computed together.

    Vectors have shape ``(batch, nodes, width)``. Scores and weights have one number per pair, in a shape of the term.
    """

    @property
    @abstractmethod
    def pairs(self) -> int:
        """Number of pairs, including hidden ones."""

    @abstractmethod
    def products(self, query: Tensor, key: Tensor) -> Tensor:
        """Inner product of the query and the key of each pair, hidden ones included."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """The products, with -inf at hidden pairs."""
        return self.products(query, key)

    @abstractmethod
    def per_query(self, x: Tensor) -> Tensor:
        """Broadcast one number per query, shape ``(batch, nodes)``, to the shape of the scores."""

    @abstractmethod
    def update_row_max(self, row_max: Tensor, scores: Tensor) -> None:
        """Update the running maximum score of each query, shape ``(batch, nodes)``, in place."""

    @abstractmethod
    def add_row_sums(self, denominator: Tensor, weights: Tensor) -> None:
        """Add the sum of the weights of each query, shape ``(batch, nodes)``, in place."""

    @abstractmethod
    def add_to_queries(self, out: Tensor, keys: Tensor, weights: Tensor) -> None:
        """Add the weighted sum of the vectors of its keys to each query, in place."""

    @abstractmethod
    def add_to_keys(self, out: Tensor, queries: Tensor, weights: Tensor) -> None:
        """Add the weighted sum of the vectors of its queries to each key, in place."""

    @abstractmethod
    def to(self, device: torch.device) -> Term:
        """The term with its tensors on a device."""


@dataclass(frozen=True, eq=False)
class _Dense(Term):
    """Pairs of two windows.

    Attributes:
        queries: window of the queries.
        keys: window of the keys.
        hidden: mask of pairs that are excluded or in other terms, shape of the scores without batch; None for none.
        query_sum: axes of the scores along which a query has several keys.
    """

    queries: Window
    keys: Window
    hidden: Tensor | None
    query_sum: tuple[int, ...]

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        products = self.products(query, key)
        return products if self.hidden is None else products.masked_fill_(self.hidden, -torch.inf)

    def update_row_max(self, row_max: Tensor, scores: Tensor) -> None:
        window = self.queries.of(row_max)
        maximum = scores.amax(self.query_sum, keepdim=True) if self.query_sum else scores
        torch.maximum(window, maximum.view(window.shape), out=window)

    def add_row_sums(self, denominator: Tensor, weights: Tensor) -> None:
        window = self.queries.of(denominator)
        window.add_((weights.sum(self.query_sum, keepdim=True) if self.query_sum else weights).view(window.shape))

    def to(self, device: torch.device) -> Term:
        return replace(self, hidden=None if self.hidden is None else self.hidden.to(device))


@dataclass(frozen=True, eq=False)
class Aligned(_Dense):
    """One-to-many pairs, computed by elementwise products of broadcast windows, shape ``(batch, *letters)``.

    Both windows have the same letters, in the order of the larger side.

    Attributes:
        key_sum: axes of the scores along which a key has several queries.
    """

    key_sum: tuple[int, ...]

    @property
    def pairs(self) -> int:
        return math.prod(map(max, self.queries.sizes, self.keys.sizes))

    def products(self, query: Tensor, key: Tensor) -> Tensor:
        return (self.queries.of(query) * self.keys.of(key)).sum(-1)

    def per_query(self, x: Tensor) -> Tensor:
        return self.queries.of(x)

    def add_to_queries(self, out: Tensor, keys: Tensor, weights: Tensor) -> None:
        _add_weighted(self.queries.of(out), self.keys.of(keys), weights, self.query_sum)

    def add_to_keys(self, out: Tensor, queries: Tensor, weights: Tensor) -> None:
        _add_weighted(self.keys.of(out), self.queries.of(queries), weights, self.key_sum)


@dataclass(frozen=True, eq=False)
class Grouped(_Dense):
    """Many-to-many pairs within groups, computed by batched matrix products, shape ``(batch, groups, m, n)``.

    Attributes:
        groups: number of letters that index groups, the first of both windows.
    """

    groups: int

    @property
    def pairs(self) -> int:
        return math.prod(self.queries.sizes + self.keys.sizes[self.groups :])

    def products(self, query: Tensor, key: Tensor) -> Tensor:
        # matrix products are in half precision under autocast
        return (self._matrices(query, self.queries) @ self._matrices(key, self.keys).mT).to(query.dtype)

    def per_query(self, x: Tensor) -> Tensor:
        return self._matrices(x, self.queries)[..., None]

    def add_to_queries(self, out: Tensor, keys: Tensor, weights: Tensor) -> None:
        window = self.queries.of(out)
        window.add_((weights @ self._matrices(keys, self.keys)).view(window.shape))

    def add_to_keys(self, out: Tensor, queries: Tensor, weights: Tensor) -> None:
        window = self.keys.of(out)
        window.add_((weights.mT @ self._matrices(queries, self.queries)).view(window.shape))

    def _matrices(self, x: Tensor, window: Window) -> Tensor:
        """Nodes of a window, shape ``(batch, groups, members, ...)``."""
        view = window.of(x)
        members = view.shape[1 + self.groups : 1 + len(window.sizes)].numel()
        return view.reshape(len(x), -1 if view.numel() else 0, members, *x.shape[2:])


@dataclass(frozen=True, eq=False)
class Listed(Term):
    """List of pairs, computed by gathering, shape ``(batch, pairs)``.

    Attributes:
        queries: query of each pair, shape ``(pairs,)``.
        keys: key of each pair, shape ``(pairs,)``.
    """

    queries: Tensor
    keys: Tensor

    @property
    def pairs(self) -> int:
        return len(self.queries)

    def products(self, query: Tensor, key: Tensor) -> Tensor:
        return (query.index_select(1, self.queries) * key.index_select(1, self.keys)).sum(-1)

    def per_query(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.queries)

    def update_row_max(self, row_max: Tensor, scores: Tensor) -> None:
        row_max.scatter_reduce_(1, self.queries.expand(len(row_max), -1), scores, "amax")

    def add_row_sums(self, denominator: Tensor, weights: Tensor) -> None:
        denominator.index_add_(1, self.queries, weights)

    def add_to_queries(self, out: Tensor, keys: Tensor, weights: Tensor) -> None:
        out.index_add_(1, self.queries, keys.index_select(1, self.keys).mul_(weights[..., None]))

    def add_to_keys(self, out: Tensor, queries: Tensor, weights: Tensor) -> None:
        out.index_add_(1, self.keys, queries.index_select(1, self.queries).mul_(weights[..., None]))

    def to(self, device: torch.device) -> Term:
        return Listed(self.queries.to(device), self.keys.to(device))


def _add_weighted(window: Tensor, vectors: Tensor, weights: Tensor, axes: tuple[int, ...]) -> None:
    """Add weighted vectors to a window, summed over some axes, in place."""
    if axes:
        window.add_((weights[..., None] * vectors).sum(axes, keepdim=True))
    else:
        window.addcmul_(weights[..., None], vectors)


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
            terms.append(Aligned(window, window, None, (), ()))
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
        return Grouped(_window(query, starts, count), _window(key, starts, count), mask, (-1,), query.layout.groups)
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
        return Aligned(wide, narrow, mask, (), free)
    return Aligned(narrow, wide, mask, free, ())


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
