"""Samplers: from noise to a sample, by a function ``denoise(x, sigma) -> x0``.

All of them work on x = x0 + sigma noise, with rows ``(batch, numbers)``, levels that fall to 0, shape ``(steps + 1,)``, and ``noise()``, which
gives standard Gaussian noise of the shape of x. ``look(k, x, x0)`` is called after each step. A process that keeps the variance, as the
structured-diffusion paper's, is the same one after a division by sqrt(1 + sigma^2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor

Denoise = Callable[[Tensor, Tensor], Tensor]
Noise = Callable[[], Tensor]
Look = Callable[[int, Tensor, Tensor], None]
Sampler = Callable[[Denoise, Tensor, Tensor, Noise, Look], Tensor]


def ancestral(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """Draws from q(x_s | x_t, x0) at each step (Ho et al., 2020, equation 7)."""
    for k, (now, after) in enumerate(itertools.pairwise(levels)):
        x0 = denoise(x, now)
        share = (after / now) ** 2
        x = x0 + share * (x - x0)
        if after > 0:
            x = x + after * (1 - share).sqrt() * noise()
        look(k, x, x0)
    return x


def ddim(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """Keeps the noise that the estimate implies (Song et al., 2021, eta = 0): Euler steps of the probability flow."""
    for k, (now, after) in enumerate(itertools.pairwise(levels)):
        x0 = denoise(x, now)
        x = x0 + after / now * (x - x0)
        look(k, x, x0)
    return x


def heun(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """Second-order steps of the probability flow, two estimates each (Karras et al., 2022, algorithm 1)."""
    for k, (now, after) in enumerate(itertools.pairwise(levels)):
        x0 = denoise(x, now)
        slope = (x - x0) / now
        there = x + (after - now) * slope
        if after > 0:
            slope = (slope + (there - denoise(there, after)) / after) / 2
        x = x + (after - now) * slope
        look(k, x, x0)
    return x


def dpm_solver(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """DPM-Solver++ 2M (Lu et al., 2022): exact in the linear part, the estimate extrapolated from the step before."""
    before: Tensor | None = None
    for k, (now, after) in enumerate(itertools.pairwise(levels)):
        x0 = denoise(x, now)
        straight = _extrapolated(x0, before, levels, k)
        x = straight + after / now * (x - straight)
        before = x0
        look(k, x, x0)
    return x


def dpm_solver_sde(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """SDE-DPM-Solver++ 2M (Lu et al., 2022): the same for the stochastic process, with fresh noise in each step."""
    before: Tensor | None = None
    for k, (now, after) in enumerate(itertools.pairwise(levels)):
        x0 = denoise(x, now)
        straight = _extrapolated(x0, before, levels, k)
        share = (after / now) ** 2
        x = straight + share * (x - straight)
        if after > 0:
            x = x + after * (1 - share).sqrt() * noise()
        before = x0
        look(k, x, x0)
    return x


_CHURN = 16.0
"""How much more noise there is in ``churn`` than in ``ancestral``; at 20 steps all of it is new in each."""


def churn(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """The reverse process with more noise than it needs, so that few steps still leave what they got wrong (Karras et al., 2022, equation 6).

    Exact in the linear part. The estimate is carried on half as far as in ``dpm_solver_sde``: with so much noise the whole of it spreads samples too
    far in few steps, and nothing of it not far enough (Gaussian data have 1.57, 0.66, and as it is 0.90 of their deviation after 20).
    """
    before: Tensor | None = None
    for k, (now, after) in enumerate(itertools.pairwise(levels)):
        x0 = denoise(x, now)
        middle = (x0 + _extrapolated(x0, before, levels, k)) / 2
        x = middle + (after / now) ** (1 + _CHURN) * (x - middle)
        if after > 0:
            x = x + after * (1 - (after / now) ** (2 * _CHURN)).sqrt() * noise()
        before = x0
        look(k, x, x0)
    return x


def restarted(sampler: Sampler, denoise: Denoise, x: Tensor, falls: Sequence[Tensor], noise: Noise, look: Look) -> Tensor:
    """Several falls of the noise, with fresh noise up to the beginning of the next between them (Xu et al., 2023).

    What a step too long has spoilt is mended by the next fall, which starts from a sample that is nearly right, not from noise.

    Args:
        sampler: for each fall.
        denoise: as of the sampler.
        x: at the first level of the first fall.
        falls: falling levels, as a sampler needs them.
        noise: as of the sampler.
        look: as of the sampler; steps are numbered through.
    """
    done = 0

    def look_on(k: int, now: Tensor, x0: Tensor) -> None:
        look(done + k, now, x0)

    for index, levels in enumerate(falls):
        if index:
            x = x + (levels[0] ** 2 - falls[index - 1][-1] ** 2).sqrt() * noise()
        x = sampler(denoise, x, levels, noise, look_on)
        done += len(levels) - 1
    return x


def _extrapolated(x0: Tensor, before: Tensor | None, levels: Tensor, k: int) -> Tensor:
    """The estimate of step k, carried on to the middle of the step from that of the step before; as it is where there is none."""
    if before is None or not 0 < levels[k + 1] < levels[k] < levels[k - 1]:
        return x0
    ratio = (levels[k - 1] / levels[k]).log() / (levels[k] / levels[k + 1]).log()
    return x0 + (x0 - before) / (2 * ratio)


SAMPLERS: dict[str, Sampler] = {
    "ancestral": ancestral,
    "ddim": ddim,
    "heun": heun,
    "dpm-solver": dpm_solver,
    "dpm-solver-sde": dpm_solver_sde,
    "churn": churn,
}
"""By name."""
