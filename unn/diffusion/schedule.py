"""Noise schedules: levels are standard deviations sigma of noise added to data of about unit variance."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..errors import ArgumentError


class Schedule(ABC):
    """Noise schedule: distribution of noise levels in training, sequence of noise levels in sampling."""

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw noise levels for training, shape ``(count,)``."""

    @abstractmethod
    def levels(self, steps: int) -> Tensor:
        """Noise levels for sampling, decreasing to 0, shape ``(steps + 1,)``."""

    @property
    def least(self) -> float:
        """The smallest level above 0 in sampling."""
        return float(self.levels(2)[1])

    def reaching(self, level: float) -> Schedule:
        """This schedule with a smallest level in sampling of at most ``level``, where it can be chosen."""
        return self


@dataclass(frozen=True)
class LinearSteps(Schedule):
    """Linear schedule of the structured-diffusion paper (equation 1 and Appendix A).

    x_t = sqrt(1 - beta_t) x_(t-1) + sqrt(beta_t) noise, with beta linear in t. In units of the
    data, the noise level after t steps is sigma_t^2 = 1 / prod_s (1 - beta_s) - 1.

    Attributes:
        steps: number of steps T.
        first: beta_1.
        last: beta_T; the paper's 0.005 gives sigma_T = 3.4, where the data are still visible; 0.02 gives 157.
    """

    steps: int = 1000
    first: float = 1e-4
    last: float = 0.02

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.first < 1 or not 0 < self.last < 1:
            raise ArgumentError(f"LinearSteps: steps >= 1 and betas in (0, 1) are needed, got {self}.")

    @cached_property
    def sigmas(self) -> Tensor:
        """Noise level after each step, increasing, shape ``(steps,)``."""
        betas = torch.linspace(self.first, self.last, self.steps, dtype=torch.float64)
        return torch.expm1(-torch.log1p(-betas).cumsum(0)).sqrt().float()

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return self.sigmas[torch.randint(self.steps, (count,), generator=generator)]

    def levels(self, steps: int) -> Tensor:
        """Levels evenly spaced in t, interpolated between steps in log sigma."""
        _check_steps(steps)
        times = torch.linspace(self.steps - 1, 0 if steps > 1 else self.steps - 1, steps)
        low = times.floor().long().clamp(max=self.steps - 1)
        high = (low + 1).clamp(max=self.steps - 1)
        logs = self.sigmas.log()
        return torch.cat([(logs[low] + (times - low) * (logs[high] - logs[low])).exp(), torch.zeros(1)])


@dataclass(frozen=True)
class LogUniform(Schedule):
    """Schedule uniform in log sigma, in training and in sampling.

    Attributes:
        lowest: smallest sigma.
        highest: largest sigma.
    """

    lowest: float = 0.01
    highest: float = 80.0

    def __post_init__(self) -> None:
        _check_range(self.lowest, self.highest, self)

    @property
    def least(self) -> float:
        return self.lowest

    def reaching(self, level: float) -> LogUniform:
        return replace(self, lowest=min(self.lowest, level))

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        low, high = math.log(self.lowest), math.log(self.highest)
        return (low + (high - low) * torch.rand(count, generator=generator)).exp()

    def levels(self, steps: int) -> Tensor:
        """Levels evenly spaced in log sigma."""
        return _log_spaced(self.lowest, self.highest, steps)


@dataclass(frozen=True)
class LogNormal(Schedule):
    """Schedule of Karras et al. (2022): Gaussian in log sigma in training, even in sigma^(1/7) in sampling.

    Attributes:
        mean: mean of log sigma in training; -1.2 for the images of the paper. Training is most
            useful at levels near the standard deviation of the posterior, in units of that of the
            prior, and posteriors of a few numbers are wider than those of pixels.
        deviation: standard deviation of log sigma in training; 1.2 in the paper.
        lowest: smallest sigma in sampling.
        highest: largest sigma in sampling.
    """

    mean: float = -0.5
    deviation: float = 1.6
    lowest: float = 0.002
    highest: float = 80.0

    def __post_init__(self) -> None:
        _check_range(self.lowest, self.highest, self)

    @property
    def least(self) -> float:
        return self.lowest

    def reaching(self, level: float) -> LogNormal:
        return replace(self, lowest=min(self.lowest, level))

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return (self.mean + self.deviation * torch.randn(count, generator=generator)).exp()

    def levels(self, steps: int) -> Tensor:
        """Levels of Karras et al. (2022), equation 5, rho = 7."""
        _check_steps(steps)
        ramp = torch.linspace(0, 1, steps)
        high, low = self.highest ** (1 / 7), self.lowest ** (1 / 7)
        return torch.cat([(high + ramp * (low - high)) ** 7, torch.zeros(1)])


_RESTART_HIGHEST, _RESTART_LOWEST, _SHORTEST = 1.5, 0.06, 4
"""First level and last level, in standard deviations of the data, and steps of the shortest restart."""


def restarting_levels(schedule: Schedule, steps: int) -> list[Tensor]:
    """Noise levels for ``unn.diffusion.restart_sampling``: one pass over the schedule, then restarts.

    Restarts have at most three fifths of all steps. They are evenly spaced in log-SNR and start at
    1.5 standard deviations of the data, a level that preserves a nearly correct sample but erases
    its errors. Each restart has the square root of ``steps`` steps, at least four, and its last
    level decreases with its length, so both the number of restarts and their accuracy grow with
    ``steps``. With fewer than seven steps there are no restarts.
    """
    _check_steps(steps)
    length = max(_SHORTEST, math.isqrt(steps))
    highest, lowest = schedule.levels(2)[:2].tolist()
    highest, lowest = min(highest, _RESTART_HIGHEST), max(lowest, _RESTART_LOWEST * _SHORTEST / length)
    restarts = 3 * steps // 5 // length if lowest < highest else 0
    first = schedule.levels(steps - restarts * length)
    return [first, *(_log_spaced(lowest, highest, length) for _ in range(restarts))]


def log_snr_levels(schedule: Schedule, steps: int) -> Tensor:
    """Levels over the range of a schedule, evenly spaced in log-SNR, shape ``(steps + 1,)``."""
    ends = schedule.levels(2)
    return _log_spaced(float(ends[1]), float(ends[0]), steps)


def _log_spaced(lowest: float, highest: float, steps: int) -> Tensor:
    _check_steps(steps)
    return torch.cat(
        [
            torch.linspace(math.log(highest), math.log(lowest if steps > 1 else highest), steps).exp(),
            torch.zeros(1),
        ]
    )


def _check_steps(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ArgumentError(f"sampling needs an integer number of steps >= 1, got {steps!r}.")


def _check_range(lowest: float, highest: float, schedule: Schedule) -> None:
    if not 0 < lowest < highest < math.inf:
        raise ArgumentError(
            f"{type(schedule).__name__}: levels need 0 < lowest < highest, got {lowest} and {highest}."
        )
