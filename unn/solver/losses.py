"""Losses of the scores of open candidates: from labels, or from the constraints alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .packing import Packed, group_sums

_LARGEST = 40.0
"""Bound on scores in exponentials."""

_SMALLEST = 1e-4
"""Smallest probability in the loss of a constraint."""

_PREFERENCE = 8.0
"""Factor of the losses of the rows of an example, by which the best ones are preferred."""

_EQUAL = 0.1
"""Part of the weight of an example that its rows have in equal shares."""


@dataclass(frozen=True, eq=False)
class RowLosses:
    """Losses of parts of a batch, such as groups, by row.

    Attributes:
        sums: sums over the parts of each row, shape ``(rows,)``.
        counts: numbers of parts, shape ``(rows,)``.
    """

    sums: Tensor
    counts: Tensor

    @classmethod
    def of(cls, losses: Tensor, row: Tensor, rows: int) -> RowLosses:
        """Losses of parts, shape ``(parts,)``, of which each belongs to a row."""
        none = losses.new_zeros(rows)
        return cls(none.index_add(0, row, losses), none.index_add(0, row, torch.ones_like(losses)))

    def by_row(self) -> Tensor:
        """Mean of each row, 0 for one without parts, shape ``(rows,)``."""
        return self.sums / self.counts.clamp(min=1)

    def mean(self, weights: Tensor | None = None) -> Tensor:
        """Mean over the parts of all rows, a scalar; 0 without parts.

        Args:
            weights: weight of each row, shape ``(rows,)``; equal ones by default.
        """
        weights = torch.ones_like(self.counts) if weights is None else weights
        return (weights * self.sums).sum() / (weights * self.counts).sum().clamp(min=1e-9)


def preferences(losses: Tensor, breadth: int) -> Tensor:
    """Weights of rows by which those of one example that are nearest to its answer count the most.

    Where only guesses are possible, the mean loss of all rows is least for a network that hedges, and that of
    the best row for one that guesses and follows its guess. The rows of an example, which begin at different
    random states, have the weights of a softmax of minus their losses, and a small part is equal for all.

    Args:
        losses: loss of each row, shape ``(examples * breadth,)``; rows of one example follow one another.
        breadth: number of rows of an example.

    Returns:
        Weights with mean 1 over the rows of each example, shape ``(examples * breadth,)``.
    """
    chosen = (-_PREFERENCE * losses.detach()).view(-1, breadth).softmax(1).flatten()
    return (1 - _EQUAL) * breadth * chosen + _EQUAL


def label_losses(scores: Tensor, truth: Tensor, packed: Packed) -> RowLosses:
    """Cross-entropy of the true candidate in each group of exactly one.

    Args:
        scores: shape ``(candidates,)``.
        truth: 1 for true candidates, 0 for others, shape ``(candidates,)``.
        packed: candidates and groups.
    """
    one = (packed.lower == 1) & (packed.upper == 1)
    bounded = scores.clamp(-_LARGEST, _LARGEST)
    sums = group_sums(torch.stack([bounded.exp(), bounded * truth], 1), packed)
    return RowLosses.of(sums[one, 0].log() - sums[one, 1], packed.group_row[one], packed.batch)


def constraint_surprises(scores: Tensor, packed: Packed) -> RowLosses:
    """Minus the log-probability that each group of several nodes meets its bounds.

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
    return RowLosses.of(surprise, packed.group_row[~nodes], packed.batch)


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
