"""Node embeddings from the variables of a declaration and its symmetries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..graph.declaration import Declaration
from ..graph.symmetries import Symmetry, shared_index
from .tokens import Frame

INDEX_WIDTH = 16
"""Width of the sinusoidal embedding of an index along one axis."""


def sinusoids(x: Tensor, width: int) -> Tensor:
    """Sinusoidal embedding with geometrically spaced frequencies (Vaswani et al., 2017).

    Args:
        x: numbers to embed, any shape.
        width: width of the embedding, even.

    Returns:
        Shape ``(*x.shape, width)``.
    """
    half = width // 2
    rates = torch.exp(-math.log(10_000.0) * torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angles = x[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)


def node_positions(graph: Declaration, frame: Frame, shared: Sequence[Symmetry]) -> Tensor:
    """Sinusoidal embedding of the index of each node along each axis that is not exchangeable.

    Args:
        graph: declaration of the graph.
        frame: frame of the graph.
        shared: symmetries along whose indices nodes have the same position.

    Returns:
        Shape ``(nodes, INDEX_WIDTH * axes)``, where ``axes`` is the largest number of node axes of
        a variable; zeros for the axes that a variable does not have.
    """
    wide = most_node_axes(graph)
    parts = []
    for name, slot in frame.slots.items():
        index = [torch.from_numpy(along) for along in shared_index(name, slot.node_shape, shared)]
        columns = [sinusoids(along.flatten().float(), INDEX_WIDTH) for along in index]
        count = slot.nodes.stop - slot.nodes.start
        columns += [torch.zeros(count, INDEX_WIDTH)] * (wide - len(columns))
        parts.append(torch.cat(columns, 1))
    return torch.cat(parts)


def most_node_axes(graph: Declaration) -> int:
    """Largest number of node axes of a variable, at least 1."""
    return max([1, *(len(variable.node_axes) for variable in graph.variables.values())])


class ArrayEmbedding(nn.Module):
    """Learned vector per variable plus a linear function of the node's position.

    Args:
        graph: declaration of the graph.
        width: width of the embedding.
    """

    def __init__(self, graph: Declaration, width: int) -> None:
        super().__init__()
        self.variable = nn.Embedding(len(graph.variables), width)
        self.position = nn.Linear(INDEX_WIDTH * most_node_axes(graph), width, bias=False)

    def forward(self, positions: Tensor, frame: Frame) -> Tensor:
        """Embeddings of all nodes, shape ``(nodes, width)``.

        Args:
            positions: result of ``node_positions``.
            frame: frame of the graph at the same sizes.
        """
        counts = torch.tensor(
            [slot.nodes.stop - slot.nodes.start for slot in frame.slots.values()], device=positions.device
        )
        embeddings: Tensor = self.variable.weight.repeat_interleave(
            counts, 0, output_size=frame.nodes
        ) + self.position(positions.to(self.variable.weight.dtype))
        return embeddings
