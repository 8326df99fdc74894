"""Observation masks for training: random subsets of the nodes, and the check of the option ``observe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unn.errors import ArgumentError, suggest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn


def any_nodes(
    graph: unn.FactorGraph, count: int, generator: torch.Generator, sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Random subset of the nodes of a graph; the number is uniform, and the nodes given the number.

    Returns:
        By variable, boolean, shape ``(count, *node axes)``.
    """
    import torch

    shapes = graph.adjacency(**sizes).shapes
    total = sum(torch.Size(shape).numel() for shape in shapes.values())
    rank = torch.rand(count, total, generator=generator).argsort(1).argsort(1)
    observed = rank < torch.randint(total, (count, 1), generator=generator)
    parts = observed.split([torch.Size(shape).numel() for shape in shapes.values()], 1)
    return {
        name: part.reshape(count, *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def check_observe(where: str, value: str, choices: tuple[str, ...]) -> None:
    """Check the option ``observe``.

    Raises:
        ArgumentError: if it is not one of the choices.
    """
    if value not in choices:
        raise ArgumentError(
            f"{where}: option observe must be one of {', '.join(choices)}, got "
            f"{value!r}.{suggest(value, choices)}"
        )
