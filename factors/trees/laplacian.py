"""Inverses of Laplacians: fast, or without any subtraction.

The off-diagonal entries of a Laplacian are the negative arc weights of a graph. Its diagonal is the total
weight of the arcs into each node plus a surplus from other arcs. The inverse counts the visits of a walk
against the arcs that ends with a step of the surplus; no entry is negative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SMALL = 40
"""Matrices of at most this size are inverted by one factorisation."""
_LITTLE = 5_000_000
"""So are batches with less work than this, number of matrices times size cubed: recursion costs calls."""


def invert(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Invert a matrix by recursion on halves.

    Almost all of the work is matrix multiplication, which is faster than solving triangular systems.
    There is no pivoting across halves: use it for Laplacians with a surplus, and for those plus an outer
    product of two nonnegative vectors, whose principal minors are all positive. If no entry of any
    intermediate inverse is large, no digits are lost.

    Args:
        matrix: shape ``(batch, n, n)``.

    Returns:
        The inverse ``(batch, n, n)``, the log of the absolute determinant ``(batch,)``, and the largest
        absolute entry of any intermediate inverse ``(batch,)``.
    """
    n = matrix.shape[-1]
    if n <= _SMALL or len(matrix) * n**3 < _LITTLE:
        # transposed, since LAPACK is column-major; where the determinant underflows float64, entries are
        # large
        factors, pivots, _ = torch.linalg.lu_factor_ex(matrix.mT)
        identity = torch.eye(n, dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
        inverse = torch.linalg.lu_solve(factors, pivots, identity, adjoint=True)
        determinant = factors.diagonal(dim1=1, dim2=2).prod(1, dtype=torch.float64).abs_().log_()
        return inverse, determinant, inverse.mT.flatten(1).abs().amax(1)
    k = n // 2
    upper, upper_determinant, upper_largest = invert(matrix[:, :k, :k])
    right = upper @ matrix[:, :k, k:]
    left = matrix[:, k:, :k] @ upper
    lower, lower_determinant, lower_largest = invert(
        torch.baddbmm(matrix[:, k:, k:], matrix[:, k:, :k], right, alpha=-1)
    )
    corner = right @ lower
    inverse = torch.empty_like(matrix).mT
    inverse[:, :k, :k] = torch.baddbmm(upper, corner, left)
    inverse[:, :k, k:] = corner.neg_()
    inverse[:, k:, :k] = (lower @ left).neg_()
    inverse[:, k:, k:] = lower
    largest = torch.maximum(inverse.mT.flatten(1).abs().amax(1), torch.maximum(upper_largest, lower_largest))
    return inverse, upper_determinant + lower_determinant, largest


def invert_exactly(arcs: Tensor, surplus: Tensor) -> tuple[Tensor, Tensor]:
    """Invert without any subtraction: entries are accurate however large (Alfa, Xue and Ye, 2002).

    Elimination adds paths through the eliminated nodes to the arcs of the rest, and likewise their
    surplus; the diagonal is never formed by a difference.
    """
    n = arcs.shape[-1]
    if n == 1:
        return 1 / surplus[:, :, None], surplus.log().sum(1)
    if n == 2:
        there, back = arcs[:, 0, 1], arcs[:, 1, 0]
        determinant = surplus.prod(1) + surplus[:, 0] * there + surplus[:, 1] * back
        entries = torch.stack([surplus[:, 1] + there, there, back, surplus[:, 0] + back], 1)
        return (entries / determinant[:, None]).view(-1, 2, 2), determinant.log()
    k = n // 2
    across, back = arcs[:, :k, k:], arcs[:, k:, :k]
    upper, upper_determinant = invert_exactly(arcs[:, :k, :k], surplus[:, :k] + back.sum(1))
    right, left = upper @ across, back @ upper
    rest = arcs[:, k:, k:] + back @ right
    # a path that returns to its start is a cycle, which no tree contains
    rest.diagonal(dim1=1, dim2=2).zero_()
    lower, lower_determinant = invert_exactly(rest, surplus[:, k:] + (surplus[:, :k, None] * right).sum(1))
    corner = right @ lower
    inverse = torch.empty_like(arcs)
    inverse[:, :k, :k] = torch.baddbmm(upper, corner, left)
    inverse[:, :k, k:] = corner
    inverse[:, k:, :k] = lower @ left
    inverse[:, k:, k:] = lower
    return inverse, upper_determinant + lower_determinant


class KnownInverse(torch.autograd.Function):
    """Attach the derivative of matrix inversion to a known inverse."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, inverse: Tensor) -> Tensor:
        out = inverse.view_as(inverse)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (inverse,) = ctx.saved_tensors
        across = inverse.mT
        return -(across @ gradient @ across), None
