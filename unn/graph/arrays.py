"""The named arrays of a graph: variables, parameters, constants and indices, and references to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DeclarationError, ObservationError
from ..plain import array_of, planned
from .bounds import EntryBounds
from .patterns import Pattern, parse_pattern

if TYPE_CHECKING:
    from ..regularizers import Regularizer


@dataclass(frozen=True)
class Array:
    """A named array with named axes. Values of variables carry a leading batch axis, those of parameters do
    not."""

    name: str
    axes: tuple[str, ...]

    def __getitem__(self, pattern: str) -> Reference:
        """Refer to this array inside a factor, for example ``X["i d"]``.

        Raises:
            DeclarationError: if the pattern cannot be parsed or does not have one dimension per axis.
        """
        if not isinstance(pattern, str):
            raise DeclarationError(
                f"{self.kind} {self.name!r} is indexed by a pattern in quotes such as "
                f"{self.name}[{self._example!r}], got {pattern!r}."
            )
        parsed = parse_pattern(pattern)
        if len(parsed.dimensions) != len(self.axes):
            raise DeclarationError(
                f"pattern {pattern!r} has {len(parsed.dimensions)} dimensions, but {self.kind} {self.name!r} "
                f"has {len(self.axes)} axes ({' '.join(self.axes) or 'none'}); write one letter for each "
                f"axis, for example {self.name}[{self._example!r}]."
            )
        return Reference(self, parsed)

    @property
    def kind(self) -> str:
        """'variable', 'parameter', 'constant' or 'index', for messages."""
        return type(self).__name__.lower()

    @property
    def _example(self) -> str:
        return " ".join("ijklmnopqrstuvwxyz"[k % 26] for k in range(len(self.axes)))


@dataclass(frozen=True)
class Variable(Array):
    """A named array that can be observed or inferred.

    Attributes:
        regularizer: strictly convex function that determines the domain and the activation.
        node_axes: leading axes that index separate nodes. Without a declared bar, these are all axes if the
            regularizer is elementwise, and none otherwise.
        has_bar: whether the node axes were declared, left of a bar.
        bounds: bounds of its entries, where these differ; None for those of the regularizer.
    """

    regularizer: Regularizer
    node_axes: tuple[str, ...] = ()
    has_bar: bool = False
    bounds: EntryBounds | None = None

    @property
    def feature_axes(self) -> tuple[str, ...]:
        """The axes within a node."""
        return self.axes[len(self.node_axes) :]

    @property
    def pattern(self) -> str:
        """The axes as declared, with the bar if there is one."""
        return " ".join((*self.node_axes, "|", *self.feature_axes) if self.has_bar else self.axes)

    __getitem__ = Array.__getitem__


@dataclass(frozen=True)
class Parameter(Array):
    """A learned array, shared by all factors that refer to it."""


@dataclass(frozen=True)
class Constant(Array):
    """A fixed array, given when declared or passed with the observations (with or without a batch axis)."""


@dataclass(frozen=True, eq=False)
class Index(Array):
    """Fixed integers along one axis that refer to entries of another, such as the endpoints of edges.

    Attributes:
        numbers: int64, shape ``(size of the axis,)``, on the CPU.
        into: axis whose entries the integers refer to.
    """

    numbers: Tensor
    into: str
    _copies: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def array(self) -> NDArray[np.int64]:
        """The integers as a numpy array."""
        array: NDArray[np.int64] = array_of(self.numbers)
        return array

    def on(self, device: torch.device) -> Tensor:
        """The integers on a device, copied once."""
        if device == self.numbers.device:
            return self.numbers
        if device not in self._copies:
            with torch.inference_mode(False):
                self._copies[device] = planned(lambda: self.numbers.to(device))
        return self._copies[device]

    def check_size(self, size: int) -> None:
        """Check that all integers are smaller than the size of the axis.

        Raises:
            DeclarationError: names the first integer beyond the size.
        """
        beyond = np.flatnonzero(self.array >= size)
        if len(beyond):
            raise DeclarationError(
                f"entry {beyond[0]} of index {self.name!r} is {self.array[beyond[0]]}, but axis "
                f"{self.into!r} has size {size}; "
                f"numbers go from 0 to {size - 1}."
            )

    def __getitem__(self, pattern: str) -> Reference:
        raise DeclarationError(
            f"index {self.name!r} has no values to multiply; it gathers entries of an array along axis "
            f"{self.into!r}, "
            f"for example X['{self.name}[e]'] for an array X of that axis."
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copies": {}}


Indices = Mapping[str, Index]
"""The indices of a graph that a factor uses, by name."""


@dataclass(frozen=True)
class Reference:
    """An array with a pattern, as an operand of a factor."""

    array: Array
    pattern: Pattern

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters of the pattern in order."""
        return self.pattern.letters

    def __str__(self) -> str:
        return f"{self.array.name}[{self.pattern}]"


def parse_axes(kind: str, name: str, text: str) -> tuple[tuple[str, ...], int]:
    """Split ``"r c | v"`` into axis names and the number of node axes.

    Raises:
        DeclarationError: for more than one bar, or axis names that are not identifiers.
    """
    if not isinstance(text, str):
        raise DeclarationError(f"{kind} {name!r}: axes are text such as 'row col', got {text!r}.")
    parts = text.split("|")
    if len(parts) > 2:
        raise DeclarationError(
            f"{kind} {name!r}: axes {text!r} have more than one bar; write 'nodes | features'."
        )
    if len(parts) == 2 and kind != "variable":
        raise DeclarationError(
            f"{kind} {name!r}: axes {text!r} have a bar, but only variables have node axes."
        )
    groups = [part.split() for part in parts]
    axes = tuple(axis for group in groups for axis in group)
    for axis in axes:
        if not axis.isidentifier():
            raise DeclarationError(
                f"{kind} {name!r}: axis {axis!r} is not a name; axes are names separated by spaces, such as "
                "'row col | digit'."
            )
    return axes, len(groups[0]) if len(groups) == 2 else 0


def check_batch(where: str, array: Array, x: Tensor, batch: int | None) -> int:
    """Check the number of axes and the batch size of a value, and return its batch size.

    Args:
        where: origin of the value, for the message.
        array: array of the value.
        x: the value.
        batch: batch size of the previous values; None for the first.

    Raises:
        ObservationError: with a remedy.
    """
    if x.ndim != len(array.axes) + 1:
        remedy = "; add a batch axis with x[None]" if x.ndim == len(array.axes) else ""
        raise ObservationError(
            f"{array.kind} {where}: shape {tuple(x.shape)} has {x.ndim} axes, expected "
            f"{batched_axes(array)}{remedy}."
        )
    if x.shape[0] == 0:
        raise ObservationError(
            f"{array.kind} {where}: shape {tuple(x.shape)} is an empty batch; pass at least one example."
        )
    if batch is not None and x.shape[0] != batch:
        raise ObservationError(
            f"{array.kind} {where}: batch size {x.shape[0]} differs from {batch} of the values before it."
        )
    return x.shape[0]


def batched_axes(array: Array) -> str:
    """The axes of a value of an array, for messages."""
    return f"(batch{''.join(', ' + a for a in array.axes)})"
