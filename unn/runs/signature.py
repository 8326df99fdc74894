"""Signature of a network: its graphs and sizes, one per line, so that a difference can be named."""

from __future__ import annotations

from torch import nn

from ..graph.declaration import Declaration
from ..graph.signature import graph_signature
from .weights import named_tensors


def network_signature(network: nn.Module) -> tuple[str, ...]:
    """Return the signatures of all graphs in a module, then the shape of each tensor."""
    graphs = [module for module in network.modules() if isinstance(module, Declaration)]
    lines = [
        line if len(graphs) == 1 else f"{graph.name} {line}"
        for graph in graphs
        for line in graph_signature(graph)
    ]
    return (*lines, *(f"tensor {name}: {tuple(x.shape)}" for name, x in named_tensors(network).items()))
