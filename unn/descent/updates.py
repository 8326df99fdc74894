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
from ..regularizers import Regularizer


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


@dataclass(frozen=True, eq=False)
class Sample(Update):
    """A draw of the block given all others, under exp(-E / temperature): block Gibbs sampling.

    Variables whose values are means of categories, signs or structures take one of these; others any value
    of their domain (``Regularizer.conditional_sample``). The energy rises and falls, and rounds do not
    converge. ``unn.gibbs`` runs many chains with it and says how far to trust them.

    Args:
        temperature: above 0.
        coupling: share of the messages between variables that are not given that counts, from 0 for
            independent variables to 1; a number, or one for each batch element, shape ``(batch,)``. Messages
            from what is given, such as biases, count in full.

    Raises:
        InferenceError: for another temperature or coupling.
    """

    temperature: float = 1.0
    coupling: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if (
            isinstance(self.temperature, bool)
            or not isinstance(self.temperature, numbers.Real)
            or not 0 < self.temperature < math.inf
        ):
            raise InferenceError(
                f"Sample: the temperature is a finite number above 0, got {self.temperature!r}."
            )
        if not isinstance(self.coupling, Tensor) and (
            isinstance(self.coupling, bool)
            or not isinstance(self.coupling, numbers.Real)
            or not 0 <= self.coupling <= 1
        ):
            raise InferenceError(f"Sample: the coupling is a number from 0 to 1, got {self.coupling!r}.")

    def move(self, old: Tensor | None, minimiser: Tensor) -> Tensor:
        return minimiser

    def draw(
        self,
        regularizer: Regularizer,
        t: Tensor,
        separate: Tensor,
        mask: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        """The new value of a block, shape ``(batch, *axes)``.

        Args:
            regularizer: of the variable.
            t: sum of the messages, shape ``(batch, *axes)``.
            separate: sum of those that come from what is given, broadcastable to that shape.
            mask: mask of existing entries.
            generator: random number generator.
        """
        return regularizer.conditional_sample(self.scaled(t, separate), self.temperature, mask, generator)

    def scaled(self, total: Tensor, separate: Tensor) -> Tensor:
        """What counts of a sum of messages or energies, shape ``(batch, ...)``.

        Args:
            total: the sum, shape ``(batch, ...)``.
            separate: its part that counts in full, broadcastable to that shape.
        """
        if isinstance(self.coupling, Tensor):
            share = self.coupling.to(total).view(-1, *[1] * (total.ndim - 1))
            return separate + share * (total - separate)
        return total if self.coupling == 1 else separate + self.coupling * (total - separate)


MIRROR = Mirror()


def check_update(update: object) -> None:
    """Check that a rule of updates is one.

    Raises:
        InferenceError: for other types, such as the class in place of an object.
    """
    if not isinstance(update, Update):
        raise InferenceError(f"update: an object such as Mirror() or Damped(0.5), got {update!r}.")
