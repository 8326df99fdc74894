"""Answers of trained runs: means and variances of all variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...engine import CanInfer, CanSample, SamplingOptions
from ...errors import UnnError
from ...exact.mixed_model import MixedModel
from ...graph.partial import Partial
from ..problem import Trained

if TYPE_CHECKING:
    from ...networks.tokens import Given


@dataclass(frozen=True, eq=False)
class Moments:
    """Means, and variances where they are known.

    Attributes:
        means: by variable, shape ``(count, *axes)``.
        variances: by variable, shape ``(count, *axes)``; None for best values, or means alone.
        draws: number of samples whose averages the means are; 0 for means that are no averages.
    """

    means: Mapping[str, Tensor]
    variances: Mapping[str, Tensor] | None
    draws: int


def answer_of(
    run: Trained, given: Given, count: int, draws: int, sizes: Mapping[str, int], variances: bool
) -> Moments:
    """Answers of a run for all rows of the evidence.

    Engines that give means are asked for them, others for samples; with ``variances`` also the former, where
    they give samples.

    Args:
        run: the run.
        given: evidence.
        count: number of rows.
        draws: samples of each row.
        sizes: sizes of the axes without a static size.
        variances: whether variances are needed.

    Raises:
        UnnError: for an engine that gives neither means nor samples.
    """
    network = run.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if variances and isinstance(network, MixedModel):
            return Moments(*network.moments(given, count, sizes), 0)
        means: Mapping[str, Tensor] = {}
        if isinstance(network, CanInfer):
            means = network.infer_values(given, count, sizes)
        if means and not (variances and isinstance(network, CanSample)):
            return Moments(means, None, 0)
        if not isinstance(network, CanSample):
            raise UnnError(f"{run.folder}: engine {run.config.engine!r} gives neither means nor samples.")
        samples = _samples(network, given, count, draws, sizes)
    if not means:
        return Moments({n: x.mean(1) for n, x in samples.items()}, _variances(samples), draws)
    return Moments(means, _variances(samples), 0)


def check_finite(run: Trained, answer: Moments) -> None:
    """Check that the means of an answer are numbers.

    Raises:
        UnnError: names the run and the variable.
    """
    for name, mean in answer.means.items():
        if not bool(mean.isfinite().all()):
            raise UnnError(
                f"{run.folder}: the answers of engine {run.config.engine!r} for variable {name!r} are NaN or "
                "infinite."
            )


def _samples(
    network: CanSample, given: Given, count: int, draws: int, sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Samples by variable, float64, shape ``(count, draws, *axes)``."""
    repeated = {
        name: Partial(_repeat(x.value, count, draws), _repeat(x.mask, count, draws))
        if isinstance(x, Partial)
        else _repeat(x, count, draws)
        for name, x in given.items()
    }
    samples = network.sample_with(repeated, count * draws, SamplingOptions(seed=0, at_once=2048), sizes)
    return {name: x.view(count, draws, *x.shape[1:]).double() for name, x in samples.values.items()}


def _variances(samples: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Variances of samples; None where all draws are equal, which are best values."""
    if all(bool((x == x[:, :1]).all()) for x in samples.values()):
        return None
    return {name: x.var(1) for name, x in samples.items()}


def _repeat(x: Tensor, count: int, draws: int) -> Tensor:
    return x.expand(count, *x.shape[1:]).repeat_interleave(draws, 0)
