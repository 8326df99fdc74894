"""Kinds of values of the variables of a program, and their regularizers in a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..regularizers import Regularizer

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """The kind of the nodes of a variable.

    Attributes:
        name: "real", "binary" (0 or 1), "category" (one of several options, counted from 0), "count" (0, 1,
            ...), "vector" (several real numbers) or "proportions" (positive numbers that sum to one).
        options: number of options of a category, and of entries of a vector or of proportions; 0 for other
            kinds.
        low, high: bounds of real numbers and counts.
    """

    name: Literal["real", "binary", "category", "count", "vector", "proportions"]
    options: int = 0
    low: float = -math.inf
    high: float = math.inf

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values inside a program."""
        dtypes: dict[str, type] = {"binary": np.bool_, "category": np.int64, "count": np.int64}
        return np.dtype(dtypes.get(self.name, np.float64))

    @property
    def features(self) -> Shape:
        """Axes of a value inside a program that belong to one node."""
        return (self.options,) if self.name in ("vector", "proportions") else ()

    def joined(self, other: Kind) -> Kind | None:
        """The kind of an array with values of both kinds; None if they do not go together."""
        if (self.name, self.options) != (other.name, other.options):
            return None
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))

    def regularizer(self) -> Regularizer:
        """The regularizer for these values; a category has its options along a feature axis."""
        # imported here because regularizers load torch, which recording does not need
        from ..regularizers import (
            BinaryEntropy,
            Box,
            Counts,
            Entropy,
            NonNegative,
            Proportions,
            SquaredNorm,
        )

        if self.name == "category":
            return Entropy()
        if self.name == "binary":
            return BinaryEntropy()
        if self.name == "proportions":
            return Proportions()
        if self.name == "count":
            return Counts(self.high)
        if math.isfinite(self.low) and math.isfinite(self.high):
            return Box(self.low, self.high)
        return NonNegative() if self.low == 0 else SquaredNorm()

    def __str__(self) -> str:
        shown = {
            "category": f"one of {self.options} options",
            "vector": f"a vector of {self.options} entries",
        }
        if self.name == "real" and self.low == 0 and self.high == math.inf:
            return "positive"
        return shown.get(self.name, self.name)


REAL = Kind("real")
BINARY = Kind("binary")


def count_of_draws(bad: Array, draws: int) -> str:
    """The number of draws with a fault, and the first, as text.

    Args:
        bad: mask of the faults, shape ``(draws, ...)``, or ``(1, ...)`` where all draws are alike.
        draws: number of draws.
    """
    wrong = bad.reshape(len(bad), -1).any(1)
    count = int(wrong.sum()) if len(bad) == draws else draws
    return f"{count} of {draws} draws, first in draw {int(wrong.argmax())}"
