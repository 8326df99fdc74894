"""Two-sample measures: how well samples of a model can be told from samples of a reference."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import ArgumentError, ObservationError, suggest

_Samples = NDArray[np.float64]
Classifier = Literal["forest", "perceptron"]
CLASSIFIERS = ("forest", "perceptron")
_MOST_FOR_KERNELS = 4000
"""Largest number of samples of each set that the median of distances is taken of."""


def c2st(
    one: Tensor, other: Tensor, classifier: Classifier = "forest", *, folds: int = 5, seed: int = 0
) -> float:
    """Classifier two-sample test (Lopez-Paz and Oquab, 2017): the accuracy of a classifier of the two sets on
    held-out samples, from 0.5 for equal distributions to 1 for disjoint ones.

    Args:
        one: samples of the reference, shape ``(count, d)``; both sets are standardised by these.
        other: samples to compare, shape ``(count, d)``.
        classifier: "forest", a random forest of 100 trees; or "perceptron", with two hidden layers of
            ``10 d`` units, as in Lueckmann et al. (2021).
        folds: number of parts of a cross-validation, over which accuracies are averaged.
        seed: seed of the classifier and the parts.

    Raises:
        ArgumentError: for an unknown classifier, or fewer than two folds.
        ObservationError: for samples of other shapes, unequal counts, fewer than ten in a fold, or NaN.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import KFold, cross_val_score
    from sklearn.neural_network import MLPClassifier

    if classifier not in CLASSIFIERS:
        raise ArgumentError(
            f"c2st: unknown classifier {classifier!r}.{suggest(str(classifier), CLASSIFIERS)}"
        )
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
        raise ArgumentError(f"c2st: folds must be a whole number >= 2, got {folds!r}.")
    x, y = _check("c2st", one, other, least=10 * folds)
    scale = x.std(0)
    scale[scale == 0] = 1
    features = np.concatenate([(x - x.mean(0)) / scale, (y - x.mean(0)) / scale])
    labels = np.repeat([0, 1], len(x))
    if classifier == "forest":
        model = RandomForestClassifier(n_estimators=100, random_state=seed)
    else:
        width = 10 * x.shape[1]
        model = MLPClassifier((width, width), max_iter=10_000, random_state=seed)
    parts = KFold(folds, shuffle=True, random_state=seed)
    return float(np.mean(cross_val_score(model, features, labels, cv=parts, scoring="accuracy")))


def mmd(one: Tensor, other: Tensor) -> float:
    """Squared maximum mean discrepancy (Gretton et al., 2012), unbiased, with a Gaussian kernel whose length
    is the median distance between samples of the reference.

    Args:
        one: samples of the reference, shape ``(count, d)``.
        other: samples to compare, shape ``(count, d)``.

    Raises:
        ObservationError: as of ``c2st``.
    """
    x, y = (torch.from_numpy(part) for part in _check("mmd", one, other, least=2))
    # distances far from zero would lose their digits
    x, y = x - x.mean(0), y - x.mean(0)
    few = x[:_MOST_FOR_KERNELS]
    length = torch.pdist(few).median().clamp(min=1e-12)

    def mean_kernel(a: Tensor, b: Tensor, without_diagonal: bool) -> Tensor:
        parts = [(torch.cdist(rows, b) / length).square() for rows in a.split(_MOST_FOR_KERNELS)]
        total = torch.stack([torch.exp(-0.5 * part).sum() for part in parts]).sum()
        count = len(a) * len(b)
        return (total - len(a)) / (count - len(a)) if without_diagonal else total / count

    return float(mean_kernel(x, x, True) + mean_kernel(y, y, True) - 2 * mean_kernel(x, y, False))


def _check(where: str, one: Tensor, other: Tensor, least: int) -> tuple[_Samples, _Samples]:
    """The samples in double precision.

    Raises:
        ObservationError: for shapes that do not fit one another, too few samples, or values that are not
            finite.
    """
    for samples in (one, other):
        if not isinstance(samples, Tensor):
            raise ObservationError(f"{where}: samples are tensors, got {type(samples).__name__}.")
    if one.ndim != 2 or one.shape != other.shape or len(one) < least or not one.shape[1]:
        raise ObservationError(
            f"{where}: both sets need the shape (count, d) with equal counts of at least {least}, got "
            f"{tuple(one.shape)} and {tuple(other.shape)}."
        )
    if not bool(one.isfinite().all() and other.isfinite().all()):
        raise ObservationError(f"{where}: samples have NaN or infinite values.")
    return one.detach().cpu().double().numpy(), other.detach().cpu().double().numpy()
