"""Sizes of axes without a static size, from evidence."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from .declaration import Declaration
from .partial import Partial


def dynamic_sizes(graph: Declaration, evidence: Mapping[str, Tensor | Partial]) -> dict[str, int]:
    """Sizes of the axes of given variables that have no static size, by axis.

    Args:
        graph: the declaration.
        evidence: values by variable, shape ``(batch, *axes)``; unknown names are left out.
    """
    static = graph.size_table.static
    sizes: dict[str, int] = {}
    for name, x in evidence.items():
        if name in graph.variables:
            shape = (x.value if isinstance(x, Partial) else x).shape[1:]
            axes = zip(graph.variables[name].axes, shape, strict=False)
            sizes |= {axis: size for axis, size in axes if axis not in static}
    return sizes
