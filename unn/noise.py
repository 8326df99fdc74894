"""Random noise, and samples of categorical distributions made from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform noise in [0, 1) with dtype and device of ``like``, drawn on the device of the generator."""
    if generator is None:
        # compiled code of any batch size takes no generator, not even None
        return torch.rand(tuple(shape), dtype=like.dtype, device=like.device)
    drawn = torch.rand(tuple(shape), generator=generator, dtype=like.dtype, device=generator.device)
    return drawn.to(like.device)


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gaussian noise of unit variance, otherwise as ``uniform``."""
    if generator is None:
        return torch.randn(tuple(shape), dtype=like.dtype, device=like.device)
    drawn = torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=generator.device)
    return drawn.to(like.device)


def gumbel_argmax(logits: Tensor, noise: Tensor, dim: int = -1) -> Tensor:
    """Draw from softmax(logits) along one axis by the Gumbel-max trick; int64, without that axis.

    Args:
        logits: logarithms of unnormalised probabilities.
        noise: uniform noise in [0, 1], shape of ``logits``.
        dim: axis of the options.
    """
    limits = torch.finfo(noise.dtype)
    # Gumbel noise is infinite at 0 and 1
    noise = noise.clamp(limits.tiny, 1 - limits.eps / 2)
    return (logits - (-noise.log()).log()).argmax(dim)
