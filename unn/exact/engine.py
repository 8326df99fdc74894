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
    """Exact inference on tables, structures, and quadratic energies given a few discrete nodes.

    Parameters are learned by maximum conditional likelihood.
    """

    name = "exact"
    summary = "exact inference on tables, structures and quadratic energies: means and samples"
    options = ExactOptions
    answers = ("infer", "sample")
    needs_all_values = False

    def refusal(self, graph: Declaration) -> str:
        """A factor that is neither a table nor quadratic, a variable that is neither discrete nor normal, or
        a graph that is too wide."""
        from .ground import refusal_of_structures
        from .mixed import continuous_variables, mixed_refusal
        from .model import refusal_of_width

        if continuous_variables(graph):
            return mixed_refusal(graph)
        return refusal_of_structures(graph) or refusal_of_width(graph)

    def build(self, graph: Declaration, options: ExactOptions, sizes: Mapping[str, int]) -> nn.Module:
        """An ``ExactModel``, or a ``MixedModel`` where there are continuous variables."""
        from .mixed import continuous_variables
        from .mixed_model import MixedModel
        from .model import ExactModel

        return MixedModel(graph, options) if continuous_variables(graph) else ExactModel(graph, options)
