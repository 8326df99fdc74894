"""Losses that fit the energy to examples, as if these were draws from exp(-E / temperature)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..descent.collect import collect_evidence
from ..descent.energy import total_energy, unconstrained_terms
from ..descent.entries import entries_of
from ..descent.evidence import Evidence, Given
from ..descent.plan import Plan, PlannedUpdate
from ..descent.shares import factors_share, regularizer_share
from ..descent.state import State
from ..errors import InferenceError
from ..graph.declaration import Declaration
from ..graph.partial import Partial
from ..no_gradients import no_gradients
from ..regularizers import Elementwise, Entropy
from ..regularizers.base import batch_sum
from ..regularizers.elementwise import BinaryEntropy, SignedEntropy
from .chains import Chains

_DISCRETE = (BinaryEntropy, SignedEntropy, Entropy)
"""Regularizers of variables that are drawn as vertices of their domain."""


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
    zero = evidence.like.new_zeros(evidence.batch)
    return factors_share(graph.energy_factors, evidence.values, zero)


@no_gradients()
def completed(chains: Chains, sweeps: int) -> dict[str, Tensor]:
    """Values of all variables after some sweeps, shape ``(batch, *axes)``.

    The variable that is drawn last is replaced by its mean given the others where the energy is linear in it:
    the gradient of the energy is the same on average, and less noisy. With constraints all values are draws.

    Args:
        chains: one level.
        sweeps: number of sweeps, at least 1.
    """
    for _ in range(sweeps):
        # over a training step the dynamics change more than by the adaptation
        chains.sweep(adapts=True)
    state = chains.state
    values = {name: state.result(name) for name in chains.graph.variables}
    if not state.plan.free or chains.graph.constraints:
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


def energy_discrepancy(
    graph: Declaration, values: Given, temperature: float, noise: float, copies: int
) -> Tensor:
    """Mean over examples x of log(1/M + 1/M sum_i exp((E(x) - E(x_i)) / temperature)), a scalar (Schroeder et
    al., 2023, "Energy discrepancies: a score-independent loss for energy-based models").

    The M copies x_i of x are drawn by adding noise twice, the first time in common. Discrete nodes are drawn
    anew with the probability ``noise``; real variables have normal noise of this standard deviation.

    Args:
        graph: declaration.
        values: examples of all variables, shape ``(batch, *axes)``.
        temperature: above 0.
        noise: above 0.
        copies: number M.

    Raises:
        InferenceError: for a variable without values of all entries, or of a kind that has no such noise.
    """
    complete = _complete(graph, values, "energy discrepancy")
    noisy = {name: _with_noise(graph, name, x, noise) for name, x in complete.items()}
    far = {name: _with_noise(graph, name, x.repeat_interleave(copies, 0), noise) for name, x in noisy.items()}
    gap = _whole_energy(graph, complete)[:, None] - _whole_energy(graph, far).view(-1, copies)
    stable = torch.cat([gap / temperature, torch.zeros_like(gap[:, :1])], 1)
    return (torch.logsumexp(stable, 1) - math.log(copies)).mean()


def _with_noise(graph: Declaration, name: str, x: Tensor, noise: float) -> Tensor:
    regularizer, shape = graph.variables[name].regularizer, x.shape
    if isinstance(regularizer, Elementwise) and regularizer.interval() == (-math.inf, math.inf):
        return x + noise * torch.randn_like(x)
    if not isinstance(regularizer, _DISCRETE):
        raise InferenceError(
            f"graph {graph.name!r}: variable {name!r} ({regularizer!r}) has no noise for the energy "
            "discrepancy; use learning='persistent'."
        )
    fresh = regularizer.conditional_sample(torch.zeros_like(x))
    if isinstance(regularizer, Entropy):
        # rows are drawn as wholes
        shape = x.sum(regularizer.dim, keepdim=True).shape
    return torch.where(torch.rand(shape, device=x.device) < min(noise, 1.0), fresh, x)


def score_matching(graph: Declaration, values: Given, temperature: float) -> Tensor:
    """Mean over examples of |d log p|^2 / 2 + trace of the second derivative of log p, a scalar (Hyvaerinen,
    2005), with log p = -E / temperature up to a constant.

    Takes one backward pass for each entry of an example.

    Args:
        graph: declaration.
        values: examples of all variables, shape ``(batch, *axes)``.
        temperature: above 0.

    Raises:
        InferenceError: for a variable without values of all entries, or with a bounded or discrete domain.
    """
    complete = _complete(graph, values, "score matching")
    for name, variable in graph.variables.items():
        regularizer = variable.regularizer
        if not (isinstance(regularizer, Elementwise) and regularizer.interval() == (-math.inf, math.inf)):
            raise InferenceError(
                f"graph {graph.name!r}: score matching needs real variables, and {name!r} has "
                f"{regularizer!r}; use learning='persistent'."
            )
    leaves = {name: x.detach().requires_grad_() for name, x in complete.items()}
    log_density = -_whole_energy(graph, leaves).sum() / temperature
    slopes = torch.autograd.grad(log_density, list(leaves.values()), create_graph=True)
    total = log_density.new_zeros(())
    for leaf, slope in zip(leaves.values(), slopes, strict=True):
        flat = entries_of(slope)
        total = total + 0.5 * flat.square().sum(1).mean()
        if not slope.requires_grad:
            continue
        for entry in range(flat.shape[1]):
            (second,) = torch.autograd.grad(flat[:, entry].sum(), leaf, create_graph=True, allow_unused=True)
            if second is not None:
                total = total + entries_of(second)[:, entry].mean()
    return total


def _whole_energy(graph: Declaration, values: Mapping[str, Tensor]) -> Tensor:
    """Energy with the regularizers, shape ``(batch,)``."""
    return total_energy(unconstrained_terms(graph, values))


def _complete(graph: Declaration, values: Given, what: str) -> dict[str, Tensor]:
    """Examples of all variables, of which none is given in part, and none constrained.

    Raises:
        InferenceError: names the first that has none, or only in part, or a constraint.
    """
    complete = {}
    for name, x in values.items():
        if isinstance(x, Partial):
            raise InferenceError(
                f"graph {graph.name!r}: {what} needs examples of all entries, and those of {name!r} are "
                "given in part; use learning='persistent', which draws the others."
            )
        complete[name] = x
    for constraint in graph.constraints:
        raise InferenceError(
            f"graph {graph.name!r}: {what} is defined without constraints, and {constraint.name!r} is one; "
            "use learning='persistent'."
        )
    for name in graph.variables:
        if name not in values:
            raise InferenceError(
                f"graph {graph.name!r}: {what} needs examples of all variables, and {name!r} has none; use "
                "learning='persistent'."
            )
    return complete


def minus_log_pseudolikelihood(graph: Declaration, values: Given, temperature: float) -> Tensor:
    """Mean over examples of minus the sum of log p(node | all others), a scalar (Besag, 1975).

    Nodes whose regularizer ties them count as one.

    Args:
        graph: declaration.
        values: examples of all variables, shape ``(batch, *axes)``.
        temperature: above 0.

    Raises:
        InferenceError: for a variable without values of all entries, or a closed form given the others.
    """
    complete = _complete(graph, values, "the pseudolikelihood")
    plan = Plan.of(graph, ())
    evidence = collect_evidence(graph, complete, check_values=False)
    # the plan has messages to all variables, and the evidence values of all of them
    state = State(plan, evidence, ())
    total = evidence.like.new_zeros(())
    for name in graph.variables:
        step, regularizer = PlannedUpdate(name), evidence.regularizers[name]
        steps = plan.steps([name], evidence.shapes, evidence.like.device)
        if not all(state.closed_form(own) for own in steps):
            other = "energy-discrepancy" if isinstance(regularizer, _DISCRETE) else "persistent"
            raise InferenceError(
                f"graph {graph.name!r}: variable {name!r} has no closed form given the others, so that its "
                f"pseudolikelihood is not known; use learning={other!r}."
            )
        x = evidence.values[name]
        t = state.preactivation(step)
        t = t.expand(evidence.batch, *t.shape[1:])
        score = batch_sum(x * t) - regularizer_share(regularizer, x, None)
        total = total + (score / temperature - regularizer.conditional_log_partition(t, temperature)).mean()
    return -total
