"""Gaussian fields on a grid: the declaration with a learned coupling, and exact samples."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

import unn
from factors import Multilinear


def declare(rows: int, columns: int) -> unn.FactorGraph:
    """Numbers on a grid, with one learned coupling of neighbours.

    The energy 1/2 |X|^2 - J sum of X_i X_j over neighbours is positive definite on every grid if and only if
    |J| <= 1/4.

    Args:
        rows, columns: size of the grid.
    """
    g = unn.FactorGraph("gaussian", row=rows, column=columns)
    X = g.variable("X", "row column", unn.SquaredNorm())
    coupling = g.parameter("coupling", "", init="zeros")
    g.factor(Multilinear(coupling[""], X["r c"], X["r+1 c"], name="vertical"))
    g.factor(Multilinear(coupling[""], X["r c"], X["r c+1"], name="horizontal"))
    return g


def declare_coupled(rows: int, columns: int, coupling: float) -> unn.FactorGraph:
    """The graph with a given coupling.

    Args:
        rows, columns: size of the grid.
        coupling: J.
    """
    g = declare(rows, columns)
    with torch.no_grad():
        g.coupling.fill_(coupling)
    return g


def precision(rows: int, columns: int, coupling: float) -> Tensor:
    """Precision matrix of the numbers in the order of rows, shape ``(numbers, numbers)``, float64.

    Args:
        rows, columns: size of the grid.
        coupling: J.
    """
    down, right = (torch.diag(torch.ones(size - 1, dtype=torch.float64), 1) for size in (rows, columns))
    neighbours = torch.kron(down, torch.eye(columns, dtype=torch.float64)) + torch.kron(
        torch.eye(rows, dtype=torch.float64), right
    )
    return torch.eye(rows * columns, dtype=torch.float64) - coupling * (neighbours + neighbours.T)


def exact_samples(rows: int, columns: int, coupling: float, count: int, generator: torch.Generator) -> Tensor:
    """Independent samples, shape ``(count, rows, columns)``.

    Args:
        rows, columns: size of the grid.
        coupling: J.
        count: number of samples.
        generator: random number generator.
    """
    factor = _factor(rows, columns, coupling)
    noise = torch.randn(rows * columns, count, generator=generator, dtype=torch.float64)
    samples: Tensor = torch.linalg.solve_triangular(factor.T, noise, upper=True)
    return samples.mT.reshape(count, rows, columns).float()


@lru_cache(maxsize=1)
def _factor(rows: int, columns: int, coupling: float) -> Tensor:
    """Lower Cholesky factor of the precision matrix, kept for the next batch."""
    factor: Tensor = torch.linalg.cholesky(precision(rows, columns, coupling))
    return factor
