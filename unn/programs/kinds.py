"""Kinds of values of the variables of a program, and their regularizers in a graph."""

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
    """The kind of the entries of a variable.

    Attributes:
        name: "real", "binary" (0 or 1) or "category" (one of several options, counted from 0).
        options: number of options of a category; 0 for other kinds.
    """

    name: Literal["real", "binary", "category"]
    options: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values inside a program."""
        return np.dtype({"real": np.float64, "binary": np.bool_, "category": np.int64}[self.name])

    def regularizer(self) -> Regularizer:
        """The regularizer for these values; a category has its options along a feature axis."""
        # imported here because regularizers load torch, which recording does not need
        from ..regularizers import BinaryEntropy, Entropy, SquaredNorm

        if self.name == "category":
            return Entropy()
        return BinaryEntropy() if self.name == "binary" else SquaredNorm()

    def __str__(self) -> str:
        return f"one of {self.options} options" if self.name == "category" else self.name


REAL = Kind("real")
BINARY = Kind("binary")
