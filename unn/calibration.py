"""Calibration of posterior samples against true values.

True values must be drawn jointly with the evidence of the samples (for example by a generative
program). No exact posterior is needed: under the right posterior a true value and its samples are
exchangeable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor

from .errors import ArgumentError, ObservationError, whole_number

_BINS = 8
"""Bins of a rank histogram; 40 conditions then give five per bin, as the chi-square test needs."""


@dataclass(frozen=True)
class Calibration:
    """Calibration of the samples of one variable.

    Attributes:
        ranks: ranks of the true values among their samples, in [0, 1], uniform under the right posterior;
            unobserved nodes only, shape ``(ranks,)``.
        p_value: p-value of the uniformity of the ranks, the smallest over all nodes times their
            number (Bonferroni).
        coverage_50: share of true values in the central interval that contains 50% of the samples.
        coverage_90: share of true values in the central interval that contains 90% of the samples.
        spread: standard deviation of the samples divided by the root mean squared error of their
            means: 1 for the right posterior, 0 for a posterior collapsed to a point; None for
            discrete variables.
        calibration_error: mean absolute difference between the probability of an option and its
            frequency; None for continuous variables.
    """

    ranks: Tensor
    p_value: float
    coverage_50: float
    coverage_90: float
    spread: float | None = None
    calibration_error: float | None = None


def calibrate_real(
    truth: Tensor, samples: Tensor, unobserved: Tensor, generator: torch.Generator
) -> Calibration:
    """Simulation-based calibration (Talts et al., 2018) of a continuous variable.

    Args:
        truth: true values, shape ``(conditions, nodes)``.
        samples: samples, shape ``(conditions, draws, nodes)``, at least two draws.
        unobserved: mask of sampled nodes, shape ``(conditions, nodes)``, boolean.
        generator: generator that breaks ties and makes ranks continuous.

    Raises:
        ObservationError: for shapes that do not fit, or nothing unobserved.
    """
    _check(truth, samples, unobserved)
    ranks = fractional_ranks(truth, samples, generator)
    draws = samples.shape[1]
    # the error of a mean of draws has (1 + 1 / draws) times the variance of the posterior
    error = (truth - samples.mean(1))[unobserved].square().mean() * draws / (draws + 1)
    spread = (samples.var(1)[unobserved].mean() / error.clamp(min=1e-30)).sqrt()
    return _calibration(ranks, unobserved, spread=float(spread))


def calibrate_discrete(
    truth: Tensor, samples: Tensor, unobserved: Tensor, options: int, generator: torch.Generator
) -> Calibration:
    """Simulation-based calibration and calibration error of binary variables and categories.

    Args:
        truth: indices of the true options, shape ``(conditions, nodes)``.
        samples: indices of sampled options, shape ``(conditions, draws, nodes)``, at least two draws.
        unobserved: mask of sampled nodes, shape ``(conditions, nodes)``, boolean.
        options: number of options.
        generator: generator that breaks ties.

    Raises:
        ObservationError: for shapes that do not fit, nothing unobserved, or indices that are no options.
    """
    _check(truth, samples, unobserved)
    for what, values, nodes in _compared(truth, samples, unobserved):
        _check_options(what, values[nodes], options)
    # what is not compared may be anything
    truth = torch.where(unobserved, truth, 0)
    samples = torch.where(unobserved[:, None], samples, 0)
    ranks = fractional_ranks(truth, samples, generator)
    one_hot = torch.nn.functional.one_hot(samples.long(), options).double()
    outcomes = torch.nn.functional.one_hot(truth.long(), options).double()
    # half of the draws select the bins, the others are compared: the same draws would regress to the mean
    error = calibration_error(
        one_hot[:, ::2].mean(1)[unobserved].flatten(),
        one_hot[:, 1::2].mean(1)[unobserved].flatten(),
        outcomes[unobserved].flatten(),
    )
    return _calibration(ranks, unobserved, calibration_error=error)


def fractional_ranks(truth: Tensor, samples: Tensor, generator: torch.Generator) -> Tensor:
    """Ranks of true values among their samples, scaled to [0, 1], shape ``(conditions, nodes)``.

    Ties are broken at random. A rank r from 0 to ``draws`` becomes (r + u) / (draws + 1) with
    uniform u, which is uniform if the true value is distributed as the samples.

    Args:
        truth: true values, shape ``(conditions, nodes)``.
        samples: samples, shape ``(conditions, draws, nodes)``.
        generator: random generator.
    """
    below = (samples < truth[:, None]).sum(1).double()
    equal = (samples == truth[:, None]).sum(1).double()
    place = torch.rand(truth.shape, generator=generator, dtype=torch.float64)
    return (below + place * (equal + 1)) / (samples.shape[1] + 1)


def expected_coverage(
    truth: Tensor, samples: Tensor, centres: Tensor, unobserved: Tensor, generator: torch.Generator
) -> Tensor:
    """Coverage probabilities of joint samples, shape ``(conditions,)``, uniform in [0, 1] under the right
    posterior.

    Tests of accuracy with random points (Lemos et al., 2023): the share of samples that are nearer to a
    random centre than the truth is. Unlike ranks of single numbers it also shows wrong dependences.

    Args:
        truth: true values, standardised, shape ``(conditions, numbers)``.
        samples: samples, shape ``(conditions, draws, numbers)``.
        centres: random points that do not depend on the truth, such as other draws of the program, shape
            ``(conditions, numbers)``.
        unobserved: mask of sampled numbers, shape ``(conditions, numbers)``, boolean.
        generator: generator that breaks ties.

    Raises:
        ObservationError: for shapes that do not fit, or nothing unobserved.
    """
    _check(truth, samples, unobserved)
    if centres.shape != truth.shape:
        raise ObservationError(
            f"calibration: centres need the shape of the true values, {tuple(truth.shape)}, got "
            f"{tuple(centres.shape)}."
        )
    own = torch.where(unobserved, truth - centres, 0).square().sum(1)
    theirs = torch.where(unobserved[:, None], samples - centres[:, None], 0).square().sum(2)
    return fractional_ranks(own[:, None], theirs[..., None], generator)[:, 0]


def coverage_error(probabilities: Tensor) -> float:
    """Largest difference between a level and the share of probabilities below it, 0 for uniform ones.

    Args:
        probabilities: numbers in [0, 1], shape ``(conditions,)``.

    Raises:
        ObservationError: for no numbers, or others.
    """
    _check_probabilities("coverage_error", probabilities)
    ordered = probabilities.double().sort().values
    count = len(ordered)
    above = torch.arange(1, count + 1, dtype=torch.float64) / count - ordered
    below = ordered - torch.arange(count, dtype=torch.float64) / count
    return float(torch.maximum(above, below).max())


def calibration_error(chosen_by: Tensor, probabilities: Tensor, outcomes: Tensor, bins: int = 10) -> float:
    """Expected calibration error (Guo et al., 2017): the mean over bins of the difference between probability
    and frequency.

    Args:
        chosen_by: probabilities that select the bins, shape ``(numbers,)``.
        probabilities: probabilities to compare, shape ``(numbers,)``.
        outcomes: outcomes, 0 or 1, shape ``(numbers,)``.
        bins: number of bins of equal width in [0, 1].

    Raises:
        ObservationError: for probabilities outside [0, 1].
        ArgumentError: for a number of bins below 1.
    """
    whole_number("calibration_error: bins", bins, 1, ArgumentError)
    for numbers in (chosen_by, probabilities):
        if len(numbers):
            _check_probabilities("calibration_error", numbers)
    place = (chosen_by * bins).long().clamp(max=bins - 1)
    difference = torch.zeros(bins, dtype=torch.float64).index_add_(
        0, place, probabilities.double() - outcomes.double()
    )
    return float(difference.abs().sum() / max(1, len(outcomes)))


def uniformity(ranks: Tensor, bins: int = _BINS) -> float:
    """P-value of Pearson's chi-square test for the uniformity of numbers in [0, 1].

    Args:
        ranks: numbers in [0, 1], shape ``(numbers,)``; the p-value of none is 1.
        bins: number of bins of equal width.

    Raises:
        ObservationError: for numbers outside [0, 1].
        ArgumentError: for fewer than two bins.
    """
    whole_number("uniformity: bins", bins, 2, ArgumentError)
    if not len(ranks):
        return 1.0
    _check_probabilities("uniformity", ranks)
    counts = torch.bincount((ranks * bins).long().clamp(max=bins - 1), minlength=bins).double()
    expected = len(ranks) / bins
    return float(chi2.sf(float(((counts - expected) ** 2 / expected).sum()), bins - 1))


def summary(calibrations: Mapping[str, Calibration]) -> dict[str, float]:
    """Summarise the calibration of several variables by the worst value of each measure.

    Args:
        calibrations: calibration of each variable, by name.
    """
    if not calibrations:
        return {}
    every = list(calibrations.values())
    spreads = [c.spread for c in every if c.spread is not None]
    errors = [c.calibration_error for c in every if c.calibration_error is not None]
    figures = {
        "sbc_p": min(1.0, min(c.p_value for c in every) * len(every)),
        "coverage_50": min((c.coverage_50 for c in every), key=lambda share: -abs(share - 0.5)),
        "coverage_90": min((c.coverage_90 for c in every), key=lambda share: -abs(share - 0.9)),
    }
    if spreads:
        figures["spread"] = max(spreads, key=lambda ratio: max(ratio, 1 / max(ratio, 1e-30)))
    if errors:
        figures["calibration_error"] = max(errors)
    return figures


def _calibration(
    ranks: Tensor, unobserved: Tensor, spread: float | None = None, calibration_error: float | None = None
) -> Calibration:
    tested = [uniformity(ranks[unobserved[:, k], k]) for k in range(ranks.shape[1]) if unobserved[:, k].any()]
    pooled = ranks[unobserved]
    deviation = (pooled - 0.5).abs()
    return Calibration(
        ranks=pooled,
        p_value=min(1.0, min(tested) * len(tested)),
        coverage_50=float((deviation <= 0.25).double().mean()),
        coverage_90=float((deviation <= 0.45).double().mean()),
        spread=spread,
        calibration_error=calibration_error,
    )


def _check(truth: Tensor, samples: Tensor, unobserved: Tensor) -> None:
    fits = (
        truth.ndim == 2 and samples.ndim == 3 and (samples.shape[0], samples.shape[2]) == tuple(truth.shape)
    )
    if not fits or samples.shape[1] < 2 or unobserved.shape != truth.shape or not truth.numel():
        raise ObservationError(
            "calibration: true values need shape (conditions, nodes), samples (conditions, draws, nodes) "
            f"with two draws or more, and unobserved nodes the shape of the true values; got "
            f"{tuple(truth.shape)}, {tuple(samples.shape)} and {tuple(unobserved.shape)}."
        )
    if unobserved.dtype != torch.bool:
        raise ObservationError(
            f"calibration: the mask of unobserved nodes needs dtype bool, got {unobserved.dtype}."
        )
    if not bool(unobserved.any()):
        raise ObservationError("calibration: every node is observed, so there is nothing to compare.")
    for what, values, nodes in _compared(truth, samples, unobserved):
        bad = int((~values[nodes].isfinite()).sum())
        if bad:
            raise ObservationError(
                f"calibration: {bad} of {int(nodes.sum())} {what} of unobserved nodes are NaN or infinite."
            )


def _compared(truth: Tensor, samples: Tensor, unobserved: Tensor) -> list[tuple[str, Tensor, Tensor]]:
    """The values that are compared, each with its name and the mask of unobserved nodes in its shape."""
    return [
        ("true values", truth, unobserved),
        ("samples", samples, unobserved[:, None].expand(samples.shape)),
    ]


def _check_options(what: str, indices: Tensor, options: int) -> None:
    bad = indices[(indices != indices.long()) | (indices < 0) | (indices >= options)]
    if len(bad):
        raise ObservationError(
            f"calibration: {len(bad)} of {len(indices)} {what} of unobserved nodes, such as "
            f"{float(bad[0]):g}, are no index of {options} options."
        )


def _check_probabilities(where: str, numbers: Tensor) -> None:
    # written so that NaN counts
    bad = numbers[~((numbers >= 0) & (numbers <= 1))]
    if len(bad) or not len(numbers):
        shown = f"{float(bad[0]):g} among {len(numbers)}" if len(bad) else "none"
        raise ObservationError(f"{where} needs at least one number, all in [0, 1], got {shown}.")
