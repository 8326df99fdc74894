"""Anderson acceleration of the rounds of ``infer``, with energies that never rise."""

from __future__ import annotations

import torch
from torch import Tensor

from .energy import state_terms, total_energy
from .entries import assign, joined
from .fixed_point import Iterates
from .state import State


class Extrapolation:
    """Starts of rounds, extrapolated from the rounds before (Anderson, 1965).

    A batch element whose energy would be higher at the extrapolated point starts where its last round ended.

    Args:
        state: of the run.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._history: Iterates | None = None
        self._start: Tensor | None = None
        self._names: tuple[str, ...] = ()

    @torch.no_grad()
    def begin(self, names: tuple[str, ...]) -> bool:
        """Move to the start of the next round.

        Args:
            names: the variables that it updates.

        Returns:
            Whether values have changed.
        """
        state, names = self._state, tuple(sorted(names))
        if names != self._names:
            # a history of other variables cannot be continued
            self._names, self._history, self._start = names, None, None
        if any(name not in state.values for name in names):
            return False
        if self._history is None:
            self._start = joined(state, names)
            return False
        here = joined(state, names)
        before = total_energy(state_terms(state))
        assign(state, names, self._history.extrapolate().to(here.dtype))
        lower = (total_energy(state_terms(state)) <= before)[:, None]
        chosen = torch.where(lower, joined(state, names), here)
        assign(state, names, chosen)
        self._start = chosen
        return bool(lower.any())

    @torch.no_grad()
    def end(self) -> None:
        """Take in the round that has ended."""
        if self._start is None:
            return
        after = joined(self._state, self._names)
        if self._history is None:
            self._history = Iterates.of(after)
        self._history.add(after - self._start, after)
