"""Transformer blocks over the nodes of a graph."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from ..errors import ArgumentError
from ..ops.attention import AttentionMask, attention


class TransformerBlock(nn.Module):
    """Residual block per token, then attention, both pre-norm (structured-diffusion paper, Appendix D).

    LayerNorm is per token, so no information bypasses the mask. Queries and keys are computed from
    normalised tokens, values from unnormalised ones, since a weighted mean of continuous values,
    such as a posterior mean, needs their magnitudes. A newly initialised block is nearly the
    identity.

    Args:
        width: token width.
        heads: number of attention heads; divides the width.
        dropout: dropout probability in the residual block.
        global_token: add a linear function of the mean of all tokens to each token; this bypasses the mask.
        conditioned: give the block weights for a conditioning tensor.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float = 0.0,
        global_token: bool = False,
        conditioned: bool = True,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm, self.attention_norm = (
            nn.LayerNorm(width),
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
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
        self,
        tokens: Tensor,
        conditioning: Tensor | None = None,
        mask: AttentionMask | None = None,
        kernel: str = "auto",
    ) -> Tensor:
        """Apply the block; returns tokens, shape ``(batch, nodes, width)``.

        Args:
            tokens: input tokens, same shape.
            conditioning: embedding of what each token is conditioned on, such as time and position;
                broadcastable to the shape of the tokens. None for no conditioning.
            mask: attention mask; None for dense attention.
            kernel: attention kernel, see ``unn.ops.attention.attention``.

        Raises:
            ArgumentError: for a conditioning tensor if the block was made with ``conditioned=False``.
        """
        h = self.first(silu(self.first_norm(tokens)))
        if conditioning is not None:
            if self.conditioning is None:
                raise ArgumentError(
                    "this TransformerBlock has no weights for a conditioning tensor; make it with "
                    "conditioned=True."
                )
            h = h + self.conditioning(conditioning)
        if self.global_token is not None:
            h = h + self.global_token(tokens.mean(1, keepdim=True))
        tokens = tokens + self.second(self.dropout(silu(self.second_norm(h))))
        query, key = (
            self.query_key(self.attention_norm(tokens))
            .unflatten(2, (2, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        value = self.value(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)
        mixed = (
            scaled_dot_product_attention(query, key, value)
            if mask is None
            else attention(query, key, value, mask, kernel)
        )
        result: Tensor = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        return result
