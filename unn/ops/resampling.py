"""Resampling of weighted particles."""

from __future__ import annotations

import torch
from torch import Tensor


def effective_number(log_weights: Tensor) -> float:
    """Effective number of weighted particles, (sum w)^2 / sum w^2; 0 if all weights are 0.

    Args:
        log_weights: logarithms of the weights, up to a constant, shape ``(particles,)``.
    """
    return float((2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)).exp().nan_to_num())


def systematic_resampling(log_weights: Tensor, offset: float) -> Tensor:
    """Indices of particles that are drawn with probabilities proportional to their weights, at evenly spaced
    places, so that the number of copies of each is its expectation up to rounding; shape ``(particles,)``.

    Args:
        log_weights: logarithms of the weights, up to a constant, shape ``(particles,)``, not all -inf.
        offset: uniform random number in [0, 1).
    """
    shares = log_weights.double().softmax(0).cumsum(0)
    places = (torch.arange(len(shares), device=shares.device) + offset) / len(shares)
    return torch.searchsorted(shares, places).clamp(max=len(shares) - 1)
