"""Evidence of queries about a simulator: which values are given."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SHARES = (0.3, 0.7)
"""Probabilities with which each value is given in two of the five kinds of query."""


def any_conditional(
    shapes: Mapping[str, tuple[int, ...]],
    parameters: tuple[str, ...],
    count: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Masks of given values, of five kinds with equal probability (Gloeckler et al., 2024): none; all data;
    all parameters; each value with probability 0.3, and with 0.7. Never are all given.

    Args:
        shapes: shapes of the variables' nodes, by name.
        parameters: names of the parameters; all others are data.
        count: number of masks.
        generator: random number generator.

    Returns:
        By variable, boolean, shape ``(count, *shape)``.
    """
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    is_parameter = torch.cat(
        [torch.full((n,), name in parameters) for name, n in zip(shapes, sizes, strict=True)]
    )
    masks = torch.ones(count, sum(sizes), dtype=torch.bool)
    while bool((complete := masks.all(1)).any()):
        masks[complete] = _drawn(is_parameter, int(complete.sum()), generator)
    parts = masks.split(sizes, 1)
    return {
        name: part.reshape(count, *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _drawn(is_parameter: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Masks, of which some may be complete, shape ``(count, nodes)``."""
    kind = torch.randint(5, (count, 1), generator=generator)
    share = torch.tensor((0.0, 0.0, 0.0, *SHARES))[kind]
    masks = torch.rand(count, len(is_parameter), generator=generator) < share
    return masks | ((kind == 1) & ~is_parameter) | ((kind == 2) & is_parameter)


def posterior(shapes: Mapping[str, tuple[int, ...]], parameters: tuple[str, ...]) -> dict[str, Tensor]:
    """The mask of the usual posterior: all data are given, shape ``(1, *shape)`` each."""
    return {name: torch.full((1, *shape), name not in parameters) for name, shape in shapes.items()}
