"""The engine ``solver``; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import SolverOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration


class SolverEngine(Engine):
    """A recurrent network over candidates, derived from the groups of the constraints."""

    name = "solver"
    summary = "recurrent network derived from the constraint groups: verified solutions of any size"
    options = SolverOptions
    answers = ("solve", "infer")

    def refusal(self, graph: Declaration) -> str:
        """A continuous variable in no factor with an energy, or no constraint that counts."""
        from .energies import refusal

        return refusal(graph)

    def build(self, graph: Declaration, options: SolverOptions, sizes: Mapping[str, int]) -> nn.Module:
        """A ``Solver``."""
        from .model import Solver

        return Solver(graph, options, sizes)
