"""The recurrent transformer (recurrent-transformer paper, Section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import DataError
from ..networks.dropout import Dropout
from ..ops.attention import AttentionMask, attention


@dataclass(frozen=True, eq=False)
class Hidden:
    """What one block computes in one recurrence.

    Attributes:
        state: state of the tokens after the block, shape ``(batch, tokens, width)``.
        attention: attention logits, shape ``(batch, heads, tokens, tokens)``; None unless asked for.
    """

    state: Tensor
    attention: Tensor | None


class RecurrentTransformer(nn.Module):
    """A transformer whose blocks are applied again and again with the same weights.

    Tokens are embedded once; the output of every block in every recurrence is classified by one head.

    Args:
        vocabulary: number of different input tokens.
        positions: number of tokens.
        classes: number of classes of the outputs.
        width: numbers per token.
        depth: number of blocks.
        heads: number of attention heads; divides the width.
        dropout: dropout probability of embeddings, attention and the outputs of both halves of a block.
        inject: whether the embedding is added again before each recurrence.
        position_deviation: standard deviation of the position embeddings before training.
    """

    def __init__(
        self,
        vocabulary: int,
        positions: int,
        classes: int,
        width: int = 128,
        depth: int = 1,
        heads: int = 4,
        dropout: float = 0.1,
        inject: bool = False,
        position_deviation: float = 0.0,
    ) -> None:
        super().__init__()
        self.inject = inject
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(positions, width))
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(RecurrentBlock(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)
        self.apply(_initialise)
        if position_deviation:
            nn.init.normal_(self.position, 0, position_deviation)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embedding of the input, shape ``(batch, tokens, width)``.

        Args:
            tokens: numbers below the vocabulary, shape ``(batch, tokens)``.
        """
        embedded: Tensor = self.dropout(self.token(tokens) + self.position)
        return embedded

    def recur(
        self,
        embedded: Tensor,
        state: Tensor,
        mask: AttentionMask | None = None,
        with_attention: bool = False,
    ) -> list[Hidden]:
        """One recurrence, block by block; the last state is the next one.

        Args:
            embedded: embedding of the input, shape ``(batch, tokens, width)``.
            state: state of the tokens, the same shape; the embedding at first.
            mask: attention mask; None for attention between all tokens.
            with_attention: return attention logits.
        """
        hidden = []
        if self.inject:
            state = state + embedded
        for block in self.blocks:
            state, logits = block(state, mask, with_attention)
            hidden.append(Hidden(state, logits))
        return hidden

    def advance(
        self, embedded: Tensor, state: Tensor, recurrences: int, mask: AttentionMask | None = None
    ) -> Tensor:
        """The state after several recurrences, without the outputs in between."""
        for _ in range(recurrences):
            if self.inject:
                state = state + embedded
            for block in self.blocks:
                state, _ = block(state, mask, False)
        return state

    def classify(self, state: Tensor) -> Tensor:
        """Logits of states, shape ``(..., tokens, classes)``, by one call of the shared head."""
        logits: Tensor = self.head(self.norm(state))
        return logits

    def forward(self, tokens: Tensor, recurrences: int, mask: AttentionMask | None = None) -> Tensor:
        """Logits after the last recurrence, shape ``(batch, tokens, classes)``.

        Args:
            tokens: numbers below the vocabulary, shape ``(batch, tokens)``.
            recurrences: number of recurrences, at least 1.
            mask: attention mask.
        """
        embedded = self.embed(tokens)
        return self.classify(self.advance(embedded, embedded, recurrences, mask))

    def load_published(self, tensors: Mapping[str, Tensor]) -> None:
        """Load weights under the names of the published implementation.

        Args:
            tensors: ``tok_emb.weight``, ``pos_emb``, ``blocks.0.attn.query.weight`` and so on.

        Raises:
            DataError: names a tensor that is missing, superfluous or of another shape.
        """
        own = self.state_dict()
        state: dict[str, Tensor] = {}
        used = set()

        def take(name: str) -> Tensor:
            if name not in tensors:
                raise DataError(f"published weights: {name!r} is missing.")
            used.add(name)
            return torch.as_tensor(tensors[name])

        state["token.weight"], state["position"] = take("tok_emb.weight"), take("pos_emb").squeeze(0)
        state["head.weight"] = take("head.weight")
        for kind in ("weight", "bias"):
            state[f"norm.{kind}"] = take(f"ln_f.{kind}")
            for k in range(len(self.blocks)):
                parts = [take(f"blocks.{k}.attn.{part}.{kind}") for part in ("query", "key", "value")]
                state[f"blocks.{k}.query_key_value.{kind}"] = torch.cat(parts)
                for published, name in _PUBLISHED.items():
                    state[f"blocks.{k}.{name}.{kind}"] = take(f"blocks.{k}.{published}.{kind}")
        for name, x in state.items():
            if tuple(x.shape) != tuple(own[name].shape):
                raise DataError(
                    f"published weights: {name} has shape {tuple(x.shape)}, this network has "
                    f"{tuple(own[name].shape)}."
                )
        unused = sorted(set(tensors) - used)
        if unused:
            raise DataError(f"published weights: {unused[0]!r} belongs to no part of this network.")
        self.load_state_dict({name: x.to(own[name]) for name, x in state.items()})


class RecurrentBlock(nn.Module):
    """Attention and a feed-forward layer, both residual and pre-norm.

    Args:
        width: numbers per token.
        heads: number of attention heads; divides the width.
        dropout: dropout probability.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, mask: AttentionMask | None, with_attention: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The tokens, and attention logits if asked for.

        Args:
            x: tokens, shape ``(batch, tokens, width)``.
            mask: attention mask; None for attention between all tokens.
            with_attention: return attention logits.
        """
        parts = self.query_key_value(self.attention_norm(x)).unflatten(2, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        # fused attention has no dropout on a CPU, and attention over pairs has none at all
        rate = self.dropout.p if self.training else 0.0
        dropped = rate > 0 and (mask is not None or with_attention or x.device.type == "cpu")
        logits = query @ key.mT / math.sqrt(query.shape[-1]) if with_attention or dropped else None
        if dropped and logits is not None:
            mixed = self.dropout(_weights(logits, mask)) @ value
        elif mask is not None:
            mixed = attention(query, key, value, mask)
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=rate)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        x = x + self.dropout(self.narrow(F.gelu(self.widen(self.forward_norm(x)))))
        return x, logits if with_attention else None


_PUBLISHED = {
    "ln1": "attention_norm",
    "ln2": "forward_norm",
    "attn.proj": "out",
    "mlp.0": "widen",
    "mlp.2": "narrow",
}
"""Names of the parts of a block in published weights."""


def _weights(logits: Tensor, mask: AttentionMask | None) -> Tensor:
    """Attention weights, 0 outside of the mask, shape ``(batch, heads, tokens, tokens)``."""
    if mask is None:
        return logits.softmax(-1)
    allowed = mask.dense(logits.device)
    if not mask.has_empty_rows:
        return logits.masked_fill(~allowed, -torch.inf).softmax(-1)
    # a token without neighbours has no weights, and its gradients are no softmax of nothing
    empty = ~allowed.any(1, keepdim=True)
    return logits.masked_fill(~(allowed | empty), -torch.inf).softmax(-1) * ~empty


def _initialise(module: nn.Module) -> None:
    """Weights are normal with standard deviation 0.02, biases are zero."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, 0, 0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
