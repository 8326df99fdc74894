"""Monitoring of the rounds of ``infer``: energies, divergence, convergence, and the final status."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .plan import PlannedUpdate
from .rounds import Outcome, Watch
from .solution import Status
from .state import Snapshot, State
from .trace import Energies, Mark, Rows, Terms
from .verdict import Divergence, find_divergence, judge_convergence, limit_message, stopped_early_message


class Monitor(Watch):
    """Records energies, holds batch elements that diverge, and stops at convergence.

    Batch elements that diverge in a round go back to their values before it and stay there; the round is
    repeated for the others.

    Args:
        state: before its first update.
        until: the largest change of a round that counts as convergence; None to run all rounds.
        energies: to record, if any.
        terms: to record, if any.

    Attributes:
        schedule: the updates of all rounds so far, repeated rounds counted once.
        rounds: their number.
    """

    def __init__(
        self, state: State, until: float | None, energies: Energies | None, terms: Terms | None
    ) -> None:
        self.energies, self.terms = energies, terms
        self.schedule: list[PlannedUpdate] = []
        self.rounds = 0
        self._state, self._until = state, until
        self._traces = [trace for trace in (energies, terms) if trace is not None]
        self._diverged: Rows | None = None
        self._first: Divergence | None = None
        self._status, self._message = Status.LIMIT, ""

    def begin(self, steps: Sequence[PlannedUpdate]) -> None:
        self.schedule += steps
        self.rounds += 1
        self._before: Snapshot = self._state.snapshot()
        self._marks: list[Mark] = [trace.mark() for trace in self._traces]
        self._diverged = None

    def record(self, step: PlannedUpdate, old: Tensor | None) -> None:
        for trace in self._traces:
            trace.record(step, old)

    def end(self, steps: Sequence[PlannedUpdate]) -> Outcome:
        state = self._state
        if self.energies is not None and self._diverged is not None and state.frozen is not None:
            # of elements that diverged, the energies show how
            self.energies.overwrite(self._diverged, state.frozen)
        divergence = find_divergence(state, self._before, steps, self.rounds)
        if divergence is not None:
            return self._hold(divergence)
        self._status, self._message = judge_convergence(state, self._before, steps, self.rounds, self._until)
        return Outcome.NEXT if self._status is Status.LIMIT else Outcome.STOP

    def verdict(self) -> tuple[Status, str]:
        """Final status and its message."""
        status, message = self._status, self._message
        if status is Status.LIMIT:
            message = stopped_early_message(self._state, self.rounds)
            status = Status.STOPPED_EARLY if message else Status.LIMIT
        message = message or limit_message(self.rounds, self._until)
        if self._first is None:
            return status, message
        return self._first.status, self._first.message("" if self._state.all_frozen else message)

    def _hold(self, divergence: Divergence) -> Outcome:
        """Go back to the values before the round, and hold the elements that diverged in it."""
        self._first = self._first or divergence
        self._state.freeze(divergence.elements, self._before)
        if self._state.all_frozen:
            return Outcome.STOP
        earlier = [trace.rewind(mark) for trace, mark in zip(self._traces, self._marks, strict=True)]
        self._diverged = earlier[0] if self.energies is not None else None
        return Outcome.REPEAT
