"""Log-partition and marginals of arborescences by elimination in the logarithmic domain: slow, without
subtraction, for any scores.

Logarithms of weights are pairs of float64 numbers (``_Log``), so that a soft mask of -1e20 that every tree
must break does not absorb the other scores: trees are compared by the number and size of their masked arcs
first, exactly, and by the other scores in case of ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NEVER = -1e300
"""Finite stand-in for -inf, so that differences are not NaN; trees scored below half of it are impossible."""

_UNIT = 32.0
"""The high part of a logarithm is a multiple of this, the low part at most half of it."""
_BITS = 40
"""Bits kept of scores above 2^40 units, so that sums of 2^13 equal ones are exact."""


class _Log(NamedTuple):
    """The logarithm ``high + low``: a multiple of the unit, which has no derivative, and a small
    remainder."""

    high: Tensor
    low: Tensor

    def at(self, *index: Tensor | slice | None) -> _Log:
        return _Log(self.high[index], self.low[index])


def solve_by_elimination(scores: Tensor, exists: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals without subtraction, for any scores; float64.

    Exact for scores rounded by at most one part in 2^41 where they are above 2^45, and unrounded below.
    Only trees that need an arc of -inf, or whose finite scores sum to less than -5e299, are impossible.
    """
    differentiable = torch.is_grad_enabled() and scores.requires_grad
    # inference mode records no graph, and its tensors cannot be saved for one
    with torch.inference_mode(False), torch.enable_grad():
        leaf = scores if differentiable else scores.detach().clone().requires_grad_()
        total = _eliminate(leaf, None if exists is None else exists.clone(), single_root)
        possible = total.high > NEVER / 2
        partition = total.high + total.low
        (arcs,) = torch.autograd.grad(partition[possible].sum(), leaf, create_graph=differentiable)
    # NaN or +inf scores give NaN, to distinguish them from scores without any tree
    invalid = ~(scores.detach() < torch.inf).all(2).all(1)
    partition = torch.where(possible, partition, -torch.inf).masked_fill(invalid, torch.nan)
    arcs = torch.where(possible[:, None, None], arcs, 0).masked_fill(invalid[:, None, None], torch.nan)
    return (partition, arcs) if differentiable else (partition.detach(), arcs)


def derivative_by_elimination(
    scores: Tensor, exists: Tensor | None, single_root: bool, directions: Sequence[Tensor]
) -> Tensor:
    """Gradient of the log-partition, differentiated in each of the directions; shape of ``scores``."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = scores.detach().clone().requires_grad_()
        _, gradient = solve_by_elimination(leaf, exists, single_root)
        for direction in directions:
            if not gradient.requires_grad:
                return torch.zeros_like(scores)
            (gradient,) = torch.autograd.grad((gradient * direction).sum(), leaf, create_graph=True)
    return gradient.detach()


def _eliminate(scores: Tensor, exists: Tensor | None, single_root: bool) -> _Log:
    """Eliminate nodes one by one, reassigning their modifiers to their heads by the probability of each head.

    The next node is the one with the largest total weight of heads among those that remain, so that
    forbidden arcs are used only where all are forbidden.
    """
    batch, n = scores.shape[:2]
    arcs = _split(torch.where(scores == -torch.inf, NEVER, scores))
    roots = _Log(arcs.high.diagonal(dim1=1, dim2=2), arcs.low.diagonal(dim1=1, dim2=2))
    diagonal = torch.eye(n, dtype=torch.bool, device=scores.device)
    arcs = _mask(~diagonal, arcs)
    remaining = torch.ones(batch, n, dtype=torch.bool, device=scores.device) if exists is None else exists
    total = _Log(scores.new_zeros(batch), scores.new_zeros(batch))
    rows = torch.arange(batch, device=scores.device)
    for _ in range(n - 1):
        heads = _mask(remaining[:, :, None] & remaining[:, None, :], arcs)
        weight = _sum(
            heads
            if single_root
            else _Log(*(torch.cat([h, r[:, None]], 1) for h, r in zip(heads, roots, strict=True)))
        )
        several = remaining.sum(1) > 1
        node = torch.where(remaining, (weight.high + weight.low).detach(), -torch.inf).argmax(1)
        own, row = weight.at(rows, node), heads.at(rows, node)
        total = _where(several, _multiply(total, own), total)
        share = _divide(heads.at(rows, slice(None), node), own.at(slice(None), None))
        # a path that returns to its start is a cycle, which no tree contains
        paths = _mask(
            ~diagonal, _multiply(share.at(slice(None), slice(None), None), row.at(slice(None), None))
        )
        arcs = _where(several[:, None, None], _add(arcs, paths), arcs)
        root_share = _divide(roots.at(rows, node), own)
        roots = _where(several[:, None], _add(roots, _multiply(root_share.at(slice(None), None), row)), roots)
        remaining = remaining & ~(torch.nn.functional.one_hot(node, n).bool() & several[:, None])
    root_weight = _sum(_mask(remaining, roots))
    return _where(remaining.any(1), _multiply(total, root_weight), total)


def _split(scores: Tensor) -> _Log:
    size = scores.detach()
    # where the unit is below the root_weight bit of a number, some bits are remaining free for sums
    exponent = torch.frexp(size).exponent
    unit = torch.ldexp(torch.ones_like(size), (exponent - _BITS).clamp_min(0)).clamp_min(_UNIT)
    high = (size / unit).round() * unit
    low = torch.where(unit > _UNIT, scores - size, scores - high)
    return _Log(high, low)


def _normalize(high: Tensor, low: Tensor) -> _Log:
    carry = (low.detach() / _UNIT).round() * _UNIT
    high = high + carry
    impossible = high <= NEVER
    return _Log(torch.where(impossible, NEVER, high), torch.where(impossible, 0, low - carry))


def _multiply(a: _Log, b: _Log) -> _Log:
    return _normalize(a.high + b.high, a.low + b.low)


def _divide(a: _Log, b: _Log) -> _Log:
    return _normalize(a.high - b.high, a.low - b.low)


def _sum(x: _Log) -> _Log:
    """Log-sum of the terms along the axis after the batch."""
    high = x.high.amax(1)
    return _normalize(high, torch.logsumexp(x.low + (x.high - high[:, None]), 1))


def _add(a: _Log, b: _Log) -> _Log:
    # the second derivative of ``torch.logaddexp`` is NaN where the two are far apart
    return _sum(_Log(torch.stack([a.high, b.high], 1), torch.stack([a.low, b.low], 1)))


def _where(condition: Tensor, a: _Log, b: _Log) -> _Log:
    return _Log(torch.where(condition, a.high, b.high), torch.where(condition, a.low, b.low))


def _mask(condition: Tensor, x: _Log) -> _Log:
    return _Log(torch.where(condition, x.high, NEVER), torch.where(condition, x.low, 0))
