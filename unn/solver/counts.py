"""The counting constraints of a layout as groups of candidates with bounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import Layout


@dataclass(frozen=True, eq=False)
class Counts:
    """The counting constraints of a layout, without the groups of single nodes.

    Attributes:
        candidate, group: members of the groups, as pairs sorted by group, shape ``(pairs,)``.
        lower, upper: bounds of each group, shape ``(groups, 1)``.
    """

    candidate: Tensor
    group: Tensor
    lower: Tensor
    upper: Tensor

    def cost(self, counts: Tensor) -> Tensor:
        """Distance of counts from the bounds, shape ``(groups, chains)``."""
        return (self.lower - counts).clamp(min=0) + (counts - self.upper).clamp(min=0)

    def select(self, groups: Tensor) -> Counts:
        """Bounds of some groups, without members."""
        none = self.candidate[:0]
        return Counts(none, none, self.lower[groups], self.upper[groups])


def counts_of(layout: Layout) -> Counts:
    """The groups of the constraints of a layout."""
    none = torch.zeros(0, dtype=torch.long)
    candidates, groups = [none], [none]
    lower, upper = [torch.zeros(0, 1)], [torch.zeros(0, 1)]
    first = 0
    for family in layout.families[len(layout.frame.slots) :]:
        count, members = family.entries.shape
        candidates.append(family.entries.flatten())
        groups.append(torch.arange(first, first + count).repeat_interleave(members))
        least, most = family.bounds
        lower.append(torch.full((count, 1), float(least)))
        upper.append(torch.full((count, 1), float(members if most is None else most)))
        first += count
    return Counts(torch.cat(candidates), torch.cat(groups), torch.cat(lower), torch.cat(upper))


def intersected(counts: Counts) -> Counts:
    """Groups with the same members as one, with the bounds of all."""
    sizes = torch.bincount(counts.group, minlength=len(counts.lower)).tolist()
    sets = [tuple(sorted(x.tolist())) for x in counts.candidate.split(sizes)] if sizes else []
    numbers: dict[tuple[int, ...], int] = {}
    place = torch.tensor([numbers.setdefault(x, len(numbers)) for x in sets], dtype=torch.long)[:, None]
    lower = torch.zeros(len(numbers), 1).scatter_reduce(0, place, counts.lower, "amax")
    upper = torch.full((len(numbers), 1), torch.inf).scatter_reduce(0, place, counts.upper, "amin")
    members = [torch.tensor(x, dtype=torch.long) for x in numbers]
    lengths = torch.tensor([len(x) for x in members], dtype=torch.long)
    group = torch.arange(len(numbers)).repeat_interleave(lengths)
    return Counts(torch.cat([counts.candidate[:0], *members]), group, lower, upper)
