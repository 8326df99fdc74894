"""Doubly stochastic matrices: elementwise entropy on the Birkhoff polytope, with Sinkhorn activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unn.errors import DeclarationError, ObservationError
from unn.graph.sizes import SizeRule, offset_rule
from unn.regularizers import Regularizer
from unn.regularizers.base import merged, outer_forward_mode, real_number, tolerance

from .sinkhorn import NEVER, balance, curvature


class Birkhoff(Regularizer):
    """Psi(X) = temperature * sum X log X over doubly stochastic matrices: soft permutations, by Sinkhorn's
    algorithm.

    It acts on the last two axes, n x n; earlier axes index independent matrices. The mirror is
    exp((t + f 1' + 1 g') / temperature) with f and g such that all rows and columns sum to one (Cuturi, 2013;
    Mena et al., 2018), to 1e-12, always in float64. Derivatives of any order are those of the fixed point,
    not of the iterations.

    Psi is not the negative entropy of a distribution over permutations, whose log-partition is a permanent
    without a fast algorithm. Therefore there is no ``sample``; ``argmax`` is the best permutation.

    Args:
        temperature: temperature > 0; lower values are closer to permutations.

    Raises:
        DeclarationError: for a temperature that is not finite and > 0.

    Example:
        >>> P = g.variable("P", "item place", Birkhoff(temperature=0.1))
    """

    bounded = True
    formula = "temperature sum X log X over doubly stochastic matrices"
    activation = "Sinkhorn"

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = real_number("Birkhoff", "temperature", temperature)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise DeclarationError(f"Birkhoff needs a finite temperature > 0, got {temperature}.")

    def over_axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return axes[-2:]

    def bind(self, axes: tuple[str, ...], name: str) -> Regularizer:
        if len(axes) < 2:
            raise DeclarationError(
                f"variable {name!r} has the axes {' '.join(axes) or 'none'}, but {self!r} needs two, rows "
                "and columns."
            )
        return self

    def size_rules(self, axes: tuple[str, ...]) -> Sequence[SizeRule]:
        return (offset_rule(axes[-2], axes[-1]),)

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = self._zero_padding(x.double(), mask)
        positive = wide > 0
        # the derivative at 0 is set to 0, as along the domain for entries that are 0 in all permutations
        total = (
            torch.where(positive, wide * torch.where(positive, wide, 1).log(), 0)
            .sum((1, 2))
            .view(len(x), -1)
            .sum(1)
        )
        return torch.where(self.contains(x, mask), self.temperature * total, torch.inf).to(x.dtype)

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """<mirror(t), t> - Psi(mirror(t)), shape ``(batch,)``; -inf where -inf entries leave no
        permutation."""
        scores, exists = self._scores(t, mask)
        x, dual = _sinkhorn(scores)
        # by the envelope theorem, the gradient is x
        each: Tensor = _WithGradient.apply(self.temperature * dual, self.temperature * x, scores)
        if exists is not None:
            # padding is an identity matrix, with scores 0
            each = torch.where(exists.any(1), each, 0)
        return each.view(len(t), -1).sum(1).to(t.dtype)

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """Doubly stochastic matrices, shape of ``t``; 0 where -inf entries leave no permutation."""
        scores, exists = self._scores(t, mask)
        x, _ = _sinkhorn(scores)
        if exists is not None:
            x = torch.where(exists[:, :, None] & exists[:, None, :], x, 0)
        return x.reshape(t.shape).to(t.dtype)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Check that rows and columns sum to one and entries are nonnegative, to a tolerance."""
        slack = tolerance(x.dtype)
        wide = self._zero_padding(x.detach().double(), mask)
        exists = self._exists(x, mask)
        one: Tensor | float = 1.0 if exists is None else exists.double()
        loose = slack * max(1.0, math.sqrt(x.shape[-1]) / 8)
        # comparisons are such that NaN fails
        good = (
            ((wide.sum(2) - one).abs() <= loose).all(1)
            & ((wide.sum(1) - one).abs() <= loose).all(1)
            & (wide >= -slack).flatten(1).all(1)
        )
        return good.view(len(x), -1).all(1)

    def argmax(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The best permutation, entries 0 and 1, shape of ``t`` (``scipy.optimize.linear_sum_assignment``).

        Raises:
            ObservationError: where -inf entries leave no permutation.
        """
        from scipy.optimize import linear_sum_assignment

        wide = t.detach().double().reshape(-1, *t.shape[-2:])
        exists = self._exists(t, mask)
        permutations = torch.zeros_like(wide)
        for b, matrix in enumerate(wide.cpu()):
            own = torch.arange(len(matrix)) if exists is None else exists[b].cpu().nonzero().squeeze(1)
            try:
                rows, columns = linear_sum_assignment(matrix[own][:, own].numpy(), maximize=True)
            except ValueError:
                raise ObservationError(
                    f"{self!r}: matrix {b} of the batch has no permutation: too many entries are -inf, or "
                    "some are NaN or +inf."
                ) from None
            permutations[b, own[rows], own[columns]] = 1
        return permutations.reshape(t.shape).to(t.dtype)

    def _exists(self, t: Tensor, mask: Tensor | None) -> Tensor | None:
        """Mask of existing rows and columns, shape ``(matrices, n)``; None for all."""
        if t.shape[-1] != t.shape[-2]:
            raise ObservationError(
                f"{self!r}: matrices have as many rows as columns, got shape {tuple(t.shape)}."
            )
        if mask is None:
            return None
        whole = mask.expand(t.shape).reshape(-1, *t.shape[-2:])
        return whole.any(1) & whole.any(2)

    def _zero_padding(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Reshape to matrices ``(matrices, n, n)`` with 0 in padding."""
        exists = self._exists(x, mask)
        flat = x.reshape(-1, *x.shape[-2:])
        return flat if exists is None else torch.where(exists[:, :, None] & exists[:, None, :], flat, 0)

    def _scores(self, t: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Scores over temperature in float64, NEVER where forbidden; padding is an identity matrix."""
        exists = self._exists(t, mask)
        scores = t.double().reshape(-1, *t.shape[-2:]) / self.temperature
        scores = torch.where(scores == -torch.inf, NEVER, scores)
        if exists is not None:
            identity = torch.full_like(scores, NEVER).diagonal_scatter(
                scores.new_zeros(scores.shape[:2]), dim1=1, dim2=2
            )
            scores = torch.where(exists[:, :, None] & exists[:, None, :], scores, identity)
        return scores, exists

    def __repr__(self) -> str:
        return f"Birkhoff({'' if self.temperature == 1 else f'temperature={self.temperature:g}'})"


def _sinkhorn(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Balanced matrices (differentiable) and the maximum of <X, scores> - sum X log X (not
    differentiable)."""
    x, dual = _Sinkhorn.apply(scores)
    return x, dual


class _Sinkhorn(torch.autograd.Function):
    """Balanced matrix and sum of its log-scalings, with the (symmetric) derivative of the fixed point."""

    @staticmethod
    def forward(scores: Tensor) -> tuple[Tensor, Tensor]:
        return balance(scores.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[0])
        ctx.save_for_forward(output[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _directional_derivative(x, gradient)

    @staticmethod
    def jvp(ctx: Any, direction: Tensor) -> tuple[Tensor, None]:
        with outer_forward_mode() as primals:
            x, direction = primals(*ctx.saved_tensors, direction)
            return _directional_derivative(x, direction), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], scores: Tensor) -> tuple[Any, Any]:
        x, dual = _Sinkhorn.apply(merged(info.batch_size, scores, in_dims[0]))
        return (x.unflatten(0, (info.batch_size, -1)), dual.unflatten(0, (info.batch_size, -1))), (0, 0)


def _directional_derivative(x: Tensor, direction: Tensor) -> Tensor:
    """Derivative of a balanced matrix in a direction of its scores."""
    weighted = x * direction
    # project out the part of the direction that changes sums of rows or columns
    rows = weighted.sum(2, keepdim=True)
    columns = torch.linalg.solve(curvature(x), weighted.sum(1)[:, :, None] - x.transpose(1, 2) @ rows)
    derivative: Tensor = weighted - x * (rows - x @ columns + columns.transpose(1, 2))
    return derivative


class _WithGradient(torch.autograd.Function):
    """Attach a known, differentiable gradient to a known value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, slope: Tensor, at: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        (slope,) = ctx.saved_tensors
        return None, None, gradient[:, None, None] * slope

    @staticmethod
    def jvp(ctx: Any, _: Tensor | None, __: Tensor | None, direction: Tensor) -> Tensor:
        with outer_forward_mode() as primals:
            slope, direction = primals(*ctx.saved_tensors, direction)
            change: Tensor = (slope * direction).sum((1, 2))
            return change
