"""Evidence that several examples of a batch share, as those of one class do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MOST_ENTRIES = 64
"""Largest number of entries of an example's evidence that is searched for repeats: longer evidence, as of
images, hardly repeats, and its rows would have to be sorted."""


def repeated_rows(values: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Rows of evidence without repeats, or None unless that halves the batch at least.

    Args:
        values: of the variables that are given, shape ``(batch, *axes)`` each.

    Returns:
        The number of one row of each kind, shape ``(kinds,)``, and the kind of each row, shape ``(batch,)``.
    """
    flat = [x.flatten(1) for x in values]
    if not flat or len(flat[0]) < 2 or sum(x.shape[1] for x in flat) > _MOST_ENTRIES:
        return None
    if any(x.requires_grad for x in flat):
        return None
    distinct, kinds = torch.cat(flat, 1).unique(dim=0, return_inverse=True)
    if 2 * len(distinct) > len(kinds):
        return None
    numbers = torch.arange(len(kinds), device=kinds.device)
    return numbers.new_zeros(len(distinct)).scatter_(0, kinds, numbers), kinds
