"""Derivatives of a log-partition by its scores: of any order, in reverse and in forward mode, and under ``torch.func``.

The k-th derivative of a log-partition is a symmetric tensor. So the gradient of the log-partition differentiated in the directions v1 ... vk has,
in a further direction w, the derivative with one more direction, in either mode; and by vi it is the same tensor with w in the place of vi.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from unn.regularizers.base import is_transformed, merged


class Factorisation(Protocol):
    """What is known of scores once their log-partition is."""

    def derivative(self, directions: Sequence[Tensor]) -> Tensor:
        """The marginals differentiated in one or more directions of the scores, shape of the scores; without autograd."""
        ...


Factorise = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor, Factorisation]]
"""From scores ``(batch, n, n)`` and which nodes exist to log-partitions, marginals, and what their derivatives need; without autograd."""


def differentiable(scores: Tensor, exists: Tensor | None, factorise: Factorise) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals with their derivatives; the first derivative needs no factorisation of its own."""
    if not (torch.is_grad_enabled() and scores.requires_grad) and not is_transformed(scores):
        partition, marginals, _ = factorise(scores, exists)
        return partition, marginals
    partition, marginals, _ = _LogPartition.apply(scores, exists, factorise)
    return partition, marginals


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(scores: Tensor, exists: Tensor | None, factorise: Factorise) -> tuple[Tensor, Tensor, Factorisation]:
        return factorise(scores.detach(), exists)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        scores, exists, factorise = inputs
        _, marginals, factorisation = output
        # as a result, the marginals bring their own derivatives along
        ctx.save_for_backward(scores, exists, marginals)
        ctx.save_for_forward(scores, exists, marginals)
        ctx.factorise, ctx.factorisation = factorise, factorisation
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, by_partition: Tensor | None, by_marginals: Tensor | None, _: None) -> tuple[Tensor | None, None, None]:
        scores, exists, marginals = ctx.saved_tensors
        if by_marginals is None:
            return None if by_partition is None else by_partition[:, None, None] * marginals, None, None
        if torch.is_grad_enabled() or is_transformed(scores, by_marginals):
            gradient = _Derivative.apply(ctx.factorisation, ctx.factorise, exists, scores, by_marginals)
        else:
            gradient = ctx.factorisation.derivative([by_marginals])
        if by_partition is not None:
            gradient = torch.addcmul(gradient, by_partition[:, None, None], marginals)
        return gradient, None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> tuple[Tensor, Tensor, None]:
        scores, exists, marginals = ctx.saved_tensors
        along = _Derivative.apply(ctx.factorisation, ctx.factorise, exists, scores, direction)
        return (marginals * direction).sum((1, 2)), along, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], scores: Tensor, exists: Tensor | None, factorise: Factorise) -> tuple[Any, Any]:
        flat, flat_exists = (None if x is None else merged(info.batch_size, x, dim) for x, dim in zip((scores, exists), in_dims, strict=False))
        partition, marginals, _ = _LogPartition.apply(flat, flat_exists, factorise)
        apart = (info.batch_size, -1)
        # a factorisation of all of them is none of any of them
        return (partition.unflatten(0, apart), marginals.unflatten(0, apart), None), (0, 0, None)


class _Derivative(torch.autograd.Function):
    """The marginals differentiated in some directions."""

    @staticmethod
    def forward(
        factorisation: Factorisation | None, factorise: Factorise, exists: Tensor | None, scores: Tensor, *directions: Tensor
    ) -> Tensor:  # fmt: skip
        known = factorise(scores.detach(), exists)[2] if factorisation is None else factorisation
        return known.derivative(directions)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.factorisation, ctx.factorise, exists, *tensors = inputs
        ctx.save_for_backward(exists, *tensors)
        ctx.save_for_forward(exists, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        exists, scores, *directions = ctx.saved_tensors
        if gradient is None:
            return (None,) * (4 + len(directions))

        def derivative(*along: Tensor) -> Tensor:
            result: Tensor = _Derivative.apply(ctx.factorisation, ctx.factorise, exists, scores, *along)
            return result

        needed = ctx.needs_input_grad[3:]
        by_scores = derivative(*directions, gradient) if needed[0] else None
        by_directions = [
            derivative(*directions[:k], gradient, *directions[k + 1 :]) if needed[k + 1] else None for k in range(len(directions))
        ]
        return None, None, None, by_scores, *by_directions

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:
        exists, scores, *directions = ctx.saved_tensors
        by_scores, *by_directions = tangents[3:]
        lists = [] if by_scores is None else [(*directions, by_scores)]
        lists += [
            (*directions[:k], tangent, *directions[k + 1 :]) for k, tangent in enumerate(by_directions) if tangent is not None
        ]
        terms = [_Derivative.apply(ctx.factorisation, ctx.factorise, exists, scores, *along) for along in lists]
        return torch.stack(terms).sum(0) if terms else None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], _: Factorisation | None, factorise: Factorise, *tensors: Tensor | None
    ) -> tuple[Tensor, int]:
        flat = [None if x is None else merged(info.batch_size, x, dim) for x, dim in zip(tensors, in_dims[2:], strict=True)]
        result: Tensor = _Derivative.apply(None, factorise, *flat)
        return result.unflatten(0, (info.batch_size, -1)), 0
