"""Exact normal distributions of continuous nodes, and scores of estimated means and deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ...errors import UnnError
from ...exact.gaussian import gaussian_refusal
from ...exact.mixed_model import MixedModel
from ...exact.options import ExactOptions
from .answers import Moments
from .scores import Scores

if TYPE_CHECKING:
    from ...factor_graph import FactorGraph
    from ...networks.tokens import Given

_LEVELS = tuple(level / 10 for level in range(1, 10))
"""Probabilities of the central intervals in the coverage error."""


@dataclass(frozen=True, eq=False)
class NormalTruth:
    """Exact means and deviations of the hidden nodes of some queries.

    Attributes:
        mean: shape ``(hidden nodes,)``, float64.
        deviation: standard deviations, same shape.
        hidden: masks of the nodes that are compared, by variable, shape ``(count, *axes)``.
    """

    mean: Tensor
    deviation: Tensor
    hidden: Mapping[str, Tensor]

    needs_variances: ClassVar[bool] = True

    def scores_of_exact(self, seconds: float) -> Scores:
        """Scores of the exact distributions."""
        return score_normals(self.mean, self.deviation, self.mean, self.deviation, seconds)

    def scores_of_samples(self, draws: int, seconds: float) -> Scores:
        """Scores of the moments of independent exact samples: what a perfect sampler would score."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(draws, len(self.mean), generator=generator, dtype=torch.float64)
        samples = self.mean + self.deviation * noise
        return score_normals(self.mean, self.deviation, samples.mean(0), samples.std(0), seconds)

    def scores_of(self, answer: Moments, seconds: float) -> Scores:
        """Scores of an answer of an engine."""
        deviation = None if answer.variances is None else _flat(answer.variances, self.hidden).sqrt()
        return score_normals(self.mean, self.deviation, _flat(answer.means, self.hidden), deviation, seconds)


def normal_truth(
    graph: FactorGraph, given: Given, observable: Sequence[str], count: int, sizes: Mapping[str, int]
) -> NormalTruth | None:
    """Exact normal distributions given the evidence; None where it leaves no node open.

    Args:
        graph: graph with a quadratic energy.
        given: evidence; rows may give different entries.
        observable: names of the variables that are compared.
        count: number of rows.
        sizes: sizes of the axes without a static size.

    Raises:
        UnnError: for another energy, or a graph with discrete variables, whose conditionals are mixtures.
    """
    reason = gaussian_refusal(graph)
    if reason:
        raise UnnError(f"graph {graph.name!r} has no normal distributions to compare with: {reason}.")
    means, variances = MixedModel(graph, ExactOptions()).moments(given, count, sizes)
    # given entries have the variance 0
    hidden = {name: x > 0 for name, x in variances.items() if name in observable}
    if not any(bool(mask.any()) for mask in hidden.values()):
        return None
    mean, variance = _flat(means, hidden), _flat(variances, hidden)
    return NormalTruth(mean, variance.sqrt(), hidden)


def score_normals(
    mean: Tensor, deviation: Tensor, own_mean: Tensor, own_deviation: Tensor | None, seconds: float
) -> Scores:
    """Score means and deviations against exact ones.

    The figures are ``mean_error`` and ``largest_mean_error``, the mean and largest absolute error of a mean,
    in exact deviations; ``deviation_ratio``, the mean ratio of a deviation to the exact one; ``kl``, the mean
    Kullback-Leibler divergence of a node of the normal distribution with these moments from the exact one, in
    nats; and ``coverage_error``, the mean absolute difference between the probability of a central interval
    and the exact one, over the levels 0.1 to 0.9. Without deviations there are only the first two.

    Args:
        mean, deviation: exact ones, shape ``(hidden nodes,)``.
        own_mean, own_deviation: estimated ones, the same shape.
        seconds: time of a query.
    """
    error = (own_mean - mean) / deviation
    figures = {"mean_error": float(error.abs().mean()), "largest_mean_error": float(error.abs().max())}
    if own_deviation is None:
        return Scores(figures, seconds, ())
    # a deviation of exactly 0 would have an infinite divergence
    ratio = (own_deviation / deviation).clamp(min=1e-6)
    divergence = ratio.log() + (1 + error.square()) / (2 * ratio.square()) - 0.5
    normal = torch.distributions.Normal(0.0, 1.0)
    bins = []
    for level in _LEVELS:
        reach = normal.icdf(torch.tensor(0.5 + level / 2, dtype=torch.float64)) * ratio
        bins.append((level, float((normal.cdf(error + reach) - normal.cdf(error - reach)).mean())))
    figures["kl"] = float(divergence.mean())
    figures["deviation_ratio"] = float(ratio.mean())
    figures["coverage_error"] = sum(abs(level - exact) for level, exact in bins) / len(bins)
    return Scores(figures, seconds, tuple(bins))


def _flat(values: Mapping[str, Tensor], hidden: Mapping[str, Tensor]) -> Tensor:
    """Hidden numbers of all variables, shape ``(hidden nodes,)``, float64."""
    return torch.cat([values[name].double()[mask] for name, mask in hidden.items()])
