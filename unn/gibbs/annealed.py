"""The log-partition by annealed importance sampling, from both ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import ArgumentError, InferenceError, is_whole
from ..graph.declaration import Declaration
from .chains import Chains
from .options import GibbsOptions
from .queries import Given, checked, start


@dataclass(frozen=True, eq=False)
class AnnealedLogPartition:
    """Estimates of log Z = log of the sum, or integral, of exp(-E / temperature).

    All have shape ``(queries,)``, float64.

    Attributes:
        value: logarithm of the mean weight of chains that are coupled step by step. The mean weight is
            unbiased, so that the logarithm is too small on average.
        error: standard error of ``value`` by the delta method; too small where few chains carry the weight.
        lower: mean of the logarithms of these weights, a lower bound of log Z on average.
        lower_error: its standard error.
        upper: minus the mean of the logarithms of the weights of chains that are uncoupled step by step, an
            upper bound on average if they start at draws from exp(-E / temperature). They start where chains
            are after ``burn_in`` sweeps.
        upper_error: its standard error.
        effective: number of chains that carry the weight, (sum w)^2 / sum w^2.
    """

    value: Tensor
    error: Tensor
    lower: Tensor
    lower_error: Tensor
    upper: Tensor
    upper_error: Tensor
    effective: Tensor


@torch.no_grad()
def log_partition(
    graph: Declaration,
    given: Given | None = None,
    *,
    steps: int = 200,
    queries: int | None = None,
    sizes: Mapping[str, int] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    options: GibbsOptions | None = None,
    generator: torch.Generator | None = None,
) -> AnnealedLogPartition:
    """Estimate the log-partition by annealed importance sampling (Neal, 2001), with bounds from both ends.

    Variables with their biases alone, of which the log-partition is known, are coupled by the other factors
    in ``steps`` equal steps, with a sweep after each; and chains at full coupling are uncoupled in as many
    (bidirectional Monte Carlo; Grosse, Ghahramani and Adams, 2015). Where the two bounds meet, the value is
    right if the chains that were uncoupled had reached the distribution. Where no factor joins two variables
    that are not given, the value is exact.

    Args:
        graph, given, queries, sizes, lengths, generator: as for ``sample``.
        steps: number of steps from independent variables to the energy.
        options: number of chains, sweeps before the uncoupling (``burn_in``), and temperature; no tempering.

    Raises:
        ArgumentError: for fewer than one step, or tempering; and the errors of ``sample``.
        InferenceError: for constraints.
    """
    options = checked(options)
    if not is_whole(steps, 1):
        raise ArgumentError(f"log_partition: steps must be a whole number >= 1, got {steps!r}.")
    if options.tempering != 1:
        raise ArgumentError("log_partition anneals couplings itself; leave out the option tempering.")
    if graph.constraints:
        raise InferenceError(
            f"graph {graph.name!r}: the number of values that satisfy constraints, from which annealing "
            "starts, is not known; use unn.exact.log_partition."
        )
    chains = start(graph, given or {}, options, queries, sizes, lengths, generator)
    if chains.are_independent:
        return _exactly(chains)
    ladder = torch.linspace(0, 1, steps + 1, dtype=torch.float64).tolist()
    volume = chains.log_volume()
    for number in range(options.burn_in):
        chains.sweep(adapts=2 * number < options.burn_in)
    falling = (volume - _annealed(chains, ladder[::-1])).view(chains.queries, chains.chains)
    # last, so that Langevin dynamics have their step sizes
    chains.restart()
    rising = (volume + _annealed(chains, ladder)).view(chains.queries, chains.chains)
    chains.require_finite()
    count = chains.chains
    peak = rising.amax(1, keepdim=True)
    weights = (rising - peak).exp()
    mean = weights.mean(1)
    root = math.sqrt(count)
    single = torch.full_like(mean, torch.nan)
    return AnnealedLogPartition(
        value=peak[:, 0] + mean.log(),
        error=weights.std(1) / mean / root if count > 1 else single,
        lower=rising.mean(1),
        lower_error=rising.std(1) / root if count > 1 else single,
        upper=falling.mean(1),
        upper_error=falling.std(1) / root if count > 1 else single,
        effective=weights.sum(1).square() / weights.square().sum(1),
    )


def _exactly(chains: Chains) -> AnnealedLogPartition:
    """The log-partition of variables that no factor joins, whose errors are 0."""
    value = chains.log_volume().view(chains.queries, -1)[:, 0]
    zero = torch.zeros_like(value)
    effective = torch.full_like(value, chains.chains)
    return AnnealedLogPartition(value, zero, value, zero, value, zero, effective)


def _annealed(chains: Chains, ladder: list[float]) -> Tensor:
    """Logarithms of the weights of chains that follow a ladder of couplings, shape ``(batch,)``, float64."""
    total = torch.zeros(len(chains.couplings), dtype=torch.float64, device=chains.couplings.device)
    for before, after in pairwise(ladder):
        total = total - (after - before) * chains.joint_energy().double() / chains.temperature
        chains.couple(after)
        chains.sweep()
    return total
