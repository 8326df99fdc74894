"""Tables of allowed combinations of categories."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError
from unn.graph.arrays import Reference, Variable
from unn.graph.factor import Values
from unn.graph.interactions import Relation, Shapes, node_dimensions, ordered_letters_of, product_relations
from unn.graph.structure import variables_only
from unn.graph.views import checked_views
from unn.regularizers import Simplex
from unn.regularizers.base import batch_sum

from ..energies.weighted import LossEnergy


class Table(Constraint):
    """The categories of several nodes are one of the allowed combinations, for each assignment of letters.

    Args:
        references: references to variables on the simplex over one feature axis each; equal letters of nodes
            tie them, as in einsum.
        allowed: allowed combinations, each with the number of the category of every reference.
        name: unique in the graph.

    Raises:
        DeclarationError: for references to other variables, letters of categories that are shared, or
            combinations of another length.

    Example:
        ``Table(X["i v"], X["i+1 w"], allowed=[(0, 1), (1, 2), (2, 0)])``: each category is followed by the
        next one.
    """

    handles_indices = True
    multiaffine = True

    def __init__(
        self, *references: Reference, allowed: Sequence[Sequence[int]], name: str | None = None
    ) -> None:
        super().__init__(*references, name=name)
        variables_only(self)
        self._values = [_letter_of_values(self, reference) for reference in references]
        nodes = {
            letter
            for reference, own in zip(references, self._values, strict=True)
            for letter in reference.letters
            if letter != own
        }
        if len(set(self._values)) < len(references) or nodes & set(self._values):
            raise DeclarationError(
                f"factor {self.name!r}: the letters of categories ({', '.join(self._values)}) must "
                f"differ from "
                "each other and from those of nodes; the table relates them."
            )
        self.allowed = _combinations(self, allowed, len(references))
        self._letters = tuple(
            dict.fromkeys(
                letter
                for reference, own in zip(references, self._values, strict=True)
                for letter in reference.letters
                if letter != own
            )
        )

    def violations_of(self, values: Values) -> Tensor:
        """Number of assignments of letters whose categories are not allowed, shape ``(batch,)``.

        Raises:
            ObservationError: for values that are missing, of another shape, or of inconsistent sizes.
            DeclarationError: for a table with categories that the variables do not have.
        """
        binary = {name: (values[name] > 0.5).double() for name in self.variables if name in values}
        # negated, so that values that are not one-hot count as violations
        return batch_sum((~(self._probability(binary) > 0.5)).long())

    def part_losses(self, values: Values) -> Tensor:
        """Probability that the categories are not allowed, for independent nodes, shape ``(batch,
        parts)``."""
        return 1 - self._probability({name: values[name] for name in self.variables if name in values})

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """The loss, ``LossEnergy``, which is affine in each variable that occurs once."""
        return [LossEnergy(self, weight, log_weight, name=self.name)]

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return product_relations(self, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references) | {*self._values}

    def formula(self) -> str:
        nodes = ", ".join(map(str, self.references))
        return f"({nodes}) in a table of {len(self.allowed)} combinations"

    def _probability(self, values: Values) -> Tensor:
        """Probability of the allowed combinations, shape ``(batch, parts)``."""
        views = checked_views(self, values)
        product: Tensor | None = None
        for k, (reference, own, x) in enumerate(zip(self.references, self._values, views, strict=True)):
            position = 1 + reference.letters.index(own)
            column = self.allowed[:, k].to(x.device)
            size = x.shape[position]
            if int(column.max()) >= size:
                raise DeclarationError(
                    f"factor {self.name!r}: the table has category {int(column.max())} of {reference}, "
                    f"which has "
                    f"{size} categories, numbered from 0."
                )
            chosen = x.movedim(position, -1).index_select(-1, column)
            letters = [letter for letter in reference.letters if letter != own]
            order = [letters.index(letter) for letter in self._letters if letter in letters]
            chosen = chosen.permute(0, *(1 + n for n in order), len(letters) + 1)
            for n, letter in enumerate(self._letters):
                if letter not in letters:
                    chosen = chosen.unsqueeze(1 + n)
            product = chosen if product is None else product * chosen
        assert product is not None
        return product.sum(-1).flatten(1)


def _letter_of_values(factor: Table, reference: Reference) -> str:
    """The letter along the categories of a reference.

    Raises:
        DeclarationError: for a variable that is not on the simplex over one whole axis.
    """
    array = reference.array
    assert isinstance(array, Variable)
    nodes = {letter for dim in node_dimensions(reference) for letter in dim.letters}
    features = [letter for letter in reference.letters if letter not in nodes]
    if not isinstance(array.regularizer, Simplex) or len(features) != 1:
        raise DeclarationError(
            f"factor {factor.name!r}: a table relates categories, so {reference} must refer to a variable on "
            "the simplex over one feature axis, such as g.variable('X', 'cell | value', unn.Entropy())."
        )
    return features[0]


def _combinations(factor: Table, allowed: Sequence[Sequence[int]], count: int) -> Tensor:
    """Distinct allowed combinations, shape ``(combinations, references)``, int64.

    Raises:
        DeclarationError: for an empty table, or one that is not of whole numbers >= 0 for every reference.
    """
    rows = [tuple(row) for row in allowed]
    if not rows:
        raise DeclarationError(f"factor {factor.name!r}: the table is empty, so no values satisfy it.")
    for number, row in enumerate(rows):
        if len(row) != count or any(isinstance(x, bool) or int(x) != x or x < 0 for x in row):
            raise DeclarationError(
                f"factor {factor.name!r}: row {number} of the table must be {count} numbers of "
                f"categories >= 0, "
                f"one for each reference, got {row!r}."
            )
    return torch.tensor(sorted({tuple(map(int, row)) for row in rows}), dtype=torch.int64)
