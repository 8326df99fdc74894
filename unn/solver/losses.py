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
    ``(groups,)``, by the recursion over its members, those of one node together. Candidates that occur
    several times count as often."""
    groups = len(packed.group)
    pointer, single = packed.pairs_to_groups.pointer, probabilities[packed.to_groups.members]
    # by the number of times that a member counts
    by_multiplicity = {1: single}
    if packed.parts is not None:
        pointer, multiplicity = packed.parts.pointer, packed.parts.multiplicity
        none = single.new_zeros(int(pointer[-1]))
        by_multiplicity = {
            int(k): none.index_add(0, packed.parts.part, torch.where(multiplicity == k, single, 0))
            for k in multiplicity[multiplicity > 0].unique()
        }
    members = pointer[1:] - pointer[:-1]
    most = int(members.max()) if groups else 0
    number = torch.arange(most, device=pointer.device)
    place = pointer[:-1, None] + number
    exists = number < members[:, None]
    by_multiplicity = {
        k: torch.where(exists, x[place.clamp(max=len(x) - 1)], 0) for k, x in by_multiplicity.items()
    }
    pairs = packed.pairs_to_groups.pointer
    greatest = packed.upper.minimum(pairs[1:] - pairs[:-1])
    largest = int(greatest.max()) + 1 if groups else 1
    # counts 0, 1, ..., largest; the last one stands for all that are at least as large
    counts = F.pad(single.new_ones(groups, 1), (0, largest))
    for k in range(most):
        own = {times: x[:, k, None] for times, x in by_multiplicity.items()}
        neither = (1 - torch.stack(list(own.values())).sum(0)).clamp(min=0)
        raised = [_raised(counts, times) * p for times, p in own.items()]
        counts = counts * neither + torch.stack(raised).sum(0)
    number = torch.arange(largest + 1, device=pointer.device)
    allowed = (number >= packed.lower[:, None]) & (number <= packed.upper[:, None])
    return (counts * allowed).sum(1)


def _raised(counts: Tensor, times: int) -> Tensor:
    """Distribution of counts that are larger by ``times``, shape ``(groups, counts)``; the last count stands
    for all that are at least as large."""
    last = counts.shape[1] - 1
    padded = F.pad(counts, (times, 0))
    return torch.cat([padded[:, :last], padded[:, last:].sum(1, keepdim=True)], 1)
