"""Where a declaration and its evidence are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

import torch
from torch import Tensor

from .declaration import Declaration
from .partial import Partial

_Evidence = TypeVar("_Evidence", bound=Tensor | Partial)


def device_of(graph: Declaration) -> torch.device:
    """The device of the parameters and constants of a graph; the CPU if it has none."""
    return next((x.device for x in graph.fixed_values().values()), torch.device("cpu"))


def moved(given: Mapping[str, _Evidence], device: torch.device) -> dict[str, _Evidence]:
    """Evidence on a device; what is neither a tensor nor partial is left for the checks.

    Args:
        given: values by variable, complete or partial.
        device: the device.
    """
    return {name: cast(_Evidence, _moved(x, device)) for name, x in given.items()}


def _moved(x: object, device: torch.device) -> object:
    if isinstance(x, Partial):
        return Partial(x.value.to(device), x.mask.to(device))
    return x.to(device) if isinstance(x, Tensor) else x
