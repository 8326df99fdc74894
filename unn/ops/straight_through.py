"""Hard values with soft gradients, for the training of solvers by losses of constraints."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..regularizers import Elementwise, LogPartition, Regularizer, Simplex


def straight_through(x: Tensor, domain: Regularizer) -> Tensor:
    """The discrete value nearest to x, with the gradient of x (Bengio, Leonard and Courville, 2013).

    The forward value is one-hot at the largest entry for a domain on the simplex (the first one of several),
    an end of the interval for a bounded elementwise domain (the upper one from the middle on), and the
    highest-scoring structure with scores x for a domain of structures. Derivatives are those of the identity.

    Args:
        x: values of a variable, shape ``(batch, *axes)``.
        domain: regularizer of the variable, ``graph["X"].regularizer``.

    Returns:
        Shape ``(batch, *axes)``.

    Raises:
        ArgumentError: for a domain without discrete values, such as the real numbers.

    Example:
        >>> hard = unn.straight_through(out["X"], g["X"].regularizer)
        >>> constraint.loss({"X": hard}).sum().backward()
    """
    if isinstance(domain, Simplex):
        places = x.detach().argmax(domain.dim, keepdim=True)
        hard = torch.zeros_like(x).scatter(domain.dim, places, 1.0)
    elif isinstance(domain, Elementwise) and all(abs(end) < float("inf") for end in domain.interval()):
        low, high = domain.interval()
        hard = torch.where(x.detach() >= (low + high) / 2, high, low).to(x.dtype)
    elif isinstance(domain, LogPartition):
        hard = domain.argmax(x.detach())
    else:
        raise ArgumentError(
            f"straight_through: {domain!r} has no discrete values; use a variable on the simplex, in an "
            "interval, or over structures, and leave real numbers as they are."
        )
    # exact in the forward pass: x - x is 0, but NaN for infinite scores
    finite = torch.where(x.isfinite(), x, 0)
    return hard.detach() + (finite - finite.detach())
