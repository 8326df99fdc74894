"""Decomposition of a mask into dense terms along declared axes, and a list of the irregular pairs."""

from __future__ import annotations

import math
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
        summed: axes of the scores along which a node is in several pairs.
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    count: int
    summed: tuple[int, ...] = ()

    def of(self, x: Tensor) -> Tensor:
        """View contiguous values, shape ``(batch, nodes, ...)``, as ``(batch, *sizes, ...)``."""
        width = x.shape[2] if x.ndim == 3 else 1
        last: tuple[int, ...] = (x.shape[2],) if x.ndim == 3 else ()
        strides = (self.count * width, *(stride * width for stride in self.strides), *(1 for _ in last))
        return x.as_strided((len(x), *self.sizes, *last), strides, x.storage_offset() + self.offset * width)

    def raise_to(self, out: Tensor, scores: Tensor) -> None:
        """Raise the number of each node to the maximum of its pairs, in place."""
        window = self.of(out)
        maximum = scores.amax(self.summed, keepdim=True) if self.summed else scores
        torch.maximum(window, maximum.view(window.shape), out=window)

    def add(self, out: Tensor, terms: Tensor) -> None:
        """Add the numbers or vectors of its pairs to each node, in place."""
        window = self.of(out)
        window.add_((terms.sum(self.summed, keepdim=True) if self.summed else terms).view(window.shape))

    def add_weighted(self, out: Tensor, weights: Tensor, vectors: Tensor) -> None:
        """Add the weighted vectors of its pairs to each node, in place."""
        window = self.of(out)
        if self.summed:
            window.add_((weights[..., None] * vectors).sum(self.summed, keepdim=True))
        else:
            window.addcmul_(weights[..., None], vectors)


@dataclass(frozen=True, eq=False)
class NodeList:
    """One node for each pair of a list, with the methods of ``Window``.

    Attributes:
        nodes: the nodes, shape ``(pairs,)``.
    """

    nodes: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.nodes.shape)

    def of(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.nodes)

    def raise_to(self, out: Tensor, scores: Tensor) -> None:
        out.scatter_reduce_(1, self.nodes.expand(len(out), -1), scores, "amax")

    def add(self, out: Tensor, terms: Tensor) -> None:
        out.index_add_(1, self.nodes, terms)

    def add_weighted(self, out: Tensor, weights: Tensor, vectors: Tensor) -> None:
        # the vectors are a copy, from ``of``
        self.add(out, vectors.mul_(weights[..., None]))


@dataclass(frozen=True, eq=False)
class Term:
    """Pairs of queries and keys: a list, or one-to-many pairs, whose scores are elementwise products.

    Attributes:
        queries: query of each pair; scores have the shape in which it broadcasts with the keys.
        keys: key of each pair.
        hidden: mask of pairs that are excluded or in other terms, as the scores of one example; None for
            none.
    """

    queries: Window | NodeList
    keys: Window | NodeList
    hidden: Tensor | None = None

    @property
    def pairs(self) -> int:
        """Number of pairs, including hidden ones."""
        return math.prod([max(m, n) for m, n in zip(self.queries.sizes, self.keys.sizes, strict=True)])

    def products(self, query: Tensor, key: Tensor) -> Tensor:
        """Inner product of the query and the key of each pair, hidden ones included."""
        return (self.queries.of(query) * self.keys.of(key)).sum(-1)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """The products, with -inf at hidden pairs."""
        products = self.products(query, key)
        return products if self.hidden is None else products.masked_fill_(self.hidden, -torch.inf)

    def per_query(self, x: Tensor) -> Tensor:
        """Broadcast one number per query, shape ``(batch, nodes)``, to the shape of the scores."""
        return self.queries.of(x)

    def add_to_queries(self, out: Tensor, weights: Tensor, keys: Tensor) -> None:
        """Add the weighted vectors of its keys to each query, in place."""
        self.queries.add_weighted(out, weights, self.keys.of(keys))

    def add_to_keys(self, out: Tensor, weights: Tensor, queries: Tensor) -> None:
        """Add the weighted vectors of its queries to each key, in place."""
        self.keys.add_weighted(out, weights, self.queries.of(queries))

    def to(self, device: torch.device) -> Term:
        """The term with its tensors on a device."""
        if isinstance(self.queries, NodeList) and isinstance(self.keys, NodeList):
            return Term(NodeList(self.queries.nodes.to(device)), NodeList(self.keys.nodes.to(device)))
        return replace(self, hidden=None if self.hidden is None else self.hidden.to(device))


