"""Gradients through the updates of an unrolled network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..errors import InferenceError
from .plan import PlannedUpdate
from .rounds import run_rounds
from .state import State


class Gradient(ABC):
    """A way to run updates so that they can be differentiated."""

    @abstractmethod
    def run(self, state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> None:
        """Run all updates.

        Args:
            state: to update.
            steps: updates, each with the number of its round.
            receive_last: compute no more of the last update than its sum of messages.
        """


@dataclass(frozen=True)
class Unroll(Gradient):
    """The exact gradient, through every update; memory grows with the number of rounds."""

    def run(self, state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> None:
        run_steps(state, steps, receive_last)


@dataclass(frozen=True)
class Truncate(Gradient):
    """The gradient through the last rounds alone; what the rounds before them computed counts as constant.

    It is biased: the effect of the parameters on the first rounds is left out. Near a fixed point of
    converging rounds the bias falls geometrically with the number of rounds (Shaban et al., 2019).

    Args:
        rounds: how many rounds are differentiated, at least 1.

    Raises:
        InferenceError: for another number.
    """

    rounds: int

    def __post_init__(self) -> None:
        _check_rounds("Truncate", self.rounds)

    def run(self, state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> None:
        first = steps[-1].round - self.rounds + 1
        constant = [step for step in steps if step.round < first]
        if constant:
            with torch.no_grad():
                run_steps(state, constant, receive_last=False)
            state.detach_past()
        run_steps(state, steps[len(constant) :], receive_last)


@dataclass(frozen=True)
class Checkpoint(Gradient):
    """The exact gradient from less memory: rounds are computed again in the backward pass.

    The method is that of Chen et al. (2016). Kept are the values of the variables between groups of rounds,
    and all that is computed within one group at a time.

    Args:
        rounds: in a group, at least 1.

    Raises:
        InferenceError: for another number.
    """

    rounds: int = 1

    def __post_init__(self) -> None:
        _check_rounds("Checkpoint", self.rounds)

    def run(self, state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> None:
        groups = [list(group) for _, group in groupby(steps, lambda step: step.round // self.rounds)]
        for group in groups[:-1]:
            _run_recomputed(state, group, receive_last=False)
        _run_recomputed(state, groups[-1], receive_last)


UNROLL = Unroll()


def run_steps(state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> None:
    """Run updates one after another; arguments as of ``Gradient.run``."""
    run_rounds(state, [steps[:-1] if receive_last else steps])
    if receive_last:
        state.receive(steps[-1])


def _run_recomputed(state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> None:
    """Run updates without keeping what their derivatives need."""
    names = _present(state)
    # sums of messages that never change are computed once for all groups
    state.sum_static(dict.fromkeys(step.name for step in steps))
    before = state.branch({})
    branches: list[State] = []

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        branch = before.branch(dict(zip(names, values, strict=True)))
        run_steps(branch, steps, receive_last)
        if not branches:
            branches.append(branch)
        return (*(branch.values[name] for name in _present(branch)), *branch.preactivations.values())

    results: Any = checkpoint(
        run, *(state.values[name] for name in names), use_reentrant=False, preserve_rng_state=False
    )
    first = branches[0]
    present = _present(first)
    state.adopt(
        first,
        dict(zip(present, results, strict=False)),
        dict(zip(first.preactivations, results[len(present) :], strict=True)),
    )


def _present(state: State) -> list[str]:
    return [name for name in state.plan.free if name in state.values]


def _check_rounds(kind: str, rounds: object) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InferenceError(f"{kind}: the number of rounds is a whole number >= 1, got {rounds!r}.")
