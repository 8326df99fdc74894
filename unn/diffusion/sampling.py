"""Seeds, batches and attempts of samples."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import ArgumentError, ObservationError
from ..graph.declaration import Declaration
from ..networks.tokens import Given
from ..ops.reproducible import reproducible
from ..ops.seeds import seed_of
from .samples import Condition, Samples

if TYPE_CHECKING:
    from .conditional import ConditionalModel

DrawRows = Callable[[Condition, list[torch.Generator] | None], Tensor]
"""Draws standardised rows, shape ``(batch, numbers)``, for a batch of conditions with a generator for each,
if any."""


def check_counts(where: str, **counts: int) -> None:
    """Check that counts are integers >= 1.

    Args:
        where: caller, for the message.
        counts: counts by name.

    Raises:
        ArgumentError: for the first count that is not an integer >= 1.
    """
    for name, number in counts.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ArgumentError(f"{where}: {name} must be a whole number >= 1, got {number!r}.")


def generators_of(seed: int | Sequence[int] | None, count: int) -> list[torch.Generator] | None:
    """One generator per sample, from a single seed or one seed per sample; None for torch's global generator.

    Raises:
        ObservationError: if the number of seeds is not ``count``.
    """
    if seed is None:
        return None
    if not isinstance(seed, Sequence):
        seeds = [seed_of(_check_seed(seed), k) for k in range(count)]
    else:
        seeds = [_check_seed(k) for k in seed]
        if len(seeds) != count:
            raise ObservationError(f"sampling: {len(seeds)} seeds are given for {count} samples.")
    return [torch.Generator().manual_seed(k) for k in seeds]


def _check_seed(seed: int) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise ArgumentError(f"sampling: a seed is a whole number from 0 to 2**63 - 1, got {seed!r}.")
    return number


def _check_verification(graph: Declaration, verify: bool, tries: int) -> None:
    if verify and not graph.constraints:
        raise ArgumentError(
            f"sampling: verify=True, but graph {graph.name!r} has no constraint to verify; declare one, such "
            "as factors.Cardinality, or leave out verify."
        )
    if tries > 1 and not verify:
        raise ArgumentError(
            f"sampling: tries={tries} resamples what violates a constraint, which needs verify=True."
        )


def sample_with_retries(
    model: ConditionalModel,
    condition: Condition,
    given: Given,
    draw: DrawRows,
    generators: list[torch.Generator] | None,
    verify: bool,
    tries: int,
    at_once: int,
) -> Samples:
    """Draw samples in batches of ``at_once``; with ``verify``, resample those that violate a constraint.

    Each sample is drawn at most ``tries`` times.

    Raises:
        ArgumentError: for ``verify`` on a graph without constraints, or ``tries`` > 1 without ``verify``.
    """
    _check_verification(model.frames.graph, verify, tries)
    count = len(condition.rows)
    rows = torch.zeros_like(condition.rows)

    def fill(indices: Tensor) -> None:
        for batch in indices.split(at_once):
            batch_generators = [generators[int(k)] for k in batch] if generators else None
            # with a seed, results must not depend on the process, not even by rounding
            with reproducible(batch_generators is not None):
                rows[batch] = draw(condition.select(batch), batch_generators)

    fill(torch.arange(count, device=rows.device))
    values = model.values_of(rows, condition, given)
    attempts = torch.ones(count, dtype=torch.int64)
    if not verify:
        return Samples(values, None, attempts)
    valid = model.valid(values)
    for _ in range(tries - 1):
        invalid = (~valid).nonzero().squeeze(1)
        if not len(invalid):
            break
        fill(invalid.to(rows.device))
        attempts[invalid] += 1
        values = model.values_of(rows, condition, given)
        valid = model.valid(values)
    return Samples(values, valid, attempts)