@dataclass(frozen=True, eq=False)
class Grouped(Term):
    """Many-to-many pairs within groups, by batched matrix products; scores are ``(batch, groups, m, n)``.

    Attributes:
        groups: number of letters that index groups, the first of both windows.
    """

    groups: int = 0

    @property
    def pairs(self) -> int:
        return math.prod(self.queries.sizes + self.keys.sizes[self.groups :])

    def products(self, query: Tensor, key: Tensor) -> Tensor:
        # matrix products are in half precision under autocast
        return (self._matrices(query, self.queries) @ self._matrices(key, self.keys).mT).to(query.dtype)

    def per_query(self, x: Tensor) -> Tensor:
        return self._matrices(x, self.queries)[..., None]

    def add_to_queries(self, out: Tensor, weights: Tensor, keys: Tensor) -> None:
        window = self.queries.of(out)
        window.add_((weights @ self._matrices(keys, self.keys)).view(window.shape))

    def add_to_keys(self, out: Tensor, weights: Tensor, queries: Tensor) -> None:
        window = self.keys.of(out)
        window.add_((weights.mT @ self._matrices(queries, self.queries)).view(window.shape))

    def _matrices(self, x: Tensor, window: Window | NodeList) -> Tensor:
        """Nodes of a window, shape ``(batch, groups, members, ...)``."""
        view = window.of(x)
        members = view.shape[1 + self.groups : 1 + len(window.sizes)].numel()
        return view.reshape(len(x), -1 if view.numel() else 0, members, *x.shape[2:])


def terms_of(adjacency: Adjacency) -> list[Term]:
    """Disjoint terms that cover every pair, from the relations of the declaration."""
    if not adjacency.relations:
        return [_listed(adjacency.rows, adjacency.columns)] if len(adjacency.rows) else []
    starts, count = adjacency.starts, adjacency.count
    covered = _CoveredPairs(count)
    terms: list[Term] = []
    rows: list[Nodes] = []
    columns: list[Nodes] = []
    relations = [
        directed for relation in adjacency.relations for directed in (relation, relation.transpose())
    ]
    # the largest first, so that few pairs remain for the others
    for relation in sorted(relations, key=lambda r: -r.left.nodes.shape[1] * r.right.nodes.shape[1]):
        i = relation.left.nodes[:, :, None] + starts[relation.left.variable]
        j = relation.right.nodes[:, None, :] + starts[relation.right.variable]
        hidden = covered.take(i * count + j, relation.mask)
        remaining = hidden.size - int(hidden.sum())
        if not remaining:
            continue
        if remaining < _FEW or relation.left.layout is None or relation.right.layout is None:
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
            terms.append(Term(window, window))
    if rows:
        terms.append(_listed(np.concatenate(rows), np.concatenate(columns)))
    return terms


def _listed(queries: Nodes, keys: Nodes) -> Term:
    return Term(NodeList(torch.from_numpy(queries)), NodeList(torch.from_numpy(keys)))


class _CoveredPairs:
    """Set of the pairs that are already covered by a term."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.flat: dict[tuple[int, int], Nodes] = {}
        self.diagonal = np.zeros(count, dtype=bool)

    def take(self, flat: Nodes, mask: np.ndarray | None) -> np.ndarray:
        """Mask of pairs that are excluded by ``mask`` or already covered; marks the others as covered.

        Args:
            flat: pairs, as row * count + column.
            mask: mask of pairs that belong to the relation; None for all.
        """
        hidden = np.zeros(flat.shape, dtype=bool) if mask is None else ~mask
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
    query, key = relation.left, relation.right
    assert query.layout is not None and key.layout is not None
    m, n = query.nodes.shape[1], key.nodes.shape[1]
    if m > 1 and n > 1:
        mask = None if hidden is None else torch.from_numpy(hidden)
        window = replace(_window(query, starts, count), summed=(-1,))
        return Grouped(window, _window(key, starts, count), mask, query.layout.groups)
    large, small = (query, key) if n == 1 else (key, query)
    wide, narrow = _window(large, starts, count), _window(small, starts, count)
    assert large.layout is not None and small.layout is not None
    groups = small.layout.groups
    extra = len(wide.sizes) - groups
    narrow = Window(
        narrow.offset, narrow.sizes[:groups] + (1,) * extra, narrow.strides[:groups] + (0,) * extra, count
    )
    # the memory order of the larger side's axes
    order = np.argsort(large.layout.order)
    free = tuple(1 + int(k) for k, letter in enumerate(order) if letter >= groups)
    wide, narrow = _permute(wide, order), replace(_permute(narrow, order), summed=free)
    mask = None
    if hidden is not None:
        letters = _window(large, starts, count).sizes
        mask = torch.from_numpy(np.ascontiguousarray(hidden.reshape(letters).transpose(order)))
    return Term(wide, narrow, mask) if n == 1 else Term(narrow, wide, mask)


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
