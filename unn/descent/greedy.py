"""The update that lowers the energy most, in each batch element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..no_gradients import no_gradients
from ..regularizers.base import batch_sum
from .conditional_gradient import BlockProblem, minimise_block
from .plan import PlannedUpdate
from .shares import regularizer_share, wide
from .state import State


def greedy_rounds(
    state: State, steps: Sequence[PlannedUpdate], until: float | None = None
) -> Iterator[list[PlannedUpdate]]:
    """The best update of each batch element, one round after another, without end.

    The best one lowers the energy most. If it changes no entry by more than ``until``, which ends the run, it
    is the one with the largest change instead: decreases are differences of large numbers and may be rounding
    alone, and that of many small changes can exceed that of one large change.

    Args:
        state: of the run, which is updated between rounds.
        steps: the updates to choose from.
        until: tolerance of the run.
    """
    while True:
        effects = [_effect(state, step) for step in steps]
        decreases = torch.stack([effect.decrease for effect in effects])
        changes = torch.stack([effect.change for effect in effects])
        best = decreases.argmax(0)
        rests = changes.gather(0, best[None])[0] <= (until or 0.0)
        best = torch.where(rests, changes.argmax(0), best)
        yield [
            replace(step, rows=best == place)
            for place, step in enumerate(steps)
            if bool((best == place).any())
        ]


@dataclass(frozen=True, eq=False)
class _Effect:
    """What an update would do, shape ``(batch,)`` each; infinite where there is no value.

    Attributes:
        decrease: by how much it lowers the energy.
        change: the largest change of an entry.
    """

    decrease: Tensor
    change: Tensor


def _effect(state: State, step: PlannedUpdate) -> _Effect:
    """The effect of an update on each batch element."""
    name, evidence = step.name, state.evidence
    dtype = wide(evidence.like.dtype)
    old = state.values.get(name)
    if old is None:
        infinite = torch.full((evidence.batch,), torch.inf, dtype=dtype, device=evidence.like.device)
        return _Effect(infinite, infinite)
    if not state.closed_form(step):
        with no_gradients():
            problem = BlockProblem(state, step)
            branch = state.branch({})
            new = branch.hold(step, minimise_block(branch, step))
            decrease = (problem.energy(old) - problem.energy(new)).nan_to_num(0.0).to(dtype)
            return _Effect(decrease, _largest_change(old, new).to(dtype))
    regularizer, mask = evidence.regularizers[name], evidence.masks.get(name)
    # messages are kept for the update itself, and so computed with their derivatives
    t = state.preactivation(step).expand(evidence.batch, *evidence.shapes[name])
    with no_gradients():
        new = state.hold(step, regularizer.mirror(t, mask).to(old.dtype))
        gain = batch_sum(torch.where(new == old, 0, t * (new - old))).to(dtype)
        fall = regularizer_share(regularizer, old, mask) - regularizer_share(regularizer, new, mask)
        decrease = (fall.to(dtype) + gain).nan_to_num(0.0, torch.inf, 0.0)
        return _Effect(decrease, _largest_change(old, new).to(dtype))


def _largest_change(old: Tensor, new: Tensor) -> Tensor:
    """The largest change of an entry in each batch element, shape ``(batch,)``."""
    changes = (new - old).reshape(len(new), -1).abs().nan_to_num(0.0, torch.inf)
    # a variable may have no entries
    change: Tensor = changes.amax(1) if changes.shape[1] else changes.sum(1)
    return change
