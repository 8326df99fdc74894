"""Partial observations."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import ObservationError


@dataclass(frozen=True, eq=False)
class Partial:
    """An observation of some entries of a variable; the others are inferred.

    Args:
        value: shape ``(batch, *axes)``; unobserved entries are ignored but must not be NaN.
        mask: boolean, true where observed; shape of ``value`` or of its leading axes (whole rows, batch
            elements).

    Raises:
        ObservationError: without a mask.
    """

    value: Tensor
    mask: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.mask is None:
            raise ObservationError(
                "Partial needs a mask, boolean and true where value is observed: unn.Partial(value, mask)."
            )
