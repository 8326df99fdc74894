"""The engine ``recurrent``; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import RecurrentOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration


class RecurrentEngine(Engine):
    """The recurrent transformer with constraint losses (recurrent-transformer paper)."""

    name = "recurrent"
    summary = "recurrent transformer with constraint losses: a token for each node"
    options = RecurrentOptions
    answers = ("solve", "infer")
    one_size = True

    def refusal(self, graph: Declaration) -> str:
        """A continuous variable, or no constraint."""
        from .model import refusal

        return refusal(graph)

    def build(self, graph: Declaration, options: RecurrentOptions, sizes: Mapping[str, int]) -> nn.Module:
        """A ``RecurrentModel``."""
        from .model import RecurrentModel

        return RecurrentModel(graph, options, sizes)
