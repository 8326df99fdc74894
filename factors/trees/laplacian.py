"""Inverses of Laplacians: fast, or without any subtraction.

A Laplacian has the arcs of a graph with the opposite sign beside its diagonal, and on the diagonal what enters a node: by these arcs, and, as a
surplus, by others. Its inverse counts the visits of a walk against the arcs that ends with a step of the surplus; no entry is negative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SMALL = 40
"""Matrices of at most this size are inverted by one factorisation."""
_LITTLE = 5_000_000
"""So are batches of less work than this, the number of matrices by the third power of their size: halves are more calls."""


def invert(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of a matrix, the logarithm of the size of its determinant, and that of the largest entry of any inverse on the way.

    It goes by halves, so that almost all of it is multiplication of matrices, which is faster than solving triangular systems. There are no pivots
    across halves: it is for Laplacians with a surplus, and for those to which a product of two nonnegative vectors is added, whose principal
    minors are all positive. Where no entry of any inverse is large, no digits are lost.

    Args:
        matrix: shape ``(batch, n, n)``.

    Returns:
        Shapes ``(batch, n, n)``, ``(batch,)`` and ``(batch,)``.
    """
    n = matrix.shape[-1]
    if n <= _SMALL or len(matrix) * n**3 < _LITTLE:
        # of the transpose, as columns are what the library works on; a determinant so small that float64 does not hold it leaves large entries
        factors, pivots, _ = torch.linalg.lu_factor_ex(matrix.mT)
        identity = torch.eye(n, dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
        inverse = torch.linalg.lu_solve(factors, pivots, identity, adjoint=True)
        determinant = factors.diagonal(dim1=1, dim2=2).prod(1, dtype=torch.float64).abs_().log_()
        return inverse, determinant, inverse.mT.flatten(1).abs().amax(1)
    k = n // 2
    upper, upper_determinant, upper_largest = invert(matrix[:, :k, :k])
    right = upper @ matrix[:, :k, k:]
    left = matrix[:, k:, :k] @ upper
    lower, lower_determinant, lower_largest = invert(torch.baddbmm(matrix[:, k:, k:], matrix[:, k:, :k], right, alpha=-1))
    corner = right @ lower
    inverse = torch.empty_like(matrix).mT
    inverse[:, :k, :k] = torch.baddbmm(upper, corner, left)
    inverse[:, :k, k:] = corner.neg_()
    inverse[:, k:, :k] = (lower @ left).neg_()
    inverse[:, k:, k:] = lower
    largest = torch.maximum(inverse.mT.flatten(1).abs().amax(1), torch.maximum(upper_largest, lower_largest))
    return inverse, upper_determinant + lower_determinant, largest


def invert_exactly(arcs: Tensor, surplus: Tensor) -> tuple[Tensor, Tensor]:
    """The same without any subtraction, so that every entry keeps its digits however large the inverse is (Alfa, Xue and Ye, 2002).

    What is eliminated leaves its paths to the arcs of the rest and its surplus to theirs; the diagonal is never formed by a difference.
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
    # a path that comes back to where it began is a cycle, and in no tree
    rest.diagonal(dim1=1, dim2=2).zero_()
    lower, lower_determinant = invert_exactly(rest, surplus[:, k:] + (surplus[:, :k, None] * right).sum(1))
    corner = right @ lower
    inverse = torch.empty_like(arcs)
    inverse[:, :k, :k] = torch.baddbmm(upper, corner, left)
    inverse[:, :k, k:] = corner
    inverse[:, k:, :k] = lower @ left
    inverse[:, k:, k:] = lower
    return inverse, upper_determinant + lower_determinant


class Inverted(torch.autograd.Function):
    """A known inverse of a matrix, with the derivative of inversion."""

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
