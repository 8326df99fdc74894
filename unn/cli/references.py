"""Measures of samples on fresh examples: against samples of the exact conditional distributions, and joint
coverage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..calibration import expected_coverage
from ..draw import draw_coverage, draw_local_coverage, draw_measured, save_collage, save_figure
from ..engine import CanSample, SamplingOptions
from ..errors import ObservationError, UnnError
from ..graph.partial import Partial
from ..local_coverage import LocalCoverage
from ..ops.seeds import seed_of
from ..two_sample import c2st, mmd
from .measures import expanded_mask

if TYPE_CHECKING:
    from .declared import DeclaredProblem

_CONSTANT = 2 * torch.finfo(torch.float32).eps
"""Standard deviation of a constant, relative to its size, in single precision."""
_EQUAL = 1e-5
"""Relative difference up to which samples equal a reference that does not vary."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Examples whose evidence is given to a model.

    Attributes:
        truth: values by variable, shape ``(count, *axes)``.
        masks: given nodes by variable, boolean, shape ``(count, *node axes)``; none of the others.
        sizes: sizes of dynamic axes.
        generator: random number generator, after the examples.
    """

    truth: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    generator: torch.Generator

    def given(self, rows: slice, repeats: int = 1) -> dict[str, Partial]:
        """The evidence of some examples, each repeated."""
        return {
            name: Partial(
                self.truth[name][rows].repeat_interleave(repeats, 0),
                mask[rows].repeat_interleave(repeats, 0),
            )
            for name, mask in self.masks.items()
        }

    def hidden(self) -> Tensor:
        """Mask of the numbers that are not given, shape ``(count, numbers)``."""
        return torch.cat([hidden_numbers(x, self.masks.get(name)) for name, x in self.truth.items()], 1)


def ask(problem: DeclaredProblem, config: Any, count: int, seed: int) -> Questions:
    """Fresh examples of a problem, observed as in training.

    Args:
        problem: problem that generates examples.
        config: configuration of the run.
        count: number of examples.
        seed: random seed.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = problem.test_sizes(config)
    truth = problem.generate(config, count, generator, sizes)
    observed = problem.observed(config, count, generator, sizes)
    masks = {name: expanded_mask(mask, truth[name]) for name, mask in observed.items()}
    return Questions(truth, masks, sizes, generator)


@torch.no_grad()
def compare_with_reference(
    problem: DeclaredProblem,
    config: Any,
    network: nn.Module,
    metrics: Sequence[str],
    queries: int,
    draws: int,
    options: SamplingOptions,
) -> dict[str, list[float]]:
    """Compare samples of a model with those of the exact conditionals, for queries as in training.

    Args:
        problem: problem with reference samples.
        config: configuration of the run.
        network: trained model.
        metrics: names of the measures. "c2st" is that of a random forest; "bias" the root mean square over
            the unobserved numbers of the difference of means, in standard deviations of the reference;
            "spread" the mean ratio of standard deviations. Both leave out numbers that do not vary in the
            reference, as those that the evidence determines, which "c2st" compares; where none does and
            samples differ from it, they are NaN.
        queries: number of queries; nodes that the reference takes no evidence on are left out of them.
        draws: number of samples of the model and of the reference for each.
        options: options of sampling, with the seed of queries and samples.

    Returns:
        Each metric for each query, shape ``(queries,)``.

    Raises:
        UnnError: for a model without samples, or a problem without reference samples.
    """
    sampler, seed = _sampler(network), options.seed or 0
    asked = ask(problem, config, queries, seed_of(seed, 11))
    nodes = problem.reference_nodes(config, asked.sizes)
    masks = {name: mask & nodes[name] if name in nodes else mask for name, mask in asked.masks.items()}
    asked = replace(asked, masks=masks)
    values: dict[str, list[float]] = {metric: [] for metric in metrics}
    for k in range(queries):
        given = asked.given(slice(k, k + 1))
        reference = problem.reference(config, given, draws, seed_of(seed, 12, k))
        if reference is None:
            raise UnnError(f"--metric: problem {problem.name!r} has no samples of the exact distribution.")
        own = replace(options, seed=seed_of(seed, 13, k))
        samples = sampler.sample_with(given, draws, own, asked.sizes).values
        one, other = (unobserved_numbers(x, given) for x in (reference, samples))
        for metric in metrics:
            values[metric].append(measured(metric, one, other))
    return values


@dataclass(frozen=True, eq=False)
class Covered:
    """Coverage of samples for several examples.

    Attributes:
        probabilities: coverage probabilities, shape ``(conditions,)``.
        evidence: standardised numbers that were given, 0 where they were not, and which were, shape
            ``(conditions, numbers)``.
    """

    probabilities: Tensor
    evidence: Tensor


