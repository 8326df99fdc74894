"""Bounds of the log-likelihood of latent-variable models, and what their latent groups hold.

They need a model that draws from its posterior (``DrawsPosterior``), so that they can be checked on models
whose likelihood is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..descent.checks import check_generator
from ..errors import ArgumentError, whole_number


@dataclass(frozen=True, eq=False)
class Draws:
    """One draw of the latent groups for each row, from the posterior.

    Attributes:
        groups: values of the groups, shape ``(batch, channels, *positions)`` each.
        likelihood: log p(x | z) of the observed nodes, shape ``(batch,)``.
        prior: log p(z), shape ``(batch,)``.
        posterior: log q(z | x), shape ``(batch,)``.
        units: KL of posterior and prior of each unit of each group given the earlier groups, in nats, shape
            as the groups.
    """

    groups: list[Tensor]
    likelihood: Tensor
    prior: Tensor
    posterior: Tensor
    units: list[Tensor]

    @property
    def divergences(self) -> Tensor:
        """KL of posterior and prior of each group, shape ``(groups, batch)``."""
        return torch.stack([x.flatten(1).sum(1) for x in self.units])

    @property
    def log_weight(self) -> Tensor:
        """log p(x, z) - log q(z | x), shape ``(batch,)``, whose exponential has the mean p(x)."""
        return self.likelihood + self.prior - self.posterior


class DrawsPosterior(Protocol):
    """A model that draws its latent groups from the posterior."""

    def draws(self, rows: Tensor, nodes: Tensor, generator: torch.Generator | None) -> Draws:
        """One draw for each row.

        Args:
            rows: observed numbers, 0 where not observed, shape ``(batch, numbers)``.
            nodes: mask of observed nodes, shape ``(batch, nodes)``.
            generator: random number generator; torch's global one by default.
        """


@dataclass(frozen=True, eq=False)
class LikelihoodEstimate:
    """An estimate of log p(x) by importance sampling.

    Attributes:
        value: log of the mean weight, shape ``(batch,)``; its expectation is a lower bound, which rises with
            the number of draws.
        error: its standard error, shape ``(batch,)``; 0 for one draw, where it is unknown.
        effective: effective number of draws, shape ``(batch,)``: (sum w)^2 / sum w^2. Where it is near 1 one
            draw decides, and the error is too small.
    """

    value: Tensor
    error: Tensor
    effective: Tensor


@torch.no_grad()
def log_likelihood(
    model: DrawsPosterior,
    rows: Tensor,
    nodes: Tensor,
    draws: int,
    *,
    generator: torch.Generator | None = None,
    at_once: int = 512,
) -> LikelihoodEstimate:
    """Importance-sampled log-likelihood (deep attentive variational paper, Appendix; Burda et al., 2016).

    Args:
        model: the model.
        rows: observed numbers, 0 where not observed, shape ``(batch, numbers)``.
        nodes: mask of observed nodes, shape ``(batch, nodes)``.
        draws: number of draws for each row.
        generator: random number generator; torch's global one by default.
        at_once: largest number of rows in memory, over all draws.

    Raises:
        ArgumentError: for fewer than one draw or row.
        InferenceError: for a seed instead of a generator.
    """
    whole_number("log-likelihood: draws", draws, 1, ArgumentError)
    _check(at_once, generator)
    values, errors, sizes = [], [], []
    for part in torch.arange(len(rows)).split(at_once):
        own, mask = rows[part], nodes[part]
        repeats = max(1, at_once // len(part))
        logs = []
        for start in range(0, draws, repeats):
            count = min(repeats, draws - start)
            drawn = model.draws(own.repeat(count, 1), mask.repeat(count, 1), generator)
            logs.append(drawn.log_weight.double().view(count, -1))
        weights = torch.cat(logs)
        total = weights.logsumexp(0)
        value = total - math.log(draws)
        relative = (weights - value).exp()
        spread = relative.std(0) if draws > 1 else torch.zeros_like(value)
        values.append(value)
        errors.append(spread / math.sqrt(draws))
        sizes.append((2 * total - (2 * weights).logsumexp(0)).exp())
    return LikelihoodEstimate(torch.cat(values), torch.cat(errors), torch.cat(sizes))


@dataclass(frozen=True, eq=False)
class BoundSummary:
    """The evidence lower bound over examples, and what the groups hold.

    Attributes:
        bound: mean bound in nats.
        likelihood: mean log p(x | z) in nats.
        divergences: mean divergence of each group in nats, shape ``(groups,)``.
        active: share of the units of each group whose mean divergence is more than 0.01 nats, shape
            ``(groups,)``. The usual measure, a posterior mean that varies over the examples (Burda et al.,
            2016), would call all units below the first group active, even if they add nothing: their prior
            varies as well.
    """

    bound: float
    likelihood: float
    divergences: Tensor
    active: Tensor


_ACTIVE = 0.01
"""Mean divergence of an active unit, in nats."""


@torch.no_grad()
def bound_summary(
    model: DrawsPosterior,
    rows: Tensor,
    nodes: Tensor,
    *,
    generator: torch.Generator | None = None,
    at_once: int = 512,
) -> BoundSummary:
    """The evidence lower bound over examples, with one draw each; arguments and errors as for
    ``log_likelihood``."""
    _check(at_once, generator)
    parts = [
        model.draws(rows[part], nodes[part], generator) for part in torch.arange(len(rows)).split(at_once)
    ]
    units = [torch.cat([part.units[k].flatten(1) for part in parts]) for k in range(len(parts[0].units))]
    active = torch.stack([(x.double().mean(0) > _ACTIVE).double().mean() for x in units])
    divergences = torch.cat([part.divergences for part in parts], 1).double().mean(1)
    likelihood = float(torch.cat([part.likelihood for part in parts]).double().mean())
    return BoundSummary(likelihood - float(divergences.sum()), likelihood, divergences, active)


def _check(at_once: int, generator: object) -> None:
    whole_number("at_once", at_once, 1, ArgumentError)
    check_generator(generator)
