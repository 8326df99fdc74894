"""The engine ``latent``; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine
from .options import LatentOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration


class LatentEngine(Engine):
    """Variational auto-encoders over declared latent groups (deep attentive variational paper)."""

    name = "latent"
    summary = "variational auto-encoder over declared latent groups: samples, means and bounds"
    options = LatentOptions
    answers = ("infer", "sample")
    needs_all_values = False
    one_size = True

    def refusal(self, graph: Declaration) -> str:
        """A graph without latent groups, or whose groups do not fit the observed variables."""
        from .hierarchy import refusal

        return refusal(graph)

    def build(self, graph: Declaration, options: LatentOptions, sizes: Mapping[str, int]) -> nn.Module:
        """An ``AttentiveVAE``."""
        from .model import AttentiveVAE

        return AttentiveVAE(graph, options, sizes)
