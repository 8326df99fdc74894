"""Bounds of the entries of a variable that differ from one entry to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..errors import DeclarationError

if TYPE_CHECKING:
    from .arrays import Variable
    from .declaration import Declaration

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class EntryBounds:
    """Bounds of the entries of a variable, inside the domain of its regularizer.

    Attributes:
        shape: number of bounds along each axis of the variable; 1 where they are equal along it, whatever
            its size.
        low, high: bounds in row-major order; infinite for none.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def arrays(self) -> tuple[Numbers, Numbers]:
        """The lower and the upper bounds, of shape ``self.shape``."""
        return np.array(self.low).reshape(self.shape), np.array(self.high).reshape(self.shape)

    def __str__(self) -> str:
        low, high = (np.array2string(x, threshold=12, separator=", ") for x in self.arrays())
        return " ".join(f"from {low} to {high}".split())


def entry_bounds(
    variable: Variable, bounds: tuple[ArrayLike, ArrayLike], sizes: Mapping[str, int | None]
) -> EntryBounds | None:
    """The bounds of the entries of a variable; None where all are those of its regularizer.

    Args:
        variable: variable, without bounds of its entries.
        bounds: lower and upper bounds, each a number or an array that broadcasts to the shape of the
            variable.
        sizes: sizes of its axes, by name; None for axes without a static size.

    Raises:
        DeclarationError: for a regularizer of other values than real numbers and counts, bounds that do not
            fit the axes or the domain of the regularizer, or that leave an entry no values.
    """
    from ..regularizers import Box, Counts, NonNegative, SquaredNorm

    where = f"variable {variable.name!r}: bounds"
    regularizer = variable.regularizer
    if not isinstance(regularizer, (Box, Counts, NonNegative, SquaredNorm)):
        raise DeclarationError(
            f"{where} of entries are for real numbers and counts (Box, NonNegative, SquaredNorm, Counts), "
            f"not for {regularizer!r}."
        )
    low, high = _shortened(_two_arrays(where, bounds, len(variable.axes)))
    for axis, count in zip(variable.axes, low.shape, strict=True):
        if count > 1 and sizes.get(axis) != count:
            raise DeclarationError(
                f"{where} differ along axis {axis!r} and have {count} entries there, but the axis has "
                + (f"size {sizes[axis]}." if sizes.get(axis) else f"no static size; declare {axis}={count}.")
            )
    least, greatest = regularizer.interval()
    counts = isinstance(regularizer, Counts)
    wrong = (low < least) | (high > greatest) | ~((low <= high) if counts else (low < high))
    wrong |= np.isinf(low) & (np.isfinite(high) | (low > 0))
    if counts:
        wrong |= (low != 0) | (np.isfinite(high) & (high != np.floor(high)))
    if wrong.any():
        domain = (
            f"0 and a whole number of at most {greatest:g}"
            if counts
            else f"increasing numbers from {least:g} to {greatest:g}, an upper one only beside a lower one"
        )
        raise DeclarationError(f"{where} must be {domain}, got {low[wrong][0]:g} and {high[wrong][0]:g}.")
    if bool((low == least).all()) and bool((high == greatest).all()):
        return None
    return EntryBounds(low.shape, tuple(low.ravel().tolist()), tuple(high.ravel().tolist()))


def refusal_of_bounds(graph: Declaration) -> str:
    """Why an engine that works on energies cannot serve a graph: the first variable with bounds of its
    entries; empty if there is none."""
    for name, variable in graph.variables.items():
        if variable.bounds is not None:
            return (
                f"variable {name!r} has bounds of its entries, which energies do not hold; declare a "
                "variable for each of its domains"
            )
    return ""


def _two_arrays(where: str, bounds: Any, axes: int) -> tuple[Numbers, Numbers]:
    """Both bounds as arrays of one shape, with one axis for each of the variable."""
    try:
        if any(x is None for x in bounds):
            raise TypeError
        # 64-bit floats hold those of all dtypes of torch, of which numpy has not all
        low, high = (
            np.asarray(x.detach().cpu().double() if isinstance(x, Tensor) else x, dtype=np.float64)
            for x in bounds
        )
        low, high = np.broadcast_arrays(low, high)
    except (TypeError, ValueError):
        raise DeclarationError(
            f"{where} are a lower and an upper number or array that broadcast to each other, got {bounds!r}."
        ) from None
    if np.isnan(low).any() or np.isnan(high).any():
        raise DeclarationError(f"{where} have NaN entries.")
    if low.ndim > axes or not low.size:
        raise DeclarationError(f"{where} have shape {low.shape}, but the variable has {axes} axes.")
    shape = (1,) * (axes - low.ndim) + low.shape
    return low.reshape(shape), high.reshape(shape)


def _shortened(bounds: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
    """Bounds with one entry along each axis along which they are equal."""
    low, high = bounds
    for axis in range(low.ndim):
        first = low.take([0], axis), high.take([0], axis)
        if bool((low == first[0]).all() and (high == first[1]).all()):
            low, high = first
    return low, high
