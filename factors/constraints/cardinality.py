"""Counting constraints: number of ones in each group of entries."""

from __future__ import annotations

import torch
from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError, whole_number
from unn.graph.arrays import Reference, Variable
from unn.graph.factor import Values
from unn.graph.interactions import Relation, Shapes, clique_relations, ordered_letters_of
from unn.graph.structure import parse_letters
from unn.graph.views import checked_views, refuse_shifted_splits
from unn.regularizers.base import batch_sum

from ..energies.counting import CountEnergy


class Cardinality(Constraint):
    """For each value of some letters, exactly ``equals`` of the referenced entries are one.

    Args:
        reference: reference to a variable with entries 0 or 1, such as one-hot values of cells.
        each: letters that index the groups, separated by spaces.
        equals: number of ones in each group.
        name: unique in the graph.

    Example:
        ``Cardinality(X["r c v"], each="r v", equals=1)``: each digit once in each row.
    """

    handles_indices = True

    def __init__(self, reference: Reference, *, each: str, equals: int = 1, name: str | None = None) -> None:
        super().__init__(reference, name=name)
        if not isinstance(reference.array, Variable):
            raise DeclarationError(
                f"factor {self.name!r} constrains a variable, but {reference.array.name!r} is a "
                f"{reference.array.kind}."
            )
        whole_number(f"factor {self.name!r}: equals", equals, 0)
        refuse_shifted_splits(self)
        self.each = parse_letters(self, "each", each)
        self.equals = equals

    def counts(self, x: Tensor) -> Tensor:
        """Number of ones in each group, rounded at one half, shape ``(batch, *groups)`` in the order of
        ``each``.

        Raises:
            ObservationError: for values of another shape.
        """
        return self._sums((self._view(x) > 0.5).to(torch.int64))

    def loss(self, values: Values) -> Tensor:
        """Sum over groups of (count - equals)^2 of the soft counts, shape ``(batch,)``.

        Args:
            values: values of the variable by name, shape ``(batch, *axes)``.
        """
        x = values[self.references[0].array.name]
        return batch_sum((self._sums(self._view(x)) - self.equals).square())

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """The expected (count - equals)^2 for independent nodes, ``CountEnergy``: exact updates of nodes.

        Raises:
            DeclarationError: for a variable that is neither on the simplex nor in [0, 1].
        """
        energy = CountEnergy(
            self.references[0],
            each=" ".join(self.each),
            equals=self.equals,
            weight=weight,
            log_weight=log_weight,
            name=self.name,
        )
        return [energy]

    def _view(self, x: Tensor) -> Tensor:
        """Entries by group and member, shape ``(batch, *each, *others)``."""
        reference = self.references[0]
        (entries,) = checked_views(self, {reference.array.name: x})
        letters = reference.letters
        order = (*self.each, *(y for y in letters if y not in self.each))
        return entries.permute(0, *(1 + letters.index(x) for x in order))

    def _sums(self, entries: Tensor) -> Tensor:
        """Sum over the members of each group, shape ``(batch, *each)``."""
        groups = len(self.each)
        return entries.flatten(1 + groups).sum(-1) if entries.ndim > 1 + groups else entries

    def violations(self, x: Tensor) -> Tensor:
        """Number of groups with a wrong count, shape ``(batch,)``.

        Args:
            x: values of the variable, shape ``(batch, *axes)``.
        """
        return batch_sum((self.counts(x) != self.equals).long())

    def violations_of(self, values: Values) -> Tensor:
        return self.violations(values[self.references[0].array.name])

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return clique_relations(self, self.each, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references)

    def formula(self) -> str:
        groups = f" for each {' '.join(self.each)}" if self.each else ""
        return f"count of {self.references[0]} = {self.equals}{groups}"
