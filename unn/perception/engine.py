"""The engine ``perception``; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import PerceptionOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration


class PerceptionEngine(Engine):
    """Discrete values are perceived from continuous nodes, and the constraints decide between readings."""

    name = "perception"
    summary = "values perceived from images or features, the most probable ones that meet all constraints"
    options = PerceptionOptions
    answers = ("solve",)

    def refusal(self, graph: Declaration) -> str:
        """No continuous variable, one that belongs to no discrete variable, or no constraint that counts."""
        from .sensors import refusal

        return refusal(graph)

    def build(self, graph: Declaration, options: PerceptionOptions, sizes: Mapping[str, int]) -> nn.Module:
        """A ``Perception``."""
        from .model import Perception

        return Perception(graph, options)
