"""The engine ``belief``; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import BeliefOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration


class BeliefEngine(Engine):
    """Belief propagation on graphs of tables, for graphs that are too wide to be exact."""

    name = "belief"
    summary = "belief propagation on graphs of tables: approximate means, exact on trees"
    options = BeliefOptions
    answers = ("infer",)
    needs_all_values = False

    def refusal(self, graph: Declaration) -> str:
        """A variable without finitely many states, or a factor that is no table."""
        from ..exact.ground import refusal_of_tables

        return refusal_of_tables(graph)

    def build(self, graph: Declaration, options: BeliefOptions, sizes: Mapping[str, int]) -> nn.Module:
        """A ``BeliefModel``."""
        from .model import BeliefModel

        return BeliefModel(graph, options)
