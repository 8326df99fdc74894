"""Heuristics that split E into continuous A and binary R (structured-diffusion paper, Appendix M): k-means, rounded NMF, the largest columns.

All take matrices E of shape ``(count, rows, columns)`` and give A ``(count, rows, rank)`` and R ``(count, rank, columns)`` with E about A R, in the
dtype of E; ``problems.factorisation.graph.error`` measures how well. Where the rank is larger than they can use, the rest of A and R is zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unn.errors import DeclarationError, ObservationError

Matrix = NDArray[np.float64]

_THRESHOLDS = tuple(k / 20 for k in range(1, 20))
"""At which share of the largest entry of its row an entry of R becomes 1."""


def k_means(E: Tensor, rank: int, seed: int) -> dict[str, Tensor]:
    """Columns of E in as many clusters as the rank: A holds their centres, R says which column is in which.

    Args:
        E: shape ``(count, rows, columns)``.
        rank: of the factorisation.
        seed: of where the centres start.

    Raises:
        DeclarationError: for a rank or a seed that is no such number.
        ObservationError: for an E of another shape, or with NaN or infinite entries.
    """
    from sklearn.cluster import KMeans

    def factorise(e: Matrix) -> tuple[Matrix, Matrix]:
        clusters = min(rank, np.unique(e, axis=1).shape[1])
        found = KMeans(clusters, n_init=10, random_state=seed).fit(e.T)
        return found.cluster_centers_.T, np.eye(clusters)[:, found.labels_]

    return _each(factorise, E, rank, seed)


def nmf(E: Tensor, rank: int, seed: int, *, refit: bool = True) -> dict[str, Tensor]:
    """Non-negative factorisation with a binary R made of its second factor.

    The paper rounds the entries of the second factor and leaves the first one. That depends on how the algorithm happens to share scale between the
    two. Here the rows of the second factor are divided by their largest entry and cut at the one of 19 thresholds at which the error is least when
    A is found anew by non-negative least squares; this is a stronger baseline.

    Args:
        E: non-negative, shape ``(count, rows, columns)``.
        rank: of the factorisation.
        seed: of where the algorithm starts, if the rank is larger than E; otherwise it starts from a singular value decomposition.
        refit: False for what the paper does.

    Raises:
        DeclarationError: for a rank or a seed that is no such number.
        ObservationError: for an E of another shape, or with negative, NaN or infinite entries.
    """
    from sklearn.decomposition import NMF

    def factorise(e: Matrix) -> tuple[Matrix, Matrix]:
        model = NMF(rank, solver="cd", max_iter=500, random_state=seed)
        A = model.fit_transform(e)
        return _best_cut(e, model.components_) if refit else (A, (model.components_ > 0.5).astype(float))

    if isinstance(E, Tensor) and bool((E < 0).any()):
        raise ObservationError("E has negative entries, which no product of non-negative factors has.")
    return _each(factorise, E, rank, seed)


def greedy(E: Tensor, rank: int, seed: int = 0) -> dict[str, Tensor]:
    """The columns of E with the largest sums become the columns of A, and R puts each back in its place; all other columns are lost.

    The idea of the program that the paper has from ChatGPT; that one takes rows, as it is asked for a binary first factor. Where the rank is larger
    than their number it spoils one of them; here the surplus is zero.

    Args:
        E: shape ``(count, rows, columns)``.
        rank: of the factorisation.
        seed: not used, as nothing is random.

    Raises:
        DeclarationError: for a rank or a seed that is no such number.
        ObservationError: for an E of another shape, or with NaN or infinite entries.
    """
    check_matrices(E, rank, seed)
    count, rows, columns = E.shape
    largest = E.sum(1).argsort(dim=1, descending=True, stable=True)[:, :rank]
    A, R = E.new_zeros(count, rows, rank), E.new_zeros(count, rank, columns)
    taken = largest.shape[1]
    A[:, :, :taken] = E.gather(2, largest[:, None].expand(-1, rows, -1))
    R[:, :taken] = torch.nn.functional.one_hot(largest, columns).to(E)
    return {"A": A, "R": R}


def check_matrices(E: Tensor, rank: int, seed: int) -> None:
    """Check what is to be factorised.

    Raises:
        DeclarationError: for a rank that is no whole number >= 1, or a seed that is none from 0 to 2**32 - 1.
        ObservationError: for an E that is no floating-point tensor of shape ``(count, rows, columns)``, or has NaN or infinite entries.
    """
    for name, number, least in (("rank", rank, 1), ("seed", seed, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number < 2**32:
            raise DeclarationError(f"factorisation: {name} must be a whole number >= {least}, got {number!r}.")
    if not isinstance(E, Tensor) or E.ndim != 3 or not E.numel() or not E.is_floating_point():
        found = f"shape {tuple(E.shape)} and dtype {E.dtype}" if isinstance(E, Tensor) else type(E).__name__
        raise ObservationError(f"E must be a floating-point tensor of shape (count, rows, columns) without empty axes, got {found}.")
    if not bool(E.isfinite().all()):
        raise ObservationError("E has NaN or infinite entries.")


def _each(factorise: Callable[[Matrix], tuple[Matrix, Matrix]], E: Tensor, rank: int, seed: int) -> dict[str, Tensor]:
    """The factors of each matrix, with zeros up to the rank."""
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
    """A and R for the threshold of least error."""
    largest = right.max(1, keepdims=True)
    scaled = np.divide(right, largest, out=np.zeros_like(right), where=largest > 0)
    cuts = [(scaled >= threshold).astype(float) for threshold in _THRESHOLDS]
    found = [(_least_squares(e, R), R) for R in cuts]
    return min(found, key=lambda pair: float(((pair[0] @ pair[1] - e) ** 2).sum()))


def _least_squares(e: Matrix, R: Matrix) -> Matrix:
    """The non-negative A for which A R is closest to e."""
    from scipy.optimize import nnls

    return np.stack([nnls(R.T, row)[0] for row in e])
