"""The declaration of images from latent groups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import unn
from factors import Depends, LayerAttention, SpatialAttention
from unn.graph.layers import Span


@dataclass(frozen=True)
class Shape:
    """Sizes of images and of their latent groups.

    Attributes:
        height, width: sides of the images.
        channels: channels of a pixel; 0 for binary pixels.
        layers: number of latent groups.
        latent: channels of a group.
        halvings: how often the sides of the images are halved to those of a group.
    """

    height: int
    width: int
    channels: int
    layers: int
    latent: int
    halvings: int


def declare(
    shape: Shape,
    *,
    attention: Span | None = "all",
    spatial: bool = True,
    frozen: bool = False,
) -> unn.FactorGraph:
    """Images of which each pixel depends on all latent groups, each of which depends on the one before.

    Args:
        shape: sizes.
        attention: which layers the prior and the posterior of a group attend to ("none", "neighbours",
            "all"); None declares no attention over layers.
        spatial: whether the positions of a group attend to one another.
        frozen: whether all gates of attention stay at zero.
    """
    g = unn.FactorGraph(
        "images",
        layer=shape.layers,
        row=math.ceil(shape.height / 2**shape.halvings),
        column=math.ceil(shape.width / 2**shape.halvings),
        channel=shape.latent,
        height=shape.height,
        width=shape.width,
        colour=shape.channels or 1,
    )
    z = g.variable("z", "layer row column | channel", unn.SquaredNorm())
    if shape.channels:
        x = g.variable("x", "height width | colour", unn.SquaredNorm())
        g.factor(Depends(x["h w k"], z["l r c j"], ordered="h w k l r c j"))
    else:
        x = g.variable("x", "height width", unn.BinaryEntropy())
        g.factor(Depends(x["h w"], z["l r c j"], ordered="h w l r c j"))
    g.factor(Depends(z["l+1 r c j"], z["l s d k"], ordered="l r c j s d k"))
    if attention is not None:
        g.factor(LayerAttention(z["l r c j"], "l", prior=attention, posterior=attention, frozen=frozen))
    if spatial:
        g.factor(SpatialAttention(z["l r c j"], "l", frozen=frozen))
    return g
