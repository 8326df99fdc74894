"""The energy transformer: attention and memories of normalised tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unn import Entropy, FactorGraph, NonNegative
from unn.errors import DeclarationError, whole_number
from unn.graph.arrays import Parameter, Variable

from ..energies.multilinear import Multilinear
from .masked_entropy import MaskedEntropy


@dataclass(frozen=True, eq=False)
class EnergyTransformer:
    """Arrays and factors declared by ``energy_transformer``.

    Attributes:
        graph: graph of the declaration.
        tokens: normalised tokens, axes ``positions features``.
        S: attention weights, axes ``head queries keys``.
        F: activities of the memories, axes ``positions memory``.
        W_Q, W_K: projections to queries and keys, axes ``head e features``.
        patterns: memories, axes ``memory features``.
        attention: factor of the tokens, S, W_Q and W_K.
        retrieval: factor of the tokens, F and the patterns.
    """

    graph: FactorGraph = field(repr=False)
    tokens: Variable
    S: Variable
    F: Variable
    W_Q: Parameter
    W_K: Parameter
    patterns: Parameter
    attention: Multilinear
    retrieval: Multilinear

    @property
    def order(self) -> tuple[str, str, str]:
        """Names of S, F and the tokens."""
        return (self.S.name, self.F.name, self.tokens.name)


def energy_transformer(
    graph: FactorGraph,
    tokens: Variable,
    *,
    heads: int,
    width: int,
    memories: int,
    mask: Tensor | None = None,
    temperature: float | None = None,
    init: float = 0.02,
    prefix: str = "",
) -> EnergyTransformer:
    """Declare the block of the energy transformer (Hoover et al., 2023, eq. 3 to 6).

    E = Psi(g) - temperature sum_hn H(S_hn) + ||F||^2 / 2 - sum S_hnm <W_Q g_n, W_K g_m>_h - <F, g patterns'>

    with tokens g in the domain of ``LayerNorm()`` and F >= 0. Minimised over S and F it is the published
    energy, -temperature sum_hn log sum_m exp(<W_Q g_n, W_K g_m>_h / temperature) - sum relu(g patterns')^2 /
    2, plus the regularizer of g; the message to g is minus its gradient, by which the published update moves
    the tokens before their normalisation. Here S and F are updated exactly, and g, which is on both sides of
    the attention, by the inner solver, so that no round raises the energy. It is bounded below for all
    weights.

    Args:
        graph: graph to extend.
        tokens: variable with axes ``positions features`` and a bounded regularizer, ``LayerNorm()`` in the
            paper.
        heads: number of attention heads.
        width: width of a head.
        memories: number of patterns.
        mask: true where a token may attend to another, boolean, shape ``(positions, positions)``; the paper
            excludes each token from its own keys, ``~torch.eye(n, dtype=torch.bool)``. All pairs by default.
        temperature: of the attention weights; the square root of the width by default.
        init: standard deviation of the initial weights.
        prefix: prefix of all new names.

    Raises:
        DeclarationError: for tokens that do not fit or are not bounded, sizes below 1, a mask of another
            shape, names in use.

    Example:
        >>> g = unn.FactorGraph("images", n=16, d=32)
        >>> x = g.variable("x", "n d", unn.LayerNorm())
        >>> block = energy_transformer(g, x, heads=4, width=8, memories=64)
        >>> out = unn.infer(g, {"x": unn.Partial(seen, known)}, order=block.order, until=1e-4)
    """
    where = "energy_transformer"
    if (
        not isinstance(tokens, Variable)
        or graph.arrays.get(tokens.name) is not tokens
        or len(tokens.axes) != 2
    ):
        raise DeclarationError(
            f"{where}: tokens is a variable of graph {graph.name!r} with two axes, got {tokens!r}."
        )
    if not tokens.regularizer.bounded:
        raise DeclarationError(
            f"{where}: the energy has no minimum if tokens are unbounded, but {tokens.name!r} has "
            f"{tokens.regularizer!r}; declare it with LayerNorm(), RMSNorm() or Ball()."
        )
    for what, number in (("heads", heads), ("width", width), ("memories", memories)):
        whole_number(f"{where}: {what}", number, 1)
    positions, features = tokens.axes
    names = {part: f"{prefix}{part}" for part in ("S", "F", "W_Q", "W_K", "patterns")}
    for name in names.values():
        if name in graph.arrays:
            raise DeclarationError(
                f"{where}: the name {name!r} is in use by a {graph.arrays[name].kind} of graph "
                f"{graph.name!r}; choose a prefix, energy_transformer(..., prefix='first_')."
            )
    head, e, memory = (f"{prefix}{axis}" for axis in ("head", "e", "memory"))
    size = graph.size_table.static.get(features)
    if size is None:
        raise DeclarationError(
            f"{where}: axis {features!r} of {tokens.name!r} has no size, which determines that of the "
            f"weights; give it with the graph, FactorGraph({graph.name!r}, {features}=...)."
        )
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.ndim != 2):
        raise DeclarationError(
            f"{where}: mask is a boolean tensor of shape (positions, positions), got {mask!r}."
        )
    warmth = math.sqrt(width) if temperature is None else temperature
    columns = f"{positions}_key"
    entropy = (
        Entropy(warmth, columns)
        if mask is None
        else MaskedEntropy(warmth, columns, mask.expand(heads, -1, -1))
    )
    W_Q, W_K = (
        graph.parameter(names[part], f"{head} {e} {features}", init=init * torch.randn(heads, width, size))
        for part in ("W_Q", "W_K")
    )
    patterns = graph.parameter(
        names["patterns"], f"{memory} {features}", init=init * torch.randn(memories, size)
    )
    S = graph.variable(names["S"], f"{head} {positions} {columns}", entropy)
    F = graph.variable(names["F"], f"{positions} | {memory}", NonNegative())
    attention = graph.factor(
        Multilinear(
            S["h n m"], W_Q["h e d"], tokens["n d"], W_K["h e c"], tokens["m c"], name=f"{prefix}attention"
        )
    )
    retrieval = graph.factor(Multilinear(F["n f"], patterns["f d"], tokens["n d"], name=f"{prefix}retrieval"))
    return EnergyTransformer(graph, tokens, S, F, W_Q, W_K, patterns, attention, retrieval)
