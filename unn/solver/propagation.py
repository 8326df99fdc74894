"""What evidence implies by counting alone: candidates that are true or false, and contradictions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import Layout


@dataclass(frozen=True, eq=False)
class Known:
    """What is known about the candidates of a batch.

    Attributes:
        true: candidates that are true, boolean, shape ``(batch, candidates)``.
        false: candidates that are false, boolean, shape ``(batch, candidates)``.
    """

    true: Tensor
    false: Tensor

    @property
    def open(self) -> Tensor:
        """Candidates that are neither, shape ``(batch, candidates)``."""
        return ~(self.true | self.false)

    def select(self, rows: Tensor) -> Known:
        """Some rows of the batch, by indices or a mask."""
        return Known(self.true[rows], self.false[rows])


def evidence(layout: Layout, rows: Tensor, nodes: Tensor) -> Known:
    """The candidates of observed nodes.

    Args:
        layout: candidates and groups.
        rows: values of the nodes as in a frame, shape ``(batch, candidates)``.
        nodes: mask of the observed nodes, boolean, shape ``(batch, nodes)``.
    """
    given = nodes[:, layout.frame.node_of_number]
    true = rows == 1
    return Known(given & true, given & ~true)


def exclude(layout: Layout, known: Known) -> Known:
    """Exclude what the true candidates exclude: all others of a group with its greatest number of ones."""
    false = known.false.clone()
    for family in layout.families:
        if family.bounds[1] is not None:
            full = known.true[:, family.entries].sum(2) >= family.bounds[1]
            _mark(false, family.entries, full)
    return Known(known.true, false & ~known.true)


def propagate(layout: Layout, known: Known) -> tuple[Known, Tensor]:
    """Repeat both implications of every bound until nothing changes.

    A group with its greatest number of true candidates excludes the others; one with as few possible
    candidates as it needs has them all.

    Returns:
        What is then known, and the number of a group that cannot meet its bounds, in the order of the
        families, -1 for none, shape ``(batch,)``. Rows with such a group have no solution.
    """
    true, false = known.true.clone(), known.false.clone()
    impossible = torch.full((len(true),), -1, device=true.device)
    active = torch.arange(len(true), device=true.device)
    while len(active):
        some_true, some_false = true[active], false[active]
        before = some_true.sum(1) + some_false.sum(1)
        first = 0
        for family in layout.families:
            lower, upper = family.bounds
            ones = some_true[:, family.entries].sum(2)
            possible = family.entries.shape[1] - some_false[:, family.entries].sum(2)
            wrong = possible < lower
            if upper is not None:
                wrong |= ones > upper
                _mark(some_false, family.entries, ones >= upper)
                some_false &= ~some_true
            if lower:
                _mark(some_true, family.entries, possible <= lower)
                some_true &= ~some_false
            fails = wrong.any(1) & (impossible[active] < 0)
            impossible[active[fails]] = first + wrong[fails].to(torch.uint8).argmax(1)
            first += len(family.entries)
        true[active], false[active] = some_true, some_false
        changed = (some_true.sum(1) + some_false.sum(1)) != before
        active = active[changed & (impossible[active] < 0)]
    return Known(true, false), impossible


def _mark(mask: Tensor, entries: Tensor, groups: Tensor) -> None:
    """Set all entries of the chosen groups, in place.

    Args:
        mask: shape ``(batch, candidates)``.
        entries: shape ``(groups, members)``.
        groups: shape ``(batch, groups)``.
    """
    row, group = groups.nonzero(as_tuple=True)
    if len(row):
        mask[row[:, None], entries[group]] = True
