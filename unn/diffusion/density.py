"""The log-density of a diffusion model, by its probability-flow ODE."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import ArgumentError, is_whole

Denoise = Callable[[Tensor, Tensor], Tensor]


def flow_log_density(
    denoise: Denoise,
    x: Tensor,
    free: Tensor,
    lowest: float,
    highest: float,
    steps: int,
    probes: int = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Log-density of data under the probability-flow ODE (Song et al., 2021, Section 4.3), shape
    ``(batch,)``.

    In u = log sigma the ODE is dx/du = x - D(x, sigma), whose divergence is integrated along with it, from
    the data to noise. Data count as noisy at the lowest level, which changes a density of unit scale by about
    ``lowest`` squared. Steps are those of the classical Runge-Kutta method.

    Args:
        denoise: estimate of clean samples from noisy ones ``(batch, numbers)`` and a level ``()``.
        x: standardised samples, shape ``(batch, numbers)``.
        free: numbers whose density is computed given the others, which do not move, boolean, shape ``(batch,
            numbers)``.
        lowest, highest: levels of noise between which the ODE is solved.
        steps: number of steps.
        probes: random vectors of Hutchinson's estimate of the divergence; 0 computes it exactly, with one
            derivative for each number.
        generator: random number generator of the probes.

    Raises:
        ArgumentError: for steps below 1 or probes below 0.
    """
    if not is_whole(steps, 1) or not is_whole(probes, 0):
        raise ArgumentError(
            f"log_prob: whole numbers of steps >= 1 and probes >= 0 are needed, got {steps} and {probes}."
        )
    vectors = None
    if probes:
        signs = torch.randint(2, (probes, *x.shape), generator=generator).to(x)
        vectors = (2 * signs - 1) * free

    def slopes(at: Tensor, log_level: float) -> tuple[Tensor, Tensor]:
        estimate, trace = _with_trace(denoise, at, math.exp(log_level), free, vectors)
        return torch.where(free, at - estimate, 0), free.sum(1) - trace

    start, end = math.log(lowest), math.log(highest)
    length = (end - start) / steps
    change = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for k in range(steps):
        u = start + k * length
        dx1, dl1 = slopes(x, u)
        dx2, dl2 = slopes(x + length / 2 * dx1, u + length / 2)
        dx3, dl3 = slopes(x + length / 2 * dx2, u + length / 2)
        dx4, dl4 = slopes(x + length * dx3, u + length)
        x = x + length / 6 * (dx1 + 2 * dx2 + 2 * dx3 + dx4)
        change = change + length / 6 * (dl1 + 2 * dl2 + 2 * dl3 + dl4)
    return _log_density_of_noise(denoise, x, highest, free, vectors) + change


def _log_density_of_noise(
    denoise: Denoise, x: Tensor, highest: float, free: Tensor, vectors: Tensor | None
) -> Tensor:
    """Log-density at the highest level, shape ``(batch,)``.

    It is normal with the mean m and the covariance S + sigma^2 I of the noisy data. Estimates there are m + G
    (x - m) with the small matrix G = S (S + sigma^2 I)^-1, so that the residual r = x - D(x) determines the
    exponent, r^T (I - G)^-1 r / sigma^2 = (r^T r + r^T G r) / sigma^2, and the trace of G the determinant.
    """
    estimate, trace = _with_trace(denoise, x, highest, free, vectors)
    residual = torch.where(free, x - estimate, 0)
    _, along = _with_trace(denoise, x, highest, free, residual[None])
    exponent = (residual.square().sum(1) + along) / highest**2
    return -0.5 * (exponent + trace + free.sum(1) * math.log(2 * math.pi * highest**2))


def _with_trace(
    denoise: Denoise, x: Tensor, level: float, free: Tensor, vectors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The estimate, and the trace of its derivative over the free numbers, shape ``(batch,)``."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        estimate = denoise(x, torch.as_tensor(level, dtype=x.dtype, device=x.device))
        trace = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        if vectors is not None:
            for vector in vectors:
                (product,) = torch.autograd.grad(estimate, x, vector, retain_graph=True)
                trace += (product * vector).sum(1) / len(vectors)
        else:
            for number in free.any(0).nonzero().flatten().tolist():
                (row,) = torch.autograd.grad(estimate[:, number].sum(), x, retain_graph=True)
                trace += torch.where(free[:, number], row[:, number], 0)
    return estimate.detach(), trace
