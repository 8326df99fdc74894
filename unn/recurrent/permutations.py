"""Renaming the values of a variable where the constraints do not distinguish them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..networks.tokens import Slot
from ..solver.layout import Layout


@dataclass(frozen=True, eq=False)
class Renaming:
    """A permutation of candidates for each batch element.

    Attributes:
        order: candidate at each place after renaming, shape ``(batch, candidates)``.
    """

    order: Tensor

    def apply(self, rows: Tensor) -> Tensor:
        """Rename the values of rows, shape ``(batch, candidates)``."""
        return rows.gather(1, self.order)

    def undo(self, rows: Tensor) -> Tensor:
        """The inverse of ``apply``."""
        return torch.empty_like(rows).scatter_(1, self.order, rows)


def renamings(layout: Layout, count: int, generator: torch.Generator) -> Renaming:
    """Random permutations of the values of each variable whose values are exchangeable.

    Args:
        layout: candidates and groups.
        count: number of permutations.
        generator: random number generator.
    """
    order = torch.arange(layout.candidates).expand(count, -1).clone()
    for slot in layout.frame.slots.values():
        if slot.kind == "category" and values_are_exchangeable(layout, slot):
            values = torch.rand(count, slot.channels, generator=generator).argsort(1)
            first = torch.arange(slot.numbers.start, slot.numbers.stop, slot.channels)
            order[:, slot.numbers] = (first[:, None] + values[:, None]).flatten(1)
    return Renaming(order)


def values_are_exchangeable(layout: Layout, slot: Slot) -> bool:
    """Whether every permutation of the values of a variable, the same in all nodes, maps groups to groups,
    and candidates that are excluded in any case to such.

    Two permutations generate all: the exchange of two values, and the cycle of all values. Where a constraint
    without groups uses the variable, its values are taken to differ.
    """
    for constraint in layout.graph.constraints:
        if slot.name in constraint.variables and not constraint.is_counted:
            return False
    values = torch.arange(slot.channels)
    exchange = values.clone()
    exchange[:2] = exchange[:2].flip(0)
    return all(_maps_groups_to_groups(layout, slot, p) for p in (exchange, values.roll(1)))


def _maps_groups_to_groups(layout: Layout, slot: Slot, permutation: Tensor) -> bool:
    candidates = torch.arange(layout.candidates)
    first = torch.arange(slot.numbers.start, slot.numbers.stop, slot.channels)
    candidates[slot.numbers] = (first[:, None] + permutation).flatten()
    if not torch.equal(layout.never[candidates], layout.never):
        return False
    for family in layout.families:
        groups = {tuple(row) for row in family.entries.sort(1).values.tolist()}
        moved = {tuple(row) for row in candidates[family.entries].sort(1).values.tolist()}
        if groups != moved:
            return False
    return True
