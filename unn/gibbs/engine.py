"""The engine ``gibbs``; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import GibbsOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration


class GibbsEngine(Engine):
    """Markov chains under the energy, and energies learned from examples."""

    name = "gibbs"
    summary = "Markov chains under the energy: samples and means, and energies learned from examples"
    options = GibbsOptions
    answers = ("infer", "sample")
    needs_all_values = False

    def refusal(self, graph: Declaration) -> str:
        """A factor without an energy, a variable whose conditional distribution has no exact sampler, or
        constraints without anything to learn."""
        from .chains import refusal

        if graph.constraints and not any(True for _ in graph.parameters()):
            return "the graph has constraints and no parameters to learn; unn.gibbs.sample draws from it"
        return refusal(graph)

    def build(self, graph: Declaration, options: GibbsOptions, sizes: Mapping[str, int]) -> nn.Module:
        """A ``GibbsModel``."""
        from .model import GibbsModel

        return GibbsModel(graph, options)
