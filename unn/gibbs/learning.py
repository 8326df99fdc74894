"""Losses that fit the energy to examples, as if these were draws from exp(-E / temperature)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..descent.collect import collect_evidence
from ..descent.evidence import Evidence
from ..descent.plan import Plan, PlannedUpdate
from ..descent.shares import factor_share, regularizer_share
from ..descent.state import State
from ..errors import InferenceError
from ..graph.declaration import Declaration
from ..regularizers.base import batch_sum
from .chains import Chains


def contrast(graph: Declaration, examples: Mapping[str, Tensor], draws: Mapping[str, Tensor]) -> Tensor:
    """Mean energy of the factors at examples less that at draws, a scalar.

    With draws from the distribution of the energy, its gradient in the parameters is that of the mean of
    minus the log-likelihood (times the temperature); its value means nothing.

    Args:
        graph: declaration.
        examples: values of all variables, shape ``(batch, *axes)``.
        draws: values of all variables, shape ``(draws, *axes)``.
    """
    return _energy(graph, examples).mean() - _energy(graph, draws).mean()


def _energy(graph: Declaration, values: Mapping[str, Tensor]) -> Tensor:
    """Energy of the factors, shape ``(batch,)``, differentiable in the parameters."""
    evidence = collect_evidence(graph, values, check_values=False)
    total = evidence.like.new_zeros(evidence.batch)
    for factor in graph.energy_factors:
        total = total + factor_share(factor, evidence.values)
    return total


@torch.no_grad()
def completed(chains: Chains, sweeps: int) -> dict[str, Tensor]:
    """Values of all variables after some sweeps, shape ``(batch, *axes)``.

    The variable that is drawn last is replaced by its mean given the others where the energy is linear in it:
    the gradient of the energy is the same on average, and less noisy.

    Args:
        chains: one level.
        sweeps: number of sweeps, at least 1.
    """
    for _ in range(sweeps):
        chains.sweep()
    state = chains.state
    values = {name: state.result(name) for name in chains.graph.variables}
    if not state.plan.free:
        return values
    last = state.plan.free[-1]
    if state.plan.update_kinds[last] == "closed form":
        t = state.preactivation(PlannedUpdate(last))
        t = t.expand(state.evidence.batch, *t.shape[1:])
        x = _mean(state.evidence, last, t, chains.temperature)
        observed = state.evidence.observed.get(last)
        values[last] = x if observed is None else torch.where(observed[1], observed[0], x)
    return values


def _mean(evidence: Evidence, name: str, t: Tensor, temperature: float) -> Tensor:
    """Mean of a variable given a sum of messages, shape of ``t``."""
    regularizer, mask = evidence.regularizers[name], evidence.masks.get(name)
    with torch.enable_grad():
        leaf = t.detach().requires_grad_()
        total = regularizer.conditional_log_partition(leaf, temperature, mask).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
    return (gradient * temperature).to(t.dtype)


def minus_log_pseudolikelihood(
    graph: Declaration, values: Mapping[str, Tensor], temperature: float
) -> Tensor:
    """Mean over examples of minus the sum of log p(node | all others), a scalar (Besag, 1975).

    Nodes whose regularizer ties them count as one.

    Args:
        graph: declaration.
        values: examples of all variables, shape ``(batch, *axes)``.
        temperature: above 0.

    Raises:
        InferenceError: for a variable without values, or without a closed form given the others.
    """
    for name in graph.variables:
        if name not in values:
            raise InferenceError(
                f"graph {graph.name!r}: the pseudolikelihood needs examples of all variables, and {name!r} "
                "has none; use learning='persistent'."
            )
    plan = Plan.of(graph, ())
    evidence = collect_evidence(graph, values, check_values=False)
    # an evidence of given values has no free variables; those of this plan are all there
    state = State(plan, evidence, ())
    total = evidence.like.new_zeros(())
    for name in graph.variables:
        step = PlannedUpdate(name)
        if plan.update_kinds[name] == "inner solver":
            raise InferenceError(
                f"graph {graph.name!r}: variable {name!r} has no closed form given the others, so that its "
                "pseudolikelihood is not known; use learning='persistent'."
            )
        x, regularizer = evidence.values[name], evidence.regularizers[name]
        t = state.preactivation(step)
        t = t.expand(evidence.batch, *t.shape[1:])
        score = batch_sum(x * t) - regularizer_share(regularizer, x, None)
        total = total + (score / temperature - regularizer.conditional_log_partition(t, temperature)).mean()
    return -total
