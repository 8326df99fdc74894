"""Masks of partial observations."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ObservationError
from ..graph.arrays import Variable
from ..graph.partial import Partial
from ..plain import is_vmapped
from ..regularizers import AlongAxis


def observation_mask(variable: Variable, partial: Partial) -> Tensor:
    """The mask of a partial observation in the shape of its value.

    Raises:
        ObservationError: for a mask of another dtype, device or shape.
    """
    value, mask = partial.value, partial.mask
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ObservationError(f"variable {variable.name!r}: the mask of Partial must be boolean, got {got}.")
    if mask.ndim < value.ndim and tuple(mask.shape) == tuple(value.shape[: mask.ndim]):
        mask = mask.view(*mask.shape, *[1] * (value.ndim - mask.ndim))
    if mask.ndim != value.ndim or any(m not in (1, v) for m, v in zip(mask.shape, value.shape, strict=True)):
        raise ObservationError(
            f"variable {variable.name!r}: the mask of Partial has shape {tuple(mask.shape)}, which fits "
            f"neither the value's shape {tuple(value.shape)} nor its first axes."
        )
    if mask.device != value.device:
        raise ObservationError(
            f"variable {variable.name!r}: the mask of Partial is on {mask.device}, its value on "
            f"{value.device}; move one of them."
        )
    return mask.expand(value.shape)


def require_whole_rows(variable: Variable, mask: Tensor) -> None:
    """Check that a mask does not vary along axes whose entries depend on one another.

    Raises:
        ObservationError: names the axis.
    """
    for axis in variable.regularizer.over_axes(variable.axes):
        dim = (
            variable.regularizer.dim
            if isinstance(variable.regularizer, AlongAxis)
            else variable.axes.index(axis) + 1
        )
        if bool((mask.any(dim) != mask.all(dim)).any()):
            raise ObservationError(
                f"variable {variable.name!r}: the mask of Partial varies along axis {axis!r}, but "
                f"{variable.regularizer!r} ties the entries along it; observe whole rows or none."
            )


def free_rows(partial: Partial, exists: Tensor | None) -> tuple[Tensor, ...] | None:
    """The unobserved rows of a mask that covers only the first axes; None if they are many, cannot be read,
    or are not on a CPU, where reading them would wait."""
    mask = partial.mask
    while mask.ndim > 1 and mask.shape[-1] == 1:
        mask = mask.squeeze(-1)
    if (
        torch.compiler.is_compiling()
        or mask.device.type != "cpu"
        or is_vmapped(mask)
        or (exists is not None and is_vmapped(exists))
        or mask.ndim >= partial.value.ndim
        or mask.ndim < 2
    ):
        return None
    if tuple(mask.shape) != tuple(partial.value.shape[: mask.ndim]):
        return None
    free = ~mask
    if exists is not None:
        while exists.ndim > mask.ndim:
            if exists.shape[-1] != 1:
                return None
            exists = exists.squeeze(-1)
        free = free & exists
    rows = free.nonzero(as_tuple=True)
    return rows if 2 * len(rows[0]) <= free.numel() else None
