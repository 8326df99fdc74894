"""How a round ended: converged, diverged, at an energy that is not finite, or none of these."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .energy import state_terms
from .plan import Step
from .solution import Status
from .state import Snapshot, State


@torch.no_grad()
def judge(
    state: State, before: Snapshot, steps: Sequence[Step], rounds: int, until: float | None
) -> tuple[Status, str]:
    """Judge a round: diverged (the state goes back to the values before it), converged, or neither."""
    names = list(dict.fromkeys(step.name for step in steps))
    largest = torch.stack([state.values[name].abs().amax() for name in names])
    if not bool((largest <= _huge(largest.dtype)).all()):
        return _diverged(state, before, steps, rounds)
    if until is None or any(name not in before.values for name in names):
        return Status.LIMIT, ""
    change = float(torch.stack([(state.values[name] - before.values[name]).abs().amax() for name in names]).max())
    if change > until:
        return Status.LIMIT, ""
    reason = _not_finite(state)
    if reason:
        return Status.INFINITE, (
            f"infinite energy: nothing changes any more (by {change:.2g} in round {rounds}), but {reason}"
        )
    return Status.CONVERGED, f"converged: the largest change in round {rounds} was {change:.2g}, at most {until:g}."


def _not_finite(state: State) -> str:
    """What makes the energy infinite or NaN, and what to do; empty if it is finite."""
    graph, setting = state.plan.graph, state.setting
    for name, share in state_terms(state).items():
        if name in graph.variables:
            inside = setting.regularizers[name].contains(state.value(name), setting.masks.get(name))
            if not bool(inside.all()):
                remedy = "it was given so, or dropout contradicts what was given"
                if name in state.plan.free and name not in setting.observed:
                    remedy = f"add {name!r} to the order, or hold it inside with initial={{{name!r}: 'uniform'}}"
                return (
                    f"variable {name!r} lies outside the domain of {setting.regularizers[name]!r} in "
                    f"{int((~inside).sum())} of {len(inside)} batch elements, where the energy is infinite; {remedy}."
                )
        if not bool(share.isfinite().all()):
            kind = "variable" if name in graph.variables else "factor"
            return (
                f"the share of {kind} {name!r} in the energy is {float(share[~share.isfinite()][0])} in "
                f"{int((~share.isfinite()).sum())} of {len(share)} batch elements; rescale the values, or check the "
                f"parameters of {name!r}."
            )
    return ""


def _diverged(state: State, before: Snapshot, steps: Sequence[Step], rounds: int) -> tuple[Status, str]:
    """Run the round once more to find the update at which it diverged; leave the state as it was before the round."""
    state.restore(before)
    found = steps[-1]
    number = len(steps)
    bad = torch.ones(state.setting.batch, dtype=torch.bool, device=state.setting.like.device)
    largest = 0.0
    for k, step in enumerate(steps):
        peaks = [x.abs().amax().item() for name, x in state.values.items() if name in state.plan.free]
        largest = max([largest, *peaks])
        state.update(step)
        x = state.values[step.name].reshape(state.setting.batch, -1).abs().amax(1)
        bad = ~(x <= _huge(x.dtype))
        if bool(bad.any()):
            found, number = step, k + 1
            break
    overflow = not bool(state.values[found.name].isnan().any()) or largest > _huge(state.setting.like.dtype) ** 0.5
    state.restore(before)
    place = f"at update {number} of round {rounds} ({found}), in {int(bad.sum())} of {state.setting.batch} batch elements"
    kept = "The values are those before that round." if rounds > 1 else "The values are those before the first round."
    if overflow:
        verdict = state.plan.graph.boundedness(given=[n for n in state.plan.graph.variables if n not in state.plan.free])
        return Status.UNBOUNDED, f"unbounded: values grew without limit {place}; the energy: {verdict} {kept}"
    return Status.NOT_A_NUMBER, (
        f"not a number: NaN {place}. {kept} Check the parameters of the factors of {found.name} for NaN or infinite entries."
    )


def limit_message(rounds: int, until: float | None) -> str:
    if until is None:
        return f"reached its limit: {rounds} rounds, as asked; use until=1e-6 to iterate to convergence."
    return (
        f"reached its limit: after {rounds} rounds some entry still changes by more than {until:g}; raise iterations, or check "
        "graph.boundedness() for whether the energy has a minimum."
    )


def _huge(dtype: torch.dtype) -> float:
    """Values beyond this overflow when two of them are multiplied."""
    return math.sqrt(torch.finfo(dtype).max)
