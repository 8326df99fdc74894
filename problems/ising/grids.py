"""Ising grids: the declaration with a learned coupling, exact samples and exact marginals by transfer over
rows."""

from __future__ import annotations

import torch
from torch import Tensor

import unn
from factors import Multilinear


def declare(rows: int, columns: int) -> unn.FactorGraph:
    """Spins 0 or 1 on a grid, with one coupling of neighbours and a field of each spin, both learned.

    Args:
        rows, columns: size of the grid.
    """
    g = unn.FactorGraph("ising", row=rows, column=columns)
    X = g.variable("X", "row column", unn.BinaryEntropy())
    coupling = g.parameter("coupling", "", init="ones")
    field = g.parameter("field", "row column", init="zeros")
    g.factor(Multilinear(coupling[""], X["r c"], X["r+1 c"], name="vertical"))
    g.factor(Multilinear(coupling[""], X["r c"], X["r c+1"], name="horizontal"))
    g.factor(Multilinear(field["r c"], X["r c"], name="outer field"))
    return g


def declare_coupled(rows: int, columns: int, coupling: float) -> unn.FactorGraph:
    """The graph with a given coupling J of spins s = 2 x - 1 and no outer field.

    J s_i s_j is 4 J x_i x_j - 2 J (x_i + x_j) and a constant.

    Args:
        rows, columns: size of the grid.
        coupling: J.
    """
    g = declare(rows, columns)
    neighbours = torch.zeros(rows, columns)
    neighbours[1:] += 1
    neighbours[:-1] += 1
    neighbours[:, 1:] += 1
    neighbours[:, :-1] += 1
    with torch.no_grad():
        g.coupling.fill_(4 * coupling)
        g.field.copy_(-2 * coupling * neighbours)
    return g


def row_states(columns: int) -> Tensor:
    """All spins of one row, 0 or 1, shape ``(2 ** columns, columns)``, float64."""
    numbers = torch.arange(2**columns)
    return ((numbers[:, None] >> torch.arange(columns)) & 1).double()


def conditional(
    coupling: float, values: Tensor, observed: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Exact samples and exact marginals of p(s) ~ exp(J sum of s_i s_j over neighbours), s = 2 x - 1, given
    some spins.

    Forward filtering over rows and backward sampling; the marginals are those of forward-backward.

    Args:
        coupling: J.
        values: spins 0 or 1, shape ``(batch, rows, columns)``; anything where not observed.
        observed: mask of given spins, boolean, shape ``(batch, rows, columns)``.
        generator: random number generator.

    Returns:
        Samples, and probabilities of 1; shape ``(batch, rows, columns)`` each.
    """
    count, rows, columns = values.shape
    if not bool(observed.any()):
        # the weights of all batch elements are those of one
        values, observed = values[:1], observed[:1]
    states = row_states(columns)
    spins = 2 * states - 1
    inside = coupling * (spins[:, 1:] * spins[:, :-1]).sum(1)
    given = observed.double()
    given_ones = given * values.double()
    # the number of given spins from which each state of a row differs
    differing = (given - 2 * given_ones) @ states.T + given_ones.sum(2, keepdim=True)
    allowed = torch.where(differing > 0.5, -torch.inf, inside)
    forward = [allowed[:, 0]]
    for row in range(1, rows):
        forward.append(allowed[:, row] + _transferred(forward[-1], coupling))
    backward = [torch.zeros_like(forward[0])]
    for row in range(rows - 1, 0, -1):
        backward.append(_transferred(allowed[:, row] + backward[-1], coupling))
    backward.reverse()
    marginals = torch.stack([(f + b).softmax(1) @ states for f, b in zip(forward, backward, strict=True)], 1)
    scores = forward[-1].expand(count, -1)
    chosen: list[Tensor] = []
    for row in range(rows - 1, -1, -1):
        if chosen:
            scores = forward[row] + coupling * spins[chosen[-1]] @ spins.T
        chosen.append(torch.multinomial(scores.softmax(1), 1, generator=generator).squeeze(1))
    samples = torch.stack([states[k] for k in reversed(chosen)], 1)
    return samples.float(), marginals.float().expand(count, -1, -1)


def _transferred(logs: Tensor, coupling: float) -> Tensor:
    """Logarithms of the sums over the states of a row, for each state of its neighbour, ``(batch, states)``.

    Args:
        logs: logarithms of the weights of the states of a row, shape ``(batch, states)``.
        coupling: J.
    """
    columns = logs.shape[1].bit_length() - 1
    top, high = logs.amax(1, keepdim=True), abs(coupling)
    pair = (coupling * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=logs.dtype) - high).exp()
    # the weight of two rows is a product over columns, so that columns are summed one after another
    weights = (logs - top).exp().unflatten(1, (2,) * columns)
    for _ in range(columns):
        weights = torch.tensordot(weights, pair, dims=([1], [0]))
    # each sum has moved its column to the end, so that the order is the first one again
    sums: Tensor = weights.flatten(1).log() + top + columns * high
    return sums
