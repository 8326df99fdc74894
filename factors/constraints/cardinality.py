"""Counting constraints: number of ones in each group of entries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError, whole_number
from unn.graph.arrays import Reference, Variable
from unn.graph.factor import Values
from unn.graph.groups import CountGroups
from unn.graph.interactions import Relation, Shapes, clique_relations, ordered_letters_of
from unn.graph.structure import parse_letters
from unn.graph.views import checked_views, refuse_shifted_splits
from unn.regularizers.base import batch_flat, batch_sum

from ..energies.counting import CountEnergy
from ..energies.weighted import LossEnergy
from .ones import is_spin, shares_of_ones, undefined_entries


class Cardinality(Constraint):
    """For each value of some letters, the number of ones among the referenced entries lies within bounds.

    Without bounds, exactly one entry of each group is one.

    Args:
        reference: reference to a variable with entries 0 or 1, such as one-hot values of cells, or with
            spins, of which those at 1 are counted.
        each: letters that index the groups, separated by spaces.
        equals: number of ones in each group.
        at_least: least number of ones, instead of ``equals``.
        at_most: greatest number of ones, instead of ``equals``; with ``at_least`` the number lies between.
        name: unique in the graph.

    Attributes:
        lower: least number of ones.
        upper: greatest number of ones; None without a bound.
        equals: the number of ones, if it is fixed; else None.

    Raises:
        DeclarationError: for bounds that are not whole numbers >= 0, that no number satisfies, or that
            contradict ``equals``.

    Example:
        ``Cardinality(X["r c v"], each="r v", equals=1)``: each digit once in each row.
    """

    handles_indices = True

    def __init__(
        self,
        reference: Reference,
        *,
        each: str,
        equals: int | None = None,
        at_least: int | None = None,
        at_most: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(reference, name=name)
        if not isinstance(reference.array, Variable):
            raise DeclarationError(
                f"factor {self.name!r} constrains a variable, but {reference.array.name!r} is a "
                f"{reference.array.kind}."
            )
        self.lower, self.upper = bounds_of(self.name, equals, at_least, at_most)
        self.equals = self.lower if self.lower == self.upper else None
        refuse_shifted_splits(self)
        self.each = parse_letters(self, "each", each)

    def counts(self, x: Tensor) -> Tensor:
        """Number of ones in each group: entries above one half, and spins above 0.

        Shape ``(batch, *groups)``, in the order of ``each``.

        Raises:
            ObservationError: for values of another shape.
        """
        name = self.references[0].array.name
        ones = self._view(shares_of_ones(self, {name: x})) > 0.5
        return self.sums(ones.to(torch.int64), self.each)

    def part_losses(self, values: Values) -> Tensor:
        """Squared distance of the soft count of each group from its bounds, shape ``(batch, groups)``.

        At binary values these are L_[n] and L_[l,u] of the recurrent-transformer paper (equations 4 and 5).

        Args:
            values: values of the variable by name, shape ``(batch, *axes)``.
        """
        return self.distances(self.soft_counts(values)).square()

    def soft_counts(self, values: Values) -> Tensor:
        """Sum of the entries of each group, shape ``(batch, groups)``; of (1 + s) / 2 for spins s."""
        return batch_flat(self.sums(self._view(shares_of_ones(self, values)), self.each))

    def distances(self, counts: Tensor) -> Tensor:
        """Distance of counts from the bounds, with the sign of the excess: 0 within them."""
        below = (counts - self.lower).clamp(max=0)
        return below if self.upper is None else below + (counts - self.upper).clamp(min=0)

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """An energy whose minima satisfy the bounds.

        With ``equals`` it is the expected (count - equals)^2 for independent nodes, with ``at_most=1`` the
        expected number of pairs of ones, twice: ``CountEnergy``, which has exact updates of nodes. Other
        bounds, and spins, have a ``LossEnergy``, which the inner solver minimises.

        Raises:
            DeclarationError: for a variable that is neither on the simplex nor in [0, 1] nor in [-1, 1].
        """
        target = (
            self.lower if self.lower == self.upper else 0.5 if (self.lower, self.upper) == (0, 1) else None
        )
        if target is None or is_spin(self.references[0].array):
            return [LossEnergy(self, weight, log_weight, name=self.name)]
        energy = CountEnergy(
            self.references[0],
            each=" ".join(self.each),
            equals=target,
            weight=weight,
            log_weight=log_weight,
            name=self.name,
        )
        return [energy]

    def groups(self, shapes: Shapes) -> list[CountGroups]:
        """The groups in the order of ``each``, with the bounds."""
        variable = self.references[0].array.name
        axes = shapes[variable]
        numbers = torch.arange(math.prod(axes)).view(1, *axes)
        entries = self._by_group(self._view({variable: numbers}), self.each)[0]
        number = math.prod(entries.shape[: len(self.each)])
        members = math.prod(entries.shape[len(self.each) :])
        return [CountGroups({variable: entries.reshape(number, members).numpy()}, self.lower, self.upper)]

    def violations(self, x: Tensor) -> Tensor:
        """Number of groups with a wrong count, and of entries that are NaN; shape ``(batch,)``.

        Args:
            x: values of the variable, shape ``(batch, *axes)``.
        """
        wrong = batch_sum((self.distances(self.counts(x)) != 0).long())
        return wrong + undefined_entries(self, {self.references[0].array.name: x})

    def violations_of(self, values: Values) -> Tensor:
        return self.violations(values[self.references[0].array.name])

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return clique_relations(self, self.each, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references)

    def formula(self) -> str:
        groups = f" for each {' '.join(self.each)}" if self.each else ""
        return f"{self.condition()}{groups}"

    def condition(self) -> str:
        """The bounds on the count of one group, as text."""
        return condition_of(f"count of {self.references[0]}", self.lower, self.upper)

    def sums(self, entries: Tensor, each: Sequence[str]) -> Tensor:
        """Sum over the members of each group, shape ``(batch, *each)``.

        Args:
            entries: the entries that the reference addresses, shape ``(batch, *letters of the reference)``.
            each: the letters of groups, in any order.
        """
        members = self._by_group(entries, each)
        groups = len(each)
        return members.flatten(1 + groups).sum(-1) if members.ndim > 1 + groups else members

    def _view(self, values: Values) -> Tensor:
        """The entries that the reference addresses, shape ``(batch, *letters)``."""
        (entries,) = checked_views(self, values)
        return entries

    def _by_group(self, entries: Tensor, each: Sequence[str]) -> Tensor:
        """Entries by group and member, shape ``(batch, *each, *others)``."""
        letters = self.references[0].letters
        order = (*each, *(y for y in letters if y not in each))
        return entries.permute(0, *(1 + letters.index(x) for x in order))


def condition_of(count: str, lower: int, upper: int | None) -> str:
    """The bounds on a count, as text."""
    if lower == upper:
        return f"{count} = {lower}"
    if upper is None:
        return f"{count} >= {lower}"
    return f"{count} <= {upper}" if not lower else f"{lower} <= {count} <= {upper}"


def bounds_of(
    name: str, equals: int | None, at_least: int | None, at_most: int | None
) -> tuple[int, int | None]:
    """Least and greatest number of ones, None without a bound; exactly one without any.

    Raises:
        DeclarationError: for bounds that are not whole numbers >= 0, or that no number satisfies.
    """
    for option, value in (("equals", equals), ("at_least", at_least), ("at_most", at_most)):
        if value is not None:
            whole_number(f"factor {name!r}: {option}", value, 0)
    if equals is None and at_least is None and at_most is None:
        return 1, 1
    if equals is not None:
        if at_least is not None or at_most is not None:
            raise DeclarationError(
                f"factor {name!r}: equals={equals} is both bounds; leave it out, or at_least and at_most."
            )
        return equals, equals
    if at_least is not None and at_most is not None and at_least > at_most:
        raise DeclarationError(
            f"factor {name!r}: no number is at least {at_least} and at most {at_most}; exchange the bounds."
        )
    return at_least or 0, at_most
