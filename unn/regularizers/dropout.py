"""Dropout as part of the energy: a fixed mask m replaces Psi(x) by m Psi(x / m)."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Regularizer, batch_all, batch_sum
from .elementwise import Elementwise


class Dropped(Regularizer):
    """m Psi(x / m) with a fixed mask m >= 0, for an elementwise Psi; entries with m = 0 are confined to 0.

    The mirror is ``m * mirror(t)``, the conjugate ``m * conjugate(t)``: updates with a mask fixed over all
    iterations are exact coordinate descent on this energy (docs/theory.md, Dropout).

    Args:
        inner: the elementwise regularizer Psi.
        scale: m, shape ``(batch, *axes)``; 0 or 1/(1-p) for dropout with probability p.
    """

    formula = "m Psi(x/m)"
    activation = "dropout"

    def __init__(self, inner: Elementwise, scale: Tensor) -> None:
        self.inner = inner
        self.scale = scale

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        return self.inner.bounded

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        active = self._is_active(mask)
        scale = torch.where(active, self.scale, 1)
        entries = torch.where(active, scale * self.inner.entry_value(x / scale), 0)
        return torch.where(self.contains(x, mask), batch_sum(entries), torch.inf)

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        active = self._is_active(mask)
        return batch_sum(torch.where(active, self.scale * self.inner.entry_conjugate(t), 0))

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.scale * self.inner.entry_mirror(t)
        return x if mask is None else torch.where(mask, x, 0)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        active = self._is_active(mask)
        scale = torch.where(active, self.scale, 1)
        zero = (x == 0) & (self.scale == 0)
        if mask is not None:
            zero = zero | ~mask
        inside = torch.where(active, x / scale, torch.nan)
        low, high = self.inner.interval()
        slack = 1e-4 if x.dtype != torch.float64 else 1e-5
        return batch_all(zero | ((inside >= low - slack) & (inside <= high + slack)))

    def _is_active(self, mask: Tensor | None) -> Tensor:
        return self.scale > 0 if mask is None else (self.scale > 0) & mask
