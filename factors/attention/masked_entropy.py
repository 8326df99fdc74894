"""The entropy on a face of the simplex: a softmax over the entries that are allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from unn import Entropy, Regularizer, SizeRule
from unn.errors import DeclarationError
from unn.regularizers.base import batch_all, tolerance


class MaskedEntropy(Entropy):
    """``Entropy`` on a face of the simplex: forbidden entries are exactly 0; the activation is a masked
    softmax.

    Rows without allowed entries are all 0, with energy 0. Values with weight on a forbidden entry are outside
    the domain.

    Args:
        temperature: as of ``Entropy``.
        over: as of ``Entropy``.
        allowed: boolean mask of allowed entries, shape of the variable's last axes; all by default.

    Raises:
        DeclarationError: if ``allowed`` is not boolean.
    """

    formula = "-temperature H(x) on the simplex of the allowed entries"
    activation = "masked softmax"

    def __init__(
        self, temperature: float = 1.0, over: str | None = None, allowed: Tensor | None = None
    ) -> None:
        super().__init__(temperature, over)
        if allowed is not None and (not isinstance(allowed, Tensor) or allowed.dtype != torch.bool):
            actual = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
            raise DeclarationError(
                f"MaskedEntropy needs allowed as a boolean tensor, true where weight may lie, got {actual}."
            )
        self.allowed = None if allowed is None else allowed.detach().cpu().clone()
        self._by_device: dict[torch.device, Tensor] = {}

    def __getstate__(self) -> dict[str, object]:
        """Omit the copies on other devices, which are recreated on demand."""
        return {**self.__dict__, "_by_device": {}}

    def bind(self, axes: tuple[str, ...], name: str) -> Regularizer:
        if self.allowed is not None and self.allowed.ndim > len(axes):
            raise DeclarationError(
                f"variable {name!r} has the axes {' '.join(axes) or 'none'}, but allowed has shape "
                f"{tuple(self.allowed.shape)}; it covers the last of them, so drop its first axes."
            )
        return super().bind(axes, name)

    def size_rules(self, axes: tuple[str, ...]) -> Sequence[SizeRule]:
        if self.allowed is None:
            return ()
        last = axes[len(axes) - self.allowed.ndim :]
        return [
            SizeRule((axis,), partial(_fixed_size, axis, size))
            for axis, size in zip(last, self.allowed.shape, strict=True)
        ]

    def treats_nodes_alike(self, feature_axes: int) -> bool:
        return self.allowed is None or self.allowed.ndim <= feature_axes

    def row_value(self, x: Tensor) -> Tensor:
        # derivatives of -x log x are set to 0 at 0, as along a face: infinite ones, even if masked later,
        # make second derivatives NaN
        positive = x > 0
        return super().row_value(torch.where(positive, x, 1))

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        inside = self.contains(x, mask)
        return torch.where(inside, super().value(x, self._existing(x, mask)), torch.inf).to(x.dtype)

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().conjugate(t, self._existing(t, mask))

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().mirror(t, self._existing(t, mask))

    def sample(
        self, t: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        return super().sample(t, self._existing(t, mask), generator)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        inside = super().contains(x, self._existing(x, mask))
        allowed = self._allowed(x.device)
        if allowed is None:
            return inside
        # padding may hold any value, existing forbidden entries must be 0
        forbidden = ~allowed if mask is None else mask & ~allowed
        weight = torch.where(forbidden, x, 0).abs()
        return inside & batch_all((weight <= tolerance(x.dtype)).all(self.dim))

    def _existing(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """Mask of entries that exist and are allowed."""
        allowed = self._allowed(x.device)
        if allowed is None:
            return mask
        return allowed if mask is None else mask & allowed

    def _allowed(self, device: torch.device) -> Tensor | None:
        if self.allowed is None or self.allowed.device == device:
            return self.allowed
        if device not in self._by_device:
            with torch.inference_mode(False):
                self._by_device[device] = self.allowed.to(device)
        return self._by_device[device]

    def _options(self) -> list[str]:
        if self.allowed is None:
            return super()._options()
        return [*super()._options(), f"allowed={int(self.allowed.sum())} of {self.allowed.numel()}"]


def _fixed_size(axis: str, size: int, known: Mapping[str, int]) -> dict[str, int]:
    return {axis: size}
