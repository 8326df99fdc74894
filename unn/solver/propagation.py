"""What evidence implies by counting alone: candidates that are true or false, and contradictions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import Layout, NodeParts, Tables


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
    return Known(given & true, (given & ~true) | layout.never)


def exclude(layout: Layout, known: Known) -> Known:
    """Exclude what the true candidates exclude: all others of a group with its greatest number of ones."""
    full = _count(layout.to_groups, known.true) >= layout.upper[:, None]
    excluded = (layout.to_candidates @ full.float() > 0).T
    return Known(known.true, (known.false | excluded) & ~known.true)


def propagate(layout: Layout, known: Known) -> tuple[Known, Tensor]:
    """Repeat both implications of every bound until nothing changes.

    A group with its greatest number of true candidates excludes the others; one with as few possible
    candidates as it needs has them all. Where a group has several candidates of one node, these count at most
    one, and they count one if all other values of the node are excluded. A candidate that no possible
    combination of a table has is excluded.

    Returns:
        What is then known, and the number of a group that cannot meet its bounds, or ``layout.groups`` plus
        that of a table without a possible combination; -1 for none, shape ``(batch,)``. Rows with one have no
        solution.
    """
    true, false = known.true.clone(), known.false.clone()
    impossible = torch.full((len(true),), -1)
    active = torch.arange(len(true))
    lower, upper = layout.lower[:, None], layout.upper[:, None]
    while len(active):
        here_true, here_false = true[active], false[active]
        ones = _count(layout.to_groups, here_true)
        possible = layout.members[:, None] - _count(layout.to_groups, here_false)
        wrong = (possible < lower) | (ones > upper)
        excluded_parts = None
        if layout.parts is not None:
            excluded_parts = _count_parts(layout, layout.parts, here_false, possible, wrong)
        excluded_rows = None
        if layout.tables is not None:
            excluded_rows, empty = _count_combinations(layout.tables, here_false)
            wrong = torch.cat([wrong, empty])
        fails = wrong.any(0)
        impossible[active[fails]] = wrong[:, fails].to(torch.uint8).argmax(0)
        marks = torch.cat([ones >= upper, possible <= lower], 1).float()
        excluded, required = (layout.to_candidates @ marks > 0).T.chunk(2)
        if excluded_parts is not None:
            excluded = excluded | excluded_parts
        if excluded_rows is not None:
            excluded = excluded | excluded_rows
        new_false = here_false | (excluded & ~here_true)
        new_true = here_true | (required & ~here_false)
        changed = (new_true != here_true).any(1) | (new_false != here_false).any(1)
        true[active], false[active] = new_true, new_false & ~new_true
        active = active[changed & ~fails]
    return Known(true, false), impossible


def _count_parts(layout: Layout, parts: NodeParts, false: Tensor, possible: Tensor, wrong: Tensor) -> Tensor:
    """Candidates that the groups exclude by the nodes that they can and must count.

    Args:
        layout: candidates and groups.
        parts: groups with several candidates of one node, by node.
        false: what is false, shape ``(batch, candidates)``.
        possible: number of possible candidates of each group, shape ``(groups, batch)``.
        wrong: mask of the groups that cannot meet their bounds, to which others are added, shape ``(groups,
            batch)``.

    Returns:
        Mask of the candidates, shape ``(batch, candidates)``.
    """
    lower, upper = layout.lower[parts.groups, None], layout.upper[parts.groups, None]
    own = parts.to_parts @ (~false).T.float()
    can = own > 0
    must = can & (own == possible[parts.node])
    ones, most = parts.to_groups @ must.float(), parts.to_groups @ can.float()
    wrong[parts.groups] |= (most < lower) | (ones > upper)
    full = (ones >= upper)[parts.group] & can & ~must
    needed = ((most <= lower)[parts.group] & can).float()
    outside = parts.to_nodes @ needed - parts.to_candidates @ needed
    excluded: Tensor = (parts.to_candidates @ full.float() > 0) | (outside > 0)
    return excluded.T


def _count_combinations(tables: Tables, false: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates that no possible combination of a table has, and tables without a possible combination.

    Args:
        tables: allowed combinations.
        false: what is false, shape ``(batch, candidates)``.

    Returns:
        Masks, shapes ``(batch, candidates)`` and ``(tables, batch)``.
    """
    possible = (tables.to_combinations @ false.T.float() == 0).float()
    unsupported = (tables.to_pairs @ possible == 0).float()
    return (tables.to_candidates @ unsupported > 0).T, tables.to_tables @ possible == 0


def branch(layout: Layout, known: Known, generator: torch.Generator) -> Tensor:
    """Mark one open candidate of each row at random, shape ``(batch, candidates)``.

    It is a member of a random group among those of exactly one with the fewest open candidates; the two
    values of a binary node are such a group only where no other is left. Nothing is marked in rows without
    an open candidate.

    Args:
        layout: candidates and groups.
        known: what is known, propagated.
        generator: random number generator.
    """
    is_open = known.open
    openings = _count(layout.to_groups, is_open).T
    openings = openings + layout.candidates * layout.binary
    closed = ~((layout.lower == 1) & (layout.upper == 1)) | (openings == layout.candidates * layout.binary)
    openings = openings.masked_fill(closed, torch.inf)
    group = (openings + 0.5 * torch.rand(openings.shape, generator=generator)).argmin(1)
    of_group = torch.nn.functional.one_hot(group, layout.groups).float()
    members = ((layout.to_candidates @ of_group.T).T > 0) & is_open
    number = torch.rand(is_open.shape, generator=generator).masked_fill(~members, -1.0).argmax(1)
    return torch.nn.functional.one_hot(number, layout.candidates).bool() & members


def suppose(layout: Layout, known: Known, chosen: Tensor) -> tuple[Known, Tensor]:
    """Make some open candidates true, and propagate; where counting refutes it, they are false instead.

    Args:
        layout: candidates and groups.
        known: what is known.
        chosen: mask of the candidates, at most one in each row, shape ``(batch, candidates)``.

    Returns:
        What is then known, and the mask of the rows in which counting refutes both, shape ``(batch,)``.
    """
    supposed, impossible = propagate(layout, Known(known.true | chosen, known.false))
    refuted, also_impossible = propagate(layout, Known(known.true, known.false | chosen))
    possible = (impossible < 0)[:, None]
    true = torch.where(possible, supposed.true, refuted.true)
    false = torch.where(possible, supposed.false, refuted.false)
    return Known(true, false), (impossible >= 0) & (also_impossible >= 0)


def _count(to_groups: Tensor, candidates: Tensor) -> Tensor:
    """Number of marked candidates of each group, shape ``(groups, batch)``."""
    return to_groups @ candidates.T.float()
