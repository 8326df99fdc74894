"""Rounds of ``infer``, in which a batch is divided when half of its elements are at rest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from .anderson import Extrapolation
from .equilibrium import Solver
from .monitor import Monitor
from .orders import Order
from .plan import PlannedUpdate
from .rounds import run_rounds
from .schedule import steps_by_round
from .solution import Status
from .state import State
from .trace import Energies, Terms
from .verdict import Divergence


@dataclass(frozen=True)
class Stopping:
    """When rounds end, and where they start.

    Attributes:
        rounds: the largest number of rounds.
        until: the largest change of an entry of an element at rest; None to run all rounds.
        solver: whether to extrapolate the starts of rounds.
    """

    rounds: int
    until: float | None
    solver: Solver


@dataclass(frozen=True, eq=False)
class Run:
    """What rounds recorded.

    Attributes:
        energy: the energy after each update, shape ``(updates, batch)``, if it was traced.
        terms: the share of each regularizer and each factor, likewise.
        schedule: the updates.
        rounds: number of rounds.
        divergence: the first, if any element has diverged.
        rest: status and message of the elements that have not diverged; None if all have.
    """

    energy: Tensor | None
    terms: dict[str, Tensor] | None
    schedule: list[PlannedUpdate]
    rounds: int
    divergence: Divergence | None
    rest: tuple[Status, str] | None

    def verdict(self) -> tuple[Status, str]:
        """Final status, that of a divergence if there is one, with its message."""
        if self.divergence is None:
            assert self.rest is not None
            return self.rest
        return self.divergence.status, self.divergence.message("" if self.rest is None else self.rest[1])


def descend(
    state: State,
    order: Order,
    stopping: Stopping,
    trace: bool,
    terms: bool,
    generator: torch.Generator | None,
    earlier: int = 0,
) -> Run:
    """Run rounds until all batch elements are at rest, or the last round.

    When half of the elements are at rest, the others go on in a batch of their own.

    Args:
        state: to update.
        order: blocks of each round.
        stopping: when rounds end.
        trace: record the energy after each update.
        terms: record its terms.
        generator: of random orders.
        earlier: number of rounds before.
    """
    monitor = Monitor(
        state,
        stopping.until,
        Energies(state) if trace else None,
        Terms(state) if terms else None,
        Extrapolation(state) if stopping.solver == "anderson" else None,
        earlier,
        stopping.rounds,
    )
    every = steps_by_round(state, order, generator, stopping.until)
    run_rounds(state, islice(every, stopping.rounds - earlier), monitor)
    energy = None if monitor.energies is None else monitor.energies.stacked()["energy"]
    recorded = None if monitor.terms is None else monitor.terms.stacked()
    rounds = earlier + monitor.rounds
    if not monitor.halved:
        return Run(energy, recorded, monitor.schedule, rounds, monitor.divergence, monitor.rest())
    assert state.frozen is not None
    rows = (~state.frozen).nonzero()[:, 0]
    part = state.part(rows)
    others = descend(part, order, stopping, trace, terms, generator, rounds)
    state.take(part, rows)
    if energy is not None and others.energy is not None:
        energy = _continued(energy, others.energy, rows)
    if recorded is not None and others.terms is not None:
        recorded = {name: _continued(x, others.terms[name], rows) for name, x in recorded.items()}
    return Run(
        energy,
        recorded,
        monitor.schedule + others.schedule,
        others.rounds,
        monitor.divergence or others.divergence,
        _joint_rest(monitor.rest(), others.rest),
    )


def _joint_rest(
    held: tuple[Status, str] | None, others: tuple[Status, str] | None
) -> tuple[Status, str] | None:
    """How elements that are held and those that went on have ended: an infinite energy comes first."""
    if others is None or (held is not None and held[0] is Status.INFINITE):
        return held
    return others


def _continued(before: Tensor, after: Tensor, rows: Tensor) -> Tensor:
    """A trace of all elements, of which some go on and the others keep their last entries."""
    rest = before[-1].expand(len(after), -1).clone()
    rest[:, rows] = after
    return torch.cat([before, rest])
