"""Figures of values on a grid."""

from __future__ import annotations

import torch
from torch import Tensor


def neighbour_product(x: Tensor) -> float:
    """Mean product of neighbouring values.

    Args:
        x: shape ``(batch, rows, columns)``.
    """
    x = x.double()
    products = torch.cat([(x[:, 1:] * x[:, :-1]).flatten(1), (x[:, :, 1:] * x[:, :, :-1]).flatten(1)], 1)
    return float(products.mean())
