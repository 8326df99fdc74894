"""What weights belong to: the graphs and sizes of a network, a line each, so that a difference can be named."""

from __future__ import annotations

from zlib import crc32

from torch import nn

from ..runs.weights import named_tensors
from .arrays import Index
from .declaration import FactorGraph
from .describe import factor_label


def graph_signature(graph: FactorGraph) -> tuple[str, ...]:
    """One line for each axis, variable, constant and factor of a graph, in the order of declaration."""
    lines = [f"axis {name}: {size}" for name, size in graph.sizes.items()]
    for array in graph.arrays.values():
        regularizer = repr(graph.variables[array.name].regularizer) if array.name in graph.variables else ""
        numbers = (
            f"into {array.into}, checksum {crc32(array.array.tobytes()):08x}"
            if isinstance(array, Index)
            else ""
        )
        lines.append(
            " ".join(f"{array.kind} {array.name}: [{' '.join(array.axes)}] {regularizer}{numbers}".split())
        )
    lines += [f"factor {name}: {factor.formula()} {factor_label(factor)}".rstrip() for name, factor in graph.factors.items()]
    return tuple(lines)


def network_signature(network: nn.Module) -> tuple[str, ...]:
    """The signatures of all graphs in a module, then the shape of each of its tensors."""
    graphs = [module for module in network.modules() if isinstance(module, FactorGraph)]
    lines = [line if len(graphs) == 1 else f"{graph.name} {line}" for graph in graphs for line in graph_signature(graph)]
    return (*lines, *(f"tensor {name}: {tuple(x.shape)}" for name, x in named_tensors(network).items()))
