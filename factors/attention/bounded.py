"""Undirected attention whose energy has a minimum."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from unn import Ball, FactorGraph, Regularizer

from .declare import Mask, Sources, UndirectedAttention, declare_attention


def bounded_attention(
    graph: FactorGraph,
    queries: Sources,
    keys: Sources | None = None,
    values: Sources | None = None,
    *,
    heads: int = 1,
    width: int | None = None,
    mask: Mask | None = None,
    temperature: float | None = None,
    regularizers: Mapping[str, Regularizer] | None = None,
    init: float | Mapping[str, Tensor] | None = None,
    prefix: str = "",
) -> UndirectedAttention:
    """Declare ``undirected_attention`` with queries, keys, values and outputs in balls.

    The rows of Q, K, V and H have norms of at most sqrt(e), e the width of a head, so that the energy is bounded below for
    all weights, whatever is given (``graph.boundedness()``), and updates converge to a fixed point. Rows that
    are not longer are those of ``undirected_attention``.

    Args:
        graph, queries, keys, values, heads, width, mask, temperature, init, prefix: as of
            ``undirected_attention``.
        regularizers: other regularizers by "Q", "K", "V" and "H". ``LayerNorm()`` and ``RMSNorm()``, whose
            rows are as long, are layer normalisation; ``Ball(radius)`` has rows of another length. With a bounded
            domain for one of Q and K and for one of V and H, the others may be ``SquaredNorm()`` where the
            sources are given.

    Raises:
        DeclarationError: as ``undirected_attention``.

    Example:
        >>> g = unn.FactorGraph("completion", d=64)
        >>> X, P = g.variable("X", "n d", unn.SquaredNorm()), g.constant("P", "n d")
        >>> attention = bounded_attention(g, [X, P])
        >>> out = unn.infer(g, {"X": unn.Partial(x, known), "P": positions}, until=1e-4)
    """
    return declare_attention(
        graph, queries, keys, values, heads, width, mask, temperature, regularizers, init, prefix,
        lambda size: Ball(math.sqrt(size)),
    )  # fmt: skip
