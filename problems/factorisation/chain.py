"""Factorisation as a program of random choices with a relaxed product, for Markov chains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unn.errors import ArgumentError

from ..generated.metropolis import Program, Site, Values, for_chains, uniform
from .baselines import check_matrices

NOISE = 0.01
"""Standard deviation of E."""


def factorisation(E: Tensor, rank: int, deviation: float = NOISE, drift: float = 0.0) -> Program:
    """A has uniform entries between 0 and 1, R is 1 with probability 0.3, E is Gaussian around A R.

    Args:
        E: matrices, shape ``(count, rows, columns)``; one per chain, or one for all chains.
        rank: rank of the factorisation.
        deviation: standard deviation of E.
        drift: standard deviation of random-walk proposals for A; 0 to propose from the prior.

    Returns:
        A program of A, shape ``(chains, rows, rank)``, and R, shape ``(chains, rank, columns)``.

    Raises:
        ArgumentError: for a rank below 1, a deviation that is not positive, or a negative drift.
        ObservationError: for an E of another shape, or with NaN or infinite entries.
    """
    check_matrices(E, rank, 0)
    if not 0 < deviation < math.inf or not 0 <= drift < math.inf:
        raise ArgumentError(
            f"metropolis: the deviation must be positive and the drift at least 0, got {deviation!r} and "
            f"{drift!r}."
        )
    target = E.double()
    A = Site(
        (E.shape[1], rank), uniform, lambda x: torch.where((x >= 0) & (x <= 1), 0.0, -math.inf).to(x), drift
    )
    R = Site(
        (rank, E.shape[2]),
        lambda count, g: uniform(count, g) < 0.3,
        lambda x: torch.where(x > 0.5, math.log(0.3), math.log(0.7)).to(x),
    )

    def log_likelihood(values: Values) -> Tensor:
        product = values["A"] @ values["R"]
        return -((product - for_chains("E", target, len(product))) ** 2).sum((1, 2)) / (2 * deviation**2)

    def outputs(values: Values) -> dict[str, Tensor]:
        return {name: x.to(E) for name, x in values.items()}

    return Program({"A": A, "R": R}, log_likelihood, outputs=outputs)
