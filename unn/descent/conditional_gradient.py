"""The monotone inner solver for blocks without a closed form."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..errors import InferenceError
from ..no_gradients import no_gradients
from ..plain import is_vmapped
from ..regularizers import Elementwise
from ..regularizers.base import batch_sum
from .fixed_point import Iterates, at_fixed_point
from .shares import factor_share, largest_value, regularizer_share, wide

if TYPE_CHECKING:
    from .plan import PlannedUpdate
    from .state import State

MAX_STEPS = 200
_HALVINGS = 40
_DOUBLINGS = 60
_PATIENCE = 10
_MARGIN = 1e4
_OUTSIDE = 64
"""Multiple of the rounding error by which points outside of a domain fall below the minimum over it."""


class BlockProblem:
    """The energy of a run as a function of one block, everything else held.

    Args:
        state: of the run; later changes of it do not count.
        step: the block.
    """

    def __init__(self, state: State, step: PlannedUpdate) -> None:
        self._name = step.name
        evidence = state.evidence
        self._regularizer, self._mask = evidence.regularizers[step.name], evidence.masks.get(step.name)
        self._factors = state.present_factors(step.name)
        self._values = dict(state.values)
        self._shape = evidence.shapes[step.name]
        self._observed = evidence.observed.get(step.name)
        self._nodes = step.nodes
        old = state.values.get(step.name)
        self.start = evidence.like.new_zeros(evidence.batch, *self._shape) if old is None else old
        whole_line = (-torch.inf, torch.inf)
        regularizer = self._regularizer
        self.unconstrained = isinstance(regularizer, Elementwise) and regularizer.interval() == whole_line

    def energy(self, x: Tensor) -> Tensor:
        """The share of the energy that depends on the block, shape ``(batch,)``."""
        values = {**self._values, self._name: x}
        total = regularizer_share(self._regularizer, x, self._mask)
        for factor in self._factors:
            total = total + factor_share(factor, values)
        return total

    def messages(self, x: Tensor) -> Tensor:
        """Minus the gradient of the factors at x, shape ``(batch, *axes)``."""
        values = {**self._values, self._name: x}
        t = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        for factor in self._factors:
            t = t + factor.message(self._name, values, self._shape)
        return t

    def activate(self, t: Tensor) -> Tensor:
        """The minimum where the factors are linear with slope -t."""
        x = self._regularizer.mirror(t, self._mask).to(self.start.dtype)
        if self._nodes is not None:
            x = torch.where(self._nodes, x, self.start)
        if self._observed is not None:
            value, where = self._observed
            x = torch.where(where, value, x)
        return x

    def linearised_drop(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """By how much the energy with linearised factors falls from x to its minimum s, shape
        ``(batch,)``."""
        inner = batch_sum(t.to(wide(t.dtype)) * (s - x))
        fall = regularizer_share(self._regularizer, x, self._mask) - regularizer_share(
            self._regularizer, s, self._mask
        )
        return inner + fall


def _without_hooks() -> AbstractContextManager[object]:
    """Derivatives that the search itself takes read their tensors at once: a checkpoint around it would run
    anew at each of them.

    Transforms of torch.func and compilation refuse hooks, and have no checkpoint.
    """
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():
        return nullcontext()
    return saved_tensors_hooks(_itself, _itself)


def _itself(x: Tensor) -> Tensor:
    return x


def minimise_block(state: State, step: PlannedUpdate) -> Tensor:
    """Minimise the energy over one block without ever raising it.

    Generalised conditional gradient (Bredies, Lorenz and Maass, 2009): the factors are linearised at x, the
    linear model plus Psi is minimised exactly by s = mirror(messages), and x moves towards s as far as
    backtracking allows, each batch element by itself. Where that lowers the energy at least as much, x moves
    instead to the mirror of messages extrapolated from the last steps (Anderson acceleration), which finds
    the minimum of a quadratic energy in as many steps as it has dimensions. Needs no more of a regularizer
    than its mirror and value, and stays inside any domain.

    The derivative is that of the minimum (implicit function theorem). Batch elements whose block is not
    stationary at the end are noted in ``state.unfinished``.

    Returns:
        The new value, shape ``(batch, *axes)``; infinite in batch elements whose energy falls without limit.

    Raises:
        InferenceError: under ``torch.func.vmap``.
    """
    problem = BlockProblem(state, step)
    if torch._C._are_functorch_transforms_active() and is_vmapped(problem.messages(problem.start)):
        raise InferenceError(
            f"the minimum in {step} has no closed form, and the search for it depends on values, which "
            "torch.func.vmap cannot read; compute the examples one after another, or without vmap."
        )
    with _without_hooks():
        x, unfinished = _descend(problem)
    state.unfinished[step.name] = unfinished
    if torch.is_grad_enabled():
        x = at_fixed_point(lambda z: problem.activate(problem.messages(z)), x)
    if state.records(step.name):
        state.record(step, problem.messages(x))
    return x


@no_gradients()
def _descend(problem: BlockProblem) -> tuple[Tensor, Tensor]:
    """The point that was reached, and the batch elements in which it is not stationary."""
    x = problem.start.detach()
    eps = torch.finfo(x.dtype).eps
    tolerance = 16 * eps if eps < 1e-5 else 2 * eps
    now = problem.energy(x)
    rounding = 8 * torch.finfo(now.dtype).eps
    limit = largest_value(x.dtype) / _MARGIN
    history = Iterates.of(x)
    best, best_energy, smallest = x, now, now.new_full((len(x),), torch.inf)
    stalled = torch.zeros(len(x), dtype=torch.long, device=x.device)
    for count in range(MAX_STEPS + 1):
        t = problem.messages(x)
        s = problem.activate(t)
        residual = _peak(s - x)
        drop = problem.linearised_drop(x, s, t)
        # s is the minimum over the domain, so that only points outside are below it; those that the domain
        # accepts within rounding would else have an energy that no point of it reaches
        size = batch_sum(t.to(wide(t.dtype)).abs() * (s.abs() + x.abs()))
        outside = ~now.isfinite() | (drop < -_OUTSIDE * eps * (1 + size))
        drop = torch.where(outside, 0, drop.clamp(min=0))
        falls = residual < 0.9 * smallest
        closer = outside | (residual < smallest) | (now < best_energy - rounding * (1 + now.abs()))
        best, best_energy = torch.where(_along(closer, x), x, best), torch.where(closer, now, best_energy)
        smallest = torch.where(closer, residual, smallest)
        alive = (_peak(x) <= limit) & (stalled < _PATIENCE)
        moving = alive & (outside | (residual > tolerance * (1 + _peak(x))))
        if count == MAX_STEPS or not bool(moving.any()):
            break
        history.add(s - x, t)
        following, energy = _step(problem, x, s, now, drop, moving, outside, history, rounding)
        falls = falls | (energy < now - rounding * (1 + now.abs())) | outside
        stalled = torch.where(falls, 0, stalled + 1)
        x, now = following, energy
    lost = ~(_peak(x) <= limit)
    x = torch.where(_along(now < best_energy - rounding * (1 + now.abs()), x), x, best)
    # the energy falls without limit in this block
    x = torch.where(_along(lost, x), torch.inf, x)
    slack = 1e-12 if x.dtype == torch.float64 else 1e-6
    # written so that a drop which is NaN, far along an energy without a minimum, counts too
    stationary = (residual <= tolerance * (1 + _peak(x))) | (drop <= slack * (1 + now.abs()))
    return x, lost | outside | ~stationary


def _step(
    problem: BlockProblem,
    x: Tensor,
    s: Tensor,
    now: Tensor,
    drop: Tensor,
    moving: Tensor,
    outside: Tensor,
    history: Iterates,
    rounding: float,
) -> tuple[Tensor, Tensor]:
    """The next point and its energy; batch elements that do not move, or cannot fall, stay."""
    waiting = moving
    result, energy = x, now
    allowed = now + rounding * (1 + now.abs())
    if len(history) > 1:
        candidate = problem.activate(history.extrapolate())
        trial = problem.energy(candidate)
        accepted = waiting & ~outside & (trial <= allowed - 0.1 * drop)
        result = torch.where(_along(accepted, x), candidate, result)
        energy = torch.where(accepted, trial, energy)
        waiting = waiting & ~accepted
        if not bool(waiting.any()):
            return result, energy
    rate = waiting.to(x.dtype)
    for _ in range(_HALVINGS):
        trial = problem.energy(_towards(x, s, rate))
        bad = waiting & ~outside & ~(trial <= allowed - 0.1 * rate * drop)
        if not bool(bad.any()):
            break
        rate = torch.where(bad, rate / 2, rate)
    rate = torch.where(bad, 0, rate)
    trial = torch.where(bad, now, trial)
    growing = waiting & ~outside & (rate == 1) & problem.unconstrained
    for _ in range(_DOUBLINGS):
        if not bool(growing.any()):
            break
        further = torch.where(growing, 2 * rate, rate)
        beyond = problem.energy(_towards(x, s, further))
        growing = growing & (beyond < trial)
        rate, trial = torch.where(growing, further, rate), torch.where(growing, beyond, trial)
    result = torch.where(_along(waiting, x), _towards(x, s, rate), result)
    return result, torch.where(waiting, trial, energy)


def _towards(x: Tensor, s: Tensor, rate: Tensor) -> Tensor:
    """From x as far towards s as the rate of each batch element says; exactly s for a rate of 1."""
    rate = _along(rate, x)
    return torch.where(rate == 1, s, x + rate * (s - x))


def _peak(x: Tensor) -> Tensor:
    """The largest magnitude in each batch element."""
    return x.reshape(len(x), -1).abs().amax(1)


def _along(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.ndim - 1))
