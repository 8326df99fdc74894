"""The energy of a counting constraint: squared deviation of the number of ones in each group."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unn.errors import DeclarationError
from unn.graph.arrays import Reference, Variable
from unn.graph.factor import Values
from unn.graph.interactions import Relation, Shapes, ordered_letters_of, term_relation
from unn.graph.patterns import Pattern
from unn.graph.structure import parse_letters
from unn.graph.views import adjoint, refuse_shifted_splits, starts_of, view
from unn.regularizers import Ball, Elementwise, Simplex
from unn.regularizers.base import batch_sum

from .weighted import WeightedEnergy


class CountEnergy(WeightedEnergy):
    """Expected squared deviation of the number of ones in each group, up to a constant.

    E = weight * sum over groups of S^2 - sum_u s_u^2 + (1 - 2 equals) S, where S = sum_u s_u is the soft
    count of a group and s_u the probability that unit u contributes a one. A unit is an entry, or for a
    variable on the simplex the entries of one distribution in the group, of which at most one is one. This is
    the multilinear extension of (count - equals)^2 - equals^2 (Boros and Hammer, 2002): the
    expectation for independent units, equal to it where all entries are 0 or 1. The energy is affine in each
    node, so that nodes without a common group are updated exactly and together; it takes linear time in the
    number of entries.

    Where the same entry is looked up several times in a group, or two entries of a node that are not on one
    simplex are counted together, a node interacts with itself, and the monotone inner solver updates it.

    Args:
        reference: reference to a variable on the simplex, or with entries in [0, 1].
        each: letters that index the groups, separated by spaces.
        equals: number of ones in each group; with one half more than a number, both neighbours have the least
            energy: 0.5 penalises the pairs of ones.
        weight, log_weight: see ``WeightedEnergy``.
        name: unique in the graph.

    Attributes:
        pattern: pattern of the reference. The factor refers to the variable twice, with new letters for the
            members of a group, because two members of a group interact.

    Example:
        ``CountEnergy(X["r c v"], each="r v", equals=1, weight=2.0)``: a digit should be once in each row.
    """

    multilinear = True
    handles_padding = True
    handles_indices = True

    def __init__(
        self,
        reference: Reference,
        *,
        each: str,
        equals: float = 1,
        weight: float = 1.0,
        log_weight: Reference | None = None,
        name: str | None = None,
    ) -> None:
        variable = reference.array if isinstance(reference, Reference) else None
        if not isinstance(variable, Variable):
            raise DeclarationError(
                f"CountEnergy takes a reference to a variable such as X['r c v'], got {reference!r}."
            )
        groups = tuple(each.split()) if isinstance(each, str) else ()
        renamed = _other_members(reference, groups)
        super().__init__(reference, renamed, weight=weight, log_weight=log_weight, name=name)
        refuse_shifted_splits(self)
        is_number = isinstance(equals, (int, float)) and not isinstance(equals, bool)
        if not is_number or equals < 0 or 2 * equals != round(2 * equals):
            raise DeclarationError(
                f"factor {self.name!r}: equals must be a whole number >= 0, or one half more (0.5 for "
                f"at most "
                f"one), got {equals!r}."
            )
        _check_domain(self, variable)
        self.equals = equals
        self.each = parse_letters(self, "each", each)
        self.pattern: Pattern = reference.pattern
        self._target = variable.name
        members = [x for x in reference.letters if x not in self.each]
        self._inside = _exclusive_letters(reference, members)
        self._units = tuple(x for x in members if x not in self._inside)
        self._others = dict(zip(reference.letters, renamed.letters, strict=True))
        letters = (*self.each, *self._units, *self._inside)
        self._order = tuple(reference.letters.index(x) for x in letters)
        self._starts = starts_of(self.references)

    def energy(self, values: Values) -> Tensor:
        shares = self._shares(values[self._target])
        counts = self._counts(shares)
        deviations = batch_sum(counts.square() + (1 - 2 * self.equals) * counts) - batch_sum(shares.square())
        return self.scale(values) * deviations

    def message(self, target: str, values: Values, shape: tuple[int, ...] | None = None) -> Tensor:
        x = values.get(target)
        if x is None:
            like = next(iter(values.values()), torch.empty(()))
            message = like.new_full([1] * (1 + len(self.each) + len(self._units)), 2 * self.equals - 1.0)
        else:
            shares = self._shares(x)
            counts = self._counts(shares)[(..., *[None] * len(self._units))]
            message = 2 * (shares - counts) + (2 * self.equals - 1)
        message = message[(..., *[None] * len(self._inside))]
        message = message * self.scale(values, message.ndim - 1)
        inverse = [1 + self._order.index(position) for position in range(len(self._order))]
        extents = tuple(x.shape[1:]) if x is not None else shape
        if extents is None:
            raise DeclarationError(
                f"factor {self.name!r}: the message to {target!r} needs the target's shape."
            )
        sizes = self.letter_sizes({self._target: extents})
        return adjoint(message.permute(0, *inverse), self.pattern, sizes, self._starts, extents, self.indices)

    def affine_in(self, target: str) -> bool:
        return not self._units

    def degree(self, names: Collection[str]) -> int:
        return 0 if self._target not in names else 2 if self._units else 1

    def keeps(self, index: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_] | None:
        """Mask of pairs of different units."""
        distinct: NDArray[np.bool_] = np.zeros(
            [1] * max((x.ndim for x in index.values()), default=0), dtype=bool
        )
        for letter in self._units:
            if letter not in index or self._others[letter] not in index:
                return None
            distinct = distinct | (index[letter] != index[self._others[letter]])
        return distinct

    def interactions(self, shapes: Shapes) -> list[Relation]:
        one, other = self.references[:2]
        return [term_relation(self, one, other, shapes)]

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references[:2])

    def formula(self) -> str:
        groups = f" for each {' '.join(self.each)}" if self.each else ""
        return f"{self.weight_text()} * (count of {self.references[0]} - {self.equals:g})^2{groups}"

    def _shares(self, x: Tensor) -> Tensor:
        """Contribution of each unit, shape ``(batch, *each, *units)``."""
        sizes = self.letter_sizes({self._target: tuple(x.shape[1:])})
        entries = view(x, self.pattern, sizes, self._starts, self.indices)
        entries = entries.permute(0, *(1 + position for position in self._order))
        return entries.flatten(-len(self._inside)).sum(-1) if self._inside else entries

    def _counts(self, shares: Tensor) -> Tensor:
        """Soft count of each group, shape ``(batch, *each)``."""
        return shares.flatten(-len(self._units)).sum(-1) if self._units else shares


def _other_members(reference: Reference, each: Collection[str]) -> Reference:
    """The same reference with new letters for the members of a group."""
    renaming: dict[str, str] = {}
    for letter in reference.letters:
        if letter not in each:
            new = f"{letter}_other"
            while new in reference.letters or new in renaming.values():
                new += "_"
            renaming[letter] = new
    dimensions = tuple(
        replace(dim, letters=tuple(renaming.get(x, x) for x in dim.letters))
        for dim in reference.pattern.dimensions
    )
    return Reference(reference.array, Pattern(dimensions))


def _exclusive_letters(reference: Reference, members: Collection[str]) -> tuple[str, ...]:
    """Letters of members along the simplex axis of a variable: at most one of these entries is one."""
    variable = reference.array
    assert isinstance(variable, Variable)
    if not isinstance(variable.regularizer, Simplex):
        return ()
    dimensions = list(reference.pattern.dimensions)
    dim = dimensions.pop(variable.regularizer.dim)
    elsewhere = {x for other in dimensions for x in other.letters}
    if dim.index is not None:
        return ()
    return tuple(x for x in dim.letters if x in members and x not in elsewhere)


def _check_domain(factor: CountEnergy, variable: Variable) -> None:
    """Check that the entries of a variable are probabilities.

    Raises:
        DeclarationError: for a domain with other numbers.
    """
    regularizer = variable.regularizer
    low, high = regularizer.interval() if isinstance(regularizer, Elementwise) else (0.0, 1.0)
    if low < 0 or high > 1 or isinstance(regularizer, Ball):
        raise DeclarationError(
            f"factor {factor.name!r} counts ones, so variable {variable.name!r} must be on the simplex or "
            f"have entries in [0, 1], not {regularizer!r}; use BinaryEntropy, Box(0, 1) or Entropy, or "
            "LossEnergy(constraint) for real numbers."
        )
