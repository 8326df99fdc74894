"""One convention for randomness: every function takes a generator, those that sample a seed as well."""

from __future__ import annotations

import operator

import numpy as np
import torch

from ..errors import ObservationError


def generator_for(where: str, generator: torch.Generator | None, seed: int | None) -> torch.Generator | None:
    """The generator that a call draws from; None for torch's global one.

    Args:
        where: the call, for messages.
        generator: that was passed.
        seed: that was passed instead, for a fresh generator on the CPU.

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
    """One seed of 63 bits from several numbers, by numpy's SeedSequence."""
    low, high = np.random.SeedSequence(keys).generate_state(2, np.uint32).tolist()
    return int(low) | (int(high) & 0x7FFFFFFF) << 32
