"""Updates: the new value of a block, given the exact minimiser."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import InferenceError


class Update(ABC):
    """A rule that gives the new value of a block from its old value and from the exact minimiser of the
    energy in it."""

    exact: ClassVar[bool] = False
    """True if the new value is the minimiser, whatever the old one was."""

    @abstractmethod
    def move(self, old: Tensor | None, minimiser: Tensor) -> Tensor:
        """The new value of a block.

        Args:
            old: the value before, shape ``(batch, *axes)``; None where the variable was absent.
            minimiser: grad Psi*(sum of messages), broadcastable to that shape.
        """


@dataclass(frozen=True)
class Mirror(Update):
    """The minimiser itself: x <- grad Psi*(sum of messages) (undirected-network paper, Section 3)."""

    exact: ClassVar[bool] = True

    def move(self, old: Tensor | None, minimiser: Tensor) -> Tensor:
        return minimiser


@dataclass(frozen=True)
class Damped(Update):
    """Part of the way to the minimiser: x <- (1 - step) x + step grad Psi*(sum of messages).

    The energy is convex in a block of a multilinear graph, so that it falls with every step from 0 to 1, and
    fixed points are those of ``Mirror``. Blocks that are updated one after another converge without damping;
    it slows oscillations between blocks that are large. A variable that was absent takes the minimiser.

    Args:
        step: above 0, at most 1.

    Raises:
        InferenceError: for another step.
    """

    step: float

    def __post_init__(self) -> None:
        if (
            isinstance(self.step, bool)
            or not isinstance(self.step, numbers.Real)
            or not 0 < self.step <= 1
            or math.isnan(self.step)
        ):
            raise InferenceError(f"Damped: the step is a number above 0 and at most 1, got {self.step!r}.")

    def move(self, old: Tensor | None, minimiser: Tensor) -> Tensor:
        return minimiser if old is None else torch.lerp(old, minimiser.expand_as(old), float(self.step))


MIRROR = Mirror()


def check_update(update: object) -> None:
    """Check that a rule of updates is one.

    Raises:
        InferenceError: for other types, such as the class in place of an object.
    """
    if not isinstance(update, Update):
        raise InferenceError(f"update: an object such as Mirror() or Damped(0.5), got {update!r}.")
