"""Candidates of a graph and the groups that count them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DeclarationError, ObservationError, suggest
from ..graph.declaration import Declaration
from ..graph.groups import AllowedCombinations
from ..graph.partial import Partial
from ..networks.tokens import Frames, Rows, Slot
from ..networks.tokens import kinds as kinds_of_values
from ..ops.sparse import sums

_SHOWN = 9
"""Members of a group that are named in messages."""

Evidence = TypeVar("Evidence", bound=Tensor | Partial)

Bounds = tuple[int, int | None]
"""Least and greatest number of true candidates in a group; None without a bound."""


@dataclass(frozen=True, eq=False)
class Family:
    """Groups of equally many candidates with the same bounds.

    Attributes:
        name: name of the variable, for the groups of its nodes, or of the constraint.
        entries: candidates of each group, shape ``(groups, members)``.
        bounds: number of true candidates in each group.
    """

    name: str
    entries: Tensor
    bounds: Bounds


@dataclass(frozen=True, eq=False)
class Members:
    """The members of all groups and the bounds of these, on one device; shapes as in ``Layout``."""

    candidate: Tensor
    group: Tensor
    lower: Tensor
    upper: Tensor
    kind: Tensor
    node: Tensor

    def to(self, device: torch.device) -> Members:
        """The same on another device."""
        return Members(*(x.to(device) for x in vars(self).values()))


@dataclass(frozen=True, eq=False)
class NodeParts:
    """Groups with several candidates of one node, by node: the part of a group in a node counts at most one.

    Attributes:
        groups: numbers of these groups, shape ``(groups,)``.
        group: place among ``groups`` of each part, shape ``(parts,)``.
        node: group of the node of each part, shape ``(parts,)``.
        to_parts: sums over the candidates of each part, sparse, shape ``(parts, candidates)``.
        to_candidates: its transpose.
        to_groups: sums over the parts of each of ``groups``, sparse, shape ``(groups, parts)``.
        to_nodes: sums over the parts of the node of each candidate, sparse, shape ``(candidates, parts)``.
    """

    groups: Tensor
    group: Tensor
    node: Tensor
    to_parts: Tensor
    to_candidates: Tensor
    to_groups: Tensor
    to_nodes: Tensor


@dataclass(frozen=True, eq=False)
class Tables:
    """Allowed combinations of candidates: of each table one combination is true.

    Attributes:
        names: name of the constraint of each table.
        first_candidates: the first candidate of each node of each table, by table.
        to_combinations: sums over the candidates of each combination, sparse, shape ``(combinations,
            candidates)``.
        to_pairs: sums over the combinations of each pair of a table and a candidate of its nodes, sparse,
            shape ``(pairs, combinations)``.
        to_candidates: sums over the pairs of each candidate, sparse, shape ``(candidates, pairs)``.
        to_tables: sums over the combinations of each table, sparse, shape ``(tables, combinations)``.
    """

    names: tuple[str, ...]
    first_candidates: tuple[tuple[int, ...], ...]
    to_combinations: Tensor
    to_pairs: Tensor
    to_candidates: Tensor
    to_tables: Tensor


class Layout:
    """Candidates (node, value) of a graph at given sizes, and groups of them.

    A candidate is true if the node has the value. Each node is a group of exactly one true candidate, and
    each counting constraint has groups with its bounds. A binary variable has the values 0 and 1. Continuous
    variables have no candidates.

    Args:
        graph: declaration with categorical or binary variables.
        sizes: sizes of the axes without a static size.
        with_tables: take constraints that are defined by allowed combinations as tables, which propagation
            reads, and not as groups, of which they may need very many.

    Attributes:
        frame: layout of the discrete values; the numbers of its rows are the candidates.
        continuous: layout of the values of continuous variables; None if there are none.
        families: groups by node, then by constraint.
        kinds: distinct bounds of the groups, sorted.
        candidate, group: the members of all groups as pairs, sorted by candidate, shape ``(pairs,)``; groups
            are numbered by kind, then by family.
        lower, upper: bounds of each group, shape ``(groups,)``; ``upper`` is the number of members where
            there is no bound.
        kind: kind of each group, shape ``(groups,)``.
        families_of: family of each group, shape ``(groups,)``.
        never: mask of the candidates that a constraint excludes whatever the others are, shape
            ``(candidates,)``; they are in no group of that constraint.
        tables: the allowed combinations that are no groups; None if there are none.

    Raises:
        DeclarationError: for sizes that are missing or contradict the declaration.
    """

    def __init__(self, graph: Declaration, sizes: Mapping[str, int], *, with_tables: bool = False) -> None:
        self.graph = graph
        self.frame = Rows(graph, sizes, discrete(graph))
        names = continuous(graph)
        self.continuous = Rows(graph, sizes, names) if names else None
        self.never = torch.zeros(self.frame.numbers, dtype=torch.bool)
        shapes = {name: slot.shape for name, slot in self.frame.slots.items()}
        combinations = {
            constraint.name: own
            for constraint in (graph.constraints if with_tables else ())
            if (own := constraint.combinations(shapes))
        }
        self.tables = self._tables(combinations) if combinations else None
        self.families = [
            *(_node_family(slot) for slot in self.frame.slots.values()),
            *self._constraints(shapes, combinations),
        ]
        self.kinds = kinds_of(self.families)
        order = sorted(range(len(self.families)), key=lambda k: self.kinds.index(self.families[k].bounds))
        groups, pairs, first = [], [], 0
        for k in order:
            family = self.families[k]
            count, members = family.entries.shape
            upper = members if family.bounds[1] is None else min(members, family.bounds[1])
            kind = self.kinds.index(family.bounds)
            groups.append(torch.tensor([[family.bounds[0], upper, kind, k]]).expand(count, 4))
            numbers = torch.arange(first, first + count)[:, None].expand(count, members)
            pairs.append(torch.stack([family.entries.flatten(), numbers.flatten()]))
            first += count
        self.lower, self.upper, self.kind, self.families_of = torch.cat(groups).T.contiguous()
        candidate, group = torch.cat(pairs, 1)
        self._members: dict[torch.device, Members] = {}
        by_candidate = (candidate * first + group).argsort()
        self.candidate, self.group = candidate[by_candidate], group[by_candidate]

    @property
    def candidates(self) -> int:
        """Number of candidates."""
        return self.frame.numbers

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.lower)

    def on(self, device: torch.device) -> Members:
        """The members of all groups on a device; each device has one copy."""
        if device not in self._members:
            own = Members(self.candidate, self.group, self.lower, self.upper, self.kind, self.node)
            self._members[device] = own.to(device)
        return self._members[device]

    @cached_property
    def node(self) -> Tensor:
        """Group of the node of each candidate, shape ``(candidates,)``."""
        of_node: Tensor = self.families_of[self.group] < len(self.frame.slots)
        nodes: Tensor = self.group[of_node]
        return nodes

    @cached_property
    def parts(self) -> NodeParts | None:
        """The groups with several candidates of one node, by node; None if there are none.

        Groups in which a candidate occurs several times are left out: their parts count more than one.
        """
        of_constraint = self.families_of[self.group] >= len(self.frame.slots)
        of_constraint &= ~self.has_repeats[self.group]
        candidate, group = self.candidate[of_constraint], self.group[of_constraint]
        keys, part = (group * self.groups + self.node[candidate]).unique(return_inverse=True)
        members = torch.bincount(part, minlength=len(keys))
        groups, place = (keys // self.groups).unique(return_inverse=True)
        several = torch.zeros(len(groups), dtype=torch.bool)
        several[place[members > 1]] = True
        if not bool(several.any()):
            return None
        kept = several[place]
        number = kept.cumsum(0) - 1
        pairs = kept[part]
        count, place_of_group = int(kept.sum()), several.cumsum(0) - 1
        own, candidate = number[part[pairs]], candidate[pairs]
        group_of_part, node = place_of_group[place[kept]], (keys % self.groups)[kept]
        numbers = torch.arange(count)
        by_node = node.argsort(stable=True)
        parts_of_node = torch.bincount(node, minlength=self.groups)
        first = parts_of_node.cumsum(0) - parts_of_node
        repeats = parts_of_node[self.node]
        columns = torch.arange(int(repeats.sum())) - (repeats.cumsum(0) - repeats).repeat_interleave(repeats)
        columns = by_node[columns + first[self.node].repeat_interleave(repeats)]
        rows = torch.arange(self.candidates).repeat_interleave(repeats)
        return NodeParts(
            groups[several],
            group_of_part,
            node,
            sums(own, candidate, (count, self.candidates)),
            sums(candidate, own, (self.candidates, count)),
            sums(group_of_part, numbers, (int(several.sum()), count)),
            sums(rows, columns, (self.candidates, count)),
        )

    @cached_property
    def has_repeats(self) -> Tensor:
        """Mask of the groups in which a candidate occurs several times, shape ``(groups,)``."""
        same = (self.candidate[1:] == self.candidate[:-1]) & (self.group[1:] == self.group[:-1])
        mask = torch.zeros(self.groups, dtype=torch.bool)
        mask[self.group[1:][same]] = True
        return mask

    @cached_property
    def binary(self) -> Tensor:
        """Mask of the groups that are the two values of a binary node, shape ``(groups,)``."""
        slots = list(self.frame.slots.values())
        own = torch.tensor([k for k, slot in enumerate(slots) if slot.kind == "binary"], dtype=torch.long)
        return torch.isin(self.families_of, own)

    @cached_property
    def members(self) -> Tensor:
        """Number of members of each group, shape ``(groups,)``."""
        return torch.bincount(self.group, minlength=self.groups)

    @cached_property
    def to_groups(self) -> Tensor:
        """Sums over the candidates of each group, sparse, shape ``(groups, candidates)``."""
        return sums(self.group, self.candidate, (self.groups, self.candidates))

    @cached_property
    def to_candidates(self) -> Tensor:
        """Sums over the groups of each candidate, sparse, shape ``(candidates, groups)``."""
        return sums(self.candidate, self.group, (self.candidates, self.groups))

    def continuous_part(self, given: Mapping[str, Evidence]) -> dict[str, Evidence]:
        """Evidence on continuous variables."""
        names = () if self.continuous is None else self.continuous.slots
        return {name: x for name, x in given.items() if name in names}

    def discrete_part(self, given: Mapping[str, Evidence]) -> dict[str, Evidence]:
        """Evidence without that on continuous variables.

        Args:
            given: evidence by variable.

        Raises:
            ObservationError: for an unknown variable.
        """
        for name in given:
            if name not in self.graph.variables:
                raise ObservationError(
                    f"graph {self.graph.name!r} has no variable {name!r}."
                    f"{suggest(name, self.graph.variables)}"
                )
        return {name: x for name, x in given.items() if name in self.frame.slots}

    def describe(self, group: int) -> str:
        """A group as text: the constraint or variable, and the values of its members; of a table its nodes.

        Args:
            group: number of the group; from ``groups`` on, of the table.
        """
        if group >= self.groups:
            assert self.tables is not None
            table = group - self.groups
            nodes = [self._node_and_value(k)[0] for k in self.tables.first_candidates[table]]
            return f"one of the combinations of {self.tables.names[table]!r}: {_listed(nodes)}"
        family = self.families[int(self.families_of[group])]
        members = self.candidate[self.group == group]
        shown = [" = ".join(map(str, self._node_and_value(int(k)))) for k in members[: _SHOWN + 1]]
        return f"{count_text(family.bounds)} of {family.name!r}: {_listed(shown)}"

    def _node_and_value(self, number: int) -> tuple[str, int]:
        """The node of a candidate as text, such as ``X[0, 3]``, and its value."""
        for slot in self.frame.slots.values():
            if slot.numbers.start <= number < slot.numbers.stop:
                node, value = divmod(number - slot.numbers.start, slot.channels)
                index = np.unravel_index(node, slot.node_shape) if slot.node_shape else ()
                place = f"[{', '.join(map(str, index))}]" if slot.node_shape else ""
                return f"{slot.name}{place}", value
        raise IndexError(number)

    def _constraints(self, shapes: Mapping[str, tuple[int, ...]], without: Collection[str]) -> list[Family]:
        """Groups of the constraints, apart from those with some names."""
        families = []
        for constraint in self.graph.constraints:
            if constraint.name in without:
                continue
            for groups in constraint.groups(shapes):
                members = [_candidates_of(self.frame.slots[name], x) for name, x in groups.entries.items()]
                entries = torch.cat(members, 1)
                if groups.upper == 0:
                    self.never[entries] = True
                elif entries.numel():
                    families.append(Family(constraint.name, entries, (groups.lower, groups.upper)))
        return families

    def _tables(self, combinations: Mapping[str, Sequence[AllowedCombinations]]) -> Tables:
        names: list[str] = []
        # pairs (row, column) of each sparse matrix
        members, pairs, candidates, tables = ([] for _ in range(4))
        first_candidates: list[tuple[int, ...]] = []
        count = pair_count = 0
        for name, own in ((name, own) for name, each in combinations.items() for own in each):
            rows, assignments = len(own.allowed), len(own.entries[0])
            numbers = count + torch.arange(assignments * rows).view(assignments, rows)
            table_numbers = len(names) + torch.arange(assignments)[:, None].expand(assignments, rows)
            tables.append(torch.stack([table_numbers.flatten(), numbers.flatten()]))
            firsts = []
            for k, (variable, entries) in enumerate(zip(own.names, own.entries, strict=True)):
                own_candidates = _candidates_of(self.frame.slots[variable], entries)
                own_pairs = pair_count + torch.arange(own_candidates.numel()).view_as(own_candidates)
                chosen = torch.from_numpy(own.allowed[:, k])
                members.append(torch.stack([numbers.flatten(), own_candidates[:, chosen].flatten()]))
                pairs.append(torch.stack([own_pairs[:, chosen].flatten(), numbers.flatten()]))
                candidates.append(torch.stack([own_candidates.flatten(), own_pairs.flatten()]))
                pair_count += own_candidates.numel()
                firsts.append(own_candidates[:, 0].tolist())
            first_candidates += zip(*firsts, strict=True)
            names += [name] * assignments
            count += assignments * rows

        def matrix(parts: list[Tensor], rows: int, columns: int) -> Tensor:
            row, column = torch.cat(parts, 1)
            return sums(row, column, (rows, columns))

        return Tables(
            tuple(names),
            tuple(first_candidates),
            matrix(members, count, self.candidates),
            matrix(pairs, pair_count, count),
            matrix(candidates, self.candidates, pair_count),
            matrix(tables, len(names), count),
        )


def _listed(shown: list[str]) -> str:
    """The first of some texts, with dots if there are more."""
    return ", ".join(shown[:_SHOWN]) + (", ..." if len(shown) > _SHOWN else "")


def count_text(bounds: Bounds) -> str:
    """The number of true candidates of a group in words."""
    lower, upper = bounds
    if lower == upper:
        return f"exactly {lower}"
    return f"at least {lower}" if upper is None else f"{lower} to {upper}"


def kinds_of(families: list[Family]) -> list[Bounds]:
    """Distinct bounds, sorted; no upper bound comes last."""
    return sorted({family.bounds for family in families}, key=_by_bounds)


def _by_bounds(bounds: Bounds) -> tuple[int, float]:
    lower, upper = bounds
    return lower, float("inf") if upper is None else upper


def refusal(graph: Declaration) -> str:
    """Why a graph has no candidates or no groups, in one sentence that names the variable or constraint;
    empty if it has."""
    return without_candidates(graph) or refusal_of_groups(graph)


def refusal_of_groups(graph: Declaration) -> str:
    """Why a graph has no groups, in one sentence that names the constraints; empty if it has."""
    if not graph.constraints:
        return "the graph has no constraints"
    uncounted = [c.name for c in graph.constraints if not c.is_counted]
    if len(uncounted) == len(graph.constraints):
        return f"no constraint counts entries: {', '.join(map(repr, uncounted))} have no groups"
    return ""


def refusal_of_constraints(graph: Declaration) -> str:
    """Which constraint has a continuous variable, in one sentence; empty if none has."""
    names = continuous(graph)
    for constraint in graph.constraints:
        mixed = [name for name in constraint.variables if name in names]
        if mixed:
            return f"constraint {constraint.name!r} has the continuous variable {mixed[0]!r}"
    return ""


def discrete(graph: Declaration) -> list[str]:
    """Names of the categorical and binary variables of a graph."""
    return [name for name, kind in kinds_of_values(graph).items() if kind != "real"]


def continuous(graph: Declaration) -> list[str]:
    """Names of the variables that are neither categorical nor binary."""
    return [name for name, kind in kinds_of_values(graph).items() if kind == "real"]


def without_candidates(graph: Declaration) -> str:
    """Why a graph has no candidates, in one sentence that names the variable; empty if it has."""
    for name in continuous(graph):
        return f"variable {name!r} is neither categorical nor binary, so it has no candidate values"
    return without_tokens(graph)


def without_tokens(graph: Declaration) -> str:
    """Why the nodes of a graph have no layout, in one sentence; empty if they have."""
    try:
        Frames(graph)
    except DeclarationError as error:
        return str(error).rstrip(".")
    return ""


def _node_family(slot: Slot) -> Family:
    first = slot.numbers.start
    entries = torch.arange(first, slot.numbers.stop).view(-1, slot.channels)
    return Family(slot.name, entries, (1, 1))


def _candidates_of(slot: Slot, entries: NDArray[np.int64]) -> Tensor:
    """Candidates of entries of a variable: of the entry itself, or of the value 1 of a binary node."""
    numbers = torch.from_numpy(np.ascontiguousarray(entries))
    candidates: Tensor = slot.numbers.start + (2 * numbers + 1 if slot.kind == "binary" else numbers)
    return candidates
