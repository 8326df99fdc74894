"""Levels of noise: the standard deviation sigma of what is added to data of about unit variance."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import DeclarationError


class Schedule(ABC):
    """From which levels of noise training draws, and through which sampling goes."""

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Levels for training, shape ``(count,)``."""

    @abstractmethod
    def levels(self, steps: int) -> Tensor:
        """Levels for sampling, falling, the last one 0, shape ``(steps + 1,)``."""


@dataclass(frozen=True)
class LinearSteps(Schedule):
    """The paper's process: x_t = sqrt(1 - beta_t) x_(t-1) + sqrt(beta_t) noise, with beta linear in t (equation 1 and Appendix A).

    In units of the data, after t steps sigma_t^2 = 1 / prod_s (1 - beta_s) - 1.

    Attributes:
        steps: T.
        first: beta_1.
        last: beta_T; 0.005 in the paper leaves sigma_T at 3.4, where noise does not drown the data; 0.02 takes it to 157.
    """

    steps: int = 1000
    first: float = 1e-4
    last: float = 0.02

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.first < 1 or not 0 < self.last < 1:
            raise DeclarationError(f"LinearSteps: steps >= 1 and betas in (0, 1) are needed, got {self}.")

    @cached_property
    def sigmas(self) -> Tensor:
        """After each step, rising, shape ``(steps,)``."""
        kept = torch.log1p(-torch.linspace(self.first, self.last, self.steps, dtype=torch.float64)).cumsum(0)
        return torch.expm1(-kept).sqrt().float()

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return self.sigmas[torch.randint(self.steps, (count,), generator=generator)]

    def levels(self, steps: int) -> Tensor:
        """Evenly spaced in t."""
        _check_steps(steps)
        place = torch.linspace(self.steps - 1, 0 if steps > 1 else self.steps - 1, steps)
        low = place.floor().long().clamp(max=self.steps - 1)
        high = (low + 1).clamp(max=self.steps - 1)
        # between two steps, in the logarithm
        logs = self.sigmas.log()
        return torch.cat([(logs[low] + (place - low) * (logs[high] - logs[low])).exp(), torch.zeros(1)])


@dataclass(frozen=True)
class LogUniform(Schedule):
    """Uniform in log sigma, for training and for sampling: evenly spaced in the log-SNR.

    Attributes:
        lowest: smallest sigma.
        highest: largest sigma.
    """

    lowest: float = 0.01
    highest: float = 80.0

    def __post_init__(self) -> None:
        _check_range(self.lowest, self.highest, self)

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        low, high = math.log(self.lowest), math.log(self.highest)
        return (low + (high - low) * torch.rand(count, generator=generator)).exp()

    def levels(self, steps: int) -> Tensor:
        """Evenly spaced in log sigma."""
        return _log_spaced(self.lowest, self.highest, steps)


@dataclass(frozen=True)
class LogNormal(Schedule):
    """Levels of Karras et al. (2022): log sigma is Gaussian in training; sampling is even in sigma^(1/7).

    Attributes:
        mean: of log sigma; -1.2 for the images of the paper. Levels matter where they are near the standard deviation of a posterior, in units
            of that of the prior, and posteriors of few numbers are wider than those of pixels.
        deviation: of log sigma; 1.2 in the paper.
        lowest: smallest sigma in sampling.
        highest: largest sigma in sampling.
    """

    mean: float = -0.5
    deviation: float = 1.6
    lowest: float = 0.002
    highest: float = 80.0

    def __post_init__(self) -> None:
        _check_range(self.lowest, self.highest, self)

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return (self.mean + self.deviation * torch.randn(count, generator=generator)).exp()

    def levels(self, steps: int) -> Tensor:
        """Karras et al. (2022), equation 5, rho = 7."""
        _check_steps(steps)
        place = torch.linspace(0, 1, steps)
        high, low = self.highest ** (1 / 7), self.lowest ** (1 / 7)
        return torch.cat([(high + place * (low - high)) ** 7, torch.zeros(1)])


_AGAIN, _TO, _SHORTEST = 1.5, 0.06, 4
"""First level and last of the shortest round, in standard deviations of the data, and its number of estimates."""


def restarting_levels(schedule: Schedule, steps: int) -> list[Tensor]:
    """Levels for ``unn.diffusion.restarted``: a fall through those of the schedule, then rounds, at most three fifths of all steps.

    Rounds are evenly spaced in the log-SNR and start at 1.5 standard deviations of the data: a sample that is nearly right is still recognisable
    there, its errors are not. A round has as many steps as the square root of all, four at least, and ends at a level that falls as its length
    grows, so that both the number of rounds and their accuracy grow with the steps. Fewer than seven steps leave no round.
    """
    _check_steps(steps)
    length = max(_SHORTEST, math.isqrt(steps))
    highest, lowest = schedule.levels(2)[:2].tolist()
    highest, lowest = min(highest, _AGAIN), max(lowest, _TO * _SHORTEST / length)
    rounds = 3 * steps // 5 // length if lowest < highest else 0
    return [schedule.levels(steps - rounds * length), *(_log_spaced(lowest, highest, length) for _ in range(rounds))]


def log_snr_levels(schedule: Schedule, steps: int) -> Tensor:
    """As many levels over the range of a schedule, evenly spaced in the log-SNR, shape ``(steps + 1,)``."""
    ends = schedule.levels(2)
    return _log_spaced(float(ends[1]), float(ends[0]), steps)


def _log_spaced(lowest: float, highest: float, steps: int) -> Tensor:
    _check_steps(steps)
    return torch.cat([torch.linspace(math.log(highest), math.log(lowest if steps > 1 else highest), steps).exp(), torch.zeros(1)])


def _check_steps(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise DeclarationError(f"sampling needs a number of steps >= 1, got {steps!r}.")


def _check_range(lowest: float, highest: float, schedule: Schedule) -> None:
    if not 0 < lowest < highest < math.inf:
        raise DeclarationError(f"{type(schedule).__name__}: levels need 0 < lowest < highest, got {lowest} and {highest}.")
