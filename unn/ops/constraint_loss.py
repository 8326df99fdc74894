"""Losses of constraints for training: at binary values with straight-through gradients, summed or
averaged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import torch
from torch import Tensor

from ..errors import ArgumentError, DeclarationError, suggest
from ..graph.declaration import Declaration
from ..regularizers import Elementwise, Simplex
from .straight_through import straight_through

Reduction = Literal["sum", "mean"]
"""Over the parts of a constraint, such as the rows of a grid: the sum in the text of the paper, the mean in
its published code."""

Values = Literal["binary", "nearest", "soft"]
"""At which values a loss is evaluated: entries rounded at one half, the nearest value of the domain (one-hot
at the largest entry), or as they are."""


def binarize(x: Tensor) -> Tensor:
    """1 where x >= 0.5, else 0, with the gradient of x: the function B of the recurrent-transformer paper.

    Args:
        x: probabilities, any shape.
    """
    # exact in the forward pass: x - x is 0
    return (x.detach() >= 0.5).to(x.dtype) + (x - x.detach())


def constraint_loss(
    graph: Declaration,
    values: Mapping[str, Tensor],
    *,
    reduction: Reduction = "sum",
    at: Values = "binary",
    names: Collection[str] | None = None,
) -> Tensor:
    """Loss of all constraints of a graph, shape ``(batch,)`` (recurrent-transformer paper, Section 5.1).

    At binary values it is a number of violations, such as the squared excess of counts, and its gradient is
    the straight-through estimate: that of the loss as a function of the binary values.

    Args:
        graph: declaration with constraints that have a differentiable loss.
        values: probabilities, or real numbers where the domain is unbounded, by variable, shape
            ``(batch, *axes)``.
        reduction: "sum" or "mean" over the parts of each constraint; constraints are summed.
        at: "binary", "nearest" or "soft" values.
        names: names of the constraints; all by default.

    Raises:
        DeclarationError: for a graph without constraints.
        ArgumentError: for an unknown name, or another option.
        NotImplementedError: if a constraint has no differentiable loss.
        ObservationError: for values that are missing, of another shape, or of inconsistent sizes.

    Example:
        >>> unn.constraint_loss(sudoku, {"X": logits.softmax(-1)}, reduction="mean").mean().backward()
    """
    options = {"reduction": (reduction, ("sum", "mean")), "at": (at, ("binary", "nearest", "soft"))}
    for name, (value, known) in options.items():
        if value not in known:
            raise ArgumentError(f"constraint_loss: {name}={value!r} is unknown.{suggest(str(value), known)}")
    if not graph.constraints:
        raise DeclarationError(
            f"constraint_loss: graph {graph.name!r} has no constraint; declare one, such as Cardinality."
        )
    known_names = [constraint.name for constraint in graph.constraints]
    for name in names or ():
        if name not in known_names:
            raise ArgumentError(
                f"constraint_loss: graph {graph.name!r} has no constraint {name!r}."
                f"{suggest(name, known_names)}"
            )
    constraints = [x for x in graph.constraints if names is None or x.name in names]
    if not constraints:
        raise ArgumentError("constraint_loss: names is empty; give at least one, or None for all.")
    used = {name for constraint in constraints for name in constraint.variables}
    rounded = {name: _rounded(graph, name, x, at) if name in used else x for name, x in values.items()}
    losses = [constraint.part_losses(rounded) for constraint in constraints]
    # a constraint without parts, such as one over an empty list of edges, has no loss
    return torch.stack(
        [x.sum(1) if reduction == "sum" else x.sum(1) / max(1, x.shape[1]) for x in losses]
    ).sum(0)


def attention_loss(weights: Tensor, adjacency: Tensor, *, reduction: Reduction = "sum") -> Tensor:
    """Constraint loss on attention: the weight that each token gives its neighbours exceeds one half
    (recurrent-transformer paper, Example 4).

    x_i = sum_j A_ij Adj_ij for each query i. The sum form is (n - number of x_i >= 0.5)^2, the mean form of
    the published code the mean over queries of (1 - B(x_i))^2; gradients are straight-through.

    Args:
        weights: attention weights, shape ``(*batch, n, n)``, keys last.
        adjacency: neighbours, 0 or 1, shape ``(n, n)``.
        reduction: "sum" or "mean".

    Returns:
        Shape ``(*batch,)``.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    if weights.ndim < 2 or tuple(weights.shape[-2:]) != tuple(adjacency.shape):
        raise ArgumentError(
            f"attention_loss: the weights have shape {tuple(weights.shape)} and the adjacency "
            f"{tuple(adjacency.shape)}; the last two axes of the weights are queries and keys."
        )
    binary = binarize((weights * adjacency.to(weights)).sum(-1))
    if reduction == "mean":
        return (binary - 1).square().mean(-1)
    return (binary.sum(-1) - binary.shape[-1]).square()


def _rounded(graph: Declaration, name: str, x: Tensor, at: Values) -> Tensor:
    regularizer = graph.variables[name].regularizer
    if at == "soft" or not regularizer.bounded:
        return x
    probabilities = isinstance(regularizer, Simplex) or (
        isinstance(regularizer, Elementwise) and regularizer.interval() == (0, 1)
    )
    return binarize(x) if at == "binary" and probabilities else straight_through(x, regularizer)
