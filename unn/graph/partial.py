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

    @classmethod
    def of_missing(cls, value: Tensor) -> Partial:
        """An observation in which NaN marks missing entries.

        Args:
            value: shape ``(batch, *axes)``, of a floating dtype.

        Raises:
            ObservationError: for infinite entries, or a dtype without NaN.
        """
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ObservationError(
                f"Partial.of_missing: NaN marks what is missing, which needs a floating dtype, got {kind}."
            )
        if bool(value.isinf().any()):
            raise ObservationError(
                "Partial.of_missing: values have infinite entries; only NaN marks what is missing."
            )
        missing = value.isnan()
        return cls(value.masked_fill(missing, 0), ~missing)


def restricted(evidence: Tensor | Partial, mask: Tensor) -> Partial:
    """The part of evidence that a mask covers.

    Args:
        evidence: shape ``(batch, *axes)``.
        mask: boolean, of the shape of the evidence or of its first axes.
    """
    if not isinstance(evidence, Partial):
        return Partial(evidence, mask)
    wide = max(mask.ndim, evidence.mask.ndim)
    one, other = (x.reshape(*x.shape, *(1,) * (wide - x.ndim)) for x in (mask, evidence.mask))
    return Partial(evidence.value, one & other)


def rows_of(evidence: Tensor | Partial, rows: Tensor, count: int) -> Tensor | Partial:
    """Evidence of several of ``count`` rows, of which the only one is repeated where it has no other.

    Args:
        evidence: shape ``(count or 1, *axes)``.
        rows: numbers of the rows, integers.
        count: number of rows.
    """
    if isinstance(evidence, Partial):
        value, mask = evidence.value, evidence.mask
        return Partial(value.expand(count, *value.shape[1:])[rows], mask.expand(count, *mask.shape[1:])[rows])
    return evidence.expand(count, *evidence.shape[1:])[rows]
