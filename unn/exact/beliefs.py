"""Sweeps over a reduced model, in logarithms where small entries may count, and the beliefs of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .downward import Downward, downward, is_shallow
from .plan import Reading
from .reduction import Reduced
from .sweeps import Total, Upward, log_sum, upward, upward_log
from .tables import Family, linear

_TABLE_RANGE = 300.0
"""Difference between two logarithms of one table from which it is kept in logarithms."""


@dataclass(frozen=True)
class _Ranges:
    """Differences between the largest and the smallest finite logarithm of tables: their sum, and the largest
    one."""

    total: float
    widest: float


def _ranges(families: Sequence[Family]) -> _Ranges:
    total = widest = 0.0
    for family in families:
        if family.is_partial:
            continue
        flat = family.logs.detach().flatten(2)
        if not flat.numel():
            continue
        least = torch.where(flat > -torch.inf, flat, torch.inf).amin(2)
        spread = (flat.amax(2) - least).clamp(min=0).amax(1)
        total += float(spread.sum())
        widest = max(widest, float(spread.max()))
    return _Ranges(total, widest)


def contract_tables(reduced: Reduced) -> tuple[Upward, bool]:
    """The upward sweep, and whether its tables are logarithms because small entries may count."""
    plan = reduced.plan
    assert plan is not None
    ranges = _ranges(reduced.families)
    tables, scale = linear(reduced.families)
    up = upward(plan, tables, scale + reduced.constant, ranges.total)
    if _is_trusted(reduced, ranges, up, None):
        return up, False
    return contract_logs(reduced, log_sum), True


def _is_trusted(reduced: Reduced, ranges: _Ranges, up: Upward, down: Downward | None) -> bool:
    """Whether no small entry that was lost in the upward sweep may count.

    Args:
        reduced: model.
        ranges: those of its tables.
        up: upward sweep of linear tables.
        down: downward sweep; None if there is none yet, which is then made where it is needed.
    """
    if not bool((up.log_partition > -torch.inf).all()):
        return False
    if ranges.widest > _TABLE_RANGE:
        # the sweeps cannot see what a single table lost
        return False
    if down is None:
        assert reduced.plan is not None
        if up.is_safe or is_shallow(reduced.plan, up):
            return True
        with torch.no_grad():
            down = downward(reduced.plan, up, set())
    return bool(down.is_exact.all())


def contract_logs(reduced: Reduced, total: Total) -> Upward:
    plan = reduced.plan
    assert plan is not None
    up = upward_log(plan, [family.logs.double() for family in reduced.families], total)
    return Upward(up.tables, [], up.log_partition + reduced.constant)


def beliefs_of(reduced: Reduced, blocks: set[int]) -> tuple[Upward, dict[int, Tensor]]:
    """The upward sweep, and the normalised marginals of the tables of some blocks.

    Where small entries may count, both are made from logarithms, and the marginals are those of the tables of
    the model.
    """
    plan = reduced.plan
    assert plan is not None
    ranges = _ranges(reduced.families)
    tables, scale = linear(reduced.families)
    up = upward(plan, tables, scale + reduced.constant, ranges.total)
    down = downward(plan, up, {block for block in blocks if block < plan.leaves})
    if not _is_trusted(reduced, ranges, up, down):
        return contract_logs(reduced, log_sum), _beliefs_by_gradient(reduced)
    beliefs = {}
    for block in blocks:
        cotangent = down.cotangents[block]
        assert cotangent is not None
        belief = _product(up.tables[block], cotangent)
        total = belief.flatten(2).sum(2) if belief.ndim > 2 else belief
        total = torch.where(total > 0, total, 1).view(*total.shape, *[1] * (belief.ndim - 2))
        beliefs[block] = belief / total if belief.requires_grad else belief.div_(total)
    return up, beliefs


def _product(table: Tensor, cotangent: Tensor) -> Tensor:
    """The product of a table and its cotangent, in the memory of the latter if it has the size."""
    if table.requires_grad or cotangent.requires_grad or cotangent.shape != table.shape:
        return table * cotangent
    return cotangent.mul_(table) if cotangent.movedim(1, -1).is_contiguous() else table * cotangent


def _beliefs_by_gradient(reduced: Reduced) -> dict[int, Tensor]:
    """Marginals of the tables of the model, from logarithms; differentiable where the tables are."""
    differentiable = torch.is_grad_enabled() and any(f.logs.requires_grad for f in reduced.families)
    with torch.inference_mode(False), torch.enable_grad():
        batch = max(len(reduced.constant), *(family.logs.shape[1] for family in reduced.families))
        leaves = []
        for family in reduced.families:
            logs = family.logs if differentiable else family.logs.detach()
            leaf = logs.double().expand(-1, batch, *family.states).clone()
            leaves.append(leaf if leaf.requires_grad else leaf.requires_grad_())
        copy = replace(
            reduced,
            families=[replace(f, logs=leaf) for f, leaf in zip(reduced.families, leaves, strict=True)],
        )
        copy = replace(copy, constant=copy.constant.clone())
        total = contract_logs(copy, log_sum).log_partition.expand(batch)
        possible = total[total > -torch.inf].sum()
        gradients = torch.autograd.grad(possible, leaves, create_graph=differentiable)
    return dict(enumerate(gradients))


def leaf_readings(reduced: Reduced) -> list[Reading]:
    """Where each variable is read among the tables of the model."""
    seen: set[int] = set()
    readings: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for block, family in enumerate(reduced.families):
        for row, scope in enumerate(family.scopes.tolist()):
            for axis, variable in enumerate(scope):
                if variable not in seen:
                    seen.add(variable)
                    rows, variables = readings.setdefault((block, axis), ([], []))
                    rows.append(row)
                    variables.append(variable)
    return [
        Reading(block, axis, torch.tensor(rows), torch.tensor(variables))
        for (block, axis), (rows, variables) in readings.items()
    ]
