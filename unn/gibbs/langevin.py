"""Underdamped Langevin dynamics with a Metropolis correction, for variables without a closed conditional."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..descent.entries import entries_of
from ..descent.plan import PlannedUpdate
from ..descent.shares import factors_share, regularizer_share
from ..descent.state import State
from ..descent.updates import Sample
from ..errors import InferenceError
from ..noise import normal, uniform
from ..regularizers import Elementwise

_FEWEST, _MOST = 3, 5
"""Range of the number of leapfrog steps of a move."""
_SHORTER, _LONGER = 0.8, 1.2
"""Range of the random factor of a step size: moves of one length would end near where they began on Gaussians
of which it is a period."""
_PERSISTENCE = 0.5
"""Share of the momentum that a move keeps."""
_ACCEPTED = 0.8
"""Share of accepted moves at which step sizes aim."""
_ADAPTATION = 0.1
_FORGETTING = 0.75
"""Exponent of the average of step sizes over the adaptation (Hoffman and Gelman, 2014)."""
_FIRST_STEP = 0.3


class Langevin:
    """Moves of one variable that leave the distribution of ``Chains`` invariant.

    A move refreshes a part of the momentum, follows the dynamics for a few leapfrog steps, and accepts where
    they end by the Metropolis rule, with the momentum reversed where it does not (Horowitz, 1991; generalised
    hybrid Monte Carlo). The number of steps is random, and so is a factor of the step size (Neal, 2011, "MCMC
    using Hamiltonian dynamics", Section 3.2). Each batch element has its own step size and decision.

    Args:
        state: values of all variables, in which moves are made.
        name: the variable, whose domain is unbounded.
        generator: random number generator.

    Raises:
        InferenceError: for a variable with a bounded domain.

    Attributes:
        log_step: logarithm of the step size with which the next adapting move is made, shape ``(batch,)``;
            None before the first move.
        accepted: mean probability of acceptance of the last move, shape ``(batch,)``.
    """

    def __init__(self, state: State, name: str, generator: torch.Generator | None) -> None:
        regularizer = state.evidence.regularizers[name]
        unbounded = (-math.inf, math.inf)
        if not (isinstance(regularizer, Elementwise) and regularizer.interval() == unbounded):
            raise InferenceError(
                f"variable {name!r} has no closed form given the others, and {regularizer!r} bounds it, so "
                "that Langevin dynamics cannot move it; sampling needs factors that are linear in it, or "
                "SquaredNorm."
            )
        self._state, self._name, self._generator = state, name, generator
        self._regularizer = regularizer
        self._momentum: Tensor | None = None
        self.log_step: Tensor | None = None
        self._mean_log_step: Tensor | None = None
        self._adapted = 0
        self.accepted: Tensor | None = None

    def move(self, step: PlannedUpdate, adapts: bool) -> None:
        """Move a block of the variable.

        Args:
            step: the block.
            adapts: whether step sizes change with the acceptance; while they do, the distribution is not
                exactly invariant.
        """
        state, rule = self._state, self._state.rule
        assert isinstance(rule, Sample)
        x = state.values[self._name].detach()
        free = self._free(step, x)
        if self._momentum is None:
            self._momentum = normal(x.shape, x, self._generator)
        if self.log_step is None:
            start = math.log(_FIRST_STEP * math.sqrt(rule.temperature) / x[0].numel() ** 0.25)
            self.log_step = x.new_full((len(x),), start)
        if self._mean_log_step is None:
            self._mean_log_step = self.log_step
        fresh = normal(x.shape, x, self._generator)
        momentum = _PERSISTENCE * self._momentum + math.sqrt(1 - _PERSISTENCE**2) * fresh
        momentum = torch.where(free, momentum, 0)
        log_step = self.log_step if adapts else self._mean_log_step
        length = _SHORTER + (_LONGER - _SHORTER) * uniform(log_step.shape, x, self._generator)
        size = (log_step.exp() * length).view(-1, *[1] * (x.ndim - 1))
        energy, slope = self._energy(x)
        position, velocity = x, momentum
        height = energy + 0.5 * entries_of(velocity.square()).sum(1)
        following = energy
        # not on the device of x, which would have to be waited for
        source = torch.device("cpu") if self._generator is None else self._generator.device
        leaps = int(torch.randint(_FEWEST, _MOST + 1, (), generator=self._generator, device=source))
        for _ in range(leaps):
            velocity = velocity - 0.5 * size * torch.where(free, slope, 0)
            position = position + size * velocity
            following, slope = self._energy(position)
            velocity = velocity - 0.5 * size * torch.where(free, slope, 0)
        gain = height - following - 0.5 * entries_of(velocity.square()).sum(1)
        chance = torch.where(gain.isnan(), 0, gain.clamp(max=0).exp())
        moved = uniform(chance.shape, chance, self._generator) < chance
        along = moved.view(-1, *[1] * (x.ndim - 1))
        self._momentum = torch.where(along, velocity, -momentum)
        state.replace(step, torch.where(along, position, x))
        self.accepted = chance
        if adapts:
            self.log_step = self.log_step + _ADAPTATION * (chance.to(x.dtype) - _ACCEPTED)
            # the last step size of a chain is as noisy as its last acceptances
            self._adapted += 1
            share = self._adapted**-_FORGETTING
            self._mean_log_step = torch.lerp(self._mean_log_step, self.log_step, share)

    def _free(self, step: PlannedUpdate, x: Tensor) -> Tensor:
        """Mask of the entries that a move may change, shape of ``x``."""
        free = torch.ones_like(x, dtype=torch.bool)
        if step.nodes is not None:
            free = free & step.nodes
        evidence = self._state.evidence
        if self._name in evidence.observed:
            free = free & ~evidence.observed[self._name][1]
        if self._name in evidence.masks:
            free = free & evidence.masks[self._name]
        return free

    def _energy(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The energy that counts, by the temperature, as far as it depends on the variable, shape
        ``(batch,)``, and its gradient."""
        state, rule = self._state, self._state.rule
        assert isinstance(rule, Sample)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            values = {**state.values, self._name: leaf}
            present, zero = state.present_factors(self._name), leaf.new_zeros(len(x))
            total = factors_share(present, values, zero)
            separate = factors_share([f for f in present if f in state.plan.separate_factors], values, zero)
            own = regularizer_share(self._regularizer, leaf, state.evidence.masks.get(self._name))
            energy = (own + rule.scaled(total, separate)) / rule.temperature
            (gradient,) = torch.autograd.grad(energy.sum(), leaf)
        return energy.detach(), gradient
