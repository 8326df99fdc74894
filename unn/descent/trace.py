"""The energy and its terms along a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..no_gradients import no_gradients
from ..regularizers.base import batch_sum
from .energy import state_factor_share, state_terms, zero_energy
from .plan import PlannedUpdate
from .shares import factor_share, regularizer_share
from .state import State

Mark = tuple[dict[str, Tensor], int]
Rows = dict[str, list[Tensor]]


class Trace(ABC):
    """Quantities of a run after each update; those that an update cannot have changed are carried on.

    Args:
        state: before its first update.
        recorded: the names under which ``_recorded`` returns them.
    """

    def __init__(self, state: State, recorded: Iterable[str] | None = None) -> None:
        self._state = state
        self.refresh()
        self._rows: Rows = {name: [] for name in (self._now if recorded is None else recorded)}

    @abstractmethod
    def _changed(self, step: PlannedUpdate, old: Tensor | None) -> Mapping[str, Tensor]:
        """The quantities that an update may have changed; arguments as of ``record``."""

    @abstractmethod
    def _quantities(self) -> dict[str, Tensor]:
        """The quantities of the present state."""

    @no_gradients()
    def refresh(self) -> None:
        """Go on from values that no update has computed."""
        self._now = self._quantities()

    @abstractmethod
    def _recorded(self) -> Mapping[str, Tensor]:
        """Entry of the trace for the current state."""

    @no_gradients()
    def record(self, step: PlannedUpdate, old: Tensor | None) -> None:
        """Record an update.

        Args:
            step: that was run.
            old: the value of its variable before; None if it was absent.
        """
        for name, quantity in self._changed(step, old).items():
            if step.rows is not None:
                # other batch elements have not changed, and their sums of messages are not those of this step
                quantity = torch.where(step.rows, quantity, self._now[name])
            self._now[name] = self._state.keep_frozen(quantity, self._now[name])
        for name, quantity in self._recorded().items():
            self._rows[name].append(quantity)

    def mark(self) -> Mark:
        """This moment, to rewind to."""
        return dict(self._now), len(next(iter(self._rows.values())))

    def rewind(self, mark: Mark) -> Rows:
        """Go back; returns what was recorded since."""
        self._now, count = dict(mark[0]), mark[1]
        since = {name: rows[count:] for name, rows in self._rows.items()}
        for rows in self._rows.values():
            del rows[count:]
        return since

    def repeat(self, count: int) -> None:
        """Record the present quantities a number of times."""
        for name, quantity in self._recorded().items():
            self._rows[name] += [quantity] * count

    def overwrite(self, earlier: Rows, elements: Tensor) -> None:
        """Put earlier records of some batch elements in place of as many of the last ones.

        Args:
            earlier: as returned by ``rewind``.
            elements: boolean, shape ``(batch,)``.
        """
        for name, quantities in earlier.items():
            rows = self._rows[name]
            first = len(rows) - len(quantities)
            for number, quantity in enumerate(quantities):
                rows[first + number] = torch.where(elements, quantity, rows[first + number])

    def stacked(self) -> dict[str, Tensor]:
        """All that was recorded by name, shape ``(updates, batch)`` each."""
        return {
            name: torch.stack(rows) if rows else zero_energy(self._state).expand(0, -1)
            for name, rows in self._rows.items()
        }


class Energies(Trace):
    """The energy after each update by differences: only the block that changed is evaluated.

    Regularizers of absent variables count with Psi(0), which is +inf where 0 lies outside the domain
    (simplex).

    Args:
        state: before its first update.
    """

    _FACTORS = ""
    """The key of the energy of all factors, which is the name of no variable."""

    def __init__(self, state: State) -> None:
        super().__init__(state, ["energy"])

    def _quantities(self) -> dict[str, Tensor]:
        state = self._state
        terms = state_terms(state)
        regularizers = {name: terms.pop(name) for name in state.plan.graph.variables}
        factors = torch.stack([zero_energy(state), *terms.values()]).sum(0)
        return {**regularizers, self._FACTORS: factors}

    def _changed(self, step: PlannedUpdate, old: Tensor | None) -> Mapping[str, Tensor]:
        state, name, before = self._state, step.name, self._now[self._FACTORS]
        new = state.values[name]
        if state.closed_form(step):
            # the energy of the factors is affine in the block, with slope -t
            change = new if old is None else new - old
            slope = state.preactivations[name].to(before.dtype)
            # entries that stay have no share, also where no sum of messages is recorded or it is infinite
            factors = before - batch_sum(torch.where(change == 0, 0, slope * change))
        else:
            assert old is not None
            factors = before + self._touching(name, new) - self._touching(name, old)
        return {name: _regularizer_share(state, step), self._FACTORS: factors}

    def _recorded(self) -> Mapping[str, Tensor]:
        *regularizers, factors = self._now.values()
        return {"energy": torch.stack(regularizers).sum(0) + factors}

    def _touching(self, name: str, x: Tensor) -> Tensor:
        """The energy of the factors that touch a variable, where its value is x; shape ``(batch,)``."""
        values = {**self._state.values, name: x}
        total = zero_energy(self._state)
        for factor in self._state.present_factors(name):
            total = total + factor_share(factor, values)
        return total


class Terms(Trace):
    """The share of each regularizer and each factor after each update.

    Args:
        state: before its first update.
    """

    def _quantities(self) -> dict[str, Tensor]:
        return state_terms(self._state)

    def _changed(self, step: PlannedUpdate, old: Tensor | None) -> Mapping[str, Tensor]:
        factors = [
            factor for factor in self._state.plan.graph.energy_factors if step.name in factor.variables
        ]
        return {
            step.name: _regularizer_share(self._state, step),
            **{factor.name: state_factor_share(self._state, factor) for factor in factors},
        }

    def _recorded(self) -> Mapping[str, Tensor]:
        return self._now


def _regularizer_share(state: State, step: PlannedUpdate) -> Tensor:
    """Psi of a variable after an update; of a mirror it may be cheaper to have than of any other point."""
    evidence, name = state.evidence, step.name
    regularizer, mask, x = evidence.regularizers[name], evidence.masks.get(name), state.values[name]
    whole = (step.nodes is None and name not in evidence.observed) or name in evidence.restricted
    if state.rule.exact and state.closed_form(step) and whole and name in state.preactivations:
        return regularizer_share(regularizer, x, mask, state.preactivations[name].expand(x.shape).to(x.dtype))
    return regularizer_share(regularizer, x, mask)
