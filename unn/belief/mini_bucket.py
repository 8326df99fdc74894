"""Weighted mini-bucket elimination: an upper bound of the log-partition within a limit of table sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from ..exact.elimination import greedy_order
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
    for variable in _order(tables, states):
        own = [table for table in tables if variable in table[0]]
        tables = [table for table in tables if variable not in table[0]]
        parts = [_product(part, states) for part in _split(own, states, entries)]
        for scope, logs in _agreeing(parts, variable, moves):
            axis = 1 + scope.index(variable)
            summed = _log_sum(logs * len(parts), axis) / len(parts)
            rest = tuple(v for v in scope if v != variable)
            if rest:
                tables.append((rest, summed))
            else:
                total = total + summed
    for scope, logs in tables:
        assert not scope
        total = total + logs
    return total


def _order(tables: Sequence[Table], states: Sequence[int]) -> list[int]:
    """An order of elimination of small width."""
    adjacent = [0] * len(states)
    for scope, _ in tables:
        bits = sum(1 << v for v in scope)
        for v in scope:
            adjacent[v] |= bits & ~(1 << v)
    sizes = [math.log2(size) for size in states]
    order, _ = greedy_order(adjacent, sizes, 1.0, 1.0, 0.0, 0.0, random.Random(0))
    assert order is not None
    return [*order.variables, *sorted(set(range(len(states))) - set(order.variables))]


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


def _product(tables: Sequence[Table], states: Sequence[int]) -> Table:
    """Sum of logarithms over the union of the scopes."""
    scope = tuple(sorted({v for own, _ in tables for v in own}))
    total: Tensor | None = None
    for own, logs in tables:
        present = [v for v in scope if v in own]
        aligned = logs.permute(0, *(1 + own.index(v) for v in present))
        aligned = aligned.reshape(len(logs), *(states[v] if v in own else 1 for v in scope))
        total = aligned if total is None else total + aligned
    assert total is not None
    return scope, total.expand(len(total), *(states[v] for v in scope))


def _agreeing(parts: Sequence[Table], variable: int, moves: bool) -> list[Table]:
    """Move weight between the parts until their marginals of a variable agree; the product is unchanged."""
    if len(parts) == 1:
        return list(parts)
    marginals = []
    for scope, logs in parts:
        axis = 1 + scope.index(variable)
        own = logs if moves else logs.detach()
        flat = own.movedim(axis, 1).flatten(2) if own.ndim > 2 else own.unsqueeze(2)
        marginals.append(_log_sum(flat * len(parts), 2))
    mean = torch.stack(torch.broadcast_tensors(*marginals)).mean(0)
    moved = []
    for (scope, logs), own in zip(parts, marginals, strict=True):
        possible = mean > -torch.inf
        # differences of infinite numbers would have NaN as gradients
        shift = (torch.where(possible, mean, 0.0) - torch.where(possible, own, 0.0)) / len(parts)
        shape = [-1 if v == variable else 1 for v in scope]
        moved.append((scope, logs + shift.reshape(len(shift), *shape)))
    return moved


def _log_sum(logs: Tensor, axis: int) -> Tensor:
    """Logarithm of a sum of exponentials, -inf without NaN where all are -inf, gradients included."""
    top = logs.detach().amax(axis, keepdim=True)
    top = torch.where(top > -torch.inf, top, 0.0)
    total = (logs - top).exp().sum(axis)
    safe = torch.where(total > 0, total, 1.0)
    return torch.where(total > 0, safe.log() + top.squeeze(axis), -torch.inf)
