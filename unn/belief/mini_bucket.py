"""Weighted mini-bucket elimination: an upper bound of the log-partition within a limit of table sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..exact.elimination import quick_order
from ..exact.sweeps import joint_logs, log_sum
from ..exact.tables import Family

Table = tuple[tuple[int, ...], Tensor]
"""Variables of a table, and its logarithms, shape ``(batch or 1, *states)``."""


def mini_bucket_bound(
    families: Sequence[Family], states: Sequence[int], entries: int
) -> tuple[Tensor, Tensor]:
    """An upper bound of the log-partition, and its derivatives as marginals (Liu and Ihler, 2011).

    Variables are eliminated one after another. Where the product of all tables of a variable would have too
    many entries, it is split into parts with weights that sum to one, and each part is summed by itself as
    ``(sum f^(1/w))^w``, whose product is an upper bound by Hoelder's inequality. Before, the parts are made
    to agree about the variable, which tightens the bound.

    Args:
        families: tables.
        states: number of states of each variable.
        entries: largest number of entries of a product.

    Returns:
        The bound, shape ``(batch or 1,)``; -inf where a part is impossible; differentiable by the tables.
        And its gradient by the logarithms of a table for each variable, with what moves between the parts
        held fixed, shape ``(variables, batch or 1, most states)``: exact marginals where nothing is split.
    """
    most = max(states)
    batch = max((family.logs.shape[1] for family in families), default=1)
    tables: list[Table] = [
        (tuple(scope), family.logs[row].double())
        for family in families
        for row, scope in enumerate(family.scopes.tolist())
    ]
    with torch.inference_mode(False), torch.enable_grad():
        leaves = torch.zeros(len(states), batch, most, dtype=torch.float64).requires_grad_()
        fixed: list[Table] = [(scope, logs.detach().clone()) for scope, logs in tables]
        fixed += [((v,), leaves[v, :, :size]) for v, size in enumerate(states)]
        bound = _eliminate(fixed, states, entries, moves=False).expand(batch)
        possible = bound > -torch.inf
        (gradient,) = torch.autograd.grad(bound[possible].sum(), leaves, allow_unused=True)
    bound = bound.detach()
    if torch.is_grad_enabled() and any(logs.requires_grad for _, logs in tables):
        tables += [((v,), leaves.detach()[v, :, :size]) for v, size in enumerate(states)]
        bound = _eliminate(tables, states, entries, moves=True).expand(batch)
    return bound, torch.zeros_like(leaves) if gradient is None else gradient


def _eliminate(tables: list[Table], states: Sequence[int], entries: int, moves: bool) -> Tensor:
    """The bound; ``moves`` differentiates what is moved between the parts as well."""
    total = torch.zeros(1, dtype=torch.float64)
    for variable in quick_order([scope for scope, _ in tables], states):
        own = [table for table in tables if variable in table[0]]
        tables = [table for table in tables if variable not in table[0]]
        parts: list[Table] = []
        for part in _split(own, states, entries):
            joint = tuple(sorted({v for scope, _ in part for v in scope}))
            parts.append((joint, joint_logs(part, joint, states)))
        for scope, logs in _agreeing(parts, variable, moves):
            axis = 1 + scope.index(variable)
            summed = log_sum((logs * len(parts)).movedim(axis, -1)) / len(parts)
            rest = tuple(v for v in scope if v != variable)
            if rest:
                tables.append((rest, summed))
            else:
                total = total + summed
    for scope, logs in tables:
        assert not scope
        total = total + logs
    return total


def _split(tables: Sequence[Table], states: Sequence[int], entries: int) -> list[list[Table]]:
    """Parts whose products have few enough entries, largest tables first; a single table may be larger."""
    parts: list[tuple[set[int], list[Table]]] = []
    for table in sorted(tables, key=lambda table: -math.prod(states[v] for v in table[0])):
        for scope, part in parts:
            joined = scope | set(table[0])
            if joined == scope or math.prod(states[v] for v in joined) <= entries:
                scope |= joined
                part.append(table)
                break
        else:
            parts.append((set(table[0]), [table]))
    return [part for _, part in parts]


def _agreeing(parts: Sequence[Table], variable: int, moves: bool) -> list[Table]:
    """Move weight between the parts until their marginals of a variable agree; the product is unchanged."""
    if len(parts) == 1:
        return list(parts)
    marginals = []
    for scope, logs in parts:
        axis = 1 + scope.index(variable)
        own = logs if moves else logs.detach()
        flat = own.movedim(axis, 1).flatten(2) if own.ndim > 2 else own.unsqueeze(2)
        marginals.append(log_sum(flat * len(parts)))
    mean = torch.stack(torch.broadcast_tensors(*marginals)).mean(0)
    moved = []
    for (scope, logs), own in zip(parts, marginals, strict=True):
        possible = mean > -torch.inf
        # differences of infinite numbers would have NaN as gradients
        shift = (torch.where(possible, mean, 0.0) - torch.where(possible, own, 0.0)) / len(parts)
        shape = [-1 if v == variable else 1 for v in scope]
        moved.append((scope, logs + shift.reshape(len(shift), *shape)))
    return moved
