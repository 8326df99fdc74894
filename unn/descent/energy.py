"""The energy and its terms: of given values, and of the values of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..errors import ObservationError
from ..graph.declaration import Declaration
from ..graph.factor import EnergyFactor
from ..graph.partial import Partial
from .collect import collect_evidence
from .evidence import Evidence
from .plan import require_energies
from .shares import factor_share, regularizer_share, wide
from .state import State


def energy_terms(
    graph: Declaration, values: Mapping[str, Tensor], lengths: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
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
            raise ObservationError(
                f"energy: variable {name!r} is a Partial; the energy needs all of its entries, as from "
                "infer(...).values."
            )
        if name not in values:
            raise ObservationError(
                f"energy: variable {name!r} has no value; pass all of {', '.join(graph.variables)}."
            )
    known = {n: x for n, x in values.items() if n not in graph._parameters}
    graph.require_parameters()
    evidence = collect_evidence(graph, known, lengths=lengths, check_values=False)
    require_energies(graph)
    return _shares(graph, evidence)


def total_energy(terms: Mapping[str, Tensor]) -> Tensor:
    """The sum of the shares, shape ``(batch,)``."""
    return torch.stack(torch.broadcast_tensors(*terms.values())).sum(0)


def unconstrained_terms(graph: Declaration, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``energy_terms`` without constraints and other factors that have no energy."""
    graph.require_parameters()
    return _shares(graph, collect_evidence(graph, values, check_values=False))


def double_precision_terms(graph: Declaration, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``unconstrained_terms``, with parameters and constants in double precision.

    Args:
        graph: the declaration, of factors that are products.
        values: of all variables, in double precision, all on one device, on which the terms are then.
    """
    graph.require_parameters()
    like = next(iter(graph.fixed_values().values()), None)
    own = {name: x if like is None else x.to(like) for name, x in values.items()}
    evidence = collect_evidence(graph, own, check_values=False)
    device = next((x.device for x in values.values()), None)
    wider = {name: x.to(device, torch.float64) for name, x in evidence.values.items()}
    masks = {name: x.to(device) for name, x in evidence.masks.items()}
    return _shares(graph, replace(evidence, values=wider | dict(values), masks=masks))


def _shares(graph: Declaration, evidence: Evidence) -> dict[str, Tensor]:
    terms = {
        name: regularizer_share(evidence.regularizers[name], evidence.values[name], evidence.masks.get(name))
        for name in graph.variables
    }
    for factor in graph.energy_factors:
        terms[factor.name] = factor_share(factor, evidence.values)
    return terms


def state_terms(state: State) -> dict[str, Tensor]:
    """The share of each regularizer and each factor in the energy of a state, shape ``(batch,)`` each.

    Absent variables count as zero: Psi(0) for the regularizer, nothing for their factors.
    """
    graph, evidence = state.plan.graph, state.evidence
    terms: dict[str, Tensor] = {}
    for name in graph.variables:
        terms[name] = regularizer_share(
            evidence.regularizers[name], state.value(name), evidence.masks.get(name)
        )
    for factor in graph.energy_factors:
        terms[factor.name] = state_factor_share(state, factor)
    return terms


def state_factor_share(state: State, factor: EnergyFactor) -> Tensor:
    """The energy of a factor in a state, shape ``(batch,)``; 0 where one of its variables is absent."""
    # the energy of factors that can be inferred vanishes where a variable is zero
    if any(name not in state.values for name in factor.variables):
        return zero_energy(state)
    return factor_share(factor, state.values).expand(state.evidence.batch)


def zero_energy(state: State) -> Tensor:
    """Energies of 0, shape ``(batch,)``."""
    like = state.evidence.like
    return torch.zeros(state.evidence.batch, dtype=wide(like.dtype), device=like.device)
