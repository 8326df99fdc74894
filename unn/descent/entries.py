"""Entries of values row by row."""

from __future__ import annotations

from torch import Tensor


def entries_of(x: Tensor) -> Tensor:
    """Entries of each row, shape ``(batch, entries)``; a variable without axes has one.

    Args:
        x: shape ``(batch, *axes)``.
    """
    return x.flatten(1) if x.ndim > 1 else x[:, None]
