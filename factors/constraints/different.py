"""Constraints between two nodes: their values differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError
from unn.graph.arrays import Reference, Variable
from unn.graph.factor import Values
from unn.graph.groups import CountGroups
from unn.graph.interactions import Relation, Shapes, node_dimensions, ordered_letters_of, product_relations
from unn.graph.patterns import Dimension
from unn.graph.structure import variables_only
from unn.graph.views import checked_views
from unn.regularizers import Elementwise, Simplex
from unn.regularizers.base import batch_flat, batch_sum

from ..energies.weighted import EqualBits, LossEnergy, WeightedProduct

Kind = Literal["simplex", "bit", "spin", "real"]

_KINDS: dict[tuple[float, float], Kind] = {(0.0, 1.0): "bit", (-1.0, 1.0): "spin"}
"""What the entries of a value are, by the interval of their domain."""


class Different(Constraint):
    """Two nodes have different values, for each assignment of the letters that index nodes.

    Two values differ if any of their entries do, by more than one half: one-hot categories, bits, spins -1
    and 1, whole numbers. A node never differs from itself. With an index or a shift along the categories,
    only those that it reaches differ: nodes of other categories satisfy it.

    Args:
        one, other: references to variables with the same letters; letters of feature axes (right of the
            bar) index the entries of a value.
        name: unique in the graph.

    Example:
        ``Different(colour["src[e] c"], colour["dst[e] c"])``: the ends of each edge have different colours,
        where ``src`` and ``dst`` are indices of the graph.
    """

    handles_indices = True

    def __init__(self, one: Reference, other: Reference, *, name: str | None = None) -> None:
        super().__init__(one, other, name=name)
        variables_only(self)
        if set(one.letters) != set(other.letters):
            raise DeclarationError(
                f"factor {self.name!r} compares values entry by entry, so that {one} and {other} must have "
                "the same letters; "
                "for pairs of nodes, look both up by the letter of a pair, as in X['src[e] c'] and "
                "X['dst[e] c']."
            )
        features = [self._feature_letters(reference) for reference in (one, other)]
        if features[0] != features[1]:
            raise DeclarationError(
                f"factor {self.name!r}: the letters along feature axes are "
                f"{' '.join(sorted(features[0])) or 'none'} in {one}, but "
                f"{' '.join(sorted(features[1])) or 'none'} in {other}; values are compared along the same "
                "letters."
            )
        self._features = features[0]
        self._kind, self._simplex = _kind_of(one, other)
        self._every_value = not any(
            dim.shift or dim.index for r in (one, other) for dim in _value_dimensions(r)
        )

    def violations_of(self, values: Values) -> Tensor:
        """Number of node pairs with equal values, shape ``(batch,)``; NaN counts as equal.

        Args:
            values: values of the variables, shape ``(batch, *axes)``.

        Raises:
            ObservationError: for values that are missing, of another shape, or of inconsistent sizes.
        """
        left, right = self._sides(values)
        letters = self.references[0].letters
        along = [1 + k for k, letter in enumerate(letters) if letter in self._features]
        differ = (left - right).abs() > 0.5
        if self._kind == "simplex" and not self._every_value:
            simplex = [1 + letters.index(letter) for letter in self._simplex]
            outside = (left.sum(simplex, keepdim=True) < 0.5) & (right.sum(simplex, keepdim=True) < 0.5)
            differ = differ | outside
        for axis in reversed(along):
            differ = differ.any(axis)
        return batch_sum((~differ).long())

    def part_losses(self, values: Values) -> Tensor:
        """Probability that the values of each node pair are equal, shape ``(batch, pairs)``.

        Nodes are independent, with the values as their probabilities. Entries x and y of a feature are equal
        with probability sum x y over the simplex axis, x y + (1 - x)(1 - y) in [0, 1], and (1 + x y) / 2 for
        spins in [-1, 1]; values are equal where all their entries are, which multiplies these. For real
        numbers the loss of a pair is 4 max(0, 1/2 - d)^2, where d is the largest difference of their entries:
        1 at equality, and 0 from the distance on at which values count as different. Its gradient is 0 at
        equality itself.

        Args:
            values: values of the variables, shape ``(batch, *axes)``.
        """
        left, right = self._sides(values)
        letters = self.references[0].letters
        along = [1 + k for k, letter in enumerate(letters) if letter in self._features]
        if self._kind == "real":
            distances = (left - right).abs()
            if along:
                distances = distances.amax(along)
            return batch_flat(4 * (0.5 - distances).clamp(min=0).square())
        if self._kind == "simplex":
            simplex = [1 + letters.index(letter) for letter in self._simplex]
            equal = (left * right).sum(simplex, keepdim=True)
        elif self._kind == "bit":
            equal = left * right + (1 - left) * (1 - right)
        else:
            equal = (1 + left * right) / 2
        for axis in reversed(along):
            equal = equal.prod(axis)
        return batch_flat(equal)

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """The loss as an energy factor, up to a constant.

        For one-hot values and single spins it is a ``WeightedProduct``, for single bits ``EqualBits``, which
        are affine in each node. Otherwise it is a ``LossEnergy``, which the inner solver minimises.
        """
        one, other = self.references
        if self._kind == "simplex" and self._features == set(self._simplex):
            return [WeightedProduct(one, other, weight=weight, log_weight=log_weight, name=self.name)]
        if self._kind == "spin" and not self._features:
            return [WeightedProduct(one, other, weight=weight / 2, log_weight=log_weight, name=self.name)]
        if self._kind == "bit" and not self._features:
            return [EqualBits(one, other, weight=weight, log_weight=log_weight, name=self.name)]
        return [LossEnergy(self, weight, log_weight, name=self.name)]

    def groups(self, shapes: Shapes) -> list[CountGroups]:
        """At most one for each pair of nodes and category, where values are one-hot over one axis; else
        none."""
        if not self.is_counted:
            return []
        name = self.references[0].array.name
        axes = shapes[name]
        left, right = self._sides({name: torch.arange(math.prod(axes)).view(1, *axes)})
        entries = torch.stack([left[0].flatten(), right[0].flatten()], 1)
        # a node never differs from itself: such a pair excludes every category
        return [CountGroups({name: entries.numpy()}, 0, 1)]

    @property
    def is_counted(self) -> bool:
        """Whether values are one-hot over one axis, of one variable."""
        one, other = self.references
        return self._kind == "simplex" and self._features == set(self._simplex) and one.array == other.array

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return product_relations(self, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references)

    def formula(self) -> str:
        one, other = self.references
        return f"{one} differs from {other}"

    def _sides(self, values: Values) -> tuple[Tensor, Tensor]:
        """Both values, shape ``(batch, *letters of the first reference)``."""
        left, right = checked_views(self, values)
        letters, others = (reference.letters for reference in self.references)
        return left, right.permute(0, *(1 + others.index(letter) for letter in letters))

    @staticmethod
    def _feature_letters(reference: Reference) -> set[str]:
        nodes = {letter for dim in node_dimensions(reference) for letter in dim.letters}
        return set(reference.letters) - nodes


def _value_dimensions(reference: Reference) -> Sequence[Dimension]:
    """The dimensions of a reference along the features of a node."""
    return reference.pattern.dimensions[len(node_dimensions(reference)) :]


def _kind_of(one: Reference, other: Reference) -> tuple[Kind, tuple[str, ...]]:
    """Kind of the entries of both values, by their domains, and the letters along the simplex axis."""
    kinds: list[tuple[Kind, tuple[str, ...]]] = []
    for reference in (one, other):
        assert isinstance(reference.array, Variable)
        regularizer = reference.array.regularizer
        if isinstance(regularizer, Simplex):
            kinds.append(("simplex", tuple(sorted(reference.pattern.dimensions[regularizer.dim].letters))))
        elif isinstance(regularizer, Elementwise) and regularizer.interval() in _KINDS:
            kinds.append((_KINDS[regularizer.interval()], ()))
        else:
            kinds.append(("real", ()))
    return kinds[0] if kinds[0] == kinds[1] else ("real", ())
