"""The transformer encoder (hierarchical-filtering paper, Section 3)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from ..networks.embeddings import sinusoids


class EncoderNetwork(nn.Module):
    """Post-norm transformer blocks over tokens, a linear output for each token, and others from all tokens.

    Args:
        vocabulary: number of different input tokens.
        positions: number of tokens.
        classes: number of classes of each output.
        pooled: number of outputs that are linear in the concatenation of all tokens.
        width: numbers per token.
        blocks: number of blocks.
        heads: number of attention heads; divides the width.
        hidden: number of units of the feed-forward layers.
        dropout: dropout probability.
    """

    def __init__(
        self,
        vocabulary: int,
        positions: int,
        classes: int,
        pooled: int,
        width: int,
        blocks: int,
        heads: int,
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.classes, self.pooled = classes, pooled
        self.token = nn.Embedding(vocabulary, width)
        self.register_buffer("position", sinusoids(torch.arange(positions).float(), width), persistent=False)
        self.dropout = nn.Dropout(dropout)
        layers = [
            nn.TransformerEncoderLayer(width, heads, hidden, dropout, activation="relu", batch_first=True)
            for _ in range(blocks)
        ]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, classes)
        self.pooled_head = nn.Linear(positions * width, pooled * classes) if pooled else None

    def embed(self, tokens: Tensor) -> Tensor:
        """Embedding of tokens and positions, shape ``(batch, positions, width)``.

        Args:
            tokens: numbers of the tokens, shape ``(batch, positions)``.
        """
        embedded: Tensor = self.dropout(self.token(tokens) + self.position)
        return embedded

    def states(self, tokens: Tensor) -> list[Tensor]:
        """State of the tokens at the input and after each block, each ``(batch, positions, width)``."""
        states = [self.embed(tokens)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the tokens, then of the pooled outputs, ``(batch, positions + pooled, classes)``."""
        state = self.states(tokens)[-1]
        logits: Tensor = self.head(state)
        if self.pooled_head is None:
            return logits
        pooled = self.pooled_head(state.flatten(1)).unflatten(1, (self.pooled, self.classes))
        return torch.cat([logits, pooled], 1)

    def attention(self, tokens: Tensor) -> Tensor:
        """Attention of each block, shape ``(blocks, batch, heads, positions, positions)``; without dropout.

        Args:
            tokens: numbers of the tokens, shape ``(batch, positions)``.
        """
        training = self.training
        self.eval()
        maps = []
        for layer, x in zip(self.layers, self.states(tokens), strict=False):
            attend = cast(nn.TransformerEncoderLayer, layer).self_attn
            maps.append(attend(x, x, x, need_weights=True, average_attn_weights=False)[1])
        self.train(training)
        return torch.stack(maps)
