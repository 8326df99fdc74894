"""Samplers: from noise to a sample, by a function ``denoise(x, sigma) -> x0``.

All of them work on x = x0 + sigma noise, with rows ``(batch, numbers)``, levels that fall to 0, shape ``(steps + 1,)``, and ``noise()``, which
gives standard Gaussian noise of the shape of x. ``look(k, x, x0)`` is called after each step. A process that keeps the variance, as the
structured-diffusion paper's, is the same one after a division by sqrt(1 + sigma^2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Denoise = Callable[[Tensor, Tensor], Tensor]
Noise = Callable[[], Tensor]
Look = Callable[[int, Tensor, Tensor], None]
Sampler = Callable[[Denoise, Tensor, Tensor, Noise, Look], Tensor]


def ancestral(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """Draws from q(x_s | x_t, x0) at each step (Ho et al., 2020, equation 7)."""
    return _exponential(denoise, x, levels, noise, look, renewed=1, carried=0)


def ddim(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """Keeps the noise that the estimate implies (Song et al., 2021, eta = 0): Euler steps of the probability flow."""
    return _exponential(denoise, x, levels, noise, look, renewed=0, carried=0)


def dpm_solver(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """DPM-Solver++ 2M (Lu et al., 2022): exact in the linear part, the estimate extrapolated from the step before."""
    return _exponential(denoise, x, levels, noise, look, renewed=0, carried=1)


def dpm_solver_sde(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """SDE-DPM-Solver++ 2M (Lu et al., 2022): the same for the stochastic process, with fresh noise in each step."""
    return _exponential(denoise, x, levels, noise, look, renewed=1, carried=1)


def churn(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look) -> Tensor:
    """The reverse process with more noise than ``ancestral`` (Karras et al., 2022, equation 6), for few steps; it sharpens.

    The noise rate is 32 times the length of a step in log sigma, 16 at most: with 20 steps nearly all noise is replaced in each of them, so that the
    errors of earlier steps do not last. The price is spread: 20 steps of ``LinearSteps(last=0.01)`` keep 0.91 of the standard deviation of Gaussian
    data of unit variance, 100 steps 0.97, 1000 steps 0.999. As the rate falls with the length of the steps, the limit is the right distribution.
    """
    return _exponential(denoise, x, levels, noise, look, renewed=16, carried=0.5, per_length=32)


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


def restarted(sampler: Sampler, denoise: Denoise, x: Tensor, falls: Sequence[Tensor], noise: Noise, look: Look) -> Tensor:
    """Restart sampling (Xu et al., 2023): several falls of the noise, with fresh noise up to the first level of the next one in between.

    Fresh noise contracts the discretisation error of the fall before. Each fall adds a discretisation error of its own, so that the limit is the
    right distribution only as the falls themselves get more steps.

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


def _exponential(
    denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, look: Look, renewed: float, carried: float,
    per_length: float | None = None,
) -> Tensor:
    """Steps that are exact where the estimate does not change, for any amount of noise in the reverse process (Karras et al., 2022, equation 6).

    Args:
        denoise, x, levels, noise, look: as of every sampler.
        renewed: how fast noise is replaced by fresh noise: 0 for the probability flow, 1 for the reverse of the process that made the noise.
        carried: how much of the way to the middle of a step its estimate is extrapolated from the one before: 1 for the second order.
        per_length: limits ``renewed`` to this number times log(now / after), so that it falls as steps get shorter; None for no limit.
    """
    before: Tensor | None = None
    for k, (now, after) in enumerate(itertools.pairwise(levels)):
        x0 = denoise(x, now)
        straight = x0 + carried * _change(x0, before, levels, k) if carried else x0
        rate = renewed if per_length is None else (per_length * (now / after).log()).clamp(max=renewed)
        x = straight + (after / now) ** (1 + rate) * (x - straight)
        if renewed and after > 0:
            x = x + after * (1 - (after / now) ** (2 * rate)).sqrt() * noise()
        before = x0
        look(k, x, x0)
    return x


def _change(x0: Tensor, before: Tensor | None, levels: Tensor, k: int) -> Tensor:
    """By how much the estimate of step k changes to the middle of the step, as it did since the step before; nothing where there is none."""
    if before is None or not 0 < levels[k + 1] < levels[k] < levels[k - 1]:
        return torch.zeros_like(x0)
    ratio = (levels[k - 1] / levels[k]).log() / (levels[k] / levels[k + 1]).log()
    return (x0 - before) / (2 * ratio)


SAMPLERS: dict[str, Sampler] = {
    "ancestral": ancestral,
    "ddim": ddim,
    "heun": heun,
    "dpm-solver": dpm_solver,
    "dpm-solver-sde": dpm_solver_sde,
    "churn": churn,
}
"""By name."""
