"""Heuristics that split E into continuous A and binary R (structured-diffusion paper, Appendix M): k-means,
rounded NMF, the largest columns.

All take matrices E of shape ``(count, rows, columns)`` and return A ``(count, rows, rank)`` and R
``(count, rank, columns)`` with E close to A R, in the dtype of E; see ``problems.factorisation.graph.error``.
If the rank is larger than they can use, the rest of A and R is zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unn.errors import ArgumentError, ObservationError

Matrix = NDArray[np.float64]

_THRESHOLDS = tuple(k / 20 for k in range(1, 20))
"""Thresholds for binary entries of R, relative to the largest entry of the row."""


def k_means(E: Tensor, rank: int, seed: int) -> dict[str, Tensor]:
    """Cluster the columns of E: A contains the cluster centres, R the assignments.

    Args:
        E: shape ``(count, rows, columns)``.
        rank: rank of the factorisation.
        seed: seed of the initial centres.

    Raises:
        ArgumentError: for an invalid rank or seed.
        ObservationError: for an E of another shape, or with NaN or infinite entries.
    """
    from sklearn.cluster import KMeans

    def factorise(e: Matrix) -> tuple[Matrix, Matrix]:
        clusters = min(rank, np.unique(e, axis=1).shape[1])
        clustering = KMeans(clusters, n_init=10, random_state=seed).fit(e.T)
        return clustering.cluster_centers_.T, np.eye(clusters)[:, clustering.labels_]

    return _each(factorise, E, rank, seed)


def nmf(E: Tensor, rank: int, seed: int, *, refit: bool = True) -> dict[str, Tensor]:
    """Non-negative matrix factorisation with a thresholded second factor R.

    The paper rounds the entries of the second factor and keeps the first, which depends on the arbitrary
    scale between them. Here the rows of the second factor are divided by their largest entry and thresholded
    at the best of 19 values, with A refitted by non-negative least squares; this is a stronger baseline.

    Args:
        E: non-negative, shape ``(count, rows, columns)``.
        rank: rank of the factorisation.
        seed: seed of the initial values if the rank exceeds the sizes of E; otherwise an SVD is used.
        refit: False for the procedure of the paper.

    Raises:
        ArgumentError: for an invalid rank or seed.
        ObservationError: for an E of another shape, or with negative, NaN or infinite entries.
    """
    from sklearn.decomposition import NMF

    def factorise(e: Matrix) -> tuple[Matrix, Matrix]:
        model = NMF(rank, solver="cd", max_iter=500, random_state=seed)
        A = model.fit_transform(e)
        return _best_cut(e, model.components_) if refit else (A, (model.components_ > 0.5).astype(float))

    if isinstance(E, Tensor) and bool((E < 0).any()):
        raise ObservationError("E has negative entries, which a product of non-negative factors cannot have.")
    return _each(factorise, E, rank, seed)


def greedy(E: Tensor, rank: int, seed: int = 0) -> dict[str, Tensor]:
    """Copy the columns of E with the largest sums to A, and let R put them back; other columns become 0.

    Adapted from the ChatGPT program in the paper, which selects rows, since its first factor is binary. That
    program corrupts a row if the rank exceeds their number; here the surplus is zero.

    Args:
        E: shape ``(count, rows, columns)``.
        rank: rank of the factorisation.
        seed: not used; the method is deterministic.

    Raises:
        ArgumentError: for an invalid rank or seed.
        ObservationError: for an E of another shape, or with NaN or infinite entries.
    """
    check_matrices(E, rank, seed)
    count, rows, columns = E.shape
    largest = E.sum(1).argsort(dim=1, descending=True, stable=True)[:, :rank]
    A, R = E.new_zeros(count, rows, rank), E.new_zeros(count, rank, columns)
    used = largest.shape[1]
    A[:, :, :used] = E.gather(2, largest[:, None].expand(-1, rows, -1))
    R[:, :used] = torch.nn.functional.one_hot(largest, columns).to(E)
    return {"A": A, "R": R}


def check_matrices(E: Tensor, rank: int, seed: int) -> None:
    """Check the arguments of a factorisation.

    Raises:
        ArgumentError: for a rank that is not a whole number >= 1, or a seed outside 0 to 2**32 - 1.
        ObservationError: for an E that is not a finite floating-point tensor of shape ``(count, rows,
            columns)``.
    """
    for name, number, least in (("rank", rank, 1), ("seed", seed, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number < 2**32:
            raise ArgumentError(f"factorisation: {name} must be a whole number >= {least}, got {number!r}.")
    if not isinstance(E, Tensor) or E.ndim != 3 or not E.numel() or not E.is_floating_point():
        actual = f"shape {tuple(E.shape)} and dtype {E.dtype}" if isinstance(E, Tensor) else type(E).__name__
        raise ObservationError(
            f"E must be a floating-point tensor of shape (count, rows, columns) without empty axes, got "
            f"{actual}."
        )
    if not bool(E.isfinite().all()):
        raise ObservationError("E has NaN or infinite entries.")


def _each(
    factorise: Callable[[Matrix], tuple[Matrix, Matrix]], E: Tensor, rank: int, seed: int
) -> dict[str, Tensor]:
    """Factorise each matrix, padding the factors with zeros up to the rank."""
    from sklearn.exceptions import ConvergenceWarning

    check_matrices(E, rank, seed)
    count, rows, columns = E.shape
    A, R = E.new_zeros(count, rows, rank), E.new_zeros(count, rank, columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for k, e in enumerate(E.detach().cpu().double().numpy()):
            left, right = factorise(e)
            A[k, :, : left.shape[1]] = torch.from_numpy(left).to(E)
            R[k, : right.shape[0]] = torch.from_numpy(right).to(E)
    return {"A": A, "R": R}


def _best_cut(e: Matrix, right: Matrix) -> tuple[Matrix, Matrix]:
    """A and R for the threshold with the smallest error."""
    largest = right.max(1, keepdims=True)
    scaled = np.divide(right, largest, out=np.zeros_like(right), where=largest > 0)
    cuts = [(scaled >= threshold).astype(float) for threshold in _THRESHOLDS]
    candidates = [(_least_squares(e, R), R) for R in cuts]
    return min(candidates, key=lambda pair: float(((pair[0] @ pair[1] - e) ** 2).sum()))


def _least_squares(e: Matrix, R: Matrix) -> Matrix:
    """Non-negative least squares: A with A R closest to e."""
    from scipy.optimize import nnls

    return np.stack([nnls(R.T, row)[0] for row in e])
