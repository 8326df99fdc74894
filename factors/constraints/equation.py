"""Equations between samples, up to a tolerance: sums of products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError
from unn.graph.arrays import Reference
from unn.graph.factor import Values
from unn.graph.interactions import Relation, Shapes, ordered_letters_of
from unn.graph.structure import variables_only
from unn.graph.views import checked_views
from unn.ops.contraction import BATCH, contraction
from unn.regularizers.base import batch_flat, batch_sum

from ..energies.squared_residual import SquaredResidual


class Equation(Constraint):
    """Each entry of a variable is the product of entries of others, summed over the letters that it lacks
    itself.

    Samples that deviate by more than the tolerance violate it. It adds no edges to the graph: declare the
    interactions by ``Depends``, also where the sum runs through other variables.

    Args:
        result: reference to a variable.
        operands: references to variables.
        within: absolute tolerance of each entry of the result, in units of the data. Sums are computed in
            float64; use 0 for whole numbers only.
        name: unique in the graph.

    Example:
        ``Equation(E["i j"], A["i k"], R["k j"], within=0.05)``: E is the matrix product of A and R.
    """

    handles_indices = True

    def __init__(
        self, result: Reference, *operands: Reference, within: float, name: str | None = None
    ) -> None:
        super().__init__(result, *operands, name=name)
        variables_only(self)
        if not operands:
            raise DeclarationError(
                f"factor {self.name!r}: {result} needs at least one operand to be computed from."
            )
        try:
            number = math.nan if isinstance(within, (bool, str)) else float(within)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not 0 <= number < math.inf:
            raise DeclarationError(f"factor {self.name!r}: within must be a number >= 0, got {within!r}.")
        self.within = number

    def violations_of(self, values: Values) -> Tensor:
        """Number of entries of the result that are off by more than the tolerance or not finite,
        ``(batch,)``.

        Args:
            values: values of the variables, shape ``(batch, *axes)``.

        Raises:
            ObservationError: for values that are missing, of another shape, or of inconsistent sizes.
        """
        result, sums = self._sides([x.double() for x in checked_views(self, values)])
        # negated, so that NaN counts as a violation
        return batch_sum((~((result - sums).abs() <= self.within)).long())

    def part_losses(self, values: Values) -> Tensor:
        """Squared residual of each entry of the result, shape ``(batch, entries)``; it is 0 at equality only,
        whatever the tolerance.

        Args:
            values: values of the variables, shape ``(batch, *axes)``.
        """
        result, sums = self._sides(checked_views(self, values))
        return batch_flat((result - sums).square())

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """The sum of squared residuals, ``SquaredResidual``, which the inner solver minimises."""
        return [SquaredResidual(*self.references, weight=weight, log_weight=log_weight, name=self.name)]

    def _sides(self, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The result and the sum of products, ``(batch, *letters of the result)``."""
        letters, *others = ((BATCH, *reference.letters) for reference in self.references)
        return views[0], contraction(tuple(others), letters)(list(views[1:]))

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return []

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references)

    def formula(self) -> str:
        result, *operands = self.references
        summed = [
            x
            for x in dict.fromkeys(x for operand in operands for x in operand.letters)
            if x not in result.letters
        ]
        over = f"sum over {' '.join(summed)} of " if summed else ""
        return f"{result} = {over}{' * '.join(map(str, operands))} within {self.within:g}"


SumOfProducts = Equation
"""Earlier name of ``Equation``."""
