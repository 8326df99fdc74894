"""A Boltzmann machine: layers of binary units between an image and its label."""

from __future__ import annotations

from itertools import pairwise

import unn
from factors import Multilinear

_DEVIATION = 0.01
"""Standard deviation of the initial weights (Hinton, 2012, "A practical guide to training restricted
Boltzmann machines")."""


def declare(height: int, width: int, hidden: int, layers: int) -> unn.FactorGraph:
    """The graph: an image, hidden layers, and a label on the last of them.

    Args:
        height, width: of the images.
        hidden: units of a hidden layer.
        layers: number of hidden layers.
    """
    g = unn.FactorGraph("boltzmann", row=height, column=width, hidden=hidden, label=10)
    x = g.variable("x", "row column", unn.BinaryEntropy())
    units = [g.variable(f"h{layer}", "hidden", unn.BinaryEntropy()) for layer in range(1, layers + 1)]
    y = g.variable("y", "label", unn.Entropy())
    w = g.parameter("W1", "row column hidden", init=_DEVIATION)
    g.factor(Multilinear(x["r c"], w["r c i"], units[0]["i"]))
    for layer, (below, above) in enumerate(pairwise(units), 2):
        w = g.parameter(f"W{layer}", "hidden hidden", init=_DEVIATION)
        g.factor(Multilinear(below["i"], w["i j"], above["j"]))
    g.factor(Multilinear(units[-1]["i"], g.parameter("U", "hidden label", init=_DEVIATION)["i k"], y["k"]))
    g.factor(Multilinear(g.parameter("b", "row column")["r c"], x["r c"]))
    for layer, h in enumerate(units, 1):
        g.factor(Multilinear(g.parameter(f"c{layer}", "hidden")["i"], h["i"]))
    g.factor(Multilinear(g.parameter("d", "label")["k"], y["k"]))
    return g
