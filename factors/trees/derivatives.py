"""Derivatives of a log-partition by its scores: any order, reverse and forward mode, and ``torch.func``.

The k-th derivative of a log-partition is a symmetric tensor. Differentiating the gradient, already
differentiated in the directions v1 ... vk, by the scores in a direction w therefore appends w to the
directions, in either mode; differentiating by vi replaces vi by w.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from unn.regularizers.base import is_transformed, merged, outer_forward_mode


class Factorisation(Protocol):
    """Intermediate results of a log-partition that its derivatives reuse."""

    def derivative(self, directions: Sequence[Tensor]) -> Tensor:
        """Differentiate the marginals in directions of the scores, without autograd; shape of the scores."""
        ...


Factorise = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor, Factorisation]]
"""Maps scores ``(batch, n, n)`` and the mask of nodes to log-partitions, marginals and factorisation."""


def differentiable(scores: Tensor, exists: Tensor | None, factorise: Factorise) -> tuple[Tensor, Tensor]:
    """Differentiable log-partition and marginals; the first derivative reuses the factorisation."""
    if not (torch.is_grad_enabled() and scores.requires_grad) and not is_transformed(scores):
        partition, marginals, _ = factorise(scores, exists)
        return partition, marginals
    partition, marginals, _ = _LogPartition.apply(scores, exists, factorise)
    return partition, marginals


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        scores: Tensor, exists: Tensor | None, factorise: Factorise
    ) -> tuple[Tensor, Tensor, Factorisation]:
        return factorise(scores.detach(), exists)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        scores, exists, factorise = inputs
        _, marginals, factorisation = output
        # saved as an output, so that they are differentiable themselves
        ctx.save_for_backward(scores, exists, marginals)
        ctx.save_for_forward(scores, exists, marginals)
        ctx.factorise, ctx.factorisation = factorise, factorisation
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, by_partition: Tensor | None, by_marginals: Tensor | None, _: None
    ) -> tuple[Tensor | None, None, None]:
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
        with outer_forward_mode() as primals:
            scores, exists, marginals, direction = primals(*ctx.saved_tensors, direction)
            along = _Derivative.apply(ctx.factorisation, ctx.factorise, exists, scores, direction)
            return (marginals * direction).sum((1, 2)), along, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], scores: Tensor, exists: Tensor | None, factorise: Factorise
    ) -> tuple[Any, Any]:
        flat, flat_exists = (
            None if x is None else merged(info.batch_size, x, dim)
            for x, dim in zip((scores, exists), in_dims, strict=False)
        )
        partition, marginals, _ = _LogPartition.apply(flat, flat_exists, factorise)
        sizes = (info.batch_size, -1)
        # the factorisation of the whole batch does not split into those of its elements
        return (partition.unflatten(0, sizes), marginals.unflatten(0, sizes), None), (0, 0, None)


class _Derivative(torch.autograd.Function):
    """Directional derivative of the marginals, in one or more directions."""

    @staticmethod
    def forward(
        factorisation: Factorisation | None,
        factorise: Factorise,
        exists: Tensor | None,
        scores: Tensor,
        *directions: Tensor,
    ) -> Tensor:
        if factorisation is None:
            factorisation = factorise(scores.detach(), exists)[2]
        return factorisation.derivative(directions)

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
            derivative(*directions[:k], gradient, *directions[k + 1 :]) if needed[k + 1] else None
            for k in range(len(directions))
        ]
        return None, None, None, by_scores, *by_directions

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:
        with outer_forward_mode() as primals:
            exists, scores, *directions = primals(*ctx.saved_tensors)
            by_scores, *by_directions = primals(*tangents[3:])
            lists = [] if by_scores is None else [(*directions, by_scores)]
            lists += [
                (*directions[:k], tangent, *directions[k + 1 :])
                for k, tangent in enumerate(by_directions)
                if tangent is not None
            ]
            terms = [
                _Derivative.apply(ctx.factorisation, ctx.factorise, exists, scores, *along) for along in lists
            ]
            return torch.stack(terms).sum(0) if terms else None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        _: Factorisation | None,
        factorise: Factorise,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, int]:
        flat = [
            None if x is None else merged(info.batch_size, x, dim)
            for x, dim in zip(tensors, in_dims[2:], strict=True)
        ]
        result: Tensor = _Derivative.apply(None, factorise, *flat)
        return result.unflatten(0, (info.batch_size, -1)), 0
