"""The open candidates of a batch in a row, with their groups as sparse matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..ops.sparse import from_pointer
from .layout import Layout
from .propagation import Known

_LARGEST = 30.0
"""Bound on scores in exponentials."""


@dataclass(frozen=True, eq=False)
class Packed:
    """The open candidates of a batch and the groups that contain some of them.

    Pairs (candidate, group) are sorted by candidate; groups by kind.

    Attributes:
        batch: number of batch elements.
        row: batch element of each candidate, shape ``(candidates,)``.
        candidate: number of each candidate in the layout, shape ``(candidates,)``.
        group_row: batch element of each group, shape ``(groups,)``.
        group: number of each group in the layout, shape ``(groups,)``.
        lower: true candidates that the group still needs, shape ``(groups,)``.
        upper: true candidates that the group still admits, shape ``(groups,)``.
        kinds: number of groups of each kind, in order.
        node: group of the node of each candidate, shape ``(candidates,)``.
        pair_candidate, pair_group: the pairs, shape ``(pairs,)``.
        to_groups: sums over the candidates of each group, sparse, shape ``(groups, candidates)``.
        to_candidates: sums over the groups of each candidate, sparse, shape ``(candidates, groups)``.
        pairs_to_groups: sums over the pairs of each group, sparse, shape ``(groups, pairs)``.
        pairs_to_candidates: sums over the pairs of each candidate, sparse, shape ``(candidates, pairs)``.
    """

    batch: int
    row: Tensor
    candidate: Tensor
    group_row: Tensor
    group: Tensor
    lower: Tensor
    upper: Tensor
    kinds: tuple[int, ...]
    node: Tensor
    pair_candidate: Tensor
    pair_group: Tensor
    to_groups: Tensor
    to_candidates: Tensor
    pairs_to_groups: Tensor
    pairs_to_candidates: Tensor

    @property
    def count(self) -> int:
        """Number of candidates."""
        return len(self.row)

    def to(self, device: torch.device) -> Packed:
        """The same on another device."""
        if self.row.device == device:
            return self
        tensors: dict[str, Any] = {
            name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)
        }
        return replace(self, **tensors)


def pack(layout: Layout, known: Known, dtype: torch.dtype = torch.float32) -> Packed:
    """Collect the open candidates of a batch.

    Args:
        layout: candidates and groups.
        known: what is known about the candidates.
        dtype: type of the sparse matrices, that of the states.
    """
    batch, candidates = known.true.shape
    is_open = known.open
    row, candidate = is_open.nonzero(as_tuple=True)
    number = torch.zeros(batch * candidates, dtype=torch.long)
    flat = is_open.flatten()
    number[flat] = torch.arange(len(row))

    row_of_pair, pair = is_open[:, layout.candidate].nonzero(as_tuple=True)
    pair_candidate = number[row_of_pair * candidates + layout.candidate[pair]]
    # groups by kind first, so that each kind is a contiguous range
    key = layout.group[pair] * batch + row_of_pair
    present = torch.zeros(layout.groups * batch, dtype=torch.bool)
    present[key] = True
    pair_group = (present.cumsum(0) - 1)[key]
    keys = present.nonzero()[:, 0]
    group, group_row = keys // batch, keys % batch
    ones = _true_members(layout, known)[group_row, group]
    kinds = torch.bincount(layout.kind[group], minlength=len(layout.kinds))

    by_group = pair_group.argsort(stable=True)
    group_pointer = _pointer(pair_group, len(group))
    candidate_pointer = _pointer(pair_candidate, len(row))
    pairs = len(pair)
    node = torch.zeros(len(row), dtype=torch.long)
    is_node = layout.group[pair] == layout.node[layout.candidate[pair]]
    node[pair_candidate[is_node]] = pair_group[is_node]
    return Packed(
        batch,
        row,
        candidate,
        group_row,
        group,
        (layout.lower[group] - ones).clamp(min=0),
        layout.upper[group] - ones,
        tuple(kinds.tolist()),
        node,
        pair_candidate,
        pair_group,
        from_pointer(group_pointer, pair_candidate[by_group], (len(group), len(row)), dtype),
        from_pointer(candidate_pointer, pair_group, (len(row), len(group)), dtype),
        from_pointer(group_pointer, by_group, (len(group), pairs), dtype),
        from_pointer(candidate_pointer, torch.arange(pairs), (len(row), pairs), dtype),
    )


def _true_members(layout: Layout, known: Known) -> Tensor:
    """Number of true candidates of each group, shape ``(batch, groups)``."""
    counts = torch.zeros(len(known.true), layout.groups, dtype=torch.long)
    return counts.index_add(1, layout.group, known.true[:, layout.candidate].long())


def _pointer(sorted_or_not: Tensor, count: int) -> Tensor:
    """Row pointer of a sparse matrix, from the row of each entry."""
    pointer = torch.zeros(count + 1, dtype=torch.long)
    pointer[1:] = torch.bincount(sorted_or_not, minlength=count).cumsum(0)
    return pointer


class _GroupSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return packed.to_groups @ x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.packed.to_candidates @ gradient, None


class _RectifiedPairSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, candidates: Tensor, groups: Tensor, packed: Packed) -> Tensor:
        pairs = candidates.index_select(0, packed.pair_candidate)
        pairs += groups.index_select(0, packed.pair_group)
        pairs.relu_()
        ctx.packed = packed
        ctx.save_for_backward(pairs > 0)
        return packed.pairs_to_candidates @ pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        packed: Packed = ctx.packed
        (positive,) = ctx.saved_tensors
        pairs = gradient.index_select(0, packed.pair_candidate)
        pairs *= positive
        return packed.pairs_to_candidates @ pairs, packed.pairs_to_groups @ pairs, None


def log_probabilities(packed: Packed, scores: Tensor) -> Tensor:
    """Logarithm of the probability of each candidate among those of its node, shape ``(candidates,)``."""
    finite = scores.nan_to_num(nan=0.0).clamp(-_LARGEST, _LARGEST)
    totals = finite.new_zeros(len(packed.group)).index_add(0, packed.node, finite.exp())
    return finite - totals[packed.node].log()


def group_sums(x: Tensor, packed: Packed) -> Tensor:
    """Sum over the candidates of each group.

    Args:
        x: shape ``(candidates, width)``.

    Returns:
        Shape ``(groups, width)``.
    """
    sums: Tensor = _GroupSums.apply(x, packed)
    return sums


def rectified_pair_sums(candidates: Tensor, groups: Tensor, packed: Packed) -> Tensor:
    """For each candidate, the sum over its groups of relu(candidate + group).

    Args:
        candidates: shape ``(candidates, width)``.
        groups: shape ``(groups, width)``.

    Returns:
        Shape ``(candidates, width)``.
    """
    sums: Tensor = _RectifiedPairSums.apply(candidates, groups, packed)
    return sums
