"""The engine ``search``; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import SearchOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration


class SearchEngine(Engine):
    """Sampled block descent on the number of violations; there is nothing to learn."""

    name = "search"
    summary = "sampled block descent on the violations of constraints, without training"
    options = SearchOptions
    answers = ("solve",)
    trains = False

    def refusal(self, graph: Declaration) -> str:
        """A continuous variable, or no constraint that counts."""
        from ..solver.layout import refusal

        return refusal(graph)

    def build(self, graph: Declaration, options: SearchOptions, sizes: Mapping[str, int]) -> nn.Module:
        """A ``Search``."""
        from .model import Search

        return Search(graph, options)
