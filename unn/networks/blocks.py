"""Blocks of transformers over the nodes of a graph."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from ..errors import DeclarationError
from ..ops.attention import AttentionMask, attention


class TransformerBlock(nn.Module):
    """A residual block on each token, then attention, each on normalised tokens (structured-diffusion paper, Appendix D).

    Norms are per token, so that no information bypasses the mask. Queries and keys are normalised; values are not, since a weighted mean of
    continuous values, such as a posterior mean, needs their magnitudes. A new block is nearly the identity.

    Args:
        width: of a token.
        heads: of attention; divides the width.
        dropout: probability in the residual block.
        global_token: add a linear function of the mean of all tokens to each; this bypasses the mask.
        conditioned: has the block weights for a conditioning tensor?
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, global_token: bool = False, conditioned: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm, self.attention_norm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.conditioning = nn.Linear(width, width) if conditioned else None
        self.dropout = nn.Dropout(dropout)
        self.query_key, self.value = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.global_token = nn.Linear(width, width) if global_token else None
        for linear in (self.second, self.out):
            nn.init.normal_(linear.weight, 0, 0.02 / math.sqrt(width))
            nn.init.zeros_(linear.bias)

    def forward(
        self, tokens: Tensor, conditioning: Tensor | None = None, mask: AttentionMask | None = None, kernel: str = "auto"
    ) -> Tensor:
        """New tokens, shape ``(batch, nodes, width)``.

        Args:
            tokens: of that shape.
            conditioning: time, position or whatever else each token is conditioned on; broadcastable to that shape. None for none.
            mask: which nodes attend to which; None for all to all.
            kernel: of attention, see ``unn.ops.attention.attention``.

        Raises:
            DeclarationError: for a conditioning tensor where the block has no weights for it.
        """
        h = self.first(silu(self.first_norm(tokens)))
        if conditioning is not None:
            if self.conditioning is None:
                raise DeclarationError("this TransformerBlock has no weights for a conditioning tensor; make it with conditioned=True.")
            h = h + self.conditioning(conditioning)
        if self.global_token is not None:
            h = h + self.global_token(tokens.mean(1, keepdim=True))
        tokens = tokens + self.second(self.dropout(silu(self.second_norm(h))))
        query, key = self.query_key(self.attention_norm(tokens)).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        value = self.value(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)
        mixed = scaled_dot_product_attention(query, key, value) if mask is None else attention(query, key, value, mask, kernel)
        result: Tensor = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        return result
