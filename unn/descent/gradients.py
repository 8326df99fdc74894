"""Gradients through the updates of an unrolled network."""

from __future__ import annotations

import math
import numbers
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..errors import ConvergenceWarning, InferenceError, suggest
from ..no_gradients import no_gradients
from .equilibrium import (
    SOLVERS,
    Equilibrium,
    Solver,
    contraction_at,
    differentiable_equilibrium,
    settle,
)
from .held import held_nodes
from .plan import PlannedUpdate
from .rounds import run_rounds
from .state import State
from .updates import Sample


class Gradient(ABC):
    """A way to run updates so that they can be differentiated."""

    keeps_all_rounds: ClassVar[bool] = False
    """Whether every round must be complete, also where updates cannot influence what is wanted."""

    @abstractmethod
    def run(self, state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> Equilibrium | None:
        """Run all updates.

        Args:
            state: to update.
            steps: updates, each with the number of its round.
            receive_last: compute no more of the last update than its sum of messages.

        Returns:
            How the rounds ended, if they run to a fixed point.
        """


@dataclass(frozen=True)
class Unroll(Gradient):
    """The exact gradient, through every update; memory grows with the number of rounds."""

    def run(self, state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> Equilibrium | None:
        run_steps(state, steps, receive_last)
        return None


@dataclass(frozen=True)
class Truncate(Gradient):
    """The gradient through the last rounds alone; what the rounds before them computed counts as constant.

    Initial values of nodes that no round updates are not computed, and have their derivative.

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

    def run(self, state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> Equilibrium | None:
        first = steps[-1].round - self.rounds + 1
        constant = [step for step in steps if step.round < first]
        if constant:
            held = held_nodes(state, constant)
            with no_gradients():
                run_steps(state, constant, receive_last=False)
            state.detach_past({step.name for step in constant}, held)
        run_steps(state, steps[len(constant) :], receive_last)
        return None


@dataclass(frozen=True)
class Checkpoint(Gradient):
    """The exact gradient from less memory: rounds are computed again in the backward pass.

    The method is that of Chen et al. (2016). Kept are the values of the variables between groups of rounds,
    and all that is computed within one group at a time. Messages that are derivatives themselves, as those of
    ``Directed`` and ``Implicit`` factors, run their group again at each of these, so that groups of few
    rounds serve them best.

    Args:
        rounds: in a group, at least 1.

    Raises:
        InferenceError: for another number, and when it runs under a transform of ``torch.func``.
    """

    rounds: int = 1

    def __post_init__(self) -> None:
        _check_rounds("Checkpoint", self.rounds)

    def run(self, state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> Equilibrium | None:
        if torch._C._are_functorch_transforms_active():
            raise InferenceError(
                "Checkpoint: transforms of torch.func (grad, vmap, jvp) cannot compute rounds again; "
                "differentiate without the transform, or use Unroll, Truncate or Implicit."
            )
        groups = [list(group) for _, group in groupby(steps, lambda step: step.round // self.rounds)]
        for group in groups[:-1]:
            _run_recomputed(state, group, receive_last=False)
        _run_recomputed(state, groups[-1], receive_last)
        return None


@dataclass(frozen=True)
class Implicit(Gradient):
    """The exact gradient at the fixed point of the rounds, without the way there.

    Rounds run until no entry changes by more than the tolerance, at most as many as the network has
    iterations (1000 by default). The derivative is that of the fixed point by the implicit function theorem:
    a linear system in the Jacobian of one round, solved by GMRES from products with it. First and second
    derivatives are exact, higher ones are not; memory is that of one round (Bai, Kolter and Koltun, 2019).
    Under transforms of ``torch.func`` (``vmap``, ``grad`` and ``jvp``, of networks with
    ``check_values=False``) this Jacobian is formed.
    ``Unrolled.equilibrium`` tells how the rounds ended; where they did not settle there is a
    ``ConvergenceWarning``.

    Args:
        tolerance: largest change of an entry in the last round, and residual of the linear system relative to
            its right side, above 0.
        solver: "rounds", or "anderson" to extrapolate from the last rounds as long as the energy falls
            (Anderson, 1965).

    Raises:
        InferenceError: for another tolerance or solver.
    """

    tolerance: float = 1e-6
    solver: Solver = "rounds"

    keeps_all_rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        number = isinstance(self.tolerance, numbers.Real) and not isinstance(self.tolerance, bool)
        if not number or not 0 < self.tolerance < math.inf:
            raise InferenceError(
                f"Implicit: the tolerance is a finite number above 0, got {self.tolerance!r}."
            )
        if self.solver not in SOLVERS:
            raise InferenceError(
                f"Implicit: solver={self.solver!r} is unknown.{suggest(str(self.solver), SOLVERS)}"
            )

    def run(self, state: State, steps: Sequence[PlannedUpdate], receive_last: bool) -> Equilibrium | None:
        rounds = [list(group) for _, group in groupby(steps, lambda step: step.round)]
        held = held_nodes(state, steps)
        equilibrium = settle(state, iter(rounds), len(rounds), self.tolerance, self.solver)
        if not equilibrium.converged:
            warnings.warn(_unrest(state, rounds[-1], equilibrium), ConvergenceWarning, stacklevel=5)
        if torch.is_grad_enabled():
            differentiable_equilibrium(state, rounds[-1], held, self.tolerance)
        run_steps(state, rounds[-1], receive_last)
        return equilibrium


def _unrest(state: State, steps: Sequence[PlannedUpdate], equilibrium: Equilibrium) -> str:
    """That a fixed point was not reached, with what a round does to small deviations."""
    reached = (
        f"Implicit: {int((~equilibrium.settled).sum())} of {len(equilibrium.change)} batch elements still "
        f"change by up to {float(equilibrium.change.amax()):.2g} after {equilibrium.rounds} rounds, more "
        f"than tolerance={equilibrium.tolerance:g}; their gradients are not exact."
    )
    if torch._C._are_functorch_transforms_active():
        return f"{reached} Without the transform of torch.func, a warning tells whether the point attracts."
    factor = float(contraction_at(state, steps).nan_to_num(torch.inf).amax())
    attracts = (
        "so that more iterations, or solver='anderson', reach the fixed point"
        if factor < 1
        else "so that the fixed point does not attract; check graph.boundedness(), damp the updates, or use "
        "Truncate or Checkpoint"
    )
    return f"{reached} A round multiplies small deviations by about {factor:.2g}, {attracts}."


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
    generator = state.generator
    noise = None if generator is None else generator.get_state()

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        branch = before.branch(dict(zip(names, values, strict=True)))
        if branches and generator is not None and noise is not None:
            # the same draws again, without an effect on later ones
            later = generator.get_state()
            generator.set_state(noise)
            try:
                # ends early, by an exception, once all that is needed is computed
                run_steps(branch, steps, receive_last)
            finally:
                generator.set_state(later)
        else:
            run_steps(branch, steps, receive_last)
        if not branches:
            branches.append(branch)
        return (*(branch.values[name] for name in _present(branch)), *branch.preactivations.values())

    results: Any = checkpoint(
        run,
        *(state.values[name] for name in names),
        use_reentrant=False,
        preserve_rng_state=isinstance(state.rule, Sample),
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
