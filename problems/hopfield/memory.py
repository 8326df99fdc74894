"""Associative memory: the declaration with learned couplings, stored patterns and recall by Hebb's rule."""

from __future__ import annotations

import torch
from torch import Tensor

import unn
from factors import Multilinear


def declare(units: int) -> unn.FactorGraph:
    """Units 0 or 1, with a learned coupling for each pair and a learned field for each unit (Hopfield, 1982).

    Args:
        units: number of units.
    """
    g = unn.FactorGraph("hopfield", unit=units)
    x = g.variable("x", "unit", unn.BinaryEntropy())
    coupling = g.parameter("coupling", "unit other", init="zeros")
    field = g.parameter("field", "unit", init="zeros")
    g.factor(Multilinear(coupling["i j"], x["i"], x["j"], where="i < j", name="couplings"))
    g.factor(Multilinear(field["i"], x["i"], name="outer field"))
    return g


def stored_patterns(patterns: int, units: int, seed: int) -> Tensor:
    """Random patterns of 0 and 1 with equal probabilities, shape ``(patterns, units)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, (patterns, units), generator=generator).float()


def recall_by_projection(patterns: Tensor, values: Tensor, observed: Tensor, rounds: int = 20) -> Tensor:
    """Recall by sign updates of one unit after another, with couplings that project onto the patterns.

    These are the couplings of Personnaz, Guyon and Dreyfus (1985), which store up to as many independent
    patterns as there are units; those of Hebb store about 0.14 times the units.

    Args:
        patterns: stored patterns of 0 and 1, shape ``(patterns, units)``.
        values: given units, shape ``(batch, units)``.
        observed: mask of given units, boolean, shape ``(batch, units)``.
        rounds: number of updates of each unit.

    Returns:
        Recalled units, 0 or 1, shape ``(batch, units)``.
    """
    spins = 2 * patterns.double() - 1
    couplings = spins.T @ torch.linalg.pinv(spins.T)
    couplings.fill_diagonal_(0)
    state = torch.where(observed, 2 * values.double() - 1, 0)
    for _ in range(rounds):
        for unit in range(state.shape[1]):
            field = state @ couplings[unit]
            new = torch.where(field == 0, 1.0, field.sign())
            state[:, unit] = torch.where(observed[:, unit], state[:, unit], new)
    return (state > 0).float()
