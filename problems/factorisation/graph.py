"""Matrix factorisation: E = A R with continuous A and binary R, E observed; its hierarchical version, and
matrix inversion.

Structured-diffusion paper, Section 4 and Appendix G. In the hierarchical version the rank is also a variable;
in inversion all entries are Gaussian, E is the identity in tests, and R is inferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

import unn
from factors import Depends, Equation

Kind = Literal["binary", "hierarchical", "inversion"]

_WITHIN = 0.1
"""Tolerance of entries of A R against E in valid samples."""


def declare(kind: Kind, intermediate: bool, rank: int | None = None) -> unn.FactorGraph:
    """Declare the graph; rows, columns and rank are dynamic unless the rank is a variable.

    Samples must satisfy E = A R; a rank K is not checked.

    Args:
        kind: kind of factorisation.
        intermediate: declare the products C[i,j,k] = A[i,k] R[k,j] as variables.
        rank: maximum rank of the hierarchical version.
    """
    sizes = {"k": rank, "option": rank} if kind == "hierarchical" and rank is not None else {}
    g = unn.FactorGraph("inversion" if kind == "inversion" else f"{kind}_factorisation", **sizes)
    A = g.variable("A", "i k", unn.SquaredNorm())
    R = g.variable("R", "k j", unn.SquaredNorm() if kind == "inversion" else unn.BinaryEntropy())
    if intermediate:
        C = g.variable("C", "i j k", unn.SquaredNorm())
    E = g.variable("E", "i j", unn.SquaredNorm())
    if kind == "hierarchical":
        K = g.variable("K", "option", unn.Entropy())
        if intermediate:
            D = g.variable("D", "k", unn.BinaryEntropy())
            g.factor(Depends(D["k"], K["c"], ordered="k"))
            g.factor(Depends(A["i k"], D["k"]))
            g.factor(Depends(R["k j"], D["k"]))
        else:
            g.factor(Depends(A["i k"], K["c"], ordered="k"))
            g.factor(Depends(R["k j"], K["c"]))
    if intermediate:
        g.factor(Depends(C["i j k"], A["i k"], R["k j"]))
        g.factor(Depends(E["i j"], C["i j k"]))
    else:
        g.factor(Depends(E["i j"], A["i k"], R["k j"]))
    g.factor(Equation(E["i j"], A["i k"], R["k j"], within=_WITHIN))
    return g


def generate(
    kind: Kind, intermediate: bool, count: int, rows: int, columns: int, rank: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Samples of all variables.

    Args:
        kind: kind of factorisation.
        intermediate: include the products.
        count: number of samples.
        rows, columns, rank: sizes.
        generator: random number generator.

    Returns:
        A ``(count, rows, rank)``, R ``(count, rank, columns)``, C ``(count, rows, columns, rank)``, E
        ``(count, rows, columns)``; and in the hierarchical version K one-hot ``(count, rank)`` and D
        ``(count, rank)``.
    """
    if kind == "inversion":
        A = torch.randn(count, rows, rank, generator=generator)
        R = torch.randn(count, rank, columns, generator=generator)
    else:
        A = torch.rand(count, rows, rank, generator=generator)
        R = (torch.rand(count, rank, columns, generator=generator) < 0.3).float()
    values = {}
    if kind == "hierarchical":
        number = torch.randint(rank, (count,), generator=generator)
        D = (torch.arange(rank) <= number[:, None]).float()
        A, R = A * D[:, None], R * D[:, :, None]
        values["K"] = torch.nn.functional.one_hot(number, rank).float()
        if intermediate:
            values["D"] = D
    C = A[:, :, None, :] * R.mT[:, None]
    values |= {"A": A, "R": R, "E": C.sum(3)}
    if intermediate:
        values["C"] = C
    return values


def error(values: Mapping[str, Tensor], E: Tensor) -> float:
    """Root mean squared difference of E and A R.

    Args:
        values: sampled A ``(count, rows, rank)`` and R ``(count, rank, columns)``.
        E: observed matrices, shape ``(count, rows, columns)``.
    """
    return float(((values["A"] @ values["R"] - E) ** 2).mean().sqrt())


def unused_spread(values: Mapping[str, Tensor]) -> float:
    """Standard deviation of the unused columns of A (zero rows of R), relative to their uniform prior.

    Args:
        values: sampled A ``(count, rows, rank)`` and binary R ``(count, rank, columns)``.

    Returns:
        1 for samples of the posterior; NaN where no column is unused.
    """
    unused = values["A"].mT[values["R"].sum(2) == 0]
    return float(unused.std() * 12**0.5) if len(unused) > 1 else float("nan")
