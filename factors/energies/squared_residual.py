"""The energy of an equation: squared deviation of a variable from a sum of products."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations_with_replacement

from torch import Tensor

from unn.errors import DeclarationError
from unn.graph.arrays import Reference, Variable
from unn.graph.factor import Values
from unn.graph.interactions import Relation, Shapes, ordered_letters_of, term_relation
from unn.graph.sizes import LetterSizes
from unn.graph.views import adjoint, refuse_shifted_splits, starts_of, view
from unn.ops.contraction import BATCH, contraction
from unn.regularizers.base import batch_sum

from .weighted import WeightedEnergy


class SquaredResidual(WeightedEnergy):
    """E = weight * sum of squares of ``result - sum of products of the operands``.

    The products are summed over the letters that the result lacks. The energy is a convex quadratic function
    of each variable that occurs once, with the others held, so that the inner solver minimises it over such a
    block together with the convex regularizer; a variable that occurs several times is updated by the same
    solver without a raise of the energy, to a stationary point. It is never negative, so its degree is 0.

    Args:
        result: reference to a variable.
        operands: references to variables.
        weight, log_weight: see ``WeightedEnergy``.
        name: unique in the graph.

    Example:
        ``SquaredResidual(E["i j"], A["i k"], R["k j"], weight=10.0)``: E should be the matrix product of A
        and R.
    """

    handles_indices = True

    def __init__(
        self,
        result: Reference,
        *operands: Reference,
        weight: float = 1.0,
        log_weight: Reference | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(result, *operands, weight=weight, log_weight=log_weight, name=name)
        self._equation = (result, *operands)
        if not operands:
            raise DeclarationError(
                f"factor {self.name!r}: {result} needs at least one operand to be computed from."
            )
        for reference in self._equation:
            if not isinstance(reference.array, Variable):
                raise DeclarationError(
                    f"factor {self.name!r} relates variables, but {reference.array.name!r} is a "
                    f"{reference.array.kind}."
                )
        refuse_shifted_splits(self)
        # where the result is padding, some operand is as well
        complete = set(result.letters) <= {x for reference in operands for x in reference.letters}
        shifted = any(dim.shift for reference in self._equation for dim in reference.pattern.dimensions)
        self.handles_padding = complete and not shifted
        self._letters = [(BATCH, *reference.letters) for reference in self._equation]
        self._starts = starts_of(self._equation)

    def energy(self, values: Values) -> Tensor:
        residual, _ = self._residual(values)
        return self.scale(values) * batch_sum(residual.square())

    def message(self, target: str, values: Values, shape: tuple[int, ...] | None = None) -> Tensor:
        residual, views = self._residual(values)
        # minus the gradient of the energy with respect to the residual
        pull = -2 * self.scale(values, residual.ndim - 1) * residual
        x = values[target]
        sizes = self._letter_sizes(values)
        total: Tensor | None = None
        for position, reference in enumerate(self._equation):
            if reference.array.name != target:
                continue
            if position == 0:
                received = pull
            else:
                others = [k for k in range(1, len(views)) if k != position]
                letters = (self._letters[0], *(self._letters[k] for k in others))
                received = contraction(letters, self._letters[position])([-pull, *(views[k] for k in others)])
            term = adjoint(received, reference.pattern, sizes, self._starts, tuple(x.shape[1:]), self.indices)
            total = term if total is None else total + term
        assert total is not None
        return total

    def degree(self, names: Collection[str]) -> int:
        return 0

    def interactions(self, shapes: Shapes) -> list[Relation]:
        # the square couples all entries of a sum with one another
        result = set(self._equation[0].letters)
        return [
            term_relation(self, one, other, shapes, [x for x in other.letters if x not in result])
            for one, other in combinations_with_replacement(self._equation, 2)
        ]

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self._equation)

    def formula(self) -> str:
        result, *operands = self._equation
        summed = dict.fromkeys(x for r in operands for x in r.letters if x not in result.letters)
        over = f"sum {' '.join(summed)} " if summed else ""
        return f"{self.weight_text()} * sum ({result} - {over}{' '.join(map(str, operands))})^2"

    def _residual(self, values: Values) -> tuple[Tensor, list[Tensor]]:
        """The result minus the sum of products, shape ``(batch, *letters of the result)``, and all views."""
        sizes = self._letter_sizes(values)
        views = [
            view(values[r.array.name], r.pattern, sizes, self._starts, self.indices) for r in self._equation
        ]
        sums = contraction(tuple(self._letters[1:]), self._letters[0])(views[1:])
        return views[0] - sums, views

    def _letter_sizes(self, values: Values) -> LetterSizes:
        return self.letter_sizes({name: tuple(values[name].shape[1:]) for name in self.variables})
