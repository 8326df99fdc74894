"""Attention by products of sparse matrices: the scores of the pairs alone, and sums of values with them (compressed sparse rows)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...graph.adjacency import Adjacency
from .relational import of_nodes

_AT_ONCE = 2**16
"""Pairs that are taken together, of as many batch elements as that makes; more would not fit into the caches of a processor."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of so many copies of a graph, one copy after the other: a block-diagonal matrix in compressed sparse rows, and its transpose.

    Attributes:
        copies: how many.
        starts: where the pairs of each query start, shape ``(copies * nodes + 1,)``.
        keys: of each pair, by query, shape ``(pairs,)``.
        queries: of each pair, by query, shape ``(pairs,)``.
        turned: the place of each pair of the transpose in this order, shape ``(pairs,)``.
        turned_starts: where the pairs of each key start in the transpose.
        turned_queries: of each pair, by key.
    """

    copies: int
    starts: Tensor
    keys: Tensor
    queries: Tensor
    turned: Tensor
    turned_starts: Tensor
    turned_queries: Tensor

    def first(self, copies: int) -> Pairs:
        """Those of the first copies."""
        nodes, pairs = (len(self.starts) - 1) // self.copies * copies, len(self.keys) // self.copies * copies
        return Pairs(
            copies, self.starts[: nodes + 1], self.keys[:pairs], self.queries[:pairs],
            self.turned[:pairs], self.turned_starts[: nodes + 1], self.turned_queries[:pairs],
        )  # fmt: skip

    def matrix(self, numbers: Tensor) -> Tensor:
        """Queries by keys, from a number for each pair."""
        return _csr(self.starts, self.keys, numbers)

    def transpose(self, numbers: Tensor) -> Tensor:
        """Keys by queries, from a number for each pair."""
        return _csr(self.turned_starts, self.turned_queries, numbers.index_select(0, self.turned))


def copies_at_once(adjacency: Adjacency) -> int:
    """How many copies of a graph are taken together."""
    return max(1, _AT_ONCE // max(1, len(adjacency.rows), adjacency.count))


def pairs_of(adjacency: Adjacency, copies: int, device: torch.device) -> Pairs:
    """The pairs of so many copies of a graph."""
    with warnings.catch_warnings():
        # torch says once, of the first such matrix, that they may yet change
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        _csr(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    count = adjacency.count
    shift = np.arange(copies)[:, None]
    queries, keys = ((nodes + shift * count).ravel() for nodes in (adjacency.rows, adjacency.columns))
    turned = np.argsort(keys, kind="stable")
    kind = torch.int32 if max(len(queries), copies * count) < 2**31 else torch.int64

    def there(numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(device, kind)

    def starts(sorted_nodes: np.ndarray) -> Tensor:
        return there(np.searchsorted(sorted_nodes, np.arange(copies * count + 1)))

    return Pairs(copies, starts(queries), there(keys), there(queries), there(turned), starts(keys[turned]), there(queries[turned]))


def by_pairs(query: Tensor, key: Tensor, value: Tensor, pairs: Sequence[Pairs]) -> Tensor:
    """Attention over pairs.

    Args:
        query, key: shape ``(batch, nodes, width)``; the query scaled.
        value: shape ``(batch, nodes, width of values)``.
        pairs: of as many copies of the graph as there are batch elements, some at a time.

    Returns:
        Shape ``(batch, nodes, width of values)``; zero for nodes that attend to nobody.
    """
    out: Tensor = _ByPairs.apply(query, key, value, pairs)
    return out


class _ByPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, pairs: Sequence[Pairs]) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        out = torch.empty_like(value)
        whole = value.new_empty(value.shape[:2])
        kept = []
        for some, q, k, v, o, w in _parts(pairs, query, key, value, out, whole):
            weights = _products(q, k, some)
            most = torch.segment_reduce(weights, "max", offsets=some.starts, axis=0)
            weights.sub_(most.index_select(0, some.queries)).exp_()
            w.copy_(torch.segment_reduce(weights, "sum", offsets=some.starts, axis=0))
            o.addmm_(some.matrix(weights), v, beta=0.0)
            kept.append(weights)
        out.div_(whole.clamp_(min=torch.finfo(whole.dtype).tiny)[..., None])
        ctx.save_for_backward(query, key, value, out, whole, *kept)
        ctx.pairs = pairs
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, whole, *kept = ctx.saved_tensors
        gradient, common = of_nodes(gradient, out, whole)
        found = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        parts = _parts(ctx.pairs, query, key, value, gradient, common, *found)
        for weights, (some, q, k, v, g, c, by_q, by_k, by_v) in zip(kept, parts, strict=True):
            changed = _products(g, v, some).sub_(c.index_select(0, some.queries)).mul_(weights)
            by_v.addmm_(some.transpose(weights), g, beta=0.0)
            by_k.addmm_(some.transpose(changed), q, beta=0.0)
            by_q.addmm_(some.matrix(changed), k, beta=0.0)
        return *found, None


def _parts(pairs: Sequence[Pairs], *arrays: Tensor) -> Iterator[tuple[Any, ...]]:
    """Some pairs at a time with views of the vectors of their nodes, shape ``(copies * nodes, ...)``, batch elements one after another."""
    start = 0
    for some in pairs:
        yield some, *(x[start : start + some.copies].flatten(0, 1) for x in arrays)
        start += some.copies


def _products(left: Tensor, right: Tensor, pairs: Pairs) -> Tensor:
    """The product of the vectors of each pair, shape ``(pairs,)``."""
    found = pairs.matrix(left.new_zeros(len(pairs.keys)))
    torch.sparse.sampled_addmm(found, left, right.mT, beta=0.0, out=found)
    return found.values()


def _csr(starts: Tensor, columns: Tensor, numbers: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(starts, columns, numbers, (len(starts) - 1,) * 2, check_invariants=False)
