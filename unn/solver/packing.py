"""The open candidates of a batch in a row, with sums over their groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..ops.sparse import SetSums
from .layout import Bounds, Layout, Members
from .propagation import Known

_LARGEST = 30.0
"""Bound on scores in exponentials."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The candidates of each group by node: those of one node exclude each other.

    Attributes:
        part: part of each pair of ``Packed.to_groups``, shape ``(pairs,)``.
        pointer: place of the first part of each group, and the number of parts, shape ``(groups + 1,)``.
        multiplicity: number of times that the candidate of each pair occurs in its group, at its first
            occurrence; 0 at the others. Shape ``(pairs,)``.
    """

    part: Tensor
    pointer: Tensor
    multiplicity: Tensor

    def to(self, device: torch.device) -> Parts:
        """The same on another device."""
        return Parts(self.part.to(device), self.pointer.to(device), self.multiplicity.to(device))


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
        bounds: bounds of each kind of groups, in order.
        kinds: number of groups of each kind, in order.
        node: group of the node of each candidate, shape ``(candidates,)``.
        pair_candidate, pair_group: the pairs, shape ``(pairs,)``.
        to_groups: sums over the candidates of each group.
        to_candidates: sums over the groups of each candidate.
        pairs_to_groups: sums over the pairs of each group.
        pairs_to_candidates: sums over the pairs of each candidate.
        parts: where a group may have several candidates of one node, or one of them several times, the
            candidates of each group by node.
    """

    batch: int
    row: Tensor
    candidate: Tensor
    group_row: Tensor
    group: Tensor
    lower: Tensor
    upper: Tensor
    bounds: tuple[Bounds, ...]
    kinds: tuple[int, ...]
    node: Tensor
    pair_candidate: Tensor
    pair_group: Tensor
    to_groups: SetSums
    to_candidates: SetSums
    pairs_to_groups: SetSums
    pairs_to_candidates: SetSums
    parts: Parts | None

    @property
    def count(self) -> int:
        """Number of candidates."""
        return len(self.row)

    def to(self, device: torch.device) -> Packed:
        """The same on another device."""
        if self.row.device == device:
            return self
        tensors: dict[str, Any] = {
            name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor | SetSums | Parts)
        }
        return replace(self, **tensors)


def pack(layout: Layout, known: Known) -> Packed:
    """Collect the open candidates of a batch, on the device of what is known about them.

    Args:
        layout: candidates and groups.
        known: what is known about the candidates.
    """
    batch, candidates = known.true.shape
    is_open = known.open
    device = is_open.device
    own = layout.on(device)
    row, candidate = is_open.nonzero(as_tuple=True)
    number = torch.zeros(batch * candidates, dtype=torch.long, device=device)
    flat = is_open.flatten()
    number[flat] = torch.arange(len(row), device=device)

    row_of_pair, pair = is_open[:, own.candidate].nonzero(as_tuple=True)
    pair_candidate = number[row_of_pair * candidates + own.candidate[pair]]
    # groups by kind first, so that each kind is a contiguous range
    key = own.group[pair] * batch + row_of_pair
    present = torch.zeros(layout.groups * batch, dtype=torch.bool, device=device)
    present[key] = True
    pair_group = (present.cumsum(0) - 1)[key]
    keys = present.nonzero()[:, 0]
    group, group_row = keys // batch, keys % batch
    ones = _true_members(own, known)[group_row, group]
    kinds = torch.bincount(own.kind[group], minlength=len(layout.kinds))

    by_group = pair_group.argsort(stable=True)
    group_pointer = _pointer(pair_group, len(group))
    candidate_pointer = _pointer(pair_candidate, len(row))
    node = torch.zeros(len(row), dtype=torch.long, device=device)
    is_node = own.group[pair] == own.node[own.candidate[pair]]
    node[pair_candidate[is_node]] = pair_group[is_node]
    parts = None
    if layout.parts is not None or bool(layout.has_repeats.any()):
        keys = (pair_group * len(group) + node[pair_candidate])[by_group]
        distinct, part = keys.unique(return_inverse=True)
        pointer = _pointer(distinct // max(1, len(group)), len(group))
        parts = Parts(part, pointer, _multiplicity((pair_group * len(row) + pair_candidate)[by_group]))
    return Packed(
        batch,
        row,
        candidate,
        group_row,
        group,
        (own.lower[group] - ones).clamp(min=0),
        own.upper[group] - ones,
        tuple(layout.kinds),
        tuple(kinds.tolist()),
        node,
        pair_candidate,
        pair_group,
        SetSums(group_pointer, pair_candidate[by_group]),
        SetSums(candidate_pointer, pair_group),
        SetSums(group_pointer, by_group),
        SetSums(candidate_pointer, torch.arange(len(pair), device=device)),
        parts,
    )


def _true_members(members: Members, known: Known) -> Tensor:
    """Number of true candidates of each group, shape ``(batch, groups)``."""
    counts = torch.zeros(len(known.true), len(members.lower), dtype=torch.long, device=known.true.device)
    return counts.index_add(1, members.group, known.true[:, members.candidate].long())


def _multiplicity(pairs: Tensor) -> Tensor:
    """Number of times that each value occurs, at its first place; 0 at the others."""
    _, number, repeats = pairs.unique(return_inverse=True, return_counts=True)
    order = number.argsort(stable=True)
    first = order[repeats.cumsum(0) - repeats]
    return torch.zeros_like(pairs).scatter(0, first, repeats)


def _pointer(sorted_or_not: Tensor, count: int) -> Tensor:
    """Row pointer of a sparse matrix, from the row of each entry."""
    pointer = torch.zeros(count + 1, dtype=torch.long, device=sorted_or_not.device)
    pointer[1:] = torch.bincount(sorted_or_not, minlength=count).cumsum(0)
    return pointer


class _GroupSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return packed.to_groups.of(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.packed.to_candidates.of(gradient), None


class _RectifiedPairSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, candidates: Tensor, groups: Tensor, packed: Packed) -> Tensor:
        pairs = candidates.index_select(0, packed.pair_candidate)
        pairs += groups.index_select(0, packed.pair_group)
        pairs.relu_()
        ctx.packed = packed
        ctx.save_for_backward(pairs > 0)
        return packed.pairs_to_candidates.of(pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        packed: Packed = ctx.packed
        (positive,) = ctx.saved_tensors
        pairs = gradient.index_select(0, packed.pair_candidate)
        pairs *= positive
        return packed.pairs_to_candidates.of(pairs), packed.pairs_to_groups.of(pairs), None


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
