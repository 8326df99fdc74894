"""Constraints on values: those of a group of nodes differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from unn.errors import DeclarationError
from unn.graph.arrays import Reference, Variable
from unn.graph.factor import Values
from unn.graph.groups import CountGroups
from unn.graph.interactions import Shapes, node_dimensions
from unn.graph.structure import parse_letters
from unn.regularizers import Simplex

from .cardinality import Cardinality


class AllDifferent(Cardinality):
    """For each value of some letters, the referenced nodes have different values.

    It is a ``Cardinality`` of at most one for each group and value; with as many nodes as values, each value
    occurs exactly once. With an index or a shift along the values, only the values that it reaches differ:
    ``X["n nonzero[v]"]``.

    Args:
        reference: reference to a variable on the simplex over a feature axis.
        each: letters of nodes that index the groups, separated by spaces.
        name: unique in the graph.

    Raises:
        DeclarationError: for a variable that is not on the simplex, or groups indexed by values.

    Example:
        ``AllDifferent(X["r c v"], each="r")``: the digits of each row differ.
    """

    def __init__(self, reference: Reference, *, each: str, name: str | None = None) -> None:
        array = reference.array if isinstance(reference, Reference) else None
        if not isinstance(array, Variable) or not isinstance(array.regularizer, Simplex):
            raise DeclarationError(
                f"AllDifferent compares categories, so it takes a reference to a variable on the "
                f"simplex such "
                f"as X['r c v'] with unn.Entropy(), got {reference!r}; for other values use Different."
            )
        along_nodes = node_dimensions(reference)
        nodes = {letter for dim in along_nodes for letter in dim.letters}
        values = [letter for letter in reference.letters if letter not in nodes]
        super().__init__(reference, each=" ".join([*str(each).split(), *values]), at_most=1, name=name)
        groups = parse_letters(self, "each", each)
        if set(groups) & set(values):
            raise DeclarationError(
                f"factor {self.name!r}: each={each!r} contains letters of values ({', '.join(values)}); name "
                "the letters of nodes alone."
            )

        along_values = reference.pattern.dimensions[len(along_nodes) :]
        letters = [letter for dim in along_values for letter in dim.letters]
        self._every_value = sorted(letters) == sorted(values) and not any(
            dim.shift or dim.index for dim in along_values
        )

    def groups(self, shapes: Shapes) -> list[CountGroups]:
        """As for ``Cardinality``; with as many nodes as values, exactly one."""
        (groups,) = super().groups(shapes)
        variable = self._variable()
        lower = self._least(groups.entries[variable.name].shape[1], shapes[variable.name])
        return [CountGroups(groups.entries, lower, 1)]

    def part_losses(self, values: Values) -> Tensor:
        """Squared distance of the soft count of each group and value from its bounds, ``(batch, parts)``.

        With as many nodes as values the bound is exactly one (``L_[1]`` of the recurrent-transformer paper);
        probabilities that are all below 1/2, which become zeros, would have at most one of each value.

        Args:
            values: values of the variable by name, shape ``(batch, *axes)``.
        """
        x = values[self._variable().name]
        counts = self.soft_counts(values)
        if not counts.shape[1]:
            return counts
        nodes = math.prod(self._view(values).shape[1:]) // counts.shape[1]
        least = self._least(nodes, x.shape[1:])
        return ((counts - least).clamp(max=0) + (counts - 1).clamp(min=0)).square()

    def _variable(self) -> Variable:
        variable = self.references[0].array
        assert isinstance(variable, Variable)
        return variable

    def _least(self, nodes: int, axes: Sequence[int]) -> int:
        """How often each value occurs at least in a group of some nodes: once with as many nodes as values,
        of which none is left out."""
        regularizer = self._variable().regularizer
        assert isinstance(regularizer, Simplex)
        return int(self._every_value and nodes == axes[regularizer.dim])

    def formula(self) -> str:
        letters = [letter for letter in self.each if letter in self._node_letters()]
        groups = f" for each {' '.join(letters)}" if letters else ""
        return f"values of {self.references[0]} differ{groups}"

    def _node_letters(self) -> set[str]:
        return {letter for dim in node_dimensions(self.references[0]) for letter in dim.letters}
