"""Samples of the exact conditional distributions of traced programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from unn.networks.tokens import Given
    from unn.programs import Traced

PARTICLES = 10_000
"""Smallest number of particles of a reference."""


def program_reference(traced: Traced, given: Given, count: int, seed: int) -> dict[str, Tensor]:
    """Samples given one evidence, by sequential Monte Carlo on the density of a program, shape ``(count,
    *shape)``.

    Args:
        traced: program.
        given: evidence with a batch axis of 1, complete or partial.
        count: number of samples, a random part of at least 10,000 particles.
        seed: random seed.
    """
    import torch

    from unn import Partial

    evidence = {
        name: Partial(x.value.double(), x.mask) if isinstance(x, Partial) else x.double()
        for name, x in given.items()
    }
    particles = max(count, PARTICLES)
    values = traced.posterior(evidence, particles, seed=seed).values
    order = torch.randperm(particles, generator=torch.Generator().manual_seed(seed))[:count]
    return {name: x[order] for name, x in values.items()}
