"""The engine ``exact``; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import ExactOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration


class ExactEngine(Engine):
    """Exact inference on graphs of tables; parameters are learned by maximum conditional likelihood."""

    name = "exact"
    summary = (
        "exact inference on graphs of tables: means, most probable values and samples by contraction trees"
    )
    options = ExactOptions
    answers = ("infer", "sample")
    needs_all_values = False

    def refusal(self, graph: Declaration) -> str:
        """A variable without finitely many states, a factor that is no table, or a graph that is too wide."""
        from .ground import refusal_of_tables
        from .model import refusal_of_width

        return refusal_of_tables(graph) or refusal_of_width(graph)

    def build(self, graph: Declaration, options: ExactOptions, sizes: Mapping[str, int]) -> nn.Module:
        """An ``ExactModel``."""
        from .model import ExactModel

        return ExactModel(graph, options)
