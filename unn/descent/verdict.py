"""Verdict on a round: converged, diverged, at an energy that is not finite, or none of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.boundedness import boundedness_of
from ..no_gradients import no_gradients
from ..regularizers import Dropped
from .checks import describe_bad_parameters
from .conditional_gradient import MAX_STEPS
from .energy import state_terms
from .plan import PlannedUpdate
from .shares import largest_value
from .solution import Status
from .state import Snapshot, State


@dataclass(frozen=True)
class Divergence:
    """Batch elements whose values overflowed or became NaN.

    Attributes:
        elements: boolean, shape ``(batch,)``.
        status: of these elements.
        place: description of the update at which it happened.
        remedy: what to do.
    """

    elements: Tensor
    status: Status
    place: str
    remedy: str

    def message(self, others: str) -> str:
        """Description of the divergence, with a remedy.

        Args:
            others: how the run of the other batch elements ended; empty if there are none.
        """
        what = "values grew without limit" if self.status is Status.UNBOUNDED else "NaN"
        if not others:
            values = "The values are those before that round."
            return f"{self.status.value}: {what} {self.place}. {values} {self.remedy}"
        return (
            f"{self.status.value}: {what} {self.place}. The values of diverged elements are those before "
            f"that round. {self.remedy} The other elements: {others}"
        )


@no_gradients()
def verdict_at_rest(state: State, change: float, rounds: int, until: float) -> tuple[Status, str]:
    """Converged, or at rest where the energy is infinite."""
    reason = _not_finite(state)
    if reason:
        return Status.INFINITE, (
            f"infinite energy: nothing changes any more (by {change:.2g} in round {rounds}), but {reason}"
        )
    return (
        Status.CONVERGED,
        f"converged: the largest change in round {rounds} was {change:.2g}, at most {until:g}.",
    )


@no_gradients()
def find_divergence(
    state: State, before: Snapshot, steps: Sequence[PlannedUpdate], rounds: int
) -> Divergence | None:
    """The batch elements that diverged in the last round, and where; None if all values are in range.

    Where some diverged, the state is that before the round: the round is run once more to find the update.
    """
    names = dict.fromkeys(step.name for step in steps)
    if bool(torch.stack([_in_range(state, name) for name in names]).all()):
        return None
    state.restore(before)
    step, number = steps[-1], len(steps)
    elements = torch.ones(state.evidence.batch, dtype=torch.bool, device=state.evidence.like.device)
    largest = 0.0
    for k, current in enumerate(steps):
        peaks = [
            float(_peaks(x).nan_to_num(0).amax())
            for name, x in state.values.items()
            if name in state.plan.free
        ]
        largest = max([largest, *peaks])
        state.update(current)
        bad = ~_in_range(state, current.name)
        if bool(bad.any()):
            step, number, elements = current, k + 1, bad
            break
    values = state.values[step.name]
    overflow = not bool(values.isnan().any()) or largest > largest_value(values.dtype) ** 0.5
    state.restore(before)
    count = f"{int(elements.sum())} of {state.evidence.whole} batch elements"
    place = f"at update {number} of round {rounds} ({step}), in {count}"
    if overflow:
        return Divergence(elements, Status.UNBOUNDED, place, _verdict_on_energy(state))
    return Divergence(elements, Status.NOT_A_NUMBER, place, _parameter_remedy(state, step.name))


def _in_range(state: State, name: str) -> Tensor:
    """The batch elements in which a variable is finite and not huge, or frozen."""
    x = state.values[name]
    inside = _peaks(x) <= largest_value(x.dtype)
    return inside if state.frozen is None else inside | state.frozen


def _peaks(x: Tensor) -> Tensor:
    """The largest magnitude in each batch element."""
    return x.reshape(len(x), -1).abs().amax(1)


def _parameter_remedy(state: State, name: str) -> str:
    """Which parameters of the factors of a variable are NaN or infinite."""
    operands = {array for factor in state.plan.factors_of(name) for array in factor.operands}
    bad = describe_bad_parameters(state.plan.graph, operands)
    return bad or f"Check the parameters of the factors of {name} for NaN or infinite entries."


def unfinished_blocks(state: State) -> str:
    """The variables whose last update the inner solver left before a minimum, with counts; may be empty."""
    counts = {
        name: int((flags if state.frozen is None else flags & ~state.frozen).sum())
        for name, flags in state.unfinished.items()
    }
    size = state.evidence.whole
    return ", ".join(
        f"{name!r} (in {count} of {size} batch elements)" for name, count in counts.items() if count
    )


def stopped_early_message(state: State, rounds: int) -> str:
    """Description of blocks that the inner solver left before their minimum, with a remedy; empty if none."""
    blocks = unfinished_blocks(state)
    if not blocks:
        return ""
    return (
        f"stopped early: after {rounds} rounds the inner solver has not reached the minimum of {blocks} in "
        f"{MAX_STEPS} steps, so that the energy can still fall in this block alone. Run more rounds, which "
        f"continue from there, or make sure that there is a minimum. {_verdict_on_energy(state)}"
    )


def _verdict_on_energy(state: State) -> str:
    """Whether the energy is bounded below, in one sentence; with dropout it is another one."""
    graph = state.plan.graph
    given = [name for name in graph.variables if name not in state.plan.free]
    has_dropout = any(isinstance(r, Dropped) for r in state.evidence.regularizers.values())
    return f"The energy{' without dropout' if has_dropout else ''}: {boundedness_of(graph, given)}"


def _not_finite(state: State) -> str:
    """Cause of an energy that is infinite or NaN, with a remedy; empty if it is finite."""
    graph, evidence = state.plan.graph, state.evidence
    for name, share in state_terms(state).items():
        if name in graph.variables:
            inside = evidence.regularizers[name].contains(state.value(name), evidence.masks.get(name))
            if not bool(inside.all()):
                remedy = "it was given so"
                if name in state.plan.free and name not in evidence.observed:
                    remedy = (
                        f"add {name!r} to the order, or hold it inside with initial={{{name!r}: 'uniform'}}"
                    )
                return (
                    f"variable {name!r} lies outside the domain of {evidence.regularizers[name]!r} in "
                    f"{int((~inside).sum())} of {evidence.whole} batch elements, where the energy is "
                    f"infinite; {remedy}."
                )
        if not bool(share.isfinite().all()):
            kind = "variable" if name in graph.variables else "factor"
            return (
                f"the share of {kind} {name!r} in the energy is {float(share[~share.isfinite()][0])} in "
                f"{int((~share.isfinite()).sum())} of {evidence.whole} batch elements; rescale the values, "
                f"or check the parameters of {name!r}."
            )
    return ""


def limit_message(rounds: int, until: float | None) -> str:
    if until is None:
        return f"reached its limit: {rounds} rounds, as asked; use until=1e-6 to iterate to convergence."
    return (
        f"reached its limit: after {rounds} rounds some entry still changes by more than {until:g}; raise "
        "iterations, or check graph.boundedness() for whether the energy has a minimum."
    )
