"""Normalised rows: the activations of layer normalisation and of its form without the mean."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from ..errors import DeclarationError
from .base import batch_all, batch_sum, real_number, tolerance, widened
from .simplex import AlongAxis


class _Normalised(AlongAxis):
    """Psi(x) = -c sqrt(r^2 - ||x||^2) for ||x|| <= r, with r^2 the number d of entries and c^2 = d epsilon.

    The conjugate r sqrt(||t||^2 + c^2) has the gradient t / sqrt(||t||^2 / d + epsilon).
    """

    bounded = True

    def __init__(self, epsilon: float = 1e-5, over: str | None = None) -> None:
        super().__init__(over)
        self.epsilon = real_number(type(self).__name__, "epsilon", epsilon, over=True)
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise DeclarationError(f"{type(self).__name__} needs a finite epsilon > 0, got {epsilon}.")

    @property
    def lipschitz(self) -> float:
        return 1 / math.sqrt(self.epsilon)

    def row_norm(self, size: float) -> float:
        return math.sqrt(size)

    @abstractmethod
    def projected(self, t: Tensor, count: Tensor, mask: Tensor | None) -> Tensor:
        """The rows without the components that the domain excludes; padded entries are 0 before.

        Args:
            t: scores, shape ``(batch, *axes)``.
            count: number of existing entries of each row, at least 1, the axis of the rows kept.
            mask: mask of existing entries.
        """

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        wide, count = _rows(x, mask, self.dim)
        inner = (count.squeeze(self.dim) - (wide * wide).sum(self.dim)).clamp(min=0)
        # the square root has no derivative at 0
        rows = torch.where(inner > 0, torch.where(inner > 0, inner, 1).sqrt(), 0)
        rows = rows * (count * self.epsilon).sqrt().squeeze(self.dim)
        total = -batch_sum(self._where_entries(rows, mask, x))
        return torch.where(self.contains(x, mask), total, torch.inf).to(x.dtype)

    def value_at_mirror(self, x: Tensor, t: Tensor, mask: Tensor | None = None) -> Tensor:
        wide, count = _rows(t, mask, self.dim)
        centred = self.projected(wide, count, mask)
        scale = self._deviation(centred, count).squeeze(self.dim)
        rows = self.epsilon * count.squeeze(self.dim) / scale
        return -batch_sum(self._where_entries(rows, mask, t)).to(t.dtype)

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        wide, count = _rows(t, mask, self.dim)
        rows = (count * self._deviation(self.projected(wide, count, mask), count)).squeeze(self.dim)
        return batch_sum(self._where_entries(rows, mask, t)).to(t.dtype)

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        wide, count = _rows(t, mask, self.dim)
        centred = self.projected(wide, count, mask)
        return (centred / self._deviation(centred, count)).to(t.dtype)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        wide, count = _rows(x, mask, self.dim)
        slack = tolerance(x.dtype)
        radius = count.squeeze(self.dim).sqrt()
        # scaled, so that squares do not overflow
        peak = wide.abs().amax(self.dim, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
        norm = peak.squeeze(self.dim) * torch.linalg.vector_norm(wide / peak, dim=self.dim)
        excluded = (wide - self.projected(wide, count, mask)).abs().amax(self.dim)
        return batch_all((norm <= radius * (1 + slack)) & (excluded <= slack))

    def _deviation(self, centred: Tensor, count: Tensor) -> Tensor:
        """sqrt(||t||^2 / d + epsilon) of each row, the axis of the rows kept."""
        # scaled by the largest entry, so that squares do not overflow
        peak = centred.detach().abs().amax(self.dim, keepdim=True).clamp(min=math.sqrt(self.epsilon))
        square = ((centred / peak) ** 2).sum(self.dim, keepdim=True) / count + self.epsilon / (peak * peak)
        return peak * square.sqrt()

    def _where_entries(self, rows: Tensor, mask: Tensor | None, x: Tensor) -> Tensor:
        """Rows without entries contribute nothing."""
        if mask is None:
            return rows
        return torch.where(mask.expand(x.shape).any(self.dim), rows, 0)

    def _options(self) -> list[str]:
        return ([f"epsilon={self.epsilon:g}"] if self.epsilon != 1e-5 else []) + super()._options()


class RMSNorm(_Normalised):
    """Psi(x) = -sqrt(epsilon d (d - ||x||^2)) for ||x||^2 <= d: the activation divides by the root mean
    square.

    ``mirror(t) = t / sqrt(mean(t^2) + epsilon)`` (Zhang and Sennrich, 2019), d the number of entries.

    Args:
        epsilon: added to the mean of the squares.
        over: the axis along which the mean is taken; the last by default.
    """

    formula = "-sqrt(epsilon d (d - ||x||^2)), ||x||^2 <= d"
    activation = "root-mean-square normalisation"

    def projected(self, t: Tensor, count: Tensor, mask: Tensor | None) -> Tensor:
        return t


class LayerNorm(_Normalised):
    """As ``RMSNorm``, for rows whose sum is 0: the activation is layer normalisation.

    ``mirror(t) = (t - mean(t)) / sqrt(var(t) + epsilon)``, as ``torch.nn.LayerNorm`` without weights (Ba et
    al., 2016; as the gradient of a convex function in the energy transformer, Hoover et al., 2023, eq. 2).

    Args:
        epsilon: added to the variance.
        over: the axis along which the mean is taken; the last by default.
    """

    formula = "-sqrt(epsilon d (d - ||x||^2)), ||x||^2 <= d, sum(x) = 0"
    activation = "layer normalisation"

    def projected(self, t: Tensor, count: Tensor, mask: Tensor | None) -> Tensor:
        centred = t - t.sum(self.dim, keepdim=True) / count
        # padded entries are 0 and stay 0
        return centred if mask is None else torch.where(mask, centred, 0)


def _rows(t: Tensor, mask: Tensor | None, dim: int) -> tuple[Tensor, Tensor]:
    """Scores with 0 at padding, and the number of existing entries of each row, at least 1."""
    wide = widened(t)
    if mask is None:
        return wide, wide.new_full([1] * t.ndim, t.shape[dim])
    return torch.where(mask, wide, 0), mask.expand(t.shape).sum(dim, keepdim=True).clamp(min=1).to(wide.dtype)
