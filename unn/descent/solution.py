"""Solutions of inference: values by name, a status with a remedy, the trace of energies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from ..errors import UnknownNameError, unknown


class Status(Enum):
    """Final status of a run."""

    CONVERGED = "converged"
    LIMIT = "reached its limit"
    STOPPED_EARLY = "stopped early"
    INFINITE = "infinite energy"
    UNBOUNDED = "unbounded"
    NOT_A_NUMBER = "not a number"


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of a run of coordinate descent.

    Attributes:
        values: every variable by name, shape ``(batch, *axes)``; after divergence, those before the round in
            which it happened.
        preactivations: for every updated variable, the sum of messages at its last update (logits, for
            ``Entropy``); NaN in batch elements for which a greedy order has not chosen it.
        energy: the energy after each update, shape ``(updates, batch)``, the diverged round included; None if
            it was not traced.
        terms: the share of each regularizer (by the name of its variable) and each factor (by its own) after
            each update, shape ``(updates, batch)`` each; None if they were not asked for.
        schedule: the blocks updated, in order.
        rounds: how many passes over the order were run.
        status: how the run ended.
        message: description of the status, with a remedy.
    """

    values: dict[str, Tensor]
    preactivations: dict[str, Tensor]
    energy: Tensor | None
    terms: dict[str, Tensor] | None
    schedule: tuple[str, ...]
    rounds: int
    status: Status
    message: str

    @property
    def converged(self) -> bool:
        """Did the largest change in a round fall below the tolerance?"""
        return self.status is Status.CONVERGED

    @property
    def updates(self) -> int:
        """Number of block updates."""
        return len(self.schedule)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.values:
            raise UnknownNameError(unknown("variable", name, self.values))
        return self.values[name]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in self.values.items())
        return f"Solution({self.message} {self.updates} updates in {self.rounds} rounds; {shapes})"
