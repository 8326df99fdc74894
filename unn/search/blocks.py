"""Blocks of nodes that share no group, and their incidence with the groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.adjacency import adjacency
from ..graph.colouring import greedy_colours
from ..ops.sparse import sums
from ..solver.layout import Layout


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


@dataclass(frozen=True, eq=False)
class NodeBlock:
    """Nodes of one variable that share no group.

    Attributes:
        candidates: candidates of the nodes, shape ``(nodes, values)``.
        groups: groups with a member among them, shape ``(groups,)``.
        counts: the bounds of these groups.
        to_groups: sums over the candidates of each of these groups, sparse.
        to_candidates: sums over these groups of each candidate, sparse.
    """

    candidates: Tensor
    groups: Tensor
    counts: Counts
    to_groups: Tensor
    to_candidates: Tensor


def counts_of(layout: Layout) -> Counts:
    """The groups of the constraints of a layout."""
    candidates, groups, lower, upper = [], [], [], []
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


def blocks_of(layout: Layout, counts: Counts) -> list[NodeBlock]:
    """All nodes in blocks, by greedy colouring of the graph of nodes in common groups."""
    frame = layout.frame
    colours = torch.from_numpy(greedy_colours(adjacency(layout.graph, frame.sizes).matrix))
    by_candidate = counts.candidate.argsort(stable=True)
    candidate, group = counts.candidate[by_candidate], counts.group[by_candidate]
    blocks = []
    for slot in frame.slots.values():
        own = colours[slot.nodes]
        numbers = torch.arange(slot.numbers.start, slot.numbers.stop).view(-1, slot.channels)
        for colour in own.unique().tolist():
            chosen = numbers[own == colour]
            place = torch.full((layout.candidates,), -1)
            place[chosen.flatten()] = torch.arange(chosen.numel())
            pairs = place[candidate] >= 0
            rows, (groups, columns) = place[candidate[pairs]], group[pairs].unique(return_inverse=True)
            shape = (len(groups), chosen.numel())
            blocks.append(
                NodeBlock(
                    chosen,
                    groups,
                    counts.select(groups),
                    sums(columns, rows, shape),
                    sums(rows, columns, (shape[1], shape[0])),
                )
            )
    return blocks
