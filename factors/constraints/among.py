"""Counting constraints on groups of any sizes, whose members may belong to several variables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError
from unn.graph.arrays import Index, Reference, Variable
from unn.graph.factor import Values
from unn.graph.groups import CountGroups
from unn.graph.interactions import Relation, Shapes, listed_relation, ordered_letters_of
from unn.graph.structure import parse_letters, variables_only
from unn.graph.views import checked_views
from unn.regularizers.base import batch_sum

from ..energies.weighted import LossEnergy
from .cardinality import bounds_of, condition_of
from .ones import binary_ones, shares_of_ones, undefined_entries

Numbers = NDArray[np.int64]


class Among(Constraint):
    """The number of ones among the members of each group lies within bounds.

    An index gives the group of each value of one letter of a reference. The groups are 0, 1, ... up to the
    largest number in any index; they may have different sizes, and members of several variables. It is the
    constraint *among* of the constraint literature (Beldiceanu and Contejean, 1994).

    Args:
        references: references to variables with entries 0 or 1, such as one-hot values of cells.
        group: for each reference an index along the axis of one of its letters.
        each: further letters that index the groups, which all references have, separated by spaces.
        equals: number of ones in each group; exactly one without bounds.
        at_least: least number of ones, instead of ``equals``.
        at_most: greatest number of ones, instead of ``equals``; with ``at_least`` the number lies between.
        name: unique in the graph.

    Raises:
        DeclarationError: for bounds as for ``Cardinality``, or an index that does not lie along the axis of
            exactly one letter of its reference.

    Example:
        ``Among(X["cell v"], group=[region], each="v")``: each value once in each region, where ``region =
        g.index("region", "cell", numbers, into="area")``.
    """

    handles_indices = True

    def __init__(
        self,
        *references: Reference,
        group: Sequence[Index],
        each: str = "",
        equals: int | None = None,
        at_least: int | None = None,
        at_most: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(*references, name=name)
        variables_only(self)
        self.lower, self.upper = bounds_of(self.name, equals, at_least, at_most)
        self.each = parse_letters(self, "each", each)
        lacking = [r for r in references if not set(self.each) <= set(r.letters)]
        if lacking:
            raise DeclarationError(
                f"factor {self.name!r}: each={each!r} names letters that {lacking[0]} does not have; all "
                "references have them."
            )
        groups = list(group) if isinstance(group, Sequence) else [group]
        if len(groups) != len(references) or not all(isinstance(index, Index) for index in groups):
            raise DeclarationError(
                f"factor {self.name!r}: group is a list with one index for each reference, as declared by "
                f"g.index(...); got {group!r} for {len(references)} references."
            )
        self.group = tuple(groups)
        self._letters = [self._letter(r, index) for r, index in zip(references, groups, strict=True)]

    def soft_counts(self, values: Values) -> Tensor:
        """Sum of the entries of each group, shape ``(batch, groups)``, the letters of ``each`` slowest; of
        (1 + s) / 2 for spins s.

        Raises:
            ObservationError: for values that are missing, of another shape, or of inconsistent sizes.
        """
        return self._sums(shares_of_ones(self, values))

    def _sums(self, shares: Values) -> Tensor:
        """Sum of the shares of ones of each group, shape ``(batch, groups)``."""
        total: Tensor | None = None
        for entries, index in zip(self._views(shares), self.group, strict=True):
            sums = entries.sum(-1)
            counts = sums.new_zeros(*sums.shape[:-1], self._count)
            counts = counts.index_add(-1, index.on(sums.device), sums)
            total = counts if total is None else total + counts
        assert total is not None
        return total.flatten(1)

    def violations_of(self, values: Values) -> Tensor:
        """Number of groups with a wrong count of entries above one half, or of spins above 0, and of entries
        that are NaN; shape ``(batch,)``."""
        wrong = batch_sum((self._distances(self._sums(binary_ones(self, values))) != 0).long())
        return wrong + undefined_entries(self, values)

    def part_losses(self, values: Values) -> Tensor:
        """Squared distance of the soft count of each group from its bounds, shape ``(batch, groups)``."""
        return self._distances(self.soft_counts(values)).square()

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """The loss, ``LossEnergy``, which the inner solver minimises."""
        return [LossEnergy(self, weight, log_weight, name=self.name)]

    def groups(self, shapes: Shapes) -> list[CountGroups]:
        """The groups by their numbers of members of each variable, with the bounds."""
        by_size: dict[tuple[int, ...], list[list[Numbers]]] = {}
        for members in self._members(shapes):
            by_size.setdefault(tuple(map(len, members)), []).append(members)
        result = []
        for groups in by_size.values():
            parts = [np.stack([members[k] for members in groups]) for k in range(len(self.variables))]
            result.append(CountGroups(dict(zip(self.variables, parts, strict=True)), self.lower, self.upper))
        return result

    def interactions(self, shapes: Shapes) -> list[Relation]:
        """All pairs of nodes with entries in a common group."""
        pairs: dict[tuple[int, int], list[Numbers]] = {}
        channels = [self._channels(name, shapes) for name in self.variables]
        for members in self._members(shapes):
            nodes = [np.unique(x // size) for x, size in zip(members, channels, strict=True)]
            for a, b in combinations_with_replacement(range(len(nodes)), 2):
                grid = np.stack(np.meshgrid(nodes[a], nodes[b], indexing="ij")).reshape(2, -1)
                pairs.setdefault((a, b), []).append(grid)
        relations = []
        for (a, b), parts in pairs.items():
            i, j = np.unique(np.concatenate(parts, 1), axis=1)
            relations.append(listed_relation(self.variables[a], i, self.variables[b], j))
        return relations

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references) | set(self._letters)

    def formula(self) -> str:
        members = ", ".join(map(str, self.references))
        groups = " ".join([*dict.fromkeys(index.name for index in self.group), *self.each])
        return f"{condition_of(f'count of {members}', self.lower, self.upper)} for each {groups}"

    @property
    def _count(self) -> int:
        """Number of values of the indices."""
        return 1 + max((int(index.numbers.max()) for index in self.group if len(index.numbers)), default=-1)

    def _distances(self, counts: Tensor) -> Tensor:
        below = (counts - self.lower).clamp(max=0)
        return below if self.upper is None else below + (counts - self.upper).clamp(min=0)

    def _letter(self, reference: Reference, index: Index) -> str:
        """The letter of a reference along which an index lies."""
        (axis,) = index.axes
        dims = zip(reference.array.axes, reference.pattern.dimensions, strict=True)
        direct = {
            dim.letters[0]
            for own, dim in dims
            if own == axis and len(dim.letters) == 1 and not dim.shift and dim.index is None
        }
        looked_up = {dim.letters[0] for dim in reference.pattern.dimensions if dim.index is not None}
        # a letter may be both, and then lies along the axis itself
        chosen = sorted((direct or looked_up) - set(self.each))
        if len(chosen) != 1:
            raise DeclarationError(
                f"factor {self.name!r}: index {index.name!r} lies along axis {axis!r}, but {reference} has "
                f"{len(chosen)} letters that can run along it; refer to the members by one letter, such as "
                "X['cell v'] or X['cell[m] value[m]']."
            )
        return chosen[0]

    def _views(self, values: Values) -> list[Tensor]:
        """Entries of each reference, shape ``(batch, *each, members, others)``."""
        result = []
        views = checked_views(self, values)
        for reference, letter, index, x in zip(
            self.references, self._letters, self.group, views, strict=True
        ):
            first = [*self.each, letter]
            order = [*first, *(other for other in reference.letters if other not in first)]
            x = x.permute(0, *(1 + reference.letters.index(other) for other in order))
            if x.shape[len(first)] != len(index.numbers):
                raise DeclarationError(
                    f"factor {self.name!r}: index {index.name!r} has {len(index.numbers)} numbers, but the "
                    f"letter {letter!r} of {reference} runs over {x.shape[len(first)]}."
                )
            result.append(x.flatten(1 + len(first)) if x.ndim > 1 + len(first) else x.unsqueeze(-1))
        return result

    def _members(self, shapes: Mapping[str, tuple[int, ...]]) -> list[list[Numbers]]:
        """Flat indices of the members of each group, for each variable."""
        entries = {name: torch.arange(math.prod(shapes[name])) for name in self.variables}
        numbered = {name: x.view(1, *shapes[name]) for name, x in entries.items()}
        keys: list[list[Numbers]] = [[] for _ in self.variables]
        members: list[list[Numbers]] = [[] for _ in self.variables]
        number = 0
        for reference, index, x in zip(self.references, self.group, self._views(numbered), strict=True):
            x = x[0].flatten(0, len(self.each) - 1) if self.each else x
            number = len(x) * self._count
            group = torch.arange(len(x))[:, None] * self._count + index.numbers
            variable = self.variables.index(reference.array.name)
            keys[variable].append(group[:, :, None].expand(x.shape).reshape(-1).numpy())
            members[variable].append(x.reshape(-1).numpy())
        if not number:
            return []
        parts = []
        for own_keys, own_members in zip(keys, members, strict=True):
            key, member = np.concatenate(own_keys), np.concatenate(own_members)
            order = key.argsort(kind="stable")
            ends = np.bincount(key, minlength=number).cumsum()
            parts.append(np.split(member[order], ends[:-1]))
        return [list(group) for group in zip(*parts, strict=True)]

    def _channels(self, name: str, shapes: Shapes) -> int:
        variable = next(r.array for r in self.references if r.array.name == name)
        assert isinstance(variable, Variable)
        return math.prod(shapes[name][len(variable.node_axes) :])
