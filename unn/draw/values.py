"""Conversion of tensors and arrays to numpy without importing torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ObservationError


def as_array(value: object) -> NDArray[Any] | None:
    """Convert a tensor (of any device and dtype), an array or nested numbers to numpy; None for
    anything else."""
    tensor: Any = value
    try:
        if hasattr(tensor, "detach"):
            tensor = tensor.detach().cpu()
            # numpy has no bfloat16
            return np.asarray(tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy())
        array = np.asarray(tensor)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in "biuf" else None


def described(value: object) -> str:
    """Describe an argument for messages: its shape if it has one."""
    shape = getattr(value, "shape", None)
    return f"shape {tuple(shape)}" if shape is not None else repr(value)[:80]


def check_schedule(who: str, updates: int, schedule: object) -> None:
    """Require one name per update.

    Raises:
        ObservationError: if the numbers differ; names both.
    """
    if schedule is not None and (isinstance(schedule, str) or len(schedule) != updates):  # type: ignore[arg-type]
        received = repr(schedule) if isinstance(schedule, str) else f"{len(schedule)} names of updates"  # type: ignore[arg-type]
        raise ObservationError(f"{who} got {updates} updates, but {received}; pass both from one solution.")
