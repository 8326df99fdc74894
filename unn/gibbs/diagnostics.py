"""How far to trust draws of Markov chains: effective sizes and the reduction of scale.

The definitions are those of Vehtari, Gelman, Simpson, Carpenter and Buerkner, "Rank-normalization, folding,
and localization: an improved R-hat" (Bayesian Analysis, 2021). Draws have shape ``(chains, draws, *axes)``,
and every entry is judged by itself.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from ..errors import ArgumentError

_FEWEST = 4
"""Fewest draws of a chain from which a half has a variance."""


def effective_size(draws: Tensor) -> Tensor:
    """Number of independent draws whose mean would be as precise, shape of the axes, float64.

    Chains are split into halves; autocorrelations are summed as far as sums of neighbouring pairs are
    positive and fall (Geyer, 1992).

    Args:
        draws: shape ``(chains, draws, *axes)``, at least 4 draws.

    Raises:
        ArgumentError: for fewer draws.
    """
    return _size(_split(_flat(draws))).view(draws.shape[2:])


def bulk_size(draws: Tensor) -> Tensor:
    """Effective size of the ranks of draws, which is that of the bulk of the distribution, defined also where
    this has no variance; shape of the axes, float64.

    Arguments and errors as for ``effective_size``.
    """
    return _size(_normal_ranks(_split(_flat(draws)))).view(draws.shape[2:])


def _size(flat: Tensor) -> Tensor:
    """Effective size of halves of chains, shape ``(entries,)``."""
    chains, length, _ = flat.shape
    total = chains * length
    centred = flat - flat.mean(1, keepdim=True)
    covariances = _autocovariances(centred)
    mean_variance = covariances[:, 0].mean(0) * length / (length - 1)
    overall = mean_variance * (length - 1) / length
    if chains > 1:
        overall = overall + flat.mean(1).var(0)
    is_constant = flat.amax((0, 1)) == flat.amin((0, 1))
    safe = torch.where(is_constant, 1, overall)
    correlations = 1 - (mean_variance - covariances.mean(0)) / safe
    correlations[0] = 1
    pairs = correlations[: length // 2 * 2].unflatten(0, (-1, 2))
    # the last pair that may count: its sum needs two covariances within the chain
    last = max(0, (length - 3) // 2)
    sums = pairs.sum(1)[: last + 1]
    ends = (sums <= 0).int()
    ends[-1] = 1
    first = ends.argmax(0)
    before = torch.arange(len(sums), device=sums.device)[:, None] < first
    falling = sums.cummin(0).values
    rest = pairs[: last + 1, 0].gather(0, first[None])[0].clamp(min=0)
    time = -1 + 2 * torch.where(before, falling, 0).sum(0) + rest
    size: Tensor = total / time.clamp(min=1 / math.log10(total))
    return torch.where(is_constant, float(total), size)


def scale_reduction(draws: Tensor) -> Tensor:
    """The factor by which chains that were run for ever would be narrower (rank-normalised split R-hat).

    Shape of the axes, float64: 1 where chains agree, NaN where all draws are equal.

    The larger of the factors of the ranks and of the ranks of distances from the median. Values above 1.01
    mean that the chains have not forgotten where they started.

    Args:
        draws: shape ``(chains, draws, *axes)``, at least 4 draws.

    Raises:
        ArgumentError: for fewer draws.
    """
    flat = _split(_flat(draws))
    # the median of an even number of draws is the mean of the two in the middle
    middle = torch.from_numpy(np.median(flat.flatten(0, 1).numpy(), axis=0))
    folded = (flat - middle).abs()
    factor = torch.maximum(_reduction(_normal_ranks(flat)), _reduction(_normal_ranks(folded)))
    return factor.view(draws.shape[2:])


def _reduction(x: Tensor) -> Tensor:
    length = x.shape[1]
    between = length * x.mean(1).var(0)
    within = x.var(1).mean(0)
    ratio: Tensor = (between / within + length - 1) / length
    return torch.sqrt(ratio)


def _normal_ranks(x: Tensor) -> Tensor:
    chains, length, entries = x.shape
    ranks = torch.from_numpy(rankdata(x.reshape(-1, entries).numpy(), method="average", axis=0))
    share = (ranks - 3 / 8) / (chains * length + 1 / 4)
    scores: Tensor = torch.special.ndtri(share)
    return scores.view(x.shape)


def _flat(draws: Tensor) -> Tensor:
    """Draws with all axes in one, on the CPU, shape ``(chains, draws, entries)``, float64."""
    if draws.ndim < 2 or draws.shape[1] < _FEWEST or not draws.shape[0]:
        raise ArgumentError(
            f"diagnostics need draws of shape (chains, draws, *axes) with at least {_FEWEST} draws of each "
            f"chain, got {tuple(draws.shape)}."
        )
    return draws.detach().double().cpu().reshape(*draws.shape[:2], -1)


def _split(x: Tensor) -> Tensor:
    """Halves of chains as chains of their own; the draw in the middle of an odd number is left out."""
    half = x.shape[1] // 2
    return torch.cat([x[:, :half], x[:, x.shape[1] - half :]])


def _autocovariances(centred: Tensor) -> Tensor:
    """Sums of products at each lag over the length of a chain, shape of ``centred``."""
    length = centred.shape[1]
    transformed = torch.fft.rfft(centred, 2 * length, dim=1)
    power = transformed.real.square() + transformed.imag.square()
    sums: Tensor = torch.fft.irfft(power, 2 * length, dim=1)[:, :length]
    return sums / length
