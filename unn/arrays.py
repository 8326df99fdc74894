"""The named arrays of a graph: variables, parameters and constants, and references to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import DeclarationError
from .patterns import Pattern, parse_pattern

if TYPE_CHECKING:
    from .regularizers import Regularizer


@dataclass(frozen=True)
class Array:
    """A named array with named axes. Values of variables carry a leading batch axis, those of parameters do not."""

    name: str
    axes: tuple[str, ...]

    def __getitem__(self, pattern: str) -> Reference:
        """Refer to this array inside a factor, for example ``X["i d"]``.

        Raises:
            DeclarationError: if the pattern cannot be read or has not one dimension for each axis.
        """
        if not isinstance(pattern, str):
            raise DeclarationError(
                f"{self.kind} {self.name!r} is indexed by a pattern in quotes such as {self.name}[{self._example!r}], got {pattern!r}."
            )
        parsed = parse_pattern(pattern)
        if len(parsed.dimensions) != len(self.axes):
            raise DeclarationError(
                f"pattern {pattern!r} has {len(parsed.dimensions)} dimensions, but {self.kind} {self.name!r} has "
                f"{len(self.axes)} axes ({' '.join(self.axes) or 'none'}); write one letter for each axis, "
                f"for example {self.name}[{self._example!r}]."
            )
        return Reference(self, parsed)

    @property
    def kind(self) -> str:
        """'variable', 'parameter' or 'constant', for messages."""
        return type(self).__name__.lower()

    @property
    def _example(self) -> str:
        return " ".join("ijklmnopqrstuvwxyz"[k % 26] for k in range(len(self.axes)))


@dataclass(frozen=True)
class Variable(Array):
    """A named array that can be observed or inferred.

    Attributes:
        regularizer: the strictly convex function that says its domain and its activation.
        node_axes: how many leading axes index separate nodes; the others are features of one node.
    """

    regularizer: Regularizer
    node_axes: int = 0

    @property
    def pattern(self) -> str:
        """The axes as declared, with the bar between node axes and feature axes."""
        if not self.node_axes:
            return " ".join(self.axes)
        return " ".join((*self.axes[: self.node_axes], "|", *self.axes[self.node_axes :]))

    __getitem__ = Array.__getitem__


@dataclass(frozen=True)
class Parameter(Array):
    """A learned array, shared by all factors that refer to it."""


@dataclass(frozen=True)
class Constant(Array):
    """A fixed array: given when declared, or passed with the observations (then with or without a batch axis)."""


@dataclass(frozen=True)
class Reference:
    """An array seen through a pattern, as the operand of a factor."""

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
        raise DeclarationError(f"{kind} {name!r}: axes {text!r} have more than one bar; write 'nodes | features'.")
    if len(parts) == 2 and kind != "variable":
        raise DeclarationError(f"{kind} {name!r}: axes {text!r} have a bar, but only variables have node axes.")
    groups = [part.split() for part in parts]
    axes = tuple(axis for group in groups for axis in group)
    for axis in axes:
        if not axis.isidentifier():
            raise DeclarationError(f"{kind} {name!r}: axis {axis!r} is not a name; axes are names separated by spaces, such as 'row col | digit'.")
    return axes, len(groups[0]) if len(groups) == 2 else 0
