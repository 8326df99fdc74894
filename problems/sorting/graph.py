"""Sorting as inference: u is the list, P a permutation, C[i,j] = P[i,j] u[j], s the sorted list
(structured-diffusion paper, Appendix B)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import unn
from factors import Clique, Depends

Order = Literal["chain", "clique", "none"]


def declare(n: int | None, intermediate: bool, order: Order) -> unn.FactorGraph:
    """The graph.

    Args:
        n: length of the list; None to leave it dynamic.
        intermediate: declare the products C as variables.
        order: interactions in the sorted list: neighbours in rank, all pairs, or none (Figure 7).
    """
    g = unn.FactorGraph("sorting", **({} if n is None else {"i": n, "j": n}))
    u = g.variable("u", "j", unn.SquaredNorm())
    s = g.variable("s", "i", unn.SquaredNorm())
    P = g.variable("P", "i j", unn.BinaryEntropy())
    if intermediate:
        C = g.variable("C", "i j", unn.SquaredNorm())
        g.factor(Depends(C["i j"], P["i j"], u["j"]))
        g.factor(Depends(s["i"], C["i j"], ordered="i"))
    else:
        g.factor(Depends(s["i"], P["i j"], u["j"], ordered="i"))
    g.factor(Clique(P["i j"], each="i"))
    g.factor(Clique(P["i j"], each="j"))
    if order == "chain":
        g.factor(Clique(s["i+1"], s["i"], each="i"))
    elif order == "clique":
        g.factor(Clique(s["i"], ordered="i"))
    return g


def generate(count: int, n: int, intermediate: bool, generator: torch.Generator) -> dict[str, Tensor]:
    """Lists of Gaussian numbers with their permutations and sorted lists.

    Returns:
        u and s ``(count, n)``, P ``(count, n, n)``; C ``(count, n, n)`` if ``intermediate``.
    """
    u = torch.randn(count, n, generator=generator)
    s, order = u.sort(1)
    P = torch.nn.functional.one_hot(order, n).float()
    values = {"u": u, "s": s, "P": P}
    if intermediate:
        values["C"] = P * u[:, None]
    return values


def error(u: Tensor, P: Tensor) -> float:
    """Root mean squared difference of the sorted list and P u; u has shape ``(count, n)``, P ``(count, n,
    n)``."""
    return float(((u.sort(1).values - (P @ u[:, :, None])[:, :, 0]) ** 2).mean().sqrt())


def is_permutation(P: Tensor) -> Tensor:
    """Check that each row and each column has a single 1; boolean, shape ``(count,)``."""
    return ((P.sum(1) == 1) & (P.sum(2) == 1)).all(1)
