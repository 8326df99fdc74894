"""Blocks of nodes that share no group, and their incidence with the groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.adjacency import adjacency
from ..graph.colouring import greedy_colours
from ..ops.sparse import sums
from ..solver.counts import Counts
from ..solver.layout import Layout


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
