"""Coverage of posterior samples near each evidence, which the coverage over all evidence averages away."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import ArgumentError, ObservationError, is_whole

_LEVELS = 19
_REPETITIONS = 499
_AT_ONCE = 2**24
"""Comparisons of probabilities with levels that are held at a time."""


@dataclass(frozen=True)
class LocalCoverage:
    """How coverage probabilities are distributed near each condition.

    Attributes:
        levels: levels in (0, 1), shape ``(levels,)``.
        shares: share of the probabilities of the nearest conditions that are at most each level, shape
            ``(conditions, levels)``; close to the levels for the right posterior.
        band: difference between share and level that, for the right posterior, no condition exceeds in 95% of
            all cases, shape ``(levels,)``.
        error: largest difference between a share and its level.
        p_value: p-value of the mean squared difference, by repetitions with uniform probabilities.
    """

    levels: Tensor
    shares: Tensor
    band: Tensor
    error: float
    p_value: float


def local_coverage(
    probabilities: Tensor,
    evidence: Tensor,
    generator: torch.Generator,
    neighbours: int | None = None,
) -> LocalCoverage:
    """Compare the coverage of samples with its levels near each evidence.

    Under the right posterior coverage probabilities are uniform whatever the evidence; a posterior that is
    too narrow for some evidence and too wide for other, or that ignores the evidence, can have the right
    coverage on average. The test is that of Zhao, Dalmasso, Izbicki and Lee (2021), with the share among the
    nearest conditions as the regression, so that it needs no training.

    Args:
        probabilities: coverage probabilities such as those of ``expected_coverage``, or ranks of one number,
            shape ``(conditions,)``.
        evidence: what was given, standardised, shape ``(conditions, numbers)``.
        generator: random generator, of repetitions under the right posterior.
        neighbours: number of nearest conditions, each itself included, and all others that are as near as the
            last of them; an eighth of all by default.

    Raises:
        ObservationError: for fewer than 16 conditions, shapes that do not fit, numbers that are not finite,
            or probabilities outside [0, 1].
        ArgumentError: for a number of neighbours that is not a whole number from 2 to that of conditions.
    """
    count = len(probabilities) if probabilities.ndim else 0
    if probabilities.ndim != 1 or count < 16 or evidence.ndim != 2 or len(evidence) != count:
        raise ObservationError(
            "local_coverage: probabilities need shape (conditions,), for 16 conditions or more, and evidence "
            f"(conditions, numbers); got {tuple(probabilities.shape)} and {tuple(evidence.shape)}."
        )
    if not bool(((probabilities >= 0) & (probabilities <= 1)).all()):
        raise ObservationError("local_coverage: probabilities in [0, 1] are needed.")
    if not bool(evidence.isfinite().all()):
        raise ObservationError("local_coverage: evidence has NaN or infinite numbers.")
    if neighbours is None:
        neighbours = max(8, count // 8)
    if not is_whole(neighbours, 2) or neighbours > count:
        raise ArgumentError(
            f"local_coverage: neighbours must be a whole number from 2 to {count}, got {neighbours!r}."
        )
    levels = torch.arange(1, _LEVELS + 1, dtype=torch.float64) / (_LEVELS + 1)
    place = evidence.double()
    distance = torch.cdist(place, place, compute_mode="donot_use_mm_for_euclid_dist")
    near = (distance <= distance.kthvalue(neighbours, 1, keepdim=True).values).float()
    mean = near / near.sum(1, keepdim=True)
    shares = _shares(probabilities.double()[:, None], mean, levels)[:, 0]
    rows = max(1, _AT_ONCE // (count * _LEVELS))
    squares, largest = [], []
    for first in range(0, _REPETITIONS, rows):
        number = min(rows, _REPETITIONS - first)
        uniform = torch.rand(count, number, generator=generator, dtype=torch.float64)
        difference = _shares(uniform, mean, levels) - levels
        squares.append(difference.square().mean((0, 2)))
        largest.append(difference.abs().amax(0))
    difference = shares - levels
    exceeded = int((torch.cat(squares) >= difference.square().mean()).sum())
    return LocalCoverage(
        levels=levels,
        shares=shares,
        band=torch.cat(largest).quantile(0.95, 0),
        error=float(difference.abs().max()),
        p_value=(1 + exceeded) / (1 + _REPETITIONS),
    )


def _shares(probabilities: Tensor, mean: Tensor, levels: Tensor) -> Tensor:
    """Shares of the nearest probabilities up to each level, shape ``(conditions, sets, levels)``.

    Args:
        probabilities: shape ``(conditions, sets)``.
        mean: weights of the mean over the nearest conditions, shape ``(conditions, conditions)``.
        levels: shape ``(levels,)``.
    """
    reached = (probabilities[..., None] <= levels).to(mean.dtype)
    return (mean @ reached.flatten(1)).view(reached.shape).double()
