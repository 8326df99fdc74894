"""What values a variable of a program takes, and what that makes of it in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..regularizers import Regularizer

Array = NDArray[Any]


@dataclass(frozen=True)
class Kind:
    """The values that entries of a variable take.

    Attributes:
        name: "real", "binary" (0 or 1) or "category" (one of several options, counted from 0).
        options: of a category; 0 for the others.
    """

    name: Literal["real", "binary", "category"]
    options: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values inside a program."""
        return np.dtype({"real": np.float64, "binary": np.bool_, "category": np.int64}[self.name])

    def regularizer(self) -> Regularizer:
        """The regularizer whose domain holds these values; that of a category takes its options along a feature axis."""
        # torch is loaded with the regularizers, and a program is recorded without it
        from ..regularizers import BinaryEntropy, Entropy, SquaredNorm

        if self.name == "category":
            return Entropy()
        return BinaryEntropy() if self.name == "binary" else SquaredNorm()

    def __str__(self) -> str:
        return f"one of {self.options} options" if self.name == "category" else self.name


REAL = Kind("real")
BINARY = Kind("binary")
