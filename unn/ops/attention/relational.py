"""Attention by terms: dense products along axes and lists of pairs, merged into one softmax.

Memory: one number per pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .terms import Aligned, Listed, Term, Window

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
    gathered = max((term.pairs * query.shape[2] for term in terms if isinstance(term, Listed)), default=1)
    step = max(1, _AT_ONCE // max(1, gathered))
    if step >= len(query):
        out: Tensor = _ByTerms.apply(query, key, value, terms)
        return out
    parts = zip(query.split(step), key.split(step), value.split(step), strict=True)
    return torch.cat([_ByTerms.apply(q, k, v, terms) for q, k, v in parts])


class _ByTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, terms: Sequence[Term]) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        most = query.new_full(query.shape[:2], -torch.inf)
        scores = []
        for term in terms:
            of_term = _scores(query, key, term)
            _update_maximum(most, term, of_term)
            scores.append(of_term)
        most.clamp_(min=torch.finfo(most.dtype).min)
        whole = torch.zeros_like(most)
        out = torch.zeros_like(value)
        for term, weights in zip(terms, scores, strict=True):
            weights.sub_(_of_queries(most, term)).exp_()
            _add_sums(out, whole, value, term, weights)
        out.div_(whole.clamp_(min=torch.finfo(whole.dtype).tiny)[..., None])
        ctx.save_for_backward(query, key, value, out, whole, *scores)
        ctx.terms = terms
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, whole, *saved = ctx.saved_tensors
        gradient, common = softmax_backward_terms(gradient, out, whole)
        by_query, by_key, by_value = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for term, weights in zip(ctx.terms, saved, strict=True):
            changed = _scores(gradient, value, term, hide=False).sub_(_of_queries(common, term)).mul_(weights)
            _add_to_keys(by_value, gradient, term, weights)
            _add_to_keys(by_key, query, term, changed)
            _add_to_queries(by_query, key, term, changed)
        return by_query, by_key, by_value, None


def softmax_backward_terms(gradient: Tensor, out: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Per-query terms of the softmax backward.

    Args:
        gradient, out: gradient of the output, and the output, shape ``(batch, nodes, width)``.
        whole: denominator of the softmax of each query, positive, shape ``(batch, nodes)``.

    Returns:
        gradient / whole, shape ``(batch, nodes, width)``, and sum(gradient / whole * out), shape
        ``(batch, nodes)``.
    """
    shared = (gradient / whole[..., None]).contiguous()
    return shared, (shared * out).sum(2)


def _scores(query: Tensor, key: Tensor, term: Term, hide: bool = True) -> Tensor:
    """Scores of a term, shape ``(batch, *letters)``, ``(batch, groups, m, n)`` or ``(batch, pairs)``."""
    if isinstance(term, Listed):
        return (query.index_select(1, term.queries) * key.index_select(1, term.keys)).sum(-1)
    if isinstance(term, Aligned):
        scores = (term.queries.of(query) * term.keys.of(key)).sum(-1)
    else:
        # matrix products are in half precision under autocast
        products = _matrices(query, term.queries, term.groups) @ _matrices(key, term.keys, term.groups).mT
        scores = products.to(query.dtype)
    return scores.masked_fill_(term.hidden, -torch.inf) if hide and term.hidden is not None else scores


def _of_queries(x: Tensor, term: Term) -> Tensor:
    """Broadcast one number per query, shape ``(batch, nodes)``, to the shape of the scores."""
    if isinstance(term, Listed):
        return x.index_select(1, term.queries)
    if isinstance(term, Aligned):
        return term.queries.of(x)
    return _matrices(x, term.queries, term.groups)[..., None]


def _update_maximum(most: Tensor, term: Term, scores: Tensor) -> None:
    """Update the running maximum score of each query, in place."""
    if isinstance(term, Listed):
        most.scatter_reduce_(1, term.queries.expand(len(most), -1), scores, "amax")
        return
    if isinstance(term, Aligned):
        maximum = scores.amax(term.query_sum, keepdim=True) if term.query_sum else scores
    else:
        maximum = scores.amax(-1)
    window = term.queries.of(most)
    torch.maximum(window, maximum.view(window.shape), out=window)


def _add_sums(out: Tensor, whole: Tensor, value: Tensor, term: Term, weights: Tensor) -> None:
    """Add the sum of the weights of each query and the weighted sum of its values, in place."""
    if isinstance(term, Listed):
        whole.index_add_(1, term.queries, weights)
    else:
        axes = term.query_sum if isinstance(term, Aligned) else (-1,)
        window = term.queries.of(whole)
        window.add_((weights.sum(axes, keepdim=True) if axes else weights).view(window.shape))
    _add_to_queries(out, value, term, weights)


def _add_to_queries(to: Tensor, of_keys: Tensor, term: Term, weights: Tensor) -> None:
    """Add the weighted vectors of its keys to each query, in place."""
    if isinstance(term, Listed):
        to.index_add_(1, term.queries, of_keys.index_select(1, term.keys).mul_(weights[..., None]))
    elif isinstance(term, Aligned):
        _add_aligned(to, term.queries, term.keys.of(of_keys), weights, term.query_sum)
    else:
        window = term.queries.of(to)
        window.add_((weights @ _matrices(of_keys, term.keys, term.groups)).view(window.shape))


def _add_to_keys(to: Tensor, of_queries: Tensor, term: Term, weights: Tensor) -> None:
    """Add the weighted vectors of its queries to each key, in place."""
    if isinstance(term, Listed):
        to.index_add_(1, term.keys, of_queries.index_select(1, term.queries).mul_(weights[..., None]))
    elif isinstance(term, Aligned):
        _add_aligned(to, term.keys, term.queries.of(of_queries), weights, term.key_sum)
    else:
        window = term.keys.of(to)
        window.add_((weights.mT @ _matrices(of_queries, term.queries, term.groups)).view(window.shape))


def _add_aligned(to: Tensor, where: Window, vectors: Tensor, weights: Tensor, axes: tuple[int, ...]) -> None:
    if axes:
        where.of(to).add_((weights[..., None] * vectors).sum(axes, keepdim=True))
    else:
        where.of(to).addcmul_(weights[..., None], vectors)


def _matrices(x: Tensor, window: Window, groups: int) -> Tensor:
    """Nodes of a window, shape ``(batch, groups, members, ...)``."""
    view = window.of(x)
    members = view.shape[1 + groups : 1 + len(window.sizes)].numel()
    return view.reshape(len(x), -1 if view.numel() else 0, members, *x.shape[2:])
