"""Depth-wise attention over the contexts of layers, and the normalisation around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def attend(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], scale: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Attention of one layer over others, at each position alone (deep attentive variational paper, eq. 3
    and 4).

    The weights are ``softmax_m(scale <query, key_m>)``; the scale is learned and starts at 1, without the
    root of the number of channels. Keys and values are not stacked, so that a cache of all contexts is read
    in place.

    Args:
        query: shape ``(batch, q, *positions)``.
        keys: those of each layer m, at least one, shape ``(batch, q, *positions)``.
        values: shape ``(batch, c, *positions)``.
        scale: a number.

    Returns:
        The weighted sum of the values, shape ``(batch, c, *positions)``, and the weights, shape ``(layers,
        batch, 1, *positions)``.
    """
    scores = torch.stack([(query * key).sum(1, keepdim=True) for key in keys])
    weights = (scale * scores).softmax(0)
    total = weights[0] * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        total = torch.addcmul(total, weight, value)
    return total, weights


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of each position.

    Args:
        channels: number of channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, shape ``(batch, channels, *positions)``."""
        y = F.layer_norm(x.movedim(1, -1), (x.shape[1],), self.weight, self.bias, 1e-5)
        return y.movedim(-1, 1)


class NormalisedResidual(nn.Module):
    """``x + gelu(layer_norm(x))`` (deep attentive variational paper, eq. 5 and 6).

    Args:
        channels: number of channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Shape as the input, ``(batch, channels, *positions)``."""
        return x + F.gelu(self.norm(x), approximate="tanh")


class PriorAttention(nn.Module):
    """The condition of the prior of a layer: its own context and a gated sum over earlier ones.

    In the published code the last context alone is normalised once more before attention, without a residual,
    and eq. 5 is applied when a context is stored; this is done here.

    Args:
        channels: channels of a context.
        normalised: whether contexts are normalised.
        frozen: whether the gate stays at zero.
    """

    def __init__(self, channels: int, normalised: bool, frozen: bool) -> None:
        super().__init__()
        self.stored = NormalisedResidual(channels) if normalised else nn.Identity()
        self.last = ChannelNorm(channels) if normalised else nn.Identity()
        self.attended = NormalisedResidual(channels) if normalised else nn.Identity()
        self.scale = nn.Parameter(torch.ones(()))
        self.gate = nn.Parameter(torch.zeros(()), requires_grad=not frozen)

    def forward(
        self, context: Tensor, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The context to store, the condition of the prior, and the weights of earlier layers.

        Args:
            context: that of the layer, shape ``(batch, channels, *positions)``.
            query: shape ``(batch, q, *positions)``.
            keys: keys of the attended layers, in order.
            values: their stored contexts; the last may be that of the layer before.
        """
        stored = self.stored(context)
        if not values:
            return stored, stored, None
        read = [*values[:-1], self.last(values[-1])]
        total, weights = attend(query, keys, read, self.scale)
        return stored, stored + self.gate * self.attended(total), weights


class PosteriorAttention(nn.Module):
    """The condition of the posterior of a layer: evidence merged with its context, and a gated sum over the
    evidence of this and later layers.

    Args:
        channels: channels of the evidence of a layer.
        normalised: whether conditions are normalised.
        frozen: whether the gate stays at zero.
    """

    def __init__(self, channels: int, normalised: bool, frozen: bool) -> None:
        super().__init__()
        self.own = NormalisedResidual(channels) if normalised else nn.Identity()
        self.attended = NormalisedResidual(channels) if normalised else nn.Identity()
        self.scale = nn.Parameter(torch.ones(()))
        self.gate = nn.Parameter(torch.zeros(()), requires_grad=not frozen)

    def forward(
        self, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The condition of the posterior, without its key, and the weights of the layers.

        Args:
            query: shape ``(batch, q, *positions)``.
            keys: keys of the own layer and later ones.
            values: their evidence, that of the own layer merged with its context, first.
        """
        total, weights = attend(query, keys, values, self.scale)
        return self.own(values[0]) + self.gate * self.attended(total), weights
