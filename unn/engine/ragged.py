"""Ragged batches: which entries exist, and how padding is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..arrays import Constant, Variable
from ..errors import ObservationError, unknown
from ..graph import FactorGraph

if TYPE_CHECKING:
    from .observe import Setting


def ragged_masks(
    graph: FactorGraph, lengths: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], batch: int, device: torch.device
) -> dict[str, Tensor]:
    """Which entries of each ragged variable exist, shape ``(batch, *axes)``, 1 along regular axes."""
    table = graph.size_table
    known = {axis for array in graph.arrays.values() for axis in array.axes}
    ragged: dict[str, Tensor] = {}
    for axis, length in lengths.items():
        if axis not in known:
            raise ObservationError(f"lengths: graph {graph.name!r}: " + unknown("axis", axis, known))
        if not isinstance(length, Tensor) or length.is_floating_point() or tuple(length.shape) != (batch,):
            got = f"{length.dtype} of shape {tuple(length.shape)}" if isinstance(length, Tensor) else repr(length)
            raise ObservationError(f"lengths: axis {axis!r} needs whole numbers of shape ({batch},), got {got}.")
        ragged[table.root(axis)] = length.to(device)
    masks: dict[str, Tensor] = {}
    for name, variable in graph.variables.items():
        mask: Tensor | None = None
        for k, axis in enumerate(variable.axes):
            if (root := table.root(axis)) in ragged:
                size = shapes[name][k]
                length = ragged[root]
                if not torch.compiler.is_compiling() and not bool(((length > 0) & (length <= size)).all()):
                    bad = int(((length <= 0) | (length > size)).nonzero()[0])
                    raise ObservationError(
                        f"lengths: batch element {bad} has length {int(length[bad])} along axis {axis!r} of {name!r}, which has size {size}; "
                        "lengths go from 1 to that size. Drop empty sequences first."
                    )
                own = torch.arange(size, device=device) < length[:, None]
                own = own.view(batch, *[size if j == k else 1 for j in range(len(variable.axes))])
                mask = own if mask is None else mask & own
        if mask is not None:
            masks[name] = mask
    return masks


def mask_constants(graph: FactorGraph, setting: Setting, lengths: Mapping[str, Tensor]) -> None:
    """Zero the padded part of constants, and refuse parameters that would be summed over padding."""
    table = graph.size_table
    ragged = {table.root(axis): length for axis, length in lengths.items()}
    for name, array in graph.arrays.items():
        if not isinstance(array, Constant):
            continue
        x = setting.values[name]
        for k, axis in enumerate(array.axes):
            if (length := ragged.get(table.root(axis))) is not None:
                own = torch.arange(setting.shapes[name][k], device=x.device) < length.to(x.device)[:, None]
                own = own.view(setting.batch, *[-1 if j == k else 1 for j in range(len(array.axes))])
                x = torch.where(own, x, 0)
        setting.values[name] = x
    for factor in graph.factors.values():
        carried = {table.root(a) for r in factor.references if isinstance(r.array, (Variable, Constant)) for a in r.array.axes}
        for reference in factor.references:
            for axis in reference.array.axes:
                root = table.root(axis)
                if root in ragged and root not in carried:
                    raise ObservationError(
                        f"lengths: factor {factor.name!r} sums parameter {reference.array.name!r} over the ragged axis {axis!r}, which no variable "
                        "of the factor has; multiply in a constant of ones along that axis, so that padding can be left out."
                    )


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """``x`` with zeros where the mask is false."""
    return x if mask is None else torch.where(mask, x, 0)
