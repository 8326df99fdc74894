"""Normal distributions truncated to an interval: samples and integrals, exact far into the tails."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_DEEP = -600.0
"""Logarithms of probabilities below this one underflow as numbers."""
_NEWTON_STEPS = 4


def truncated_normal(mean: Tensor, variance: Tensor, low: float, high: float, uniform: Tensor) -> Tensor:
    """A draw of a normal distribution truncated to an interval, by its inverse distribution function.

    Args:
        mean, variance: of the normal distribution before truncation, of shapes that broadcast.
        low, high: ends of the interval, which may be infinite.
        uniform: noise in [0, 1), shape of the result.

    Returns:
        Shape of ``uniform``, dtype of ``mean``.
    """
    wide, deviation = mean.double(), variance.double().sqrt()
    left, right = (low - wide) / deviation, (high - wide) / deviation
    # the distribution function is precise in the left tail only
    flipped = left + right > 0
    first, last = torch.where(flipped, -right, left), torch.where(flipped, -left, right)
    below, above = torch.special.log_ndtr(first), torch.special.log_ndtr(last)
    share = (below - above).exp()
    noise = uniform.double().clamp(min=torch.finfo(torch.float64).tiny)
    z = _inverse(above + torch.log(share + noise * (1 - share)))
    z = torch.where(flipped, -z, z)
    return (wide + deviation * z).clamp(low, high).to(mean.dtype)


def _inverse(log_probability: Tensor) -> Tensor:
    """The number below which a standard normal variable has the given logarithm of a probability."""
    shallow = torch.special.ndtri(log_probability.clamp(min=_DEEP).exp())
    z = -(-2 * log_probability.clamp(max=_DEEP)).sqrt()
    for _ in range(_NEWTON_STEPS):
        value = torch.special.log_ndtr(z)
        slope = (-0.5 * z * z - 0.5 * math.log(2 * math.pi) - value).exp()
        z = z - (value - log_probability.clamp(max=_DEEP)) / slope
    return torch.where(log_probability < _DEEP, z, shallow)


def log_gaussian_integral(score: Tensor, variance: Tensor, low: float, high: float) -> Tensor:
    """log of the integral of exp((score x - x^2 / 2) / variance) over an interval.

    Args:
        score: any numbers.
        variance: positive, of a shape that broadcasts to that of ``score``.
        low, high: ends of the interval, which may be infinite.

    Returns:
        Shape of ``score``, in its dtype.
    """
    wide, deviation = score.double(), variance.double().sqrt()
    left, right = (low - wide) / deviation, (high - wide) / deviation
    flipped = left + right < 0
    # the interval lies to the right of the mean, or holds more of its right side
    near, far = torch.where(flipped, -right, left), torch.where(flipped, -left, right)
    end = torch.where(flipped, -torch.as_tensor(high), torch.as_tensor(low)).double()
    mirrored = torch.where(flipped, -wide, wide)
    inside, endless = near < 0, far.isinf()
    # infinite ends are replaced before they enter formulas, whose derivatives would be NaN
    near_left = torch.where(inside & near.isfinite(), near, 0)
    outside = torch.where(near.isinf(), 0, torch.special.log_ndtr(-near_left))
    far_right = torch.where(endless, 0, far)
    missing = torch.where(endless, 0, (torch.special.log_ndtr(-far_right) - outside).exp())
    # of an interval around the mean: exp(score^2 / 2 variance) times a probability
    around = 0.5 * (wide / deviation) ** 2 + outside + torch.log1p(-torch.where(inside, missing, 0))
    # of one in the tail: the mean lies far away, and its square would cancel
    tail_near = torch.where(inside, 0, near)
    tail_far = torch.where(inside | endless, tail_near + 1, far)
    gap = 0.5 * (tail_far - tail_near) * (tail_far + tail_near)
    scaled = torch.special.erfcx(tail_near / math.sqrt(2))
    rest = torch.where(endless, 0, torch.special.erfcx(tail_far / math.sqrt(2)) * (-gap).exp())
    edge = torch.where(inside, 0, end)
    tail = edge * (mirrored - 0.5 * edge) / deviation**2 + (0.5 * (scaled - rest)).log()
    result = torch.where(inside, around, tail) + 0.5 * math.log(2 * math.pi) + deviation.log()
    return result.to(score.dtype)
