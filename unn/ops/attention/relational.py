"""Attention by terms: dense products along axes and lists of pairs, merged into one softmax.

Memory: one number per pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .terms import NodeList, Term

_AT_ONCE = 64 * 1024 * 1024
"""Maximum number of values gathered at once."""


def attention_by_terms(query: Tensor, key: Tensor, value: Tensor, terms: Sequence[Term]) -> Tensor:
    """Attention over disjoint terms.

    Args:
        query, key: shape ``(batch, nodes, width)``, the query scaled; not in half precision, in
            which sums over many neighbours overflow or stall.
        value: shape ``(batch, nodes, width of values)``.
        terms: disjoint terms that cover every pair.

    Returns:
        Shape ``(batch, nodes, width of values)``; zero for nodes without neighbours.
    """
    lists = [term.pairs for term in terms if isinstance(term.queries, NodeList)]
    step = max(1, _AT_ONCE // max(1, query.shape[2] * max(lists, default=0)))
    if step >= len(query):
        out: Tensor = _ByTerms.apply(query, key, value, terms)
        return out
    parts = zip(query.split(step), key.split(step), value.split(step), strict=True)
    return torch.cat([_ByTerms.apply(q, k, v, terms) for q, k, v in parts])


class _ByTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, terms: Sequence[Term]) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        row_max = query.new_full(query.shape[:2], -torch.inf)
        weights = []
        for term in terms:
            scores = term.scores(query, key)
            term.queries.raise_to(row_max, scores)
            weights.append(scores)
        row_max.clamp_(min=torch.finfo(row_max.dtype).min)
        denominator = torch.zeros_like(row_max)
        out = torch.zeros_like(value)
        for term, of_term in zip(terms, weights, strict=True):
            of_term.sub_(term.per_query(row_max)).exp_()
            term.queries.add(denominator, of_term)
            term.add_to_queries(out, of_term, value)
        out.div_(denominator.clamp_(min=torch.finfo(denominator.dtype).tiny)[..., None])
        ctx.save_for_backward(query, key, value, out, denominator, *weights)
        ctx.terms = terms
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, denominator, *weights = ctx.saved_tensors
        grad, row_dot = softmax_backward_terms(grad, out, denominator)
        grad_query, grad_key, grad_value = map(torch.zeros_like, (query, key, value))
        for term, of_term in zip(ctx.terms, weights, strict=True):
            grad_scores = term.products(grad, value).sub_(term.per_query(row_dot)).mul_(of_term)
            term.add_to_keys(grad_value, of_term, grad)
            term.add_to_keys(grad_key, grad_scores, query)
            term.add_to_queries(grad_query, grad_scores, key)
        return grad_query, grad_key, grad_value, None


def softmax_backward_terms(grad: Tensor, out: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    """Per-query terms of the softmax backward.

    Args:
        grad, out: gradient of the output, and the output, shape ``(batch, nodes, width)``.
        denominator: denominator of the softmax of each query, positive, shape ``(batch, nodes)``.

    Returns:
        grad / denominator, and its inner product with ``out``, shape ``(batch, nodes)``.
    """
    scaled = (grad / denominator[..., None]).contiguous()
    return scaled, (scaled * out).sum(2)
