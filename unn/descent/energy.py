"""Energies: of given values, and along a run."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import ObservationError
from ..graph.declaration import Declaration
from ..graph.factor import EnergyFactor
from ..graph.partial import Partial
from ..regularizers.base import batch_sum
from .collect import collect_evidence
from .plan import Step, require_energies
from .shares import factor_share, regularizer_share, wide
from .state import State


def energy_terms(graph: Declaration, values: Mapping[str, Tensor], lengths: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The share of each regularizer and each factor, shape ``(batch,)`` each.

    Raises:
        ObservationError: if a variable is missing or a value does not fit.
        InferenceError: if a factor has no energy.
    """
    if not isinstance(values, Mapping):
        raise ObservationError(
            f"energy: a mapping from names to tensors such as {{'X': x}}, got {type(values).__name__}."
        )
    for name in graph.variables:
        if isinstance(values.get(name), Partial):
            raise ObservationError(f"energy: variable {name!r} is a Partial; the energy needs all of its entries, as from infer(...).values.")
        if name not in values:
            raise ObservationError(f"energy: variable {name!r} has no value; pass all of {', '.join(graph.variables)}.")
    known = {n: x for n, x in values.items() if n not in graph._parameters}
    graph.require_parameters()
    evidence = collect_evidence(graph, known, lengths=lengths, check_values=False)
    terms = {
        name: regularizer_share(evidence.regularizers[name], evidence.values[name], evidence.masks.get(name))
        for name in graph.variables
    }
    require_energies(graph)
    for factor in graph.energy_factors:
        terms[factor.name] = factor_share(factor, evidence.values)
    return terms


def state_terms(state: State) -> dict[str, Tensor]:
    """The share of each regularizer and each factor in the energy of the current values, shape ``(batch,)`` each.

    Absent variables count as zero: Psi(0) for the regularizer, nothing for their factors.
    """
    graph, evidence = state.plan.graph, state.evidence
    terms: dict[str, Tensor] = {}
    for name in graph.variables:
        terms[name] = regularizer_share(evidence.regularizers[name], state.value(name), evidence.masks.get(name))
    for factor in graph.energy_factors:
        if all(name in state.values for name in factor.variables):
            terms[factor.name] = factor_share(factor, state.values).expand(evidence.batch)
        else:
            terms[factor.name] = _zeros(state)
    return terms


_Mark = tuple[dict[str, Tensor], Tensor, int]


class Trace:
    """The energy after each update, kept by differences: only the block that changed is evaluated.

    Regularizers of absent variables count with Psi(0), which is +inf where 0 lies outside the domain (simplex).

    Args:
        state: before its first update.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._energies: list[Tensor] = []
        with torch.no_grad():
            terms = state_terms(state)
            variables = state.plan.graph.variables
            self._regularizers = {name: terms.pop(name) for name in variables}
            self._factors = torch.stack([_zeros(state), *terms.values()]).sum(0)

    def mark(self) -> _Mark:
        """This moment, to rewind to."""
        return dict(self._regularizers), self._factors, len(self._energies)

    def rewind(self, mark: _Mark) -> list[Tensor]:
        """Go back; returns the energies noted since."""
        self._regularizers, self._factors, count = dict(mark[0]), mark[1], mark[2]
        since = self._energies[count:]
        del self._energies[count:]
        return since

    def overwrite(self, energies: list[Tensor], elements: Tensor) -> None:
        """Put earlier energies of some batch elements in place of the last ones."""
        first = len(self._energies) - len(energies)
        for k, energy in enumerate(energies):
            self._energies[first + k] = torch.where(elements, energy, self._energies[first + k])

    @torch.no_grad()
    def record(self, step: Step, old: Tensor | None) -> None:
        """Note the energy after an update.

        Args:
            step: that was run.
            old: the value of its variable before; None if it was absent.
        """
        name = step.name
        state = self._state
        new = state.values[name]
        if state.closed_form(step):
            # the energy of the factors is affine in the block, with slope -t
            change = new if old is None else new - old
            slope = state.preactivations[name].to(self._factors.dtype)
            factors = self._factors - batch_sum(slope * change)
        else:
            assert old is not None
            factors = self._factors + self._touching(name, new) - self._touching(name, old)
        self._factors = state.keep_frozen(factors, self._factors)
        self._regularizers[name] = state.keep_frozen(_regularizer_share(state, step, new), self._regularizers[name])
        self._energies.append(torch.stack(list(self._regularizers.values())).sum(0) + self._factors)

    def _touching(self, name: str, x: Tensor) -> Tensor:
        values = {**self._state.values, name: x}
        total = _zeros(self._state)
        for factor in self._state.present_factors(name):
            total = total + factor_share(factor, values)
        return total

    def energies(self) -> Tensor:
        """Shape ``(updates, batch)``."""
        if not self._energies:
            return _zeros(self._state).expand(0, -1)
        return torch.stack(self._energies)


def _regularizer_share(state: State, step: Step, x: Tensor) -> Tensor:
    """Psi of a variable after an update; of a mirror it may be cheaper to have than of any other point."""
    evidence, name = state.evidence, step.name
    regularizer, mask = evidence.regularizers[name], evidence.masks.get(name)
    whole = (step.nodes is None and name not in evidence.observed) or name in evidence.restricted
    if state.rule.exact and state.closed_form(step) and whole and name in state.preactivations:
        return regularizer_share(regularizer, x, mask, state.preactivations[name].expand(x.shape).to(x.dtype))
    return regularizer_share(regularizer, x, mask)


def _zeros(state: State) -> Tensor:
    """Energies of 0, shape ``(batch,)``."""
    like = state.evidence.like
    return torch.zeros(state.evidence.batch, dtype=wide(like.dtype), device=like.device)


class Terms:
    """The share of each regularizer and each factor after each update; those that the update cannot have changed are carried on.

    Args:
        state: before its first update.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        with torch.no_grad():
            self._now = state_terms(state)
        self._rows: dict[str, list[Tensor]] = {name: [] for name in self._now}

    @torch.no_grad()
    def record(self, step: Step) -> None:
        """Note all shares after an update."""
        state, name = self._state, step.name
        before = dict(self._now)
        self._now[name] = _regularizer_share(state, step, state.values[name])
        for factor in state.plan.graph.energy_factors:
            if name in factor.variables:
                self._now[factor.name] = self._share(factor)
        if state.frozen is not None:
            self._now = {term: state.keep_frozen(share, before[term]) for term, share in self._now.items()}
        for term, share in self._now.items():
            self._rows[term].append(share)

    def mark(self) -> tuple[dict[str, Tensor], int]:
        """This moment, to rewind to."""
        return dict(self._now), len(next(iter(self._rows.values())))

    def rewind(self, mark: tuple[dict[str, Tensor], int]) -> None:
        """Go back."""
        self._now = dict(mark[0])
        for rows in self._rows.values():
            del rows[mark[1] :]

    def shares(self) -> dict[str, Tensor]:
        """Shape ``(updates, batch)`` each."""
        return {name: torch.stack(rows) for name, rows in self._rows.items()}

    def _share(self, factor: EnergyFactor) -> Tensor:
        state = self._state
        # absent variables count as zero, where the energy of factors that can be inferred vanishes
        if not all(name in state.values for name in factor.variables):
            return _zeros(state)
        return factor_share(factor, state.values).expand(state.evidence.batch)
