"""Conventions for randomness: functions take a generator; those that sample also take a seed."""

from __future__ import annotations

import operator

import numpy as np
import torch

from ..errors import ObservationError


def generator_for(where: str, generator: torch.Generator | None, seed: int | None) -> torch.Generator | None:
    """Generator for a call; None for torch's global generator.

    Args:
        where: name of the call, for messages.
        generator: generator passed by the user.
        seed: seed passed by the user instead, for a new generator on the CPU.

    Raises:
        ObservationError: if both were passed, or the seed is not a whole number from 0 to 2**63 - 1.
    """
    if seed is None:
        return generator
    if generator is not None:
        raise ObservationError(f"{where}: pass generator or seed, not both.")
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if isinstance(seed, bool) or not 0 <= number < 2**63:
        raise ObservationError(f"{where}: a seed is a whole number from 0 to 2**63 - 1, got {seed!r}.")
    return torch.Generator().manual_seed(number)


def seed_of(*keys: int) -> int:
    """Combine several numbers into a 63-bit seed with numpy's SeedSequence."""
    low, high = np.random.SeedSequence(keys).generate_state(2, np.uint32).tolist()
    return int(low) | (int(high) & 0x7FFFFFFF) << 32
