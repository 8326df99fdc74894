"""Elementwise regularizers (Table 1 of the undirected-network paper, and projections)."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from ..errors import DeclarationError
from ..noise import normal, uniform
from .base import Regularizer, batch_all, batch_sum, inside_interval, real_number, tolerance, widened
from .truncated import log_gaussian_integral, truncated_normal


class Elementwise(Regularizer):
    """A sum of a convex function over all entries. Subclasses define four functions of an entry."""

    @abstractmethod
    def entry_value(self, x: Tensor) -> Tensor:
        """Psi of each entry; entries are inside the domain."""

    @abstractmethod
    def entry_conjugate(self, t: Tensor) -> Tensor:
        """Psi* of each entry."""

    @abstractmethod
    def entry_mirror(self, t: Tensor) -> Tensor:
        """The activation of each entry."""

    @abstractmethod
    def entry_contains(self, x: Tensor, tolerance: float) -> Tensor:
        """Whether each entry is in the domain."""

    def interval(self) -> tuple[float, float]:
        """The domain of one entry."""
        return -math.inf, math.inf

    def entry_sample(self, t: Tensor, temperature: Tensor, generator: torch.Generator | None) -> Tensor:
        """A draw of each entry, as ``conditional_sample``."""
        return super().conditional_sample(t, temperature, None, generator)

    def entry_log_partition(self, t: Tensor, temperature: Tensor) -> Tensor:
        """Logarithm of the partition function of each entry, as ``conditional_log_partition``."""
        return super().conditional_log_partition(t, temperature)

    def conditional_sample(
        self,
        t: Tensor,
        temperature: float | Tensor = 1.0,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        wide = widened(t)
        x = self.entry_sample(wide, _as_tensor(temperature, wide), generator).to(t.dtype)
        return x if mask is None else torch.where(mask, x, 0)

    def conditional_log_partition(
        self, t: Tensor, temperature: float | Tensor = 1.0, mask: Tensor | None = None
    ) -> Tensor:
        wide = widened(t if mask is None else torch.where(mask, t, 0))
        entries = self.entry_log_partition(wide, _as_tensor(temperature, wide))
        if mask is not None:
            entries = torch.where(mask, entries, 0)
        return batch_sum(entries).to(t.dtype)

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            # Psi has a finite slope at an inner point, but not necessarily at 0
            x = torch.where(mask, x, self._inner_point())
        wide = widened(x)
        low, high = self.interval()
        inside = self.entry_contains(x, tolerance(x.dtype))
        entries = self.entry_value(wide if low == -math.inf and high == math.inf else wide.clamp(low, high))
        if mask is not None:
            entries = torch.where(mask, entries, 0)
        return torch.where(batch_all(inside), batch_sum(entries), torch.inf).to(x.dtype)

    def _inner_point(self) -> float:
        low, high = self.interval()
        if math.isfinite(low):
            return (low + high) / 2 if math.isfinite(high) else low + 1
        return high - 1 if math.isfinite(high) else 0.0

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        entries = self.entry_conjugate(widened(t if mask is None else torch.where(mask, t, 0)))
        if mask is not None:
            entries = torch.where(mask, entries, 0)
        return batch_sum(entries).to(t.dtype)

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.entry_mirror(t)
        return x if mask is None else torch.where(mask, x, 0)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        inside = self.entry_contains(x, tolerance(x.dtype))
        return batch_all(inside if mask is None else inside | ~mask)


class SquaredNorm(Elementwise):
    """Psi(x) = ||x||^2 / 2: the identity activation. Samples are Gaussian with unit variance."""

    bounded = False
    formula = "1/2 ||x||^2"
    activation = "identity"

    @property
    def lipschitz(self) -> float:
        return 1.0

    def entry_value(self, x: Tensor) -> Tensor:
        return 0.5 * x * x

    def entry_conjugate(self, t: Tensor) -> Tensor:
        return 0.5 * t * t

    def entry_mirror(self, t: Tensor) -> Tensor:
        return t

    def entry_contains(self, x: Tensor, tolerance: float) -> Tensor:
        return x.isfinite()

    def sample(
        self, t: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.mirror(t + normal(t.shape, t, generator), mask)

    def entry_sample(self, t: Tensor, temperature: Tensor, generator: torch.Generator | None) -> Tensor:
        return t + temperature.sqrt() * normal(t.shape, t, generator)

    def entry_log_partition(self, t: Tensor, temperature: Tensor) -> Tensor:
        return 0.5 * t * t / temperature + 0.5 * (2 * math.pi * temperature).log()


class NonNegative(Elementwise):
    """Psi(x) = ||x||^2 / 2 for x >= 0: the relu activation."""

    bounded = False
    formula = "1/2 ||x||^2, x >= 0"
    activation = "relu"

    def interval(self) -> tuple[float, float]:
        return 0.0, math.inf

    @property
    def lipschitz(self) -> float:
        return 1.0

    def entry_value(self, x: Tensor) -> Tensor:
        return 0.5 * x * x

    def entry_conjugate(self, t: Tensor) -> Tensor:
        positive = t.relu()
        return 0.5 * positive * positive

    def entry_mirror(self, t: Tensor) -> Tensor:
        return t.relu()

    def entry_contains(self, x: Tensor, tolerance: float) -> Tensor:
        return (x >= -tolerance) & x.isfinite()

    def entry_sample(self, t: Tensor, temperature: Tensor, generator: torch.Generator | None) -> Tensor:
        return truncated_normal(t, temperature, *self.interval(), uniform(t.shape, t, generator))

    def entry_log_partition(self, t: Tensor, temperature: Tensor) -> Tensor:
        return log_gaussian_integral(t, temperature, *self.interval())


class BinaryEntropy(Elementwise):
    """Psi(x) = x log x + (1-x) log(1-x) on [0, 1]: the sigmoid activation. Samples are 0 or 1."""

    bounded = True
    formula = "sum x log x + (1-x) log(1-x), 0 <= x <= 1"
    activation = "sigmoid"

    def interval(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def lipschitz(self) -> float:
        return 0.25

    def entry_value(self, x: Tensor) -> Tensor:
        return _phi(x) + _phi(1 - x)

    def entry_conjugate(self, t: Tensor) -> Tensor:
        # softplus switches to the identity at 20, which costs 2e-9 in float64; the second derivative of
        # logaddexp is NaN at large scores
        return -torch.nn.functional.logsigmoid(-t)

    def entry_mirror(self, t: Tensor) -> Tensor:
        return t.sigmoid()

    def entry_contains(self, x: Tensor, tolerance: float) -> Tensor:
        return (x >= -tolerance) & (x <= 1 + tolerance)

    def sample(
        self, t: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        x = (uniform(t.shape, t, generator) < self.mirror(t)).to(t.dtype)
        return x if mask is None else torch.where(mask, x, 0)

    def entry_sample(self, t: Tensor, temperature: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.sample(t / temperature, None, generator)

    def entry_log_partition(self, t: Tensor, temperature: Tensor) -> Tensor:
        return self.entry_conjugate(t / temperature)


class SignedEntropy(Elementwise):
    """Psi(x) = phi((1+x)/2) + phi((1-x)/2) on [-1, 1], phi(p) = p log p: the tanh activation. Samples are -1
    or 1."""

    bounded = True
    formula = "sum phi((1+x)/2) + phi((1-x)/2), -1 <= x <= 1, phi(p) = p log p"
    activation = "tanh"

    def interval(self) -> tuple[float, float]:
        return -1.0, 1.0

    @property
    def lipschitz(self) -> float:
        return 1.0

    def entry_value(self, x: Tensor) -> Tensor:
        return _phi((1 + x) / 2) + _phi((1 - x) / 2)

    def entry_conjugate(self, t: Tensor) -> Tensor:
        # log(2 cosh t); |t| + log1p(exp(-2|t|)) would lose the second derivative at 0, logaddexp that at
        # large scores
        twice = 2 * t
        return -0.5 * (torch.nn.functional.logsigmoid(twice) + torch.nn.functional.logsigmoid(-twice))

    def entry_mirror(self, t: Tensor) -> Tensor:
        return t.tanh()

    def entry_contains(self, x: Tensor, tolerance: float) -> Tensor:
        return x.abs() <= 1 + tolerance

    def sample(
        self, t: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        # arithmetic is several times faster than a choice between two numbers
        x = (uniform(t.shape, t, generator) < (2 * t).sigmoid()).to(t.dtype).mul_(2).sub_(1)
        return x if mask is None else torch.where(mask, x, 0)

    def entry_sample(self, t: Tensor, temperature: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.sample(t / temperature, None, generator)

    def entry_log_partition(self, t: Tensor, temperature: Tensor) -> Tensor:
        return self.entry_conjugate(t / temperature)


class Box(Elementwise):
    """Psi(x) = ||x||^2 / 2 for low <= x <= high: the activation clips (hard tanh, relu6)."""

    bounded = True
    formula = "1/2 ||x||^2, low <= x <= high"
    activation = "clip"

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low, self.high = real_number("Box", "low", low), real_number("Box", "high", high)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise DeclarationError(f"Box needs finite low < high, got low={low}, high={high}.")

    def interval(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def lipschitz(self) -> float:
        return 1.0

    def entry_value(self, x: Tensor) -> Tensor:
        return 0.5 * x * x

    def entry_conjugate(self, t: Tensor) -> Tensor:
        # on each side of the box Psi* is affine; inf * low would be nan for low = 0, hence the separate
        # excess
        x = t.clamp(self.low, self.high)
        above, below = (t - self.high).relu(), (self.low - t).relu()
        return 0.5 * x * x + _scale_excess(above, self.high) - _scale_excess(below, self.low)

    def entry_mirror(self, t: Tensor) -> Tensor:
        return t.clamp(self.low, self.high)

    def entry_contains(self, x: Tensor, tolerance: float) -> Tensor:
        return inside_interval(x, self.low, self.high, tolerance)

    def entry_sample(self, t: Tensor, temperature: Tensor, generator: torch.Generator | None) -> Tensor:
        return truncated_normal(t, temperature, *self.interval(), uniform(t.shape, t, generator))

    def entry_log_partition(self, t: Tensor, temperature: Tensor) -> Tensor:
        return log_gaussian_integral(t, temperature, *self.interval())

    def __repr__(self) -> str:
        return f"Box({self.low:g}, {self.high:g})"


class L1(Elementwise):
    """Psi(x) = ||x||^2 / 2 + strength ||x||_1: the activation is the soft threshold."""

    bounded = False
    formula = "1/2 ||x||^2 + strength ||x||_1"
    activation = "soft threshold"

    def __init__(self, strength: float = 1.0) -> None:
        self.strength = real_number("L1", "strength", strength)
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise DeclarationError(f"L1 needs a finite strength >= 0, got {strength}.")

    @property
    def lipschitz(self) -> float:
        return 1.0

    def entry_value(self, x: Tensor) -> Tensor:
        return 0.5 * x * x + self.strength * x.abs()

    def entry_conjugate(self, t: Tensor) -> Tensor:
        excess = (t.abs() - self.strength).relu()
        return 0.5 * excess * excess

    def entry_mirror(self, t: Tensor) -> Tensor:
        # two relus rather than t - clamp(t), which is nan at infinity
        return (t - self.strength).relu() - (-t - self.strength).relu()

    def entry_contains(self, x: Tensor, tolerance: float) -> Tensor:
        return x.isfinite()

    def entry_sample(self, t: Tensor, temperature: Tensor, generator: torch.Generator | None) -> Tensor:
        right, left = self._log_sides(t, temperature)
        sign = torch.where(uniform(t.shape, t, generator) < (right - left).sigmoid(), 1.0, -1.0).to(t.dtype)
        noise = uniform(t.shape, t, generator)
        return sign * truncated_normal(sign * t - self.strength, temperature, 0.0, math.inf, noise)

    def entry_log_partition(self, t: Tensor, temperature: Tensor) -> Tensor:
        return torch.logaddexp(*self._log_sides(t, temperature))

    def _log_sides(self, t: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the partition functions of the positive and of the negative numbers."""
        return (
            log_gaussian_integral(t - self.strength, temperature, 0.0, math.inf),
            log_gaussian_integral(-t - self.strength, temperature, 0.0, math.inf),
        )

    def __repr__(self) -> str:
        return f"L1({self.strength:g})"


def _as_tensor(temperature: float | Tensor, like: Tensor) -> Tensor:
    return torch.as_tensor(temperature, dtype=like.dtype, device=like.device)


def _scale_excess(excess: Tensor, bound: float) -> Tensor:
    return excess * bound if bound else torch.zeros_like(excess)


def _phi(p: Tensor) -> Tensor:
    """p log p, with 0 log 0 = 0."""
    entropy: Tensor = torch.special.entr(p)
    return -entropy
