"""Negation and implication of counts."""

from __future__ import annotations

import torch
from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError
from unn.graph.arrays import Reference
from unn.graph.factor import Values
from unn.graph.groups import CountGroups
from unn.graph.interactions import Relation, Shapes, clique_relations, ordered_letters_of
from unn.graph.views import checked_views, refuse_shifted_splits
from unn.regularizers.base import batch_flat, batch_sum

from ..energies.weighted import LossEnergy
from .all_different import AllDifferent
from .cardinality import Cardinality
from .ones import shares_of_ones, undefined_entries


class Not(Constraint):
    """In each group the number of ones lies outside the bounds of a ``Cardinality``.

    Args:
        count: a count, which is not added to the graph itself.
        name: unique in the graph.

    Raises:
        DeclarationError: for bounds that every number satisfies.

    Example:
        ``Not(Cardinality(x["i j"], each="i", equals=0))``: no row is empty.
    """

    handles_indices = True

    def __init__(self, count: Cardinality, *, name: str | None = None) -> None:
        _require_count(type(self).__name__, count)
        super().__init__(*count.references, name=name or f"Not({count.name})")
        if not count.lower and count.upper is None:
            raise DeclarationError(
                f"factor {self.name!r}: every number of ones satisfies {count.condition()}, so its negation "
                "cannot be satisfied; give it an upper bound, or a lower one."
            )
        self.count = count

    def violations_of(self, values: Values) -> Tensor:
        """Number of groups whose count lies within the bounds, and of entries that are NaN; shape
        ``(batch,)``."""
        counts = _placed(self.count, self).counts(values[self.references[0].array.name])
        return batch_sum((self.count.distances(counts) == 0).long()) + undefined_entries(self, values)

    def part_losses(self, values: Values) -> Tensor:
        """Squared distance of each soft count from the nearest number outside the bounds."""
        count = _placed(self.count, self)
        return _distance_outside(count, count.soft_counts(values)).square()

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """The loss, ``LossEnergy``, which the inner solver minimises."""
        return [LossEnergy(self, weight, log_weight, name=self.name)]

    def groups(self, shapes: Shapes) -> list[CountGroups]:
        """The groups with the bounds that remain, where these are one range; else none."""
        if not self.is_counted:
            return []
        (groups,) = _placed(self.count, self).groups(shapes)
        if self.count.upper is None:
            return [CountGroups(groups.entries, 0, self.count.lower - 1)]
        return [CountGroups(groups.entries, self.count.upper + 1, None)]

    @property
    def is_counted(self) -> bool:
        """Whether the numbers outside the bounds are one range."""
        return not self.count.lower or self.count.upper is None

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return clique_relations(self, self.count.each, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references)

    def formula(self) -> str:
        groups = f" for each {' '.join(self.count.each)}" if self.count.each else ""
        return f"not {self.count.condition()}{groups}"


class Implies(Constraint):
    """In each group, a count that lies within its bounds implies that another one does.

    Args:
        condition: a count, which is not added to the graph itself.
        conclusion: another count with the same letters of groups.
        name: unique in the graph.

    Raises:
        DeclarationError: for counts with different letters of groups, or a condition that always holds.

    Example:
        ``Implies(Cardinality(x["i j"], each="i", at_least=1), Cardinality(y["i k"], each="i", equals=2))``
    """

    handles_indices = True

    def __init__(self, condition: Cardinality, conclusion: Cardinality, *, name: str | None = None) -> None:
        for count in (condition, conclusion):
            _require_count(type(self).__name__, count)
        if set(condition.each) != set(conclusion.each):
            raise DeclarationError(
                f"Implies relates counts of the same groups, but the condition has groups for each "
                f"{' '.join(condition.each) or '(one group)'} and the conclusion for each "
                f"{' '.join(conclusion.each) or '(one group)'}."
            )
        references = (*condition.references, *conclusion.references)
        super().__init__(*references, name=name or f"Implies({condition.name}, {conclusion.name})")
        if not condition.lower and condition.upper is None:
            raise DeclarationError(
                f"factor {self.name!r}: every number of ones satisfies {condition.condition()}; declare the "
                "conclusion by itself."
            )
        refuse_shifted_splits(self)
        self.condition, self.conclusion = condition, conclusion

    def violations_of(self, values: Values) -> Tensor:
        """Number of groups whose condition holds and whose conclusion does not, and of entries that are NaN;
        shape ``(batch,)``."""
        one, other = (
            (entries > 0.5).to(torch.int64) for entries in checked_views(self, shares_of_ones(self, values))
        )
        each = self.condition.each
        held = self.condition.distances(self.condition.sums(one, each)) == 0
        failed = self.conclusion.distances(self.conclusion.sums(other, each)) != 0
        return batch_sum((held & failed).long()) + undefined_entries(self, values)

    def part_losses(self, values: Values) -> Tensor:
        """The smaller of the losses of the negated condition and of the conclusion, shape ``(batch,
        groups)``."""
        one, other = checked_views(self, shares_of_ones(self, values))
        each = self.condition.each
        outside = _distance_outside(self.condition, self.condition.sums(one, each)).square()
        losses = self.conclusion.distances(self.conclusion.sums(other, each)).square()
        return batch_flat(torch.minimum(outside, losses))

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """The loss, ``LossEnergy``, which the inner solver minimises."""
        return [LossEnergy(self, weight, log_weight, name=self.name)]

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return clique_relations(self, self.condition.each, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references)

    def formula(self) -> str:
        groups = f" for each {' '.join(self.condition.each)}" if self.condition.each else ""
        return f"{self.condition.condition()} implies {self.conclusion.condition()}{groups}"


def _require_count(owner: str, count: object) -> None:
    if not isinstance(count, Cardinality):
        raise DeclarationError(
            f"{owner} takes counts such as Cardinality(x['i j'], each='i'), got {count!r}."
        )
    if isinstance(count, AllDifferent):
        raise DeclarationError(
            f"{owner} takes one count for each group, and AllDifferent has one for each of its values; "
            "declare the counts by themselves, such as Cardinality(x['i v'], each='v', at_most=1)."
        )


def _placed(count: Cardinality, owner: Constraint) -> Cardinality:
    """A count with the indices and sizes that its owner has in a graph."""
    count.indices, count.split_sizes = owner.indices, owner.split_sizes
    count.axis_sizes = owner.axis_sizes
    return count


def _distance_outside(count: Cardinality, counts: Tensor) -> Tensor:
    """Distance of each soft count from the nearest number outside the bounds, in the shape of the counts."""
    above = None if count.upper is None else (count.upper + 1 - counts).clamp(min=0)
    below = (counts - (count.lower - 1)).clamp(min=0) if count.lower else None
    if above is None or below is None:
        distance = below if above is None else above
        assert distance is not None
        return distance
    return torch.minimum(above, below)
