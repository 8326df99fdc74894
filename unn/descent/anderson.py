"""Anderson acceleration of the rounds of ``infer``, with energies that never rise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..no_gradients import no_gradients
from ..regularizers import Elementwise
from .energy import state_terms, total_energy
from .fixed_point import Iterates
from .plan import PlannedUpdate
from .state import State
from .updates import Mirror

Coordinates = tuple[tuple[str, bool], ...]
"""Names of variables, and whether their pre-activations are extrapolated instead of their values."""


class Extrapolation:
    """Starts of rounds, extrapolated from the rounds before (Anderson, 1965).

    Of variables that are updated as a whole the pre-activations are extrapolated, so that their values stay
    in the domain; of others with a domain for each entry the values, which are clipped to it. Other variables
    start where the last round ended, as do batch elements whose energy would be higher at the extrapolated
    point.

    Args:
        state: of the run.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._history: Iterates | None = None
        self._start: Tensor | None = None
        self._coordinates: Coordinates = ()

    @no_gradients()
    def begin(self, steps: Sequence[PlannedUpdate]) -> bool:
        """Move to the start of the next round.

        Args:
            steps: the updates of the round.

        Returns:
            Whether values have changed.
        """
        coordinates = self._coordinates_of(steps)
        if coordinates != self._coordinates:
            # a history of other variables cannot be continued
            self._coordinates, self._history = coordinates, None
        self._start = self._point()
        if self._start is None or self._history is None:
            return False
        state, here = self._state, self._start
        before = {name: state.value(name) for name, _ in coordinates}
        energy = total_energy(state_terms(state))
        there = self._history.extrapolate().to(here.dtype)
        self._move(there)
        lower = total_energy(state_terms(state)) <= energy
        for name, old in before.items():
            rows = lower.view(-1, *[1] * (old.ndim - 1))
            state.replace(PlannedUpdate(name), torch.where(rows, state.value(name), old))
        self._start = torch.where(lower[:, None], there, here)
        return bool(lower.any())

    @no_gradients()
    def end(self) -> None:
        """Take in the round that has ended."""
        after = self._point()
        if self._start is None or after is None:
            return
        if self._history is None:
            self._history = Iterates.of(after)
        self._history.add(after - self._start, after)

    def _coordinates_of(self, steps: Sequence[PlannedUpdate]) -> Coordinates:
        """What is extrapolated of the variables of a round, in the order of their names."""
        state = self._state
        exact = isinstance(state.rule, Mirror)
        whole = {step.name: exact and state.closed_form(step) for step in steps}
        for step in steps:
            whole[step.name] = whole[step.name] and step.nodes is None
        regularizers = state.evidence.regularizers
        return tuple(
            (name, dual)
            for name, dual in sorted(whole.items())
            if dual or isinstance(regularizers[name], Elementwise)
        )

    def _point(self) -> Tensor | None:
        """The coordinates side by side, shape ``(batch, entries)``; None while some have no value."""
        state = self._state
        parts = []
        for name, dual in self._coordinates:
            source = state.preactivations if dual else state.values
            if name not in source:
                return None
            x = source[name].expand(state.evidence.batch, *state.evidence.shapes[name])
            parts.append(x.reshape(len(x), -1))
        return torch.cat(parts, 1) if parts else None

    def _move(self, point: Tensor) -> None:
        """Give the variables the values that belong to coordinates."""
        state, evidence = self._state, self._state.evidence
        sizes = [math.prod(evidence.shapes[name]) for name, _ in self._coordinates]
        for (name, dual), part in zip(self._coordinates, point.split(sizes, 1), strict=True):
            regularizer = evidence.regularizers[name]
            x = part.view(evidence.batch, *evidence.shapes[name])
            if dual:
                x = regularizer.mirror(x, evidence.masks.get(name)).to(x.dtype)
            else:
                assert isinstance(regularizer, Elementwise)
                x = x.clamp(*regularizer.interval())
            state.replace(PlannedUpdate(name), x)
