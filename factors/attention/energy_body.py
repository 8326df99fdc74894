"""Energy-based denoiser body: masked undirected attention over nodes, minimised with tied weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unn import FactorGraph, NonNegative, SignedEntropy, SquaredNorm, Unrolled
from unn.errors import ArgumentError
from unn.graph.adjacency import Adjacency
from unn.ops.attention import AttentionMask

from ..energies.multilinear import Multilinear
from .declare import undirected_attention


class EnergyBody(nn.Module):
    """Infers node states X, hidden features F and undirected attention among the X from observed tokens T.

    E = undirected attention of X with the graph's mask (undirected-network paper, Section 4)
    - <X, T> - <F, X A'> - <b, F>, with tanh for X and H and relu for F. Each round after the first propagates
    information over one or two edges, so that ``rounds`` correspond to layers with tied weights.

    Args:
        adjacency: attention mask over the nodes; the body accepts this number of nodes only.
        width: token width.
        heads: number of attention heads; divides the width.
        rounds: number of rounds of coordinate descent.

    Raises:
        ArgumentError: for rounds below 1.
        DeclarationError: for heads that do not divide the width.

    Example:
        >>> body = EnergyBody(g.adjacency(), width=64, heads=4, rounds=6)
        >>> denoiser = unn.Denoiser(g, width=64, body=body)
    """

    def __init__(
        self, adjacency: Adjacency | AttentionMask, width: int, heads: int = 4, rounds: int = 6
    ) -> None:
        super().__init__()
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise ArgumentError(f"EnergyBody: rounds must be a whole number >= 1, got {rounds!r}.")
        mask = adjacency.adjacency if isinstance(adjacency, AttentionMask) else adjacency
        self.nodes = mask.count
        graph = FactorGraph("energy_body", d=width, f=2 * width)
        T, X = graph.variable("T", "n d", SquaredNorm()), graph.variable("X", "n d", SignedEntropy())
        F = graph.variable("F", "n f", NonNegative())
        attention = undirected_attention(
            graph, X, heads=heads, mask=mask, regularizers={"H": SignedEntropy()}
        )
        A, b = graph.parameter("A", "f d"), graph.parameter("b", "f")
        graph.factor(Multilinear(X["n d"], T["n d"]))
        graph.factor(Multilinear(F["n f"], A["f d"], X["n d"]))
        graph.factor(Multilinear(b["f"], F["n f"]))
        self.norm = nn.LayerNorm(width)
        order = ["X", *attention.order, "F", "X"]
        self.network = Unrolled(
            graph, given="T", want="X", order=order, iterations=rounds, check_values=False
        )
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor, conditioning: Tensor) -> Tensor:
        """Update tokens by ``rounds`` rounds of coordinate descent.

        Args:
            tokens: shape ``(batch, nodes, width)``.
            conditioning: time and position embeddings, broadcastable to the shape of the tokens.

        Raises:
            ArgumentError: if the number of nodes differs from that of the adjacency.
        """
        if tokens.shape[1] != self.nodes:
            raise ArgumentError(
                f"EnergyBody: made for {self.nodes} nodes, got {tokens.shape[1]}; make one for each size."
            )
        mixed: Tensor = self.network(self.norm(tokens + conditioning))
        return torch.add(tokens, self.out(mixed))
