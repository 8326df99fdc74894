"""The update that lowers the energy most, in each batch element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..regularizers.base import batch_sum
from .conditional_gradient import BlockProblem, minimise_block
from .plan import PlannedUpdate
from .shares import regularizer_share, wide
from .state import State


def greedy_rounds(state: State, steps: Sequence[PlannedUpdate]) -> Iterator[list[PlannedUpdate]]:
    """The best update of each batch element, one round after another, without end.

    Args:
        state: of the run, which is updated between rounds.
        steps: the updates to choose from.
    """
    while True:
        decreases = torch.stack([_decrease(state, step) for step in steps])
        best = decreases.argmax(0)
        yield [
            replace(step, rows=best == place)
            for place, step in enumerate(steps)
            if bool((best == place).any())
        ]


def _decrease(state: State, step: PlannedUpdate) -> Tensor:
    """By how much an update lowers the energy, shape ``(batch,)``; infinite where there is no value."""
    name, evidence = step.name, state.evidence
    dtype = wide(evidence.like.dtype)
    old = state.values.get(name)
    if old is None:
        return torch.full((evidence.batch,), torch.inf, dtype=dtype, device=evidence.like.device)
    if not state.closed_form(step):
        with torch.no_grad():
            problem = BlockProblem(state, step)
            branch = state.branch({})
            new = branch.hold(step, minimise_block(branch, step))
            return (problem.energy(old) - problem.energy(new)).nan_to_num(0.0).to(dtype)
    regularizer, mask = evidence.regularizers[name], evidence.masks.get(name)
    # messages are kept for the update itself, and so computed with their derivatives
    t = state.preactivation(step).expand(evidence.batch, *evidence.shapes[name])
    with torch.no_grad():
        new = state.hold(step, regularizer.mirror(t, mask).to(old.dtype))
        gain = batch_sum(torch.where(new == old, 0, t * (new - old))).to(dtype)
        fall = regularizer_share(regularizer, old, mask) - regularizer_share(regularizer, new, mask)
        decrease: Tensor = (fall.to(dtype) + gain).nan_to_num(0.0, torch.inf, 0.0)
    return decrease
