"""Preconditioning of a denoiser by the best linear estimate from all noisy values and the evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from ..graph.symmetries import Symmetry, generators
from ..networks.by_variable import ByVariable
from ..networks.tokens import Frame, Frames

PreconditioningName = Literal["auto", "linear", "scalar"]
PRECONDITIONINGS = ("auto", "linear", "scalar")

MOST_NUMBERS = 64
"""Largest number of numbers for which "auto" is "linear": its cost grows with their cube."""

SAMPLES_PER_NUMBER = 10
"""Samples for each number that a covariance needs; with fewer, its conditional variances are too small."""

_DETERMINED = 5e-4
"""Deviation of a standardised number given all others up to which rounding or ``_JITTER`` may explain it."""

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


def scalar_estimate(x: Tensor, sigma: Tensor) -> LinearEstimate:
    """The estimate of each value from its own noisy one alone, for independent data of unit variance.

    Its factors are c_skip and c_out of Karras et al. (2022), Table 1; the target of the network is the
    velocity of Salimans and Ho (2022).

    Args:
        x: noisy values, shape ``(batch, numbers)``.
        sigma: noise level, shape ``(batch,)`` or ``(1,)``.
    """
    share = 1 / (1 + sigma[:, None] ** 2)
    root = share.sqrt()
    return LinearEstimate(share * x, (sigma[:, None] * root).expand_as(x), root * x)


class LinearPreconditioner(nn.Module):
    """The moments of standardised values, and the vectors by which a network receives innovations.

    Args:
        frames: frames of a graph of static sizes.
        width: token width of the network.

    Attributes:
        mean, covariance: moments, shapes ``(numbers,)`` and ``(numbers, numbers)``, in double precision; 0
            and the identity until ``standardise``.
        innovations: linear functions of the innovations of each node, by variable; zero at first.
    """

    mean: Tensor
    covariance: Tensor

    def __init__(self, frames: Frames, width: int) -> None:
        super().__init__()
        numbers = frames.at().numbers
        self.register_buffer("mean", torch.zeros(numbers, dtype=torch.float64))
        self.register_buffer("covariance", torch.eye(numbers, dtype=torch.float64))
        self.innovations = ByVariable(
            {name: nn.Linear(channels, width, bias=False) for name, channels in frames.channels.items()}
        )
        for weight in self.innovations.parameters():
            nn.init.zeros_(weight)
        self.register_load_state_dict_pre_hook(_complete_earlier_state)

    def narrowest(self, numbers: Tensor) -> float:
        """Smallest standard deviation of some numbers given all others, infinite for none.

        Numbers that the others determine do not count.

        Args:
            numbers: mask of the numbers, shape ``(numbers,)``.
        """
        precision = torch.cholesky_inverse(torch.linalg.cholesky(self.covariance))
        deviations = (1 / precision.diagonal() - _JITTER).clamp(min=0).sqrt()[numbers.to(precision.device)]
        free = deviations[deviations > _DETERMINED]
        return float(free.min()) if len(free) else math.inf

    @property
    def samples(self) -> int:
        """Number of samples that the moments need."""
        return SAMPLES_PER_NUMBER * len(self.mean)

    def standardise(self, rows: Tensor, permutations: Sequence[Tensor]) -> None:
        """Set the moments to those of samples, or to 0 and the identity if there are too few.

        Args:
            rows: standardised samples, shape ``(count, numbers)``.
            permutations: as for ``moments``.
        """
        mean, covariance = torch.zeros_like(self.mean), torch.eye(len(self.mean)).to(self.covariance)
        if len(rows) >= self.samples:
            mean, covariance = moments(rows, permutations)
        self.mean.copy_(mean)
        self.covariance.copy_(covariance)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: a factorisation of matrices has nothing to gain."""

    def forward(self, rows: Tensor, noise: Tensor) -> LinearEstimate:
        """``linear_estimate`` in the precision of the rows."""
        base = linear_estimate(rows, noise, self.mean, self.covariance)
        return LinearEstimate(base.mean.to(rows), base.deviation.to(rows), base.innovation.to(rows))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LinearPreconditioner:
        mean, covariance = self.mean, self.covariance
        super()._apply(fn, recurse)
        # a rounded covariance need not be positive definite, so that it keeps its precision
        self.mean, self.covariance = mean.to(self.mean.device), covariance.to(self.covariance.device)
        return self


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


def _complete_earlier_state(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Add what state dicts of earlier versions do not have, with the values of a new module, which make no
    difference."""
    if not any(key.startswith(prefix) for key in state):
        assert isinstance(module, LinearPreconditioner)
        numbers = len(module.mean)
        state[prefix + "mean"] = torch.zeros(numbers, dtype=torch.float64)
        state[prefix + "covariance"] = torch.eye(numbers, dtype=torch.float64)
        for name, weight in module.innovations.state_dict().items():
            state[f"{prefix}innovations.{name}"] = torch.zeros_like(weight)
