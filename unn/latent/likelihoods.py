"""Distributions of observed nodes given the outputs of a network.

Each takes its parameters and values with the channels first, shape ``(batch, channels, *positions)``, and
gives one number for each position.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..noise import gumbel_argmax

_LEAST_SCALE = 1e-2
_LEAST_LOG_SCALE = -7.0
_LEVELS = 255
"""Steps between the levels of 8-bit channels, which lie from -1 to 1."""


class Likelihood(ABC):
    """The distribution of the nodes of a variable.

    Attributes:
        channels: numbers of a node.
        parameters: outputs of the network for a node.
        noise: uniform numbers that a sample of a node takes.
    """

    channels: int
    parameters: int
    noise: int

    @abstractmethod
    def log_probability(self, parameters: Tensor, values: Tensor) -> Tensor:
        """Logarithm of the probability or density of each node, shape ``(batch, *positions)``."""

    @abstractmethod
    def mean(self, parameters: Tensor) -> Tensor:
        """Means, shape ``(batch, channels, *positions)``."""

    @abstractmethod
    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        """Samples, shape ``(batch, channels, *positions)``.

        Args:
            parameters: outputs of the network.
            uniform: numbers between 0 and 1, shape ``(batch, noise, *positions)``.
        """


class Options(Likelihood):
    """A category, one-hot; two options are one logit, that of the second.

    Args:
        channels: number of options.
    """

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.parameters = 1 if channels == 2 else channels
        self.noise = channels

    def log_probability(self, parameters: Tensor, values: Tensor) -> Tensor:
        total: Tensor = (self._logits(parameters).log_softmax(1) * values).sum(1)
        return total

    def mean(self, parameters: Tensor) -> Tensor:
        return self._logits(parameters).softmax(1)

    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        option = gumbel_argmax(self._logits(parameters), uniform, 1)
        return F.one_hot(option, self.channels).movedim(-1, 1).to(parameters)

    def _logits(self, parameters: Tensor) -> Tensor:
        if self.channels != 2:
            return parameters
        return torch.cat([torch.zeros_like(parameters), parameters], 1)


class Normal(Likelihood):
    """Independent normal numbers, with standard deviations of at least 0.01.

    Args:
        channels: numbers of a node.
    """

    def __init__(self, channels: int) -> None:
        self.channels = self.noise = channels
        self.parameters = 2 * channels

    def log_probability(self, parameters: Tensor, values: Tensor) -> Tensor:
        mean, scale = self._split(parameters)
        each = -0.5 * ((values - mean) / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)
        total: Tensor = each.sum(1)
        return total

    def mean(self, parameters: Tensor) -> Tensor:
        return self._split(parameters)[0]

    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        mean, scale = self._split(parameters)
        least = torch.finfo(uniform.dtype).tiny
        noise: Tensor = torch.special.ndtri(uniform.clamp(least, 1 - 1e-7))
        return mean + scale * noise

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = parameters.chunk(2, 1)
        return mean, F.softplus(spread) + _LEAST_SCALE


class LogisticMixture(Likelihood):
    """8-bit channels as a mixture of discretised logistic distributions (Salimans et al., 2017).

    Channels lie from -1 to 1 in 255 steps. Of three channels, the second depends on the first and the third
    on both, linearly. The probability of a level is the mass of its interval, that of the outer levels with
    all beyond them, so that probabilities sum to one; intervals of tiny mass are exact as well. The published
    code of the deep attentive variational paper takes levels above 0.99 for the last one, and its
    probabilities sum to as much as two.

    Args:
        channels: 1 or 3.
        components: number of components.
    """

    def __init__(self, channels: int, components: int = 5) -> None:
        self.channels, self.components = channels, components
        self._coefficients = 3 if channels == 3 else 0
        self.parameters = components * (1 + 2 * channels + self._coefficients)
        self.noise = components + channels

    def log_probability(self, parameters: Tensor, values: Tensor) -> Tensor:
        logits, means, log_scales, coefficients = self._split(parameters)
        x = values[:, :, None]
        if coefficients is not None:
            earlier = [x[:, channel] for channel in range(self.channels)]
            shifts = [self._shift(coefficients, earlier[:channel]) for channel in range(1, self.channels)]
            first = torch.zeros_like(coefficients[:, 0])
            means = means + torch.stack([first, *shifts], 1)
        inverse = (-log_scales).exp()
        upper, lower = inverse * (x - means + 1 / _LEVELS), inverse * (x - means - 1 / _LEVELS)
        # sigmoid(u) - sigmoid(l) = sigmoid(u) sigmoid(-l) (1 - exp(l - u))
        inside = F.logsigmoid(upper) + F.logsigmoid(-lower) + torch.log(-torch.expm1(lower - upper))
        edge = 1 - 0.5 / _LEVELS
        each = torch.where(
            x < -edge, F.logsigmoid(upper), torch.where(x > edge, F.logsigmoid(-lower), inside)
        )
        return (each.sum(1) + logits.log_softmax(1)).logsumexp(1)

    def mean(self, parameters: Tensor) -> Tensor:
        """Means of the channels over their levels; of three channels, those of later ones given the means of
        earlier ones within each component."""
        logits, means, log_scales, coefficients = self._split(parameters)
        by_component: list[Tensor] = []
        for channel in range(self.channels):
            shifted = means[:, channel] + self._shift(coefficients, by_component)
            by_component.append(_mean_level(shifted, log_scales[:, channel]))
        return (logits.softmax(1)[:, None] * torch.stack(by_component, 1)).sum(2)

    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        logits, means, log_scales, coefficients = self._split(parameters)
        component = gumbel_argmax(logits, uniform[:, : self.components], 1)
        chosen = F.one_hot(component, self.components).movedim(-1, 1).to(parameters)[:, None]
        u = uniform[:, self.components :].clamp(1e-5, 1 - 1e-5)
        noise = (chosen * log_scales).sum(2).exp() * torch.logit(u)
        own = None if coefficients is None else (chosen * coefficients).sum(2)
        x = (chosen * means).sum(2) + noise
        levels: list[Tensor] = []
        for channel in range(self.channels):
            levels.append(to_levels(x[:, channel] + self._shift(own, levels)))
        return torch.stack(levels, 1)

    def _shift(self, coefficients: Tensor | None, earlier: Sequence[Tensor]) -> Tensor:
        """What a channel is moved by, given the earlier ones.

        Args:
            coefficients: shape ``(batch, 3, ...)``; None for one channel.
            earlier: values of the earlier channels, shape ``(batch, ...)``.
        """
        if coefficients is None or not earlier:
            return torch.zeros(())
        a, b, c = coefficients.unbind(1)
        shift: Tensor = a * earlier[0] if len(earlier) == 1 else b * earlier[0] + c * earlier[1]
        return shift

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Logits ``(batch, k, *positions)``; means, log-scales and coefficients ``(batch, channels, k,
        *positions)``."""
        k, channels = self.components, self.channels
        logits, rest = parameters[:, :k], parameters[:, k:]
        coefficients = None
        if self._coefficients:
            by_component = rest.unflatten(1, (k, 3 + 2 * channels))
            coefficients = by_component[:, :, :3].transpose(1, 2).tanh()
            rest = by_component[:, :, 3:].flatten(1, 2)
        # the order of the published code
        means, log_scales = rest.unflatten(1, (channels, 2, k)).unbind(2)
        return logits, means, log_scales.clamp(min=_LEAST_LOG_SCALE), coefficients


def to_levels(x: Tensor) -> Tensor:
    """The nearest levels of 8-bit channels."""
    half = _LEVELS / 2
    return ((x.clamp(-1, 1) + 1) * half).round() / half - 1


def is_on_levels(x: Tensor) -> bool:
    """Whether all numbers are levels of 8-bit channels, up to rounding."""
    return bool(((x - to_levels(x)).abs() <= 1e-3 / _LEVELS).all())


def _mean_level(means: Tensor, log_scales: Tensor) -> Tensor:
    """Means of the levels of discretised logistic distributions, whose outer levels have all beyond them;
    shape of ``means``."""
    inverse, below = (-log_scales).exp(), torch.zeros_like(means)
    # one number at a time, since all together would take 255 times the memory
    for level in range(_LEVELS):
        edge = (2 * level + 1) / _LEVELS - 1
        below = below + torch.sigmoid(inverse * (edge - means))
    return 1 - 2 / _LEVELS * below
