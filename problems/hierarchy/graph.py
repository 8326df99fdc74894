"""The declaration of filtered trees: one factor for each level, over all of its nodes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import unn
from factors import Multilinear

from .grammar import Grammar

NEVER = -1e30
"""Stands for the logarithm of 0, since constants are finite."""


def level_name(level: int, levels: int) -> str:
    """Name of the variable of a level."""
    return "root" if level == 0 else "leaf" if level == levels else f"level{level}"


def declare(grammar: Grammar) -> unn.FactorGraph:
    """Root, levels k to l, and the factors of the filtered tree; logarithms of the rules are constants.

    Args:
        grammar: rules and filtering.
    """
    q, k, last = grammar.symbols, grammar.filtering, grammar.levels
    sizes = {f"node{level}": 2**level for level in range(max(k, 1), last + 1)}
    g = unn.FactorGraph("hierarchy", symbol=q, **sizes)
    root = g.variable("root", "symbol", unn.Entropy())
    g.constant("prior", "symbol", logarithms(grammar.root))
    g.factor(Multilinear(g.arrays["prior"]["a"], root["a"], name="prior of the root"))
    levels = {
        level: g.variable(level_name(level, last), f"node{level} | symbol", unn.Entropy())
        for level in range(max(k, 1), last + 1)
    }
    if k:
        star = g.constant("star", f"node{k} symbol other", logarithms(grammar.star()))
        g.factor(Multilinear(root["a"], star["j a b"], levels[k]["j b"], name="star of the root"))
    if k == last:
        return g
    rules = g.constant("rules", "symbol other third", logarithms(grammar.rules))
    for level in range(k, last):
        child = levels[level + 1]
        count = 2**level
        left = g.index(
            f"left{level}", f"parent{level}", list(range(0, 2 * count, 2)), into=f"node{level + 1}"
        )
        right = g.index(
            f"right{level}", f"parent{level}", list(range(1, 2 * count, 2)), into=f"node{level + 1}"
        )
        parent = levels[level]["j a"] if level else root["a"]
        children = child[f"{left.name}[j] b"], child[f"{right.name}[j] c"]
        g.factor(Multilinear(parent, rules["a b c"], *children, name=f"rules of level {level}"))
    return g


def logarithms(probabilities: NDArray[np.float64]) -> Tensor:
    """Logarithms of probabilities, ``NEVER`` for 0, float64."""
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    return torch.from_numpy(np.maximum(logs, NEVER))
