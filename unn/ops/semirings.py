"""Semirings for dynamic programs over structures: log-sum, maximum and sampling.

The gradient of the program's result gives the marginals, the best structure or an exact sample
(Eisner, 2016; Goodman, 1999). torch-struct's own semirings represent -inf by -1e5 and -1e9, whatever the
dtype of the scores, and draw from the global generator; these do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ObservationError
from ..noise import gumbel_argmax, uniform
from ..regularizers.base import ordinary

NEVER = -1e300
"""Represents -inf, so that differences are not NaN; in float64 no sum of float32 scores comes near it."""

Total = Callable[[Tensor, int], Tensor]
"""A semiring sum along one axis, given by its negative index."""


def log_sum(x: Tensor, dim: int = -1) -> Tensor:
    """Logarithm of the sum of exponentials; its gradient gives marginals."""
    # the gradient of logsumexp is exp(x - result), whose terms do not sum to one where the result is rounded
    # to a coarse grid
    peak = x.detach().amax(dim, keepdim=True)
    return torch.logsumexp(x - peak, dim) + peak.squeeze(dim)


def best(x: Tensor, dim: int = -1) -> Tensor:
    """Maximum; its gradient gives one best structure, also in case of ties."""
    return torch.max(x, dim).values


def draw(generator: torch.Generator | None) -> Total:
    """Logarithm of the sum of exponentials whose gradient samples one of the terms; gives exact samples."""

    def total(x: Tensor, dim: int = -1) -> Tensor:
        drawn: Tensor = _Drawn.apply(x, dim, generator)
        return drawn

    return total


def possible(partition: Tensor) -> Tensor:
    """Mask of results for which at least one structure without forbidden parts exists; results that are not a
    number, of scores that are none or infinite, count as possible, so that they are seen."""
    return ~(partition.detach() <= NEVER / 2)


def require_scores(scores: Tensor, owner: object) -> None:
    """Check that a structure can be chosen by scores.

    Raises:
        ObservationError: for scores that are NaN or +inf, with the owner in the message.
    """
    # the maximum propagates NaN, which does not compare below infinity
    if scores.numel() and not bool(scores.detach().amax() < torch.inf):
        raise ObservationError(
            f"{owner!r}: scores have NaN or +inf entries; -inf forbids an entry, everything else must be "
            "finite."
        )


def gradient(program: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """Detached gradient of the sum of a program's possible results, shape of ``scores``; 0 for the others."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = ordinary(scores.detach()).requires_grad_()
        result = program(leaf)
        (derivative,) = torch.autograd.grad(torch.where(possible(result), result, 0).sum(), leaf)
    return derivative.detach()


class _Drawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, generator: torch.Generator | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.dim, ctx.generator = dim, generator
        return torch.logsumexp(x, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        winner = gumbel_argmax(x, uniform(x.shape, x, ctx.generator), ctx.dim).unsqueeze(ctx.dim)
        return torch.zeros_like(x).scatter(ctx.dim, winner, gradient.unsqueeze(ctx.dim)), None, None


class Semiring:
    """Semiring in the interface of torch-struct, in which tensors have an additional first axis of size 1.

    Args:
        total: ``log_sum``, ``best`` or ``draw(generator)``.
    """

    zero = NEVER

    def __init__(self, total: Total) -> None:
        self.total = total

    def size(self) -> int:
        """Size of the additional first axis."""
        return 1

    def convert(self, scores: Tensor) -> Tensor:
        """Add the additional axis to scores."""
        return scores[None]

    def unconvert(self, scores: Tensor) -> Tensor:
        """Remove the additional axis from scores."""
        return scores[0]

    def sum(self, x: Tensor, dim: int = -1) -> Tensor:
        """The semiring's addition along an axis."""
        return self.total(x, dim)

    def times(self, *factors: Tensor) -> Tensor:
        """The semiring's multiplication."""
        product = factors[0]
        for factor in factors[1:]:
            product = product + factor
        return product

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of matrices on the last two axes."""
        return self.total(a[..., :, None, :] + b.transpose(-2, -1)[..., None, :, :], -1)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product along the last axis."""
        return self.total(a + b, -1)

    def zero_(self, x: Tensor) -> Tensor:
        """Fill with the neutral element of addition."""
        return x.fill_(NEVER)

    def one_(self, x: Tensor) -> Tensor:
        """Fill with the neutral element of multiplication."""
        return x.fill_(0.0)

    def zero_mask_(self, x: Tensor, mask: Tensor) -> None:
        """Fill with the neutral element of addition where the mask is true."""
        x.masked_fill_(mask[None], NEVER)
