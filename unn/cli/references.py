"""Two-sample measures of a model against samples of the exact conditional distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..calibration import expected_coverage
from ..engine import CanSample, SamplingOptions
from ..errors import UnnError
from ..graph.partial import Partial
from ..networks.tokens import Given
from ..ops.seeds import seed_of
from ..two_sample import c2st, mmd

if TYPE_CHECKING:
    from .declared import DeclaredProblem

_CONSTANT = 1e-5
"""Standard deviation of a constant, relative to its size."""
Metric = Literal["c2st", "c2st-perceptron", "mmd", "bias", "spread"]


@dataclass(frozen=True)
class Comparison:
    """Measures of a model on several queries.

    Attributes:
        metrics: value of each metric for each query, shape ``(queries,)``.
        draws: number of samples of each query.
    """

    metrics: dict[str, list[float]]
    draws: int

    def means(self) -> dict[str, float]:
        """Mean of each metric over the queries."""
        return {name: sum(values) / len(values) for name, values in self.metrics.items()}


@torch.no_grad()
def compare_with_reference(
    problem: DeclaredProblem,
    config: Any,
    network: nn.Module,
    metrics: Sequence[Metric],
    queries: int,
    draws: int,
    options: SamplingOptions,
) -> Comparison:
    """Compare samples of a model with those of the exact conditionals, for queries as in training.

    Args:
        problem: problem with reference samples.
        config: configuration of the run.
        network: trained model.
        metrics: names of the measures. "c2st" is that of a random forest; "bias" the root mean square over
            the unobserved numbers of the difference of means, in standard deviations of the reference;
            "spread" the mean ratio of standard deviations.
        queries: number of queries.
        draws: number of samples of the model and of the reference for each.
        options: options of sampling, with the seed of queries and samples.

    Raises:
        UnnError: for a model without samples, or a problem without reference samples.
    """
    if not isinstance(network, CanSample):
        raise UnnError("--metric compares samples, and this run draws none.")
    seed = options.seed or 0
    generator = torch.Generator().manual_seed(seed_of(seed, 11))
    sizes = problem.test_sizes(config)
    truth = problem.generate(config, queries, generator, sizes)
    observed = problem.observed(config, queries, generator, sizes)
    values: dict[str, list[float]] = {metric: [] for metric in metrics}
    for k in range(queries):
        given = {
            name: Partial(truth[name][k : k + 1], mask.expand(queries, *mask.shape[1:])[k : k + 1])
            for name, mask in observed.items()
        }
        reference = problem.reference(config, given, draws, seed_of(seed, 12, k))
        if reference is None:
            raise UnnError(f"--metric: problem {problem.name!r} has no samples of the exact distribution.")
        samples = network.sample_with(given, draws, replace(options, seed=seed_of(seed, 13, k)), sizes).values
        one, other = (unobserved_numbers(x, given) for x in (reference, samples))
        for metric in metrics:
            values[metric].append(_measured(metric, one, other))
    return Comparison(values, draws)


@torch.no_grad()
def coverage_of(
    problem: DeclaredProblem,
    config: Any,
    network: nn.Module,
    conditions: int,
    draws: int,
    options: SamplingOptions,
) -> Tensor:
    """Coverage probabilities of fresh examples, observed as in training, shape ``(conditions,)``.

    Args:
        problem: problem that generates examples.
        config: configuration of the run.
        network: trained model.
        conditions: number of examples.
        draws: number of samples for each.
        options: options of sampling, with the seed of examples and samples.

    Raises:
        UnnError: for a model without samples.
    """
    if not isinstance(network, CanSample):
        raise UnnError("--metric compares samples, and this run draws none.")
    seed = options.seed or 0
    generator = torch.Generator().manual_seed(seed_of(seed, 14))
    sizes = problem.test_sizes(config)
    truth = problem.generate(config, conditions, generator, sizes)
    centres = problem.generate(config, conditions, generator, sizes)
    observed = problem.observed(config, conditions, generator, sizes)
    masks = {
        name: mask.expand(conditions, *truth[name].shape[1 : mask.ndim]) for name, mask in observed.items()
    }
    given = {
        name: Partial(truth[name].repeat_interleave(draws, 0), mask.repeat_interleave(draws, 0))
        for name, mask in masks.items()
    }
    samples = network.sample_with(given, conditions * draws, replace(options, seed=seed), sizes).values
    scale = {name: x.std().clamp(min=1e-12) for name, x in centres.items()}
    rows = [
        torch.cat([(values[n] / scale[n]).reshape(len(values[n]), -1) for n in truth], 1)
        for values in (truth, samples, centres)
    ]
    hidden = torch.cat([_hidden(truth[name], masks.get(name)) for name in truth], 1)
    return expected_coverage(rows[0], rows[1].unflatten(0, (conditions, draws)), rows[2], hidden, generator)


def _hidden(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mask of the numbers that are not given, shape ``(batch, numbers)``."""
    if mask is None:
        return torch.ones(len(values), values[0].numel(), dtype=torch.bool)
    nodes = mask.reshape(len(values), -1)
    return ~nodes.repeat_interleave(values[0].numel() // nodes.shape[1], 1)


def _measured(metric: Metric, one: Tensor, other: Tensor) -> float:
    if metric == "mmd":
        return mmd(one, other)
    if metric in ("bias", "spread"):
        # numbers that are determined by the evidence have no spread to compare
        varied = one.std(0) > _CONSTANT * one.abs().amax(0)
        if not bool(varied.any()):
            return 0.0 if metric == "bias" else 1.0
        one, other = one[:, varied], other[:, varied]
        if metric == "spread":
            return float((other.std(0) / one.std(0)).mean())
        return float(((other.mean(0) - one.mean(0)) / one.std(0)).square().mean().sqrt())
    return c2st(one, other, "forest" if metric == "c2st" else "perceptron")


def unobserved_numbers(values: Mapping[str, Tensor], given: Given) -> Tensor:
    """Numbers that are not given, shape ``(draws, numbers)``."""
    parts = []
    for name, x in values.items():
        flat = x.double().reshape(len(x), -1)
        evidence = given.get(name)
        if isinstance(evidence, Partial):
            nodes = evidence.mask.reshape(-1)
            flat = flat[:, ~nodes.repeat_interleave(flat.shape[1] // len(nodes))]
        if name not in given or isinstance(evidence, Partial):
            parts.append(flat)
    return torch.cat(parts, 1)
