"""The Euclidean ball: the projection as an activation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import DeclarationError
from .base import batch_all, batch_sum, real_number, tolerance, widened
from .simplex import AlongAxis


class Ball(AlongAxis):
    """Psi(x) = ||x||^2 / 2 for ||x|| <= radius along one axis: the activation projects onto the ball.

    Args:
        radius: radius of the ball.
        over: the axis along which the norm is taken; the last by default.
    """

    bounded = True
    formula = "1/2 ||x||^2, ||x|| <= radius"
    activation = "projection onto the ball"

    def __init__(self, radius: float = 1.0, over: str | None = None) -> None:
        super().__init__(over)
        self.radius = real_number("Ball", "radius", radius, over=True)
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise DeclarationError(f"Ball needs a finite radius > 0, got {radius}.")

    @property
    def lipschitz(self) -> float:
        return 1.0

    def row_norm(self, size: float) -> float:
        return self.radius

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = widened(x) if mask is None else torch.where(mask, widened(x), 0)
        total = batch_sum(0.5 * (wide * wide).sum(self.dim))
        return torch.where(self.contains(x, mask), total, torch.inf).to(x.dtype)

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = widened(t) if mask is None else torch.where(mask, widened(t), 0)
        outside, norm = self._norm(wide)
        inner = torch.where(outside, 0, wide)
        rows = torch.where(
            outside.squeeze(self.dim),
            self.radius * (norm.squeeze(self.dim) - 0.5 * self.radius),
            0.5 * (inner * inner).sum(self.dim),
        )
        return batch_sum(rows).to(t.dtype)

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = widened(t) if mask is None else torch.where(mask, widened(t), 0)
        outside, norm = self._norm(wide)
        return torch.where(outside, wide / norm * self.radius, wide).to(t.dtype)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = widened(x) if mask is None else torch.where(mask, widened(x), 0)
        # scaled, so that squares do not overflow
        peak = wide.abs().amax(self.dim, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
        norm = peak.squeeze(self.dim) * torch.linalg.vector_norm(wide / peak, dim=self.dim)
        return batch_all(norm <= self.radius * (1 + tolerance(x.dtype)))

    def _norm(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Mask of the rows outside the ball, and their norms (1 inside, where the norm is not differentiable
        at 0)."""
        # scaled by the largest entry, so that squares neither overflow nor underflow
        peak = t.detach().abs().amax(self.dim, keepdim=True).clamp(min=self.radius / t.shape[self.dim])
        peak = torch.where(peak.isinf(), torch.finfo(t.dtype).max, peak)
        square = ((t / peak) ** 2).sum(self.dim, keepdim=True)
        outside = square > (self.radius / peak) ** 2
        return outside, torch.where(outside, peak * torch.where(outside, square, 1).sqrt(), 1)

    def _options(self) -> list[str]:
        return [f"radius={self.radius:g}", *super()._options()]
