"""Sorting as a program of random choices with relaxed constraints, for Markov chains."""

from __future__ import annotations

import torch
from torch import Tensor

from unn.errors import ObservationError

from ..generated.metropolis import CERTAINTY, Program, Values, for_chains, relaxed, whole_numbers


def sorting(u: Tensor, certainty: float = CERTAINTY) -> Program:
    """Draw an entry of the list for each rank, uniformly; constraints: entries differ and are in order.

    Args:
        u: lists, shape ``(count, n)``; one per chain, or one for all chains.
        certainty: probability of the observation if a constraint holds.

    Returns:
        A program of P, whose rows are one-hot, shape ``(chains, n, n)``, and s = P u, shape ``(chains, n)``.

    Raises:
        DeclarationError: for a certainty that is not between 0.5 and 1.
        ObservationError: for lists of another shape, or with NaN or infinite entries.
    """
    if (
        not isinstance(u, Tensor)
        or u.ndim != 2
        or not u.numel()
        or not u.is_floating_point()
        or not bool(u.isfinite().all())
    ):
        actual = f"shape {tuple(u.shape)} and dtype {u.dtype}" if isinstance(u, Tensor) else type(u).__name__
        raise ObservationError(
            f"u must be a floating-point tensor of shape (count, n) of finite numbers, got {actual}."
        )
    n = u.shape[1]
    first, second = torch.triu_indices(n, n, 1)
    log_probability = relaxed(certainty)

    def sort(choice: Tensor) -> Tensor:
        return for_chains("u", u, len(choice)).gather(1, choice.long())

    def log_likelihood(values: Values) -> Tensor:
        choice, s = values["choice"], sort(values["choice"])
        return log_probability(torch.cat([choice[:, first] != choice[:, second], s[:, 1:] >= s[:, :-1]], 1))

    def outputs(values: Values) -> dict[str, Tensor]:
        choice = values["choice"].long()
        return {"P": torch.nn.functional.one_hot(choice, n).to(u), "s": sort(choice)}

    return Program({"choice": whole_numbers((n,), n)}, log_likelihood, outputs=outputs)
