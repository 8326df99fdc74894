"""Samplers, which integrate the reverse process with a denoiser ``denoise(x, sigma) -> x0``.

All samplers work on x = x0 + sigma noise (variance exploding), shape ``(batch, numbers)``.
``levels`` are noise levels that decrease to 0, shape ``(steps + 1,)``; ``noise()`` returns standard
Gaussian noise of the shape of x; the callback ``callback(k, x, x0)`` is called after each step.
Dividing by sqrt(1 + sigma^2) gives the variance-preserving process of the structured-diffusion
paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Denoise = Callable[[Tensor, Tensor], Tensor]
Noise = Callable[[], Tensor]
Callback = Callable[[int, Tensor, Tensor], None]
Sampler = Callable[[Denoise, Tensor, Tensor, Noise, Callback], Tensor]


def ancestral(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, callback: Callback) -> Tensor:
    """Ancestral sampling: draw from q(x_s | x_t, x0) at each step (Ho et al., 2020, equation 7)."""
    return _exponential_integrator(denoise, x, levels, noise, callback, eta=1, extrapolation=0)


def ddim(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, callback: Callback) -> Tensor:
    """DDIM with eta = 0 (Song et al., 2021): Euler steps of the probability-flow ODE."""
    return _exponential_integrator(denoise, x, levels, noise, callback, eta=0, extrapolation=0)


def dpm_solver(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, callback: Callback) -> Tensor:
    """DPM-Solver++ 2M (Lu et al., 2022): exact linear part, estimate extrapolated from the previous step."""
    return _exponential_integrator(denoise, x, levels, noise, callback, eta=0, extrapolation=1)


def dpm_solver_sde(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, callback: Callback) -> Tensor:
    """SDE-DPM-Solver++ 2M (Lu et al., 2022): ``dpm_solver`` for the reverse SDE."""
    return _exponential_integrator(denoise, x, levels, noise, callback, eta=1, extrapolation=1)


def churn(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, callback: Callback) -> Tensor:
    """Stochastic sampler with more noise than ``ancestral`` (Karras et al., 2022, equation 6), for few steps.

    The noise rate is 32 times the step length in log sigma, at most 16: with 20 steps nearly all
    noise is replaced in each step, which removes the errors of earlier steps. Samples become too
    sharp: 20 steps of ``LinearSteps(last=0.01)`` keep 0.91 of the standard deviation of Gaussian
    data of unit variance, 100 steps 0.97, 1000 steps 0.999. The rate decreases with the step
    length, so the sampler converges to the right distribution.
    """
    return _exponential_integrator(
        denoise, x, levels, noise, callback, eta=16, extrapolation=0.5, per_length=32
    )


def heun(denoise: Denoise, x: Tensor, levels: Tensor, noise: Noise, callback: Callback) -> Tensor:
    """Heun's method for the probability-flow ODE (Karras et al., 2022, algorithm 1), two estimates a step."""
    for k, (now, after) in enumerate(itertools.pairwise(levels)):
        x0 = denoise(x, now)
        slope = (x - x0) / now
        euler = x + (after - now) * slope
        if after > 0:
            slope = (slope + (euler - denoise(euler, after)) / after) / 2
        x = x + (after - now) * slope
        callback(k, x, x0)
    return x


def restart_sampling(
    sampler: Sampler,
    denoise: Denoise,
    x: Tensor,
    schedules: Sequence[Tensor],
    noise: Noise,
    callback: Callback,
) -> Tensor:
    """Restart sampling (Xu et al., 2023): run several noise schedules, re-noising the sample in between.

    Re-noising to the first level of the next schedule contracts the discretisation error of the
    previous schedule. Each schedule adds a discretisation error of its own, so the sampler
    converges to the right distribution only as each schedule gets more steps.

    Args:
        sampler: sampler for each schedule.
        denoise: denoiser, as for the sampler.
        x: noisy sample at the first level of the first schedule.
        schedules: noise schedules, each with decreasing levels, shape ``(steps + 1,)``.
        noise: noise source, as for the sampler.
        callback: callback, as for the sampler; steps are numbered across all schedules.
    """
    done = 0

    def numbered(k: int, now: Tensor, x0: Tensor) -> None:
        callback(done + k, now, x0)

    for index, levels in enumerate(schedules):
        if index:
            x = x + (levels[0] ** 2 - schedules[index - 1][-1] ** 2).sqrt() * noise()
        x = sampler(denoise, x, levels, noise, numbered)
        done += len(levels) - 1
    return x


def _exponential_integrator(
    denoise: Denoise,
    x: Tensor,
    levels: Tensor,
    noise: Noise,
    callback: Callback,
    eta: float,
    extrapolation: float,
    per_length: float | None = None,
) -> Tensor:
    """Exponential integrator for any noise rate (Karras et al., 2022, equation 6).

    It is exact for a constant estimate.

    Args:
        denoise, x, levels, noise, callback: as for every sampler.
        eta: noise rate; 0 integrates the probability-flow ODE, 1 the reverse SDE.
        extrapolation: weight of the second-order correction in [0, 1].
        per_length: bound on ``eta`` per unit of step length log(now / after); None for no bound.
    """
    previous: Tensor | None = None
    for k, (now, after) in enumerate(itertools.pairwise(levels)):
        x0 = denoise(x, now)
        straight = x0 + extrapolation * midpoint_correction(x0, previous, levels, k) if extrapolation else x0
        rate = eta if per_length is None else (per_length * (now / after).log()).clamp(max=eta)
        x = straight + (after / now) ** (1 + rate) * (x - straight)
        if eta and after > 0:
            x = x + after * (1 - (after / now) ** (2 * rate)).sqrt() * noise()
        previous = x0
        callback(k, x, x0)
    return x


def midpoint_correction(x0: Tensor, previous: Tensor | None, levels: Tensor, k: int) -> Tensor:
    """Linear extrapolation of the estimate to the midpoint of step k in log-SNR; zero for the first step."""
    if previous is None or not 0 < levels[k + 1] < levels[k] < levels[k - 1]:
        return torch.zeros_like(x0)
    ratio = (levels[k - 1] / levels[k]).log() / (levels[k] / levels[k + 1]).log()
    return (x0 - previous) / (2 * ratio)


SAMPLERS: dict[str, Sampler] = {
    "ancestral": ancestral,
    "ddim": ddim,
    "heun": heun,
    "dpm-solver": dpm_solver,
    "dpm-solver-sde": dpm_solver_sde,
    "churn": churn,
}
"""All samplers, by name."""
