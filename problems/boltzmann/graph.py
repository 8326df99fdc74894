"""A Boltzmann machine: layers of binary units between an image and its label."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

import unn
from factors import Multilinear

_DEVIATION = 0.01
"""Standard deviation of the initial weights (Hinton, 2012, "A practical guide to training restricted
Boltzmann machines")."""

_LEAST = 0.01
"""Least intensity of a pixel from which biases start, and distance of the largest one from 1."""

Centred = Literal["all", "hidden", "none"]


def declare(height: int, width: int, hidden: int, layers: int, centred: Centred) -> unn.FactorGraph:
    """The graph: an image, hidden layers, and a label on the last of them.

    Args:
        height, width: of the images.
        hidden: units of a hidden layer.
        layers: number of hidden layers.
        centred: which weights couple units less their mean at the start of training, 1/2 for hidden units,
            1/10 for labels and, with "all", the mean intensities for pixels (``centre_pixels``), so that they
            are not learned together with the biases. Machines of several layers need it to be trained at
            once (Montavon and Mueller, 2012, "Deep Boltzmann machines and the centering trick").
    """
    g = unn.FactorGraph("boltzmann", row=height, column=width, hidden=hidden, label=10)
    x = g.variable("x", "row column", unn.BinaryEntropy())
    units = [g.variable(f"h{layer}", "hidden", unn.BinaryEntropy()) for layer in range(1, layers + 1)]
    y = g.variable("y", "label", unn.Entropy())
    w = g.parameter("W1", "row column hidden", init=_DEVIATION)
    g.factor(Multilinear(x["r c"], w["r c i"], units[0]["i"]))
    deeper = []
    for layer, (below, above) in enumerate(pairwise(units), 2):
        v = g.parameter(f"W{layer}", "hidden hidden", init=_DEVIATION)
        g.factor(Multilinear(below["i"], v["i j"], above["j"]))
        deeper.append((below, v, above))
    u = g.parameter("U", "hidden label", init=_DEVIATION)
    g.factor(Multilinear(units[-1]["i"], u["i k"], y["k"]))
    g.factor(Multilinear(g.parameter("b", "row column")["r c"], x["r c"]))
    for layer, h in enumerate(units, 1):
        g.factor(Multilinear(g.parameter(f"c{layer}", "hidden")["i"], h["i"]))
    g.factor(Multilinear(g.parameter("d", "label")["k"], y["k"]))
    if centred == "all":
        mean = g.constant("less_mean", "row column", value=torch.zeros(height, width))
        g.factor(Multilinear(mean["r c"], w["r c i"], units[0]["i"]))
    if centred != "none":
        less = g.constant("less_half", "hidden", value=torch.full((hidden,), -1 / 2))
        even = g.constant("less_tenth", "label", value=torch.full((10,), -1 / 10))
        g.factor(Multilinear(x["r c"], w["r c i"], less["i"]))
        for below, v, above in deeper:
            g.factor(Multilinear(below["i"], v["i j"], less["j"]))
            g.factor(Multilinear(less["i"], v["i j"], above["j"]))
        g.factor(Multilinear(units[-1]["i"], u["i k"], even["k"]))
        g.factor(Multilinear(less["i"], u["i k"], y["k"]))
    return g


def centre_pixels(graph: unn.FactorGraph, intensities: Tensor) -> None:
    """Centre pixels at their mean intensities, and start their biases where they alone have these.

    Args:
        graph: from ``declare`` with ``centred="all"``.
        intensities: mean of each pixel, in [0, 1], shape ``(height, width)``.
    """
    with torch.no_grad():
        graph.less_mean.copy_(-intensities)
        graph.b.copy_(intensities.clamp(_LEAST, 1 - _LEAST).logit())
