"""Energies times a weight: the common part of the penalties of constraints, a product, and a loss."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError
from unn.graph.arrays import Reference, Variable
from unn.graph.factor import Values
from unn.graph.interactions import Relation, Shapes, ordered_letters_of, product_relations
from unn.graph.sizes import LetterSizes
from unn.graph.views import adjoint, refuse_shifted_splits, starts_of, view
from unn.regularizers.base import batch_sum

from .multilinear import Multilinear


class WeightedEnergy(EnergyFactor):
    """Base class of energies that are multiplied by a weight, fixed or learned.

    Args:
        references: arrays of the energy without its weight.
        weight: a number > 0.
        log_weight: reference to a parameter or constant without axes; the weight is multiplied by its
            exponential, so that a learned weight stays positive.
        name: unique in the graph.

    Raises:
        DeclarationError: for a weight that is not a finite number > 0, or a ``log_weight`` with axes.
    """

    def __init__(
        self, *references: Reference, weight: float, log_weight: Reference | None, name: str | None
    ) -> None:
        own = () if log_weight is None else (log_weight,)
        super().__init__(*references, *own, name=name)
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not is_number or not 0 < weight < math.inf:
            raise DeclarationError(
                f"factor {self.name!r}: weight must be a finite number > 0, got {weight!r}; "
                "for a learned weight pass log_weight=g.parameter('w', '')['']."
            )
        if log_weight is not None and (isinstance(log_weight.array, Variable) or log_weight.array.axes):
            raise DeclarationError(
                f"factor {self.name!r}: log_weight refers to {log_weight}, but must be a parameter or "
                "constant without axes, such as g.parameter('w', '')['']."
            )
        self.weight = float(weight)
        self.log_weight = log_weight

    def scale(self, values: Values, axes: int = 0) -> Tensor | float:
        """The weight: a number, or shape ``(1 or batch, *ones)`` with this many axes after the first."""
        if self.log_weight is None:
            return self.weight
        return self.weight * values[self.log_weight.array.name].exp().reshape(-1, *[1] * axes)

    def weight_text(self) -> str:
        """The weight as it appears in a formula."""
        learned = "" if self.log_weight is None else f" exp({self.log_weight.array.name})"
        return f"{self.weight:g}{learned}"


class WeightedProduct(WeightedEnergy):
    """E = weight * sum over all letters of the product of the references: minus ``Multilinear``.

    Args:
        references: variables, parameters and constants, each with a pattern.
        weight, log_weight: see ``WeightedEnergy``.
        name: unique in the graph.

    Example:
        ``WeightedProduct(X["src[e] c"], X["dst[e] c"], weight=4.0)``: the ends of an edge pay for each colour
        to which both give probability.
    """

    multilinear = True
    handles_padding = True
    handles_indices = True

    def __init__(
        self,
        *references: Reference,
        weight: float = 1.0,
        log_weight: Reference | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(*references, weight=weight, log_weight=log_weight, name=name)
        self._product = Multilinear(*references, name=self.name)

    def energy(self, values: Values) -> Tensor:
        return -self.scale(values) * self._sum().energy(values)

    def message(self, target: str, values: Values, shape: tuple[int, ...] | None = None) -> Tensor:
        message = self._sum().message(target, values, shape)
        return -self.scale(values, message.ndim - 1) * message

    def affine_in(self, target: str) -> bool:
        return self._product.affine_in(target)

    def degree(self, names: Collection[str]) -> int:
        return self._product.degree(names)

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return product_relations(self, shapes)

    def ordered_letters(self) -> set[str]:
        return self._product.ordered_letters()

    def formula(self) -> str:
        return f"{self.weight_text()} * sum {' '.join(map(str, self._product.references))}"

    def _sum(self) -> Multilinear:
        """The product, with the indices and sizes that this factor has in its graph."""
        self._product.indices, self._product.split_sizes = self.indices, self.split_sizes
        return self._product


class EqualBits(WeightedEnergy):
    """E = weight * sum of 2 x y - x - y over pairs of bits: expected number of equal pairs, less a constant.

    Bits with probabilities x and y are equal with probability x y + (1 - x)(1 - y). The energy is affine in
    each.

    Args:
        one, other: references with the same letters to variables in [0, 1].
        weight, log_weight: see ``WeightedEnergy``.
        name: unique in the graph.

    Example:
        ``EqualBits(s["i"], s["i+1"], weight=2.0)``: neighbours should differ.
    """

    handles_indices = True

    def __init__(
        self,
        one: Reference,
        other: Reference,
        *,
        weight: float = 1.0,
        log_weight: Reference | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(one, other, weight=weight, log_weight=log_weight, name=name)
        refuse_shifted_splits(self)
        if set(one.letters) != set(other.letters):
            raise DeclarationError(f"factor {self.name!r}: {one} and {other} must have the same letters.")
        # the linear terms remain where one of two variables is zero
        self.multilinear = one.array is other.array
        self.handles_padding = not any(dim.shift for r in (one, other) for dim in r.pattern.dimensions)
        self._ends = (one, other)
        self._order = tuple(1 + other.letters.index(letter) for letter in one.letters)
        self._inverse = tuple(1 + one.letters.index(letter) for letter in other.letters)
        self._starts = starts_of(self._ends)

    def energy(self, values: Values) -> Tensor:
        one, other = (self._view(position, values) for position in (0, 1))
        return self.scale(values) * batch_sum(2 * one * other - one - other)

    def message(self, target: str, values: Values, shape: tuple[int, ...] | None = None) -> Tensor:
        extents = tuple(values[target].shape[1:]) if shape is None else shape
        sizes = self._sizes(values, target, extents)
        total: Tensor | None = None
        for position, reference in enumerate(self._ends):
            if reference.array.name == target:
                pull = 1 - 2 * self._view(1 - position, values, sizes)
                pull = self.scale(values, pull.ndim - 1) * (
                    pull.permute(0, *self._inverse) if position else pull
                )
                term = adjoint(pull, reference.pattern, sizes, self._starts, extents, self.indices)
                total = term if total is None else total + term
        assert total is not None
        return total

    def affine_in(self, target: str) -> bool:
        return self._ends[0].array is not self._ends[1].array

    def degree(self, names: Collection[str]) -> int:
        return sum(reference.array.name in names for reference in self._ends)

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return product_relations(self, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self._ends)

    def formula(self) -> str:
        one, other = self._ends
        return f"{self.weight_text()} * sum (2 {one} {other} - {one} - {other})"

    def _view(self, position: int, values: Values, sizes: LetterSizes | None = None) -> Tensor:
        """The bits at one end, in the order of the letters of the first reference."""
        reference = self._ends[position]
        x = values[reference.array.name]
        sizes = self._sizes(values) if sizes is None else sizes
        bits = view(x, reference.pattern, sizes, self._starts, self.indices)
        return bits.permute(0, *self._order) if position else bits

    def _sizes(self, values: Values, target: str = "", extents: tuple[int, ...] = ()) -> LetterSizes:
        shapes = {name: tuple(values[name].shape[1:]) for name in self.variables if name in values}
        return self.letter_sizes({**shapes, target: extents} if target else shapes)


class LossEnergy(WeightedEnergy):
    """E = weight * loss of a constraint, which must be differentiable and >= 0.

    Messages come from autograd. Blocks are minimised by the monotone inner solver, unless the loss is affine
    in them (``Constraint.multiaffine``).

    Args:
        constraint: a constraint with a ``loss``.
        weight, log_weight: see ``WeightedEnergy``.
        name: unique in the graph.
    """

    handles_indices = True

    def __init__(
        self,
        constraint: Constraint,
        weight: float = 1.0,
        log_weight: Reference | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(constraint, Constraint):
            raise DeclarationError(
                f"LossEnergy takes a constraint such as Cardinality(...), got {constraint!r}."
            )
        super().__init__(*constraint.references, weight=weight, log_weight=log_weight, name=name)
        self.constraint = constraint

    def energy(self, values: Values) -> Tensor:
        return self.scale(values) * self.constraint.loss(values)

    def affine_in(self, target: str) -> bool:
        occurrences = sum(reference.array.name == target for reference in self.constraint.references)
        return self.constraint.multiaffine and occurrences == 1

    def degree(self, names: Collection[str]) -> int:
        return 0

    def keeps(self, index: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_] | None:
        return self.constraint.keeps(index)

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return self.constraint.interactions(shapes)

    def ordered_letters(self) -> set[str]:
        return self.constraint.ordered_letters()

    def formula(self) -> str:
        return f"{self.weight_text()} * loss({self.constraint.formula()})"
