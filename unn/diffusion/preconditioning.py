"""Preconditioning of a denoiser by the best linear estimate from all noisy values and the evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from ..graph.symmetries import Symmetry, generators
from ..networks.tokens import Frame, Frames

PreconditioningName = Literal["auto", "linear", "scalar"]
PRECONDITIONINGS = ("auto", "linear", "scalar")

MOST_NUMBERS = 64
"""Largest number of numbers for which "auto" is "linear": its cost grows with their cube."""

SAMPLES_PER_NUMBER = 10
"""Samples for each number that a covariance needs; with fewer, its conditional variances are too small."""

_JITTER = 1e-8
"""Added to the variance of each standardised number, since computed values and options of categories are
linearly dependent."""


@dataclass(frozen=True)
class LinearEstimate:
    """The best linear estimate of clean values from noisy ones and evidence, shape ``(batch, numbers)`` each.

    Attributes:
        mean: the estimate.
        deviation: standard deviation of its error, positive; negligible at evidence.
        innovation: difference of each value from its best linear prediction by all others, in standard
            deviations of that difference.
    """

    mean: Tensor
    deviation: Tensor
    innovation: Tensor


def linear_estimate(rows: Tensor, noise: Tensor, mean: Tensor, covariance: Tensor) -> LinearEstimate:
    """The best linear estimate of clean values, in double precision.

    With the precision P = (S + D)^-1, the estimate of Gaussian values with the mean m and the covariance S
    from values y with independent noise of the variances D is m + S P (y - m), and its error has the
    covariance D - D P D. For values of any distribution with these moments it is the best linear estimate.

    Args:
        rows: exact or noisy values, shape ``(batch, numbers)``.
        noise: variance of the noise of each; 0 for exact values, shape ``(batch, numbers)``, or ``(1,
            numbers)`` for all rows alike.
        mean: shape ``(numbers,)``, in double precision.
        covariance: positive definite, shape ``(numbers, numbers)``, in double precision.
    """
    precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance + torch.diag_embed(noise)))
    centred = rows.double() - mean
    forces = centred @ precision[0] if len(precision) == 1 else (centred[:, None] @ precision)[:, 0]
    diagonal = precision.diagonal(dim1=-2, dim2=-1)
    variance = noise * (1 - noise * diagonal)
    return LinearEstimate(
        mean + forces @ covariance,
        variance.clamp(min=_JITTER).sqrt().expand_as(centred),
        forces * diagonal.rsqrt(),
    )


def moments(rows: Tensor, permutations: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
    """Mean and covariance of standardised samples, the same for numbers that permutations exchange.

    Args:
        rows: samples, shape ``(count, numbers)``.
        permutations: generators of a group of permutations of the numbers that leaves the distribution
            invariant, shape ``(numbers,)`` each.

    Returns:
        Shapes ``(numbers,)`` and ``(numbers, numbers)``, in double precision.
    """
    x = rows.double()
    mean = x.mean(0)
    second = x.mT @ x / len(x)
    numbers = len(mean)
    if permutations:
        mean = _orbit_means(mean, permutations)
        pairs = [(p[:, None] * numbers + p).flatten() for p in permutations]
        second = _orbit_means(second.flatten(), pairs).unflatten(0, (numbers, numbers))
    jitter = _JITTER * torch.eye(numbers, dtype=x.dtype, device=x.device)
    return mean, second - mean[:, None] * mean + jitter


def number_permutations(frame: Frame, symmetries: Sequence[Symmetry]) -> list[Tensor]:
    """Generators of the permutations of numbers by the symmetries of a graph, shape ``(numbers,)`` each."""
    node = frame.node_of_number
    first = torch.searchsorted(node, torch.arange(frame.nodes))
    channel = torch.arange(frame.numbers) - first[node]
    return [
        first[symmetry.permutation(order)[node]] + channel
        for symmetry in symmetries
        for order in generators(symmetry.size)
    ]


def static_numbers(frames: Frames) -> int | None:
    """Number of numbers of a graph; None if the sizes of its variables are not static."""
    graph, total = frames.graph, 0
    for name, variable in graph.variables.items():
        shape = graph.size_table.shape(variable, graph.size_table.static)
        sizes = [size for size in shape[: len(variable.node_axes)] if size is not None]
        if len(sizes) < len(variable.node_axes):
            return None
        total += math.prod(sizes) * frames.channels[name]
    return total


def _orbit_means(values: Tensor, permutations: Sequence[Tensor]) -> Tensor:
    """Means over the elements that permutations map to each other, shape of ``values``, ``(count,)``."""
    count = len(values)
    edges = np.concatenate([p.numpy() for p in permutations])
    starts = np.tile(np.arange(count), len(permutations))
    graph = coo_array((np.ones(len(edges), bool), (starts, edges)), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    orbit = torch.from_numpy(labels).long().to(values.device)
    sums = torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, orbit, values)
    sizes = torch.bincount(orbit, minlength=count)
    means: Tensor = (sums / sizes.clamp(min=1))[orbit]
    return means
