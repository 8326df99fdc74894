"""The monotone inner solver for blocks without a closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..regularizers.base import batch_sum

if TYPE_CHECKING:
    from .plan import Step
    from .state import State

MAX_STEPS = 50
_HALVINGS = 40


def minimise_block(state: State, step: Step) -> Tensor:
    """Lower the energy in one block until it is stationary, and never raise it.

    Generalised conditional gradient (Bredies, Lorenz and Maass, 2009): the factors are linearised at x, the linear model plus Psi is
    minimised exactly by s = mirror(messages), and x moves towards s as far as backtracking allows, each batch element by itself.
    Needs no more of a regularizer than its mirror and value, and stays inside any convex domain.

    Returns:
        The new value, shape ``(batch, *axes)``.
    """
    name = step.name
    setting = state.setting
    regularizer, mask = setting.regularizers[name], setting.masks.get(name)
    factors = state.present_factors(name)
    shape = (setting.batch, *setting.shapes[name])

    def energy(x: Tensor) -> Tensor:
        values = {**state.values, name: x}
        total = regularizer.value(x, mask)
        for factor in factors:
            total = total + factor.energy(values)
        return total

    def target(x: Tensor) -> tuple[Tensor, Tensor]:
        values = {**state.values, name: x}
        t = torch.zeros(shape, dtype=x.dtype, device=x.device)
        for factor in factors:
            t = t + factor.message(name, values, setting.shapes[name])
        return t, state.hold(step, regularizer.mirror(t, mask))

    x = state.values.get(name)
    if x is None:
        x = setting.like.new_zeros(shape)
    slack = 1e-12 if x.dtype == torch.float64 else 1e-7
    for _ in range(MAX_STEPS):
        t, s = target(x)
        state.preactivations[name] = t
        with torch.no_grad():
            now = energy(x)
            outside = ~now.isfinite()
            drop = batch_sum(t * (s - x)) - (regularizer.value(s, mask) - regularizer.value(x, mask))
            drop = torch.where(outside, 0, drop)
            moving = outside | (drop > slack * (1 + now.abs()))
            if not bool(moving.any()):
                break
            rate = torch.where(moving, torch.ones_like(now), 0)
            for _ in range(_HALVINGS):
                trial = energy(x + _along(rate, x) * (s - x))
                bad = moving & ~outside & ~(trial <= now - 0.1 * rate * drop)
                if not bool(bad.any()):
                    break
                rate = torch.where(bad, rate / 2, rate)
            rate = torch.where(bad, 0, rate)
        x = x + _along(rate, x) * (s - x)
        if not bool((rate > 0).any()):
            break
    return x


def _along(rate: Tensor, x: Tensor) -> Tensor:
    return rate.view(-1, *[1] * (x.ndim - 1))
