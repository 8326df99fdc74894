"""Log-partition and marginals of arborescences by elimination in the logarithmic domain: slow, without subtraction, for any scores.

Logarithms of weights are pairs of float64 numbers (``_Log``), so that a soft mask of -1e20 that every tree must break does not absorb the scores
beside it: arcs are then chosen by the number and size of the masks first, exactly, and by the other scores among equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NEVER = -1e300
"""Stands for -inf in the logarithmic domain, where differences must stay numbers; a tree whose score is below half of it counts as impossible."""

_UNIT = 32.0
"""The high part of a logarithm is a multiple of this, the low part at most half of it."""
_BITS = 40
"""Significant bits of a score so large that they do not reach down to the unit: sums of 2^13 equal ones are then exact."""


class _Log(NamedTuple):
    """The logarithm ``high + low``: a multiple of the unit, which has no derivative, and a small remainder."""

    high: Tensor
    low: Tensor

    def at(self, *index: Tensor | slice | None) -> _Log:
        return _Log(self.high[index], self.low[index])


def eliminated(scores: Tensor, exists: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals without subtraction, for any scores; float64.

    Exact for scores that differ from the given ones by at most one part in 2^41 where these are above 2^45, and not at all below. Only trees that
    need an arc of -inf, or finite ones whose sum is below -5e299, are impossible.
    """
    again = torch.is_grad_enabled() and scores.requires_grad
    with torch.enable_grad():
        leaf = scores if again else scores.detach().requires_grad_()
        total = _eliminate(leaf, exists, single_root)
        possible = total.high > NEVER / 2
        partition = total.high + total.low
        (arcs,) = torch.autograd.grad(partition[possible].sum(), leaf, create_graph=again)
    # scores that are no numbers have no marginals, which is not to be taken for scores without any tree
    broken = ~(scores.detach() < torch.inf).all(2).all(1)
    partition = torch.where(possible, partition, -torch.inf).masked_fill(broken, torch.nan)
    arcs = torch.where(possible[:, None, None], arcs, 0).masked_fill(broken[:, None, None], torch.nan)
    return (partition, arcs) if again else (partition.detach(), arcs)


def eliminated_derivative(
    scores: Tensor, exists: Tensor | None, single_root: bool, directions: Sequence[Tensor]
) -> Tensor:
    """The gradient of the log-partition, differentiated in each of some directions of the scores; shape of ``scores``."""
    with torch.enable_grad():
        leaf = scores.detach().requires_grad_()
        _, gradient = eliminated(leaf, exists, single_root)
        for direction in directions:
            if not gradient.requires_grad:
                return torch.zeros_like(scores)
            (gradient,) = torch.autograd.grad((gradient * direction).sum(), leaf, create_graph=True)
    return gradient.detach()


def _eliminate(scores: Tensor, exists: Tensor | None, single_root: bool) -> _Log:
    """Remove one node after another: its head's arcs take over its modifiers, in proportion to the probability of each head.

    The node removed next is the one with the heaviest heads among those that remain, so that a forbidden arc is met only where all are.
    """
    batch, n = scores.shape[:2]
    arcs = _split(torch.where(scores == -torch.inf, NEVER, scores))
    roots = _Log(arcs.high.diagonal(dim1=1, dim2=2), arcs.low.diagonal(dim1=1, dim2=2))
    diagonal = torch.eye(n, dtype=torch.bool, device=scores.device)
    arcs = _only(~diagonal, arcs)
    left = torch.ones(batch, n, dtype=torch.bool, device=scores.device) if exists is None else exists
    total = _Log(scores.new_zeros(batch), scores.new_zeros(batch))
    rows = torch.arange(batch, device=scores.device)
    for _ in range(n - 1):
        heads = _only(left[:, :, None] & left[:, None, :], arcs)
        weight = _summed(heads if single_root else _Log(*(torch.cat([h, r[:, None]], 1) for h, r in zip(heads, roots, strict=True))))
        several = left.sum(1) > 1
        node = torch.where(left, (weight.high + weight.low).detach(), -torch.inf).argmax(1)
        own, row = weight.at(rows, node), heads.at(rows, node)
        total = _either(several, _times(total, own), total)
        share = _over(heads.at(rows, slice(None), node), own.at(slice(None), None))
        # a path that comes back to where it began is a cycle, and in no tree
        taken = _only(~diagonal, _times(share.at(slice(None), slice(None), None), row.at(slice(None), None)))
        arcs = _either(several[:, None, None], _added(arcs, taken), arcs)
        root_share = _over(roots.at(rows, node), own)
        roots = _either(several[:, None], _added(roots, _times(root_share.at(slice(None), None), row)), roots)
        left = left & ~(torch.nn.functional.one_hot(node, n).bool() & several[:, None])
    last = _summed(_only(left, roots))
    return _either(left.any(1), _times(total, last), total)


def _split(scores: Tensor) -> _Log:
    size = scores.detach()
    # of numbers so large that the unit is below their last bits, some bits are left free for sums
    exponent = torch.frexp(size).exponent
    unit = torch.ldexp(torch.ones_like(size), (exponent - _BITS).clamp_min(0)).clamp_min(_UNIT)
    high = (size / unit).round() * unit
    low = torch.where(unit > _UNIT, scores - size, scores - high)
    return _Log(high, low)


def _normal(high: Tensor, low: Tensor) -> _Log:
    carried = (low.detach() / _UNIT).round() * _UNIT
    high = high + carried
    never = high <= NEVER
    return _Log(torch.where(never, NEVER, high), torch.where(never, 0, low - carried))


def _times(a: _Log, b: _Log) -> _Log:
    return _normal(a.high + b.high, a.low + b.low)


def _over(a: _Log, b: _Log) -> _Log:
    return _normal(a.high - b.high, a.low - b.low)


def _summed(x: _Log) -> _Log:
    """Of the terms along the axis after the batch."""
    high = x.high.amax(1)
    return _normal(high, torch.logsumexp(x.low + (x.high - high[:, None]), 1))


def _added(a: _Log, b: _Log) -> _Log:
    # the second derivative of ``torch.logaddexp`` is NaN where the two are far apart
    return _summed(_Log(torch.stack([a.high, b.high], 1), torch.stack([a.low, b.low], 1)))


def _either(condition: Tensor, a: _Log, b: _Log) -> _Log:
    return _Log(torch.where(condition, a.high, b.high), torch.where(condition, a.low, b.low))


def _only(condition: Tensor, x: _Log) -> _Log:
    return _Log(torch.where(condition, x.high, NEVER), torch.where(condition, x.low, 0))
