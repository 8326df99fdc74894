"""Attention by sparse matrix products (CSR): only the scores of the mask's pairs are computed."""

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
from .relational import softmax_backward_terms

_AT_ONCE = 2**16
"""Maximum number of pairs per block-diagonal matrix; more would exceed the CPU caches."""


@dataclass(frozen=True, eq=False)
class PairMatrix:
    """CSR matrix of the mask, block-diagonal over ``copies`` batch elements, with its transpose.

    Attributes:
        copies: number of batch elements.
        starts: row pointers of the queries, shape ``(copies * nodes + 1,)``.
        keys: key of each pair, pairs sorted by query, shape ``(pairs,)``.
        queries: query of each pair, pairs sorted by query, shape ``(pairs,)``.
        order_by_key: permutation that sorts the pairs by key, shape ``(pairs,)``.
        key_starts: row pointers of the transpose.
        queries_by_key: query of each pair, pairs sorted by key.
    """

    copies: int
    starts: Tensor
    keys: Tensor
    queries: Tensor
    order_by_key: Tensor
    key_starts: Tensor
    queries_by_key: Tensor

    def first(self, copies: int) -> PairMatrix:
        """The matrix of the first ``copies`` batch elements."""
        nodes, pairs = (len(self.starts) - 1) // self.copies * copies, len(self.keys) // self.copies * copies
        return PairMatrix(
            copies, self.starts[: nodes + 1], self.keys[:pairs], self.queries[:pairs],
            self.order_by_key[:pairs], self.key_starts[: nodes + 1], self.queries_by_key[:pairs],
        )  # fmt: skip

    def matrix(self, numbers: Tensor) -> Tensor:
        """Matrix of queries by keys, with one number per pair."""
        return _csr(self.starts, self.keys, numbers)

    def transpose(self, numbers: Tensor) -> Tensor:
        """Matrix of keys by queries, with one number per pair."""
        return _csr(self.key_starts, self.queries_by_key, numbers.index_select(0, self.order_by_key))


def max_batch_copies(adjacency: Adjacency) -> int:
    """Number of batch elements per block-diagonal matrix."""
    return max(1, _AT_ONCE // max(1, len(adjacency.rows), adjacency.count))


def pairs_of(adjacency: Adjacency, copies: int, device: torch.device) -> PairMatrix:
    """Block-diagonal matrix of ``copies`` copies of the mask."""
    with warnings.catch_warnings():
        # torch warns once, at the first CSR matrix
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        _csr(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    count = adjacency.count
    shift = np.arange(copies)[:, None]
    queries, keys = ((nodes + shift * count).ravel() for nodes in (adjacency.rows, adjacency.columns))
    order_by_key = np.argsort(keys, kind="stable")
    kind = torch.int32 if max(len(queries), copies * count) < 2**31 else torch.int64

    def as_index(numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(device, kind)

    def starts(sorted_nodes: np.ndarray) -> Tensor:
        return as_index(np.searchsorted(sorted_nodes, np.arange(copies * count + 1)))

    return PairMatrix(
        copies, starts(queries), as_index(keys), as_index(queries),
        as_index(order_by_key), starts(keys[order_by_key]), as_index(queries[order_by_key]),
    )  # fmt: skip


def attention_by_pairs(query: Tensor, key: Tensor, value: Tensor, pairs: Sequence[PairMatrix]) -> Tensor:
    """Attention over pairs.

    Args:
        query, key: shape ``(batch, nodes, width)``; the query scaled.
        value: shape ``(batch, nodes, width of values)``.
        pairs: matrices that together have one copy of the mask per batch element.

    Returns:
        Shape ``(batch, nodes, width of values)``; zero for nodes without neighbours.
    """
    out: Tensor = _ByPairs.apply(query, key, value, pairs)
    return out


class _ByPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, pairs: Sequence[PairMatrix]) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        out = torch.empty_like(value)
        denominator = value.new_empty(value.shape[:2])
        saved = []
        for part, q, k, v, o, w in _parts(pairs, query, key, value, out, denominator):
            weights = _products(q, k, part)
            row_max = torch.segment_reduce(weights, "max", offsets=part.starts, axis=0)
            weights.sub_(row_max.index_select(0, part.queries)).exp_()
            w.copy_(torch.segment_reduce(weights, "sum", offsets=part.starts, axis=0))
            o.addmm_(part.matrix(weights), v, beta=0.0)
            saved.append(weights)
        out.div_(denominator.clamp_(min=torch.finfo(denominator.dtype).tiny)[..., None])
        ctx.save_for_backward(query, key, value, out, denominator, *saved)
        ctx.pairs = pairs
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, denominator, *saved = ctx.saved_tensors
        grad, row_dot = softmax_backward_terms(grad, out, denominator)
        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        parts = _parts(ctx.pairs, query, key, value, grad, row_dot, *grads)
        for weights, (part, q, k, v, g, c, grad_q, grad_k, grad_v) in zip(saved, parts, strict=True):
            grad_scores = _products(g, v, part).sub_(c.index_select(0, part.queries)).mul_(weights)
            grad_v.addmm_(part.transpose(weights), g, beta=0.0)
            grad_k.addmm_(part.transpose(grad_scores), q, beta=0.0)
            grad_q.addmm_(part.matrix(grad_scores), k, beta=0.0)
        return *grads, None


def _parts(pairs: Sequence[PairMatrix], *arrays: Tensor) -> Iterator[tuple[Any, ...]]:
    """Each matrix with views of the vectors of its nodes, shape ``(copies * nodes, ...)``."""
    start = 0
    for part in pairs:
        yield part, *(x[start : start + part.copies].flatten(0, 1) for x in arrays)
        start += part.copies


def _products(left: Tensor, right: Tensor, pairs: PairMatrix) -> Tensor:
    """Inner product of the vectors of each pair, shape ``(pairs,)``."""
    products = pairs.matrix(left.new_zeros(len(pairs.keys)))
    torch.sparse.sampled_addmm(products, left, right.mT, beta=0.0, out=products)
    return products.values()


def _csr(starts: Tensor, columns: Tensor, numbers: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(starts, columns, numbers, (len(starts) - 1,) * 2, check_invariants=False)
