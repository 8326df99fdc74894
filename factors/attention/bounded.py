"""Undirected attention whose energy has a minimum."""

from __future__ import annotations

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
    temperature: float = 0.05,
    regularizers: Mapping[str, Regularizer] | None = None,
    init: float | Mapping[str, Tensor] | None = None,
    prefix: str = "",
) -> UndirectedAttention:
    """Declare ``undirected_attention`` with the rows of queries, keys, values and outputs in unit balls.

    The energy is bounded below for all weights, whatever is given (``graph.boundedness()``), and updates
    converge to a fixed point. Rows are mostly of norm 1, so that scores are cosines: the temperature is the
    difference of cosines that changes the ratio of two weights by e.

    Args:
        graph, queries, keys, values, heads, width, mask, init, prefix: as of ``undirected_attention``.
        temperature: temperature of the attention weights.
        regularizers: other regularizers by "Q", "K", "V" and "H": ``Ball(radius)``, ``LayerNorm()``,
            ``RMSNorm()``. Longer rows converge in more rounds. With a bounded domain for one of Q and K and
            for one of V and H, the others may be ``SquaredNorm()`` where the sources are given.

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
        Ball(),
    )  # fmt: skip
