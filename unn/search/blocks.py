"""Blocks of nodes that share no group, and their incidence with the groups."""

from __future__ import annotations

import functools
from collections.abc import Iterable
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
        to_groups: sums over the candidates of each of these groups, sparse; candidates that occur several
            times in a group count as often.
        by_multiplicity: numbers of times that candidates occur in groups, each with the sums over the groups
            in which a candidate occurs so often, sparse, shape ``(candidates, groups)``.
    """

    candidates: Tensor
    groups: Tensor
    counts: Counts
    to_groups: Tensor
    by_multiplicity: tuple[tuple[int, Tensor], ...]

    def rise(self, without: Tensor) -> Tensor:
        """Cost of the groups where a candidate is the true one of its node, in excess of that without any.

        Args:
            without: counts of the groups without the nodes of this block, shape ``(groups, chains)``.

        Returns:
            Shape ``(candidates, chains)``.
        """
        cost = self.counts.cost(without)
        return _total(groups @ (self.counts.cost(without + k) - cost) for k, groups in self.by_multiplicity)

    def members_of(self, groups: Tensor) -> Tensor:
        """Whether each node has a candidate in marked groups, shape ``(nodes, chains)``.

        Args:
            groups: 1 for these groups, 0 for others, shape ``(groups, chains)``.
        """
        marks = _total(own @ groups for _, own in self.by_multiplicity)
        return marks.view(*self.candidates.shape, -1).sum(1) > 0


def _total(terms: Iterable[Tensor]) -> Tensor:
    """Sum of at least one tensor."""
    return functools.reduce(torch.add, terms)


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
                    _by_multiplicity(rows, columns, (shape[1], shape[0])),
                )
            )
    return blocks


def _by_multiplicity(
    candidates: Tensor, groups: Tensor, shape: tuple[int, int]
) -> tuple[tuple[int, Tensor], ...]:
    """Sums over the groups of each candidate, by the number of times that the pair occurs."""
    pairs, repeats = (candidates * shape[1] + groups).unique(return_counts=True)
    matrices = []
    for k in repeats.unique().tolist() or [1]:
        own = pairs[repeats == k]
        matrices.append((k, sums(own // max(1, shape[1]), own % max(1, shape[1]), shape)))
    return tuple(matrices)
