"""Subsets of a fixed size: the sparse relaxation of choosing k of n entries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import DeclarationError, whole_number
from .base import batch_all, batch_sum, real_number, tolerance, widened
from .simplex import AlongAxis


class SubsetNorm(AlongAxis):
    """Psi(x) = temperature ||x||^2 / 2 for 0 <= x <= 1 with the sum ``size``: sparse weights of k entries.

    The activation is SparseMAP over subsets of k entries (Niculae et al., 2018): the projection of t /
    temperature onto their convex hull. It is exactly the subset of the k largest entries if these exceed all
    others by at least the temperature. ``SubsetNorm(1)`` is ``SimplexNorm()``.

    Args:
        size: number of entries in a subset; rows with fewer existing entries consist of all of them.
        temperature: weight of the norm.
        over: the axis along which entries are chosen; the last by default.
    """

    bounded = True
    formula = "temperature/2 ||x||^2, 0 <= x <= 1, sum(x) = size"
    activation = "sparse choice of k entries"

    def __init__(self, size: int, temperature: float = 1.0, over: str | None = None) -> None:
        super().__init__(over)
        whole_number("SubsetNorm: size", size, 1, DeclarationError)
        self.size = size
        self.temperature = real_number("SubsetNorm", "temperature", temperature, over=True)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise DeclarationError(f"SubsetNorm needs a finite temperature > 0, got {temperature}.")

    @property
    def lipschitz(self) -> float:
        return 1 / self.temperature

    def row_norm(self, size: float) -> float:
        return math.sqrt(min(self.size, size))

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = widened(x) if mask is None else torch.where(mask, widened(x), 0)
        total = batch_sum(0.5 * self.temperature * (wide * wide).sum(self.dim))
        return torch.where(self.contains(x, mask), total, torch.inf).to(x.dtype)

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = widened(t) if mask is None else torch.where(mask, widened(t), 0)
        x = widened(self.mirror(wide, mask))
        score = torch.where(x > 0, wide, 0)
        return batch_sum((x * score - 0.5 * self.temperature * x * x).sum(self.dim)).to(t.dtype)

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = widened(t)
        if mask is not None:
            wide = wide.masked_fill(~mask, -torch.inf)
        count = self._count(t, mask)
        ordered = wide.detach().sort(self.dim, descending=True).values
        last = ordered.gather(self.dim, (count - 1).clamp(min=0))
        # relative to the smallest of the k largest, the threshold is between -1 and 0; further entries are 0
        # or 1
        scores = ((wide - torch.where(last.isinf(), 0, last)) / self.temperature).clamp(-1, 1)
        with torch.no_grad():
            threshold = self._threshold(scores.detach(), count)
            excess = scores.detach() - threshold
            free = (excess > 0) & (excess < 1)
            ones = (excess >= 1).sum(self.dim, keepdim=True)
        number = free.sum(self.dim, keepdim=True)
        exact = (torch.where(free, scores, 0).sum(self.dim, keepdim=True) + ones - count) / number.clamp(
            min=1
        )
        x = torch.where(free, (scores - exact).clamp(0, 1), (excess >= 1).to(scores.dtype))
        x = x if mask is None else torch.where(mask, x, 0)
        # NaN is sorted to the front
        return torch.where(ordered.narrow(self.dim, 0, 1).isnan(), torch.nan, x).to(t.dtype)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        slack = tolerance(x.dtype)
        wide = widened(x) if mask is None else torch.where(mask, widened(x), 0)
        count = self._count(x, mask).squeeze(self.dim)
        full = (wide.sum(self.dim) - count).abs() <= slack * count.clamp(min=1)
        return batch_all(full & ((wide >= -slack) & (wide <= 1 + slack)).all(self.dim))

    def _count(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Number of entries to choose in each row, the axis of the rows kept."""
        if mask is None:
            shape = list(x.shape)
            shape[self.dim] = 1
            return torch.full(shape, min(self.size, x.shape[self.dim]), device=x.device)
        return mask.expand(x.shape).sum(self.dim, keepdim=True).clamp(max=self.size)

    def _threshold(self, scores: Tensor, count: Tensor) -> Tensor:
        """The root of sum of clip(scores - threshold, 0, 1) = count in [-1, 0], by bisection."""
        low = torch.full_like(scores.narrow(self.dim, 0, 1), -1.0)
        width = 1.0
        for _ in range(54 if scores.dtype == torch.float64 else 25):
            width /= 2
            middle = low + width
            total = (scores - middle).clamp(0, 1).sum(self.dim, keepdim=True)
            low = torch.where(total >= count, middle, low)
        return low

    def _options(self) -> list[str]:
        shown = [f"size={self.size}"]
        return [
            *shown,
            *([f"temperature={self.temperature:g}"] if self.temperature != 1 else []),
            *super()._options(),
        ]
