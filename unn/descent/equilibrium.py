"""Rounds to a fixed point, and the exact derivative there without the rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..no_gradients import no_gradients
from .energy import state_terms, total_energy
from .entries import entries_of
from .fixed_point import Iterates, at_fixed_point
from .held import Held, held_nodes
from .plan import PlannedUpdate
from .rounds import run_rounds
from .state import State

Solver = Literal["rounds", "anderson"]
SOLVERS = ("rounds", "anderson")

_POWER_STEPS = 20


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """How rounds to a fixed point ended.

    Attributes:
        rounds: number of rounds that were run.
        change: largest change of an entry of each batch element in the last round, shape ``(batch,)``; under
            ``torch.func.vmap`` of all batches together.
        tolerance: change up to which an element counts as settled.
    """

    rounds: int
    change: Tensor
    tolerance: float

    @property
    def settled(self) -> Tensor:
        """Mask of the batch elements that settled, shape ``(batch,)``."""
        return self.change <= self.tolerance

    @property
    def converged(self) -> bool:
        """Whether all batch elements settled."""
        return bool(self.settled.all())


@no_gradients()
def settle(
    state: State, rounds: Iterator[Sequence[PlannedUpdate]], limit: int, tolerance: float, solver: Solver
) -> Equilibrium:
    """Run rounds until no entry changes by more than a tolerance.

    "anderson" extrapolates from the last rounds (Anderson, 1965); a batch element whose energy an
    extrapolation would raise takes the plain round instead, so that energies never rise.

    Args:
        state: to update, in which all variables have values or get them in the first round.
        rounds: the updates of one round after another, all of the same variables.
        limit: largest number of rounds.
        tolerance: largest change at rest.
        solver: whether to extrapolate.
    """
    steps = next(rounds)
    run_rounds(state, [steps])
    names = _names(steps)
    x = _joined(state, names)
    change = x.new_full((len(x),), math.inf)
    if limit == 1:
        return Equilibrium(1, _read(change), tolerance)
    history = Iterates.of(x)
    start, energy = x, total_energy(state_terms(state)) if solver == "anderson" else None
    # a round from where a round ended cannot raise the energy by more than rounding, and is never refused
    plain = torch.ones_like(change, dtype=torch.bool)
    number = 1
    while number < limit:
        number += 1
        _assign(state, names, start)
        run_rounds(state, [next(rounds)])
        after = _joined(state, names)
        if energy is None:
            change = (after - x).abs().amax(1)
            x = start = after
        else:
            fresh = total_energy(state_terms(state))
            lower = fresh <= energy + 8 * torch.finfo(fresh.dtype).eps * (1 + energy.abs())
            accepted = (lower | plain)[:, None]
            change = torch.where(accepted[:, 0], (after - start).abs().amax(1), math.inf)
            history.add(torch.where(accepted, after - start, 0), torch.where(accepted, after, x))
            x, energy = torch.where(accepted, after, x), torch.where(accepted[:, 0], fresh, energy)
            settled = (change <= tolerance)[:, None]
            extrapolated = accepted & ~settled
            start = torch.where(extrapolated, history.extrapolate(), x)
            plain = ~extrapolated[:, 0]
        if bool((_read(change) <= tolerance).all()):
            break
    _assign(state, names, x)
    return Equilibrium(number, _read(change), tolerance)


def _read(x: Tensor) -> Tensor:
    """Numbers of a tensor for decisions that hold for all elements, also under transforms of torch.func."""
    if torch._C._are_functorch_transforms_active():
        return torch.func.debug_unwrap(x, recurse=True).flatten()
    return x


def differentiable_equilibrium(
    state: State, steps: Sequence[PlannedUpdate], held: Held, tolerance: float
) -> None:
    """Give the values of a state at rest the derivatives of the fixed point of a round.

    By the implicit function theorem, its first and second derivatives; memory is that of one round (Bai,
    Kolter and Koltun, 2019, "Deep equilibrium models").

    Args:
        state: at rest.
        steps: the updates of a round.
        held: nodes of the updated variables that stay at their initial values.
        tolerance: of the linear system, relative to its right side.
    """
    names = _names(steps)
    state.detach_past(names, held)
    state.sum_static(names)
    values = at_fixed_point(_RoundMap(state, steps, names, held), _joined(state, names), tolerance)
    _assign(state, names, values)


def contraction_at(state: State, steps: Sequence[PlannedUpdate]) -> Tensor:
    """Estimate of the factor by which a round shrinks small deviations from the present values, shape
    ``(batch,)``: the growth of a random direction under the transposed Jacobian, by power iteration.

    Args:
        state: values at which the round is linearised.
        steps: the updates of a round.
    """
    names = _names(steps)
    x = _joined(state, names).detach()
    with torch.enable_grad():
        leaf = x.requires_grad_()
        y = _RoundMap(state, steps, names, held_nodes(state, steps))(leaf)
    u = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0)).to(x.device)
    factor = x.new_zeros(len(x))
    for _ in range(_POWER_STEPS):
        u = u / u.norm(dim=1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
        (v,) = torch.autograd.grad(y, leaf, u, retain_graph=True, allow_unused=True)
        u = torch.zeros_like(x) if v is None else v
        factor = u.norm(dim=1)
    return factor


class _RoundMap:
    """Values after a round as a function of those before it, of some variables side by side.

    It does not depend on entries of nodes that are held, which have their own values: otherwise every value
    of theirs would be a fixed point.
    """

    def __init__(
        self, state: State, steps: Sequence[PlannedUpdate], names: Sequence[str], held: Held
    ) -> None:
        self._before = state.branch({})
        self._steps, self._names, self._held = steps, names, held

    def __call__(self, x: Tensor) -> Tensor:
        parts = _parts(self._before, self._names, x)
        for name, (value, where) in self._held.items():
            parts[name] = torch.where(where, value, parts[name])
        branch = self._before.branch(parts)
        run_rounds(branch, [self._steps])
        return _joined(branch, self._names)


def _joined(state: State, names: Sequence[str]) -> Tensor:
    """Values of variables side by side, shape ``(batch, entries)``."""
    return torch.cat([entries_of(state.value(name)) for name in names], 1)


def _parts(state: State, names: Sequence[str], x: Tensor) -> dict[str, Tensor]:
    shapes = {name: state.evidence.shapes[name] for name in names}
    parts = x.split([math.prod(shape) for shape in shapes.values()], 1)
    return {
        name: part.view(len(x), *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _assign(state: State, names: Sequence[str], x: Tensor) -> None:
    for name, value in _parts(state, names, x).items():
        state.replace(PlannedUpdate(name), value)


def _names(steps: Sequence[PlannedUpdate]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.name for step in steps))