@torch.no_grad()
def coverage_of(
    problem: DeclaredProblem,
    config: Any,
    network: nn.Module,
    conditions: int,
    draws: int,
    options: SamplingOptions,
) -> Covered:
    """Coverage probabilities of fresh examples, observed as in training.

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
    sampler, seed = _sampler(network), options.seed or 0
    asked = ask(problem, config, conditions, seed_of(seed, 14))
    centres = problem.generate(config, conditions, asked.generator, asked.sizes)
    given = asked.given(slice(None), draws)
    samples = sampler.sample_with(given, conditions * draws, replace(options, seed=seed), asked.sizes).values
    scale = {name: x.std().clamp(min=1e-12) for name, x in centres.items()}
    truth, drawn, points = (
        torch.cat([(values[n] / scale[n]).reshape(len(values[n]), -1) for n in asked.truth], 1)
        for values in (asked.truth, samples, centres)
    )
    hidden = asked.hidden()
    probabilities = expected_coverage(
        truth, drawn.unflatten(0, (conditions, draws)), points, hidden, asked.generator
    )
    known = torch.where(hidden, 0, truth - points.mean(0))
    return Covered(probabilities, torch.cat([known, (~hidden).to(known)], 1))


IDEAL = {"c2st": 0.5, "c2st-perceptron": 0.5, "mmd": 0.0, "bias": 0.0, "spread": 1.0}
"""Measures of samples that equal the reference."""


def draw_comparison(
    queries: Mapping[str, Sequence[float]],
    covered: Tensor | None,
    local: LocalCoverage | None,
    path: Path,
) -> None:
    """Draw what was measured, below one another; only a PNG holds several pictures.

    Args:
        queries: measures of each query by name; empty if there are none.
        covered: coverage probabilities, shape ``(conditions,)``.
        local: coverage near each condition.
        path: file of the picture.
    """
    figures = []
    if queries:
        figures.append(draw_measured(queries, IDEAL))
    if covered is not None:
        figures.append(draw_coverage(covered.tolist()))
    if local is not None:
        figures.append(draw_local_coverage(local.levels.tolist(), local.shares.tolist(), local.band.tolist()))
    if len(figures) == 1:
        save_figure(figures[0], path)
    else:
        save_collage(figures, path, 800)


def measured(metric: str, one: Tensor, other: Tensor) -> float:
    """One measure of samples.

    Args:
        metric: name of the measure.
        one: samples of the reference, shape ``(draws, numbers)``.
        other: samples of the model, of the same shape.

    Raises:
        ObservationError: for too few samples.
    """
    if metric == "mmd":
        return mmd(one, other)
    if metric in ("bias", "spread"):
        if min(len(one), len(other)) < 2:
            raise ObservationError(
                f"{metric}: at least 2 samples of each query are needed, got {len(other)}."
            )
        # numbers that are determined by the evidence have no spread to compare
        varied = one.std(0) > _CONSTANT * one.abs().amax(0)
        if not bool(varied.any()):
            equal = torch.allclose(other, one[:1].expand_as(other), rtol=_EQUAL, atol=0)
            return IDEAL[metric] if equal else math.nan
        one, other = one[:, varied], other[:, varied]
        if metric == "spread":
            return float((other.std(0) / one.std(0)).mean())
        return float(((other.mean(0) - one.mean(0)) / one.std(0)).square().mean().sqrt())
    return c2st(one, other, "forest" if metric == "c2st" else "perceptron")


def unobserved_numbers(values: Mapping[str, Tensor], given: Mapping[str, Partial]) -> Tensor:
    """Numbers that one evidence does not give, shape ``(draws, numbers)``, variables in alphabetical order.

    Args:
        values: samples by variable, shape ``(draws, *axes)``.
        given: evidence with a batch axis of 1.
    """
    parts = []
    # samples and references may have their variables in different orders
    for name, x in sorted(values.items()):
        hidden = hidden_numbers(x[:1], given[name].mask if name in given else None)
        parts.append(x.double().reshape(len(x), -1)[:, hidden[0]])
    return torch.cat(parts, 1)


def hidden_numbers(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mask of the numbers of a variable that are not given, shape ``(batch, numbers)``.

    Args:
        values: values, shape ``(batch, *axes)``.
        mask: given nodes, shape ``(batch, *node axes)``; None if none is.
    """
    numbers = values[0].numel()
    if mask is None:
        return torch.ones(len(values), numbers, dtype=torch.bool)
    nodes = mask.reshape(len(values), -1)
    return ~nodes.repeat_interleave(numbers // nodes.shape[1], 1)


def _sampler(network: nn.Module) -> CanSample:
    if not isinstance(network, CanSample):
        raise UnnError("--metric compares samples, and this run draws none.")
    return network
