"""The engine ``encoder``; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import EncoderOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration


class EncoderEngine(Engine):
    """A transformer encoder trained on hidden nodes (hierarchical-filtering paper)."""

    name = "encoder"
    summary = "transformer encoder: estimated marginals of hidden nodes given the others, in one pass"
    options = EncoderOptions
    answers = ("infer",)
    one_size = True

    def refusal(self, graph: Declaration) -> str:
        """A continuous variable."""
        from .model import refusal

        return refusal(graph)

    def build(self, graph: Declaration, options: EncoderOptions, sizes: Mapping[str, int]) -> nn.Module:
        """An ``Encoder``."""
        from .model import Encoder

        return Encoder(graph, options, sizes)
