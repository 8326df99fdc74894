"""Normal distributions of latent groups with bounded parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MEAN_BOUND = 5.0
"""Means lie between minus and plus this."""
LOG_SCALE_BOUNDS = (-5.0, 5.0)
_LEAST_SCALE = 1e-2


@dataclass(frozen=True, eq=False)
class Normals:
    """Independent normal distributions.

    Attributes:
        mean: means, shape ``(batch, channels, *positions)``.
        scale: standard deviations, same shape.
    """

    mean: Tensor
    scale: Tensor

    def at(self, noise: Tensor) -> Tensor:
        """The values at standard normal noise, shape of the means."""
        return self.mean + self.scale * noise

    def log_density(self, z: Tensor) -> Tensor:
        """Logarithm of the density, shape ``(batch,)``."""
        each = -0.5 * ((z - self.mean) / self.scale).square() - self.scale.log() - 0.5 * math.log(2 * math.pi)
        return each.flatten(1).sum(1)

    def divergences(self, other: Normals) -> Tensor:
        """KL(self || other) of each unit in nats, shape of the means."""
        ratio = (self.scale / other.scale).square()
        shift = ((self.mean - other.mean) / other.scale).square()
        each: Tensor = 0.5 * (ratio + shift - 1 - ratio.log())
        return each

    def divergence(self, other: Normals) -> Tensor:
        """KL(self || other) in nats, shape ``(batch,)``."""
        return self.divergences(other).flatten(1).sum(1)


def bounded(x: Tensor, low: float, high: float) -> Tensor:
    """Bound numbers smoothly: a hyperbolic tangent of slope 1/2 for symmetric bounds, else a smooth step."""
    if low == -high:
        return high * torch.tanh(x / (2 * high))
    share = ((x - low) / (high - low)).clamp(0, 1)
    return low + (high - low) * share.square() * (3 - 2 * share)


def normals(raw: Tensor, log_scale_bounds: tuple[float, float] = LOG_SCALE_BOUNDS) -> Normals:
    """Normal distributions of bounded parameters (published configuration of the deep attentive variational
    paper).

    Args:
        raw: means, then logarithms of scales, shape ``(batch, 2 channels, *positions)``.
        log_scale_bounds: bounds of the latter.
    """
    mean, log_scale = raw.chunk(2, 1)
    scale = bounded(log_scale, *log_scale_bounds).exp() + _LEAST_SCALE
    return Normals(bounded(mean, -MEAN_BOUND, MEAN_BOUND), scale)


def standard(like: Tensor) -> Normals:
    """Standard normal distributions of a shape."""
    return Normals(torch.zeros_like(like), torch.ones_like(like))
