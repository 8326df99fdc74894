"""Losses of the scores of open candidates: from labels, or from the constraints alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .packing import Packed, group_sums

_LARGEST = 40.0
"""Bound on scores in exponentials."""

_SMALLEST = 1e-4
"""Smallest probability in the loss of a constraint."""


def label_loss(scores: Tensor, truth: Tensor, packed: Packed) -> Tensor:
    """Cross-entropy of the true candidate in each group of exactly one; a scalar, the mean over groups.

    Args:
        scores: shape ``(candidates,)``.
        truth: 1 for true candidates, 0 for others, shape ``(candidates,)``.
        packed: candidates and groups.
    """
    one = (packed.lower == 1) & (packed.upper == 1)
    bounded = scores.clamp(-_LARGEST, _LARGEST)
    sums = group_sums(torch.stack([bounded.exp(), bounded * truth], 1), packed)
    return (sums[one, 0].log() - sums[one, 1]).mean() if bool(one.any()) else scores.sum() * 0


def constraint_surprise(scores: Tensor, packed: Packed) -> Tensor:
    """Minus the log-probability that each group of several nodes meets its bounds; a scalar, the mean.

    Nodes are independent, with probabilities by softmax of their scores, and have one value each.

    Args:
        scores: shape ``(candidates,)``.
        packed: candidates and groups.
    """
    bounded = scores.clamp(-_LARGEST, _LARGEST)
    weights = bounded.exp()
    totals = group_sums(weights[:, None], packed)[:, 0]
    probabilities = weights / totals[packed.node]
    nodes = torch.zeros_like(packed.group, dtype=torch.bool)
    nodes[packed.node] = True
    within = _within_bounds(probabilities, packed)
    surprise = -(within[~nodes].clamp(min=0) + _SMALLEST).log()
    return surprise.mean() if len(surprise) else scores.sum() * 0


def _within_bounds(probabilities: Tensor, packed: Packed) -> Tensor:
    """Probability that the number of true candidates of each group lies within its bounds, shape
    ``(groups,)``, by the recursion over its members, those of one node together."""
    groups = len(packed.group)
    pointer, single = packed.pairs_to_groups.pointer, probabilities[packed.to_groups.members]
    if packed.parts is not None:
        pointer = packed.parts.pointer
        single = single.new_zeros(int(pointer[-1])).index_add(0, packed.parts.part, single).clamp(max=1)
    members = pointer[1:] - pointer[:-1]
    most = int(members.max()) if groups else 0
    number = torch.arange(most, device=pointer.device)
    place = pointer[:-1, None] + number
    exists = number < members[:, None]
    p = torch.where(exists, single[place.clamp(max=len(single) - 1)], 0)
    largest = int(packed.upper.clamp(max=most).max()) + 1 if groups else 1
    # counts 0, 1, ..., largest; the last one stands for all that are at least as large
    counts = F.pad(p.new_ones(groups, 1), (0, largest))
    for k in range(most):
        q = p[:, k, None]
        up = F.pad(counts[:, :-1], (1, 0))
        top = F.pad(counts[:, -1:], (largest, 0))
        counts = counts * (1 - q) + (up + top) * q
    number = torch.arange(largest + 1, device=pointer.device)
    allowed = (number >= packed.lower[:, None]) & (number <= packed.upper[:, None])
    return (counts * allowed).sum(1)
