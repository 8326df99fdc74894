"""The engine of block coordinate descent; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import DescentOptions

if TYPE_CHECKING:
    from ..graph.declaration import Declaration
    from .model import DescentModel


class DescentEngine(Engine):
    """Block coordinate descent on the energy, unrolled for training: an undirected neural network."""

    name = "descent"
    summary = (
        "coordinate descent on the energy, unrolled for training: the best values of any variables given "
        "others"
    )
    options = DescentOptions
    answers = ("infer",)
    needs_all_values = False

    def refusal(self, graph: Declaration) -> str:
        """A factor without an energy that is no constraint with one, or a parameter of unknown size."""
        from ..errors import UnnError
        from .model import with_energies

        try:
            graph.require_parameters()
            with_energies(graph, 1.0)
        except UnnError as error:
            return str(error).rstrip(".")
        return ""

    def build(self, graph: Declaration, options: DescentOptions, sizes: Mapping[str, int]) -> DescentModel:
        """A ``DescentModel``."""
        from .model import DescentModel

        return DescentModel(graph, options)
