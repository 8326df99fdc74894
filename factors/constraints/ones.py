"""Entries of variables as shares of ones, which constraints count."""

from __future__ import annotations

import torch
from torch import Tensor

from unn import Factor
from unn.graph.arrays import Array, Variable
from unn.graph.factor import Values
from unn.regularizers import Elementwise
from unn.regularizers.base import batch_sum


def is_spin(array: Array) -> bool:
    """Whether the entries of an array are spins, -1 or 1 and what lies between."""
    regularizer = array.regularizer if isinstance(array, Variable) else None
    return isinstance(regularizer, Elementwise) and regularizer.interval() == (-1.0, 1.0)


def shares_of_ones(factor: Factor, values: Values) -> dict[str, Tensor]:
    """Values of the variables of a factor; spins s become (1 + s) / 2, so that 1 counts and -1 does not.

    Args:
        factor: with references to variables.
        values: values by name, shape ``(batch, *axes)``; names that are missing stay so.
    """
    arrays = {reference.array.name: reference.array for reference in factor.references}
    return {
        name: (values[name] + 1) / 2 if is_spin(array) else values[name]
        for name, array in arrays.items()
        if name in values
    }


def binary_ones(factor: Factor, values: Values) -> dict[str, Tensor]:
    """Values of the variables of a factor rounded to 0 and 1, in float64: bits at one half, spins at 0."""
    return {name: (x > 0.5).double() for name, x in shares_of_ones(factor, values).items()}


def undefined_entries(factor: Factor, values: Values) -> Tensor:
    """Number of entries of the variables of a factor that are NaN, each of which is a violation; shape
    ``(batch,)``."""
    names = dict.fromkeys(reference.array.name for reference in factor.references)
    return torch.stack([batch_sum(values[name].isnan().long()) for name in names]).sum(0)
