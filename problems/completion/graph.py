"""Sequence completion: symbols, their embeddings and undirected attention among them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

import unn
from factors import Multilinear, bounded_attention, undirected_attention

SYMBOLS = 64
"""Numbers of the sequences: 1 to 64."""


def declare(features: int, heads: int, bounded: bool) -> unn.FactorGraph:
    """The graph of the undirected-network paper, Section 4, with the symbols as a variable.

    The energy is that of attention over X + P, and -<token, X embedding'>. With the tokens given in part, a
    round of X, Q, K, V, S, H, S, V, K, Q, X, token is that of the paper: embeddings of missing tokens begin
    at 0, and the logits of the last update are those of its loss. Rounds after the first also update the
    embeddings of given tokens, unless these are observed (``embedded``) as in the paper.

    Args:
        features: width of an embedding, and of all heads together.
        heads: number of heads.
        bounded: queries, keys, values and outputs in unit balls, so that the energy has a minimum.
    """
    g = unn.FactorGraph("completion", symbol=SYMBOLS, d=features)
    token = g.variable("token", "n | symbol", unn.Entropy())
    X = g.variable("X", "n | d", unn.SquaredNorm())
    P = g.variable("P", "n | d", unn.SquaredNorm())
    embedding = g.parameter("embedding", "symbol d", init=torch.randn(SYMBOLS, features))
    g.factor(Multilinear(token["n s"], embedding["s d"], X["n d"]))
    attention = bounded_attention if bounded else undirected_attention
    attention(g, [X, P], heads=heads)
    return g


def embedded(graph: unn.Declaration, given: Mapping[str, Tensor | unn.Partial]) -> dict[str, unn.Partial]:
    """Embeddings of the observed tokens, as evidence: the values that these tokens alone give them.

    Args:
        graph: the declared graph.
        given: evidence by variable, shape ``(batch, *axes)``.

    Returns:
        X where tokens are observed, unless it is itself given.
    """
    token = given.get("token")
    if token is None or "X" in given:
        return {}
    if not isinstance(token, unn.Partial):
        token = unn.Partial(token, torch.ones_like(token, dtype=torch.bool))
    embedding = graph.get_parameter("embedding")
    # what a missing token holds is not read
    values = torch.where(token.mask, token.value, 0).to(embedding) @ embedding
    return {"X": unn.Partial(values, token.mask.expand_as(token.value)[..., :1].expand_as(values))}


def positions(count: int, features: int) -> Tensor:
    """Sinusoidal embeddings of positions (Vaswani et al., 2017), shape ``(count, features)``."""
    rates = torch.exp(torch.arange(0, features, 2) * (-math.log(10_000.0) / features))
    angles = torch.arange(count)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :features]
