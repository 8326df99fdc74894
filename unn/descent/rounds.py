"""Rounds of updates, with what accompanies them: the one loop of all runs."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from enum import Enum, auto

import numpy as np
import torch
from torch import Tensor

from ..errors import InferenceError
from ..no_gradients import no_gradients
from .plan import PlannedUpdate
from .state import Snapshot, State
from .updates import Sample

ROUND_CAP = 1000


class Outcome(Enum):
    """Action after a round: run the next one, repeat it, or stop."""

    NEXT = auto()
    REPEAT = auto()
    STOP = auto()


class Watch:
    """Callbacks of a run, around each round and after each update; these do nothing."""

    def begin(self, steps: Sequence[PlannedUpdate]) -> None:
        """Called before a round, once if it is repeated."""

    def record(self, step: PlannedUpdate, old: Tensor | None) -> None:
        """Called after an update.

        Args:
            step: that was run.
            old: the value of its variable before; None if it was absent.
        """

    def end(self, steps: Sequence[PlannedUpdate]) -> Outcome:
        """Called after a round; says what follows."""
        return Outcome.NEXT


UNWATCHED = Watch()


def run_rounds(state: State, rounds: Iterable[Sequence[PlannedUpdate]], watch: Watch = UNWATCHED) -> None:
    """Run rounds of updates until there are no more, or the watch stops them.

    Args:
        state: to update.
        rounds: the updates of one round after another; taken one at a time, since random orders are drawn
            then.
        watch: of the run.
    """
    for steps in rounds:
        watch.begin(steps)
        outcome = Outcome.REPEAT
        while outcome is Outcome.REPEAT:
            for step in steps:
                watch.record(step, state.update(step))
            outcome = watch.end(steps)
        if outcome is Outcome.STOP:
            return


class UntilRest(Watch):
    """Stops after the round in which no entry of an updated variable changes by more than a tolerance.

    Batch elements at rest stay where they are while others go on. NaN stops a run as well, since it never
    gets better.

    Args:
        state: of the run.
        until: the tolerance.

    Attributes:
        change: the largest change in the last round; None if a variable had no value before it.
    """

    def __init__(self, state: State, until: float) -> None:
        self._state = state
        self._until = until
        self._before = state.snapshot()
        self.change: float | None = None

    @property
    def at_rest(self) -> bool:
        """Was the last change small enough?"""
        return self.change is not None and not self.change > self._until

    def begin(self, steps: Sequence[PlannedUpdate]) -> None:
        self._before = self._state.snapshot()

    def end(self, steps: Sequence[PlannedUpdate]) -> Outcome:
        changes = largest_changes(self._state, self._before, steps)
        self.change = None if changes is None else float(changes.amax())
        if changes is None or self.at_rest:
            return Outcome.NEXT if changes is None else Outcome.STOP
        if not isinstance(self._state.rule, Sample):
            new = at_rest(self._state, changes, self._until)
            self._state.hold_at_rest(new if self._state.frozen is None else new & ~self._state.frozen)
        return Outcome.NEXT


@no_gradients()
def largest_changes(state: State, before: Snapshot, steps: Sequence[PlannedUpdate]) -> Tensor | None:
    """The largest change of an entry of the updated variables in each batch element, shape ``(batch,)``; None
    if one of these had no value before.

    Args:
        state: after the updates.
        before: the values before them.
        steps: the updates.
    """
    names = dict.fromkeys(step.name for step in steps)
    if any(name not in before.values for name in names):
        return None
    changes = [
        (state.values[name] - before.values[name]).reshape(state.evidence.batch, -1).abs().amax(1)
        for name in names
    ]
    return torch.stack(changes).amax(0)


@no_gradients()
def at_rest(state: State, changes: Tensor, until: float) -> Tensor:
    """The batch elements that are held, or that changed by at most a tolerance in the last round with all
    blocks at their minimum; shape ``(batch,)``."""
    settled = changes <= until
    for flags in state.unfinished.values():
        settled = settled & ~flags
    return settled if state.frozen is None else settled | state.frozen


def round_limit(
    iterations: int | range | None, until: float | None, generator: torch.Generator | None
) -> int:
    """The number of rounds to run.

    Raises:
        InferenceError: for fewer than one, an empty range, or a tolerance that is not positive.
    """
    if until is not None:
        number = isinstance(until, (numbers.Real, np.floating)) and not isinstance(until, (bool, np.bool_))
        if not number or not 0 < until < math.inf:
            raise InferenceError(f"until: the tolerance must be a finite number > 0, got {until!r}.")
    if iterations is None:
        return 1 if until is None else ROUND_CAP
    if isinstance(iterations, range):
        if not len(iterations) or min(iterations) < 1:
            raise InferenceError(
                f"iterations: {iterations} must hold at least one number, all >= 1; range(1, 6) draws from 1 "
                "to 5."
            )
        place = "cpu" if generator is None else generator.device
        return iterations[int(torch.randint(len(iterations), (), generator=generator, device=place))]
    if isinstance(iterations, np.integer):
        iterations = int(iterations)
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise InferenceError(
            f"iterations: must be a whole number >= 1 or a range such as range(1, 6), got {iterations!r}."
        )
    return iterations
