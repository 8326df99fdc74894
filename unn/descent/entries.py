"""The values of several variables side by side, as one row of entries for each batch element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .plan import PlannedUpdate
from .state import State


def joined(state: State, names: Sequence[str]) -> Tensor:
    """Values of variables side by side, shape ``(batch, entries)``."""
    return torch.cat([state.value(name).reshape(state.evidence.batch, -1) for name in names], 1)


def parts(state: State, names: Sequence[str], x: Tensor) -> dict[str, Tensor]:
    """The values of each variable, shape ``(batch, *axes)``, from those side by side."""
    shapes = {name: state.evidence.shapes[name] for name in names}
    pieces = x.split([math.prod(shape) for shape in shapes.values()], 1)
    return {
        name: piece.view(len(x), *shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def assign(state: State, names: Sequence[str], x: Tensor) -> None:
    """Give variables the values that stand side by side; observed entries stay."""
    for name, value in parts(state, names, x).items():
        state.replace(PlannedUpdate(name), value)


def names_of(steps: Sequence[PlannedUpdate]) -> tuple[str, ...]:
    """The variables of some updates, each once."""
    return tuple(dict.fromkeys(step.name for step in steps))
