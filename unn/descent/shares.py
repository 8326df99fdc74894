"""Shares of the energy in a dtype that can hold them: in float32 where values are of half precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..graph.factor import EnergyFactor
from ..regularizers import Regularizer


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of energies of values of this one: a square of float16 overflows from 256 on."""
    return torch.float32 if torch.finfo(dtype).bits == 16 else dtype


def largest_value(dtype: torch.dtype) -> float:
    """Values beyond this have no finite energy: squares overflow in the dtype of energies, or the values
    themselves."""
    return min(torch.finfo(dtype).max, math.sqrt(torch.finfo(wide(dtype)).max))


def regularizer_share(
    regularizer: Regularizer, x: Tensor, mask: Tensor | None, preactivation: Tensor | None = None
) -> Tensor:
    """Psi(x), shape ``(batch,)``.

    Args:
        regularizer: of the variable.
        x: its value, shape ``(batch, *axes)``.
        mask: which entries exist.
        preactivation: t, if x is known to be mirror(t), which some regularizers can use.
    """

    def value(dtype: torch.dtype) -> Tensor:
        if preactivation is None:
            return regularizer.value(x.to(dtype), mask)
        return regularizer.value_at_mirror(x.to(dtype), preactivation.to(dtype), mask)

    dtype = wide(x.dtype)
    share = value(dtype)
    if dtype == x.dtype:
        return share
    # a row rounded to half precision does not sum to one as exactly as the wider dtype asks for
    return torch.where(share.isfinite(), share, value(x.dtype).to(dtype))


def factors_share(factors: Iterable[EnergyFactor], values: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """The energy of several factors, shape ``(batch,)``.

    Args:
        factors: factors.
        values: of all arrays that they touch.
        like: zeros of that shape, for no factors.
    """
    total = like
    for factor in factors:
        total = total + factor_share(factor, values)
    return total


def factor_share(factor: EnergyFactor, values: Mapping[str, Tensor]) -> Tensor:
    """The energy of a factor, shape ``(batch,)`` or (1,); of a module or a function in the dtype that it
    computes in."""
    first = values[factor.variables[0]] if factor.variables else next(iter(values.values()))
    dtype = wide(first.dtype)
    if dtype != first.dtype and factor.multilinear:
        values = {name: values[name].to(dtype) for name in factor.operands}
    return factor.energy(values).to(dtype)
