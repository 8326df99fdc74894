"""Regularizers of variables whose values are counts or proportions.

Inference by descent uses their relaxations, ``NonNegative`` (or ``Box``) and ``SimplexNorm``. Engines that
learn to sample keep samples in the support: whole numbers, and points inside the simplex.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..errors import DeclarationError
from .base import real_number
from .elementwise import Box, Elementwise, NonNegative
from .simplex import SimplexNorm


class Counts(Elementwise):
    """Psi(x) = ||x||^2 / 2 for 0 <= x <= high, of variables whose values are whole numbers.

    Args:
        high: largest count; infinite by default.
    """

    formula = "1/2 ||x||^2, x >= 0, for whole numbers"
    activation = "relu"

    def __init__(self, high: float = math.inf) -> None:
        self.high = real_number("Counts", "high", high)
        if not self.high >= 1 or (math.isfinite(self.high) and self.high != math.floor(self.high)):
            raise DeclarationError(f"Counts needs a whole number high >= 1, or infinity, got {high}.")
        self._relaxed = Box(0.0, self.high) if math.isfinite(self.high) else NonNegative()
        self.bounded = math.isfinite(self.high)  # type: ignore[misc]

    def interval(self) -> tuple[float, float]:
        return 0.0, self.high

    @property
    def lipschitz(self) -> float:
        return 1.0

    def entry_value(self, x: Tensor) -> Tensor:
        return self._relaxed.entry_value(x)

    def entry_conjugate(self, t: Tensor) -> Tensor:
        return self._relaxed.entry_conjugate(t)

    def entry_mirror(self, t: Tensor) -> Tensor:
        return self._relaxed.entry_mirror(t)

    def entry_contains(self, x: Tensor, tolerance: float) -> Tensor:
        return self._relaxed.entry_contains(x, tolerance)

    def __repr__(self) -> str:
        return f"Counts({self.high:g})" if self.bounded else "Counts()"


class Proportions(SimplexNorm):
    """Psi(x) = temperature ||x||^2 / 2 on the simplex, for proportions: points inside
    the simplex, not categories.

    Args:
        temperature: temperature of sparsemax(t / temperature).
        over: the axis along which entries sum to one; the last by default.
    """

    formula = "temperature/2 ||x||^2 on the simplex, for proportions"
    of_categories = False
