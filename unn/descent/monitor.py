"""Monitoring of the rounds of ``infer``: energies, divergence, rest, and the final status."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .anderson import Extrapolation
from .plan import PlannedUpdate
from .rounds import Outcome, Watch, at_rest, largest_changes
from .solution import Status
from .state import Snapshot, State
from .trace import Energies, Mark, Rows, Terms
from .updates import Sample
from .verdict import (
    Divergence,
    find_divergence,
    limit_message,
    stopped_early_message,
    verdict_at_rest,
)


class Monitor(Watch):
    """Records energies, holds batch elements that diverge or are at rest, and stops when all are.

    Batch elements that diverge in a round go back to their values before it and stay there; the round is
    repeated for the others. Elements at rest stay where they are. When half of them are held, the others can
    go on by themselves.

    Args:
        state: before its first update.
        until: the largest change of a round that counts as rest; None to run all rounds.
        energies: to record, if any.
        terms: to record, if any.
        extrapolation: of the starts of rounds, if any.
        earlier: number of rounds that the elements have run before.
        limit: largest number of rounds, with the earlier ones.

    Attributes:
        schedule: the updates of all rounds so far, repeated rounds counted once.
        rounds: their number.
        halved: whether the rounds were stopped because half of the elements are held.
        divergence: the first, if any element has diverged.
    """

    def __init__(
        self,
        state: State,
        until: float | None,
        energies: Energies | None,
        terms: Terms | None,
        extrapolation: Extrapolation | None,
        earlier: int,
        limit: int,
    ) -> None:
        self.energies, self.terms = energies, terms
        self.schedule: list[PlannedUpdate] = []
        self.rounds = 0
        self.halved = False
        self._state, self._until = state, until
        self._earlier, self._limit = earlier, limit
        self._extrapolation = extrapolation
        # draws of the elements that go on would change with the number of the others
        self._holds_rest = until is not None and not isinstance(state.rule, Sample)
        self._traces = [trace for trace in (energies, terms) if trace is not None]
        self._diverged: Rows | None = None
        self.divergence: Divergence | None = None
        self._diverged_elements: Tensor | None = None
        self._change_at_rest: float | None = None
        self._status, self._message = Status.LIMIT, ""

    def begin(self, steps: Sequence[PlannedUpdate]) -> None:
        self.schedule += steps
        self.rounds += 1
        if self._extrapolation is not None and self._extrapolation.begin(steps):
            for trace in self._traces:
                trace.refresh()
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
        divergence = find_divergence(state, self._before, steps, self._earlier + self.rounds)
        if divergence is not None:
            return self._hold(divergence)
        changes = None if self._until is None else largest_changes(state, self._before, steps)
        if self._until is not None and changes is not None:
            settled = at_rest(state, changes, self._until)
            if bool(settled.all()):
                self._judge_rest(float(changes.amax()))
                return Outcome.STOP
            if self._holds_rest and self._hold_rest(settled, changes):
                return Outcome.STOP
        if self._extrapolation is not None:
            self._extrapolation.end()
        return Outcome.NEXT

    def rest(self) -> tuple[Status, str] | None:
        """Status and message of the elements that have not diverged; None if all have."""
        if self._diverged_elements is not None and bool(self._diverged_elements.all()):
            return None
        number = self._earlier + self.rounds
        if self._status is not Status.LIMIT:
            return self._status, self._message
        message = stopped_early_message(self._state, number)
        if message:
            return Status.STOPPED_EARLY, message
        return Status.LIMIT, limit_message(number, self._until)

    def _judge_rest(self, change: float) -> None:
        """Record how elements at rest have ended, from their largest change."""
        assert self._until is not None
        number = self._earlier + self.rounds
        self._status, self._message = verdict_at_rest(self._state, change, number, self._until)

    def _hold_rest(self, settled: Tensor, changes: Tensor) -> bool:
        """Hold the elements at rest where they are; whether the others should go on by themselves."""
        state = self._state
        new = settled if state.frozen is None else settled & ~state.frozen
        if not bool(new.any()):
            return False
        self._change_at_rest = max(self._change_at_rest or 0.0, float(changes[new].amax()))
        state.hold_at_rest(new)
        assert state.frozen is not None
        held = int(state.frozen.sum())
        more = self._earlier + self.rounds < self._limit
        self.halved = more and state.evidence.divisible and 2 * held >= state.evidence.batch > held
        if self.halved:
            self._judge_rest(self._change_at_rest)
        return self.halved

    def _hold(self, divergence: Divergence) -> Outcome:
        """Go back to the values before the round, and hold the elements that diverged in it."""
        self.divergence = self.divergence or divergence
        before = self._diverged_elements
        self._diverged_elements = divergence.elements if before is None else before | divergence.elements
        self._state.freeze(divergence.elements, self._before)
        if self._state.all_frozen:
            if self._change_at_rest is not None:
                self._judge_rest(self._change_at_rest)
            if self.terms is not None and (self._change_at_rest is not None or self._earlier):
                # as where others go on, the terms are those of the values that are held
                since = self.terms.rewind(self._marks[-1])
                self.terms.repeat(len(next(iter(since.values()))))
            return Outcome.STOP
        earlier = [trace.rewind(mark) for trace, mark in zip(self._traces, self._marks, strict=True)]
        self._diverged = earlier[0] if self.energies is not None else None
        return Outcome.REPEAT
