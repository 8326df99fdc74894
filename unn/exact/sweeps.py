"""The two sweeps over a compiled tree: products upward, cotangents downward.

Upward, every table is divided by its largest entry, whose logarithm is added to the log-partition.
Downward, the cotangent of a table is the product of all that lies outside of it, also scaled; a table
times its cotangent is proportional to the marginal of its variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from .plan import Plan, Products, Source
from .progress import is_watched, report

_TRUSTED = 290 * math.log(10)
"""Bound on the logarithm of cotangents: entries below 1e-308, which are lost, then count less than 1e-18."""

Total = Callable[[Tensor], Tensor]
"""A sum of logarithms along the last axis: log-sum-exp, or the maximum."""


@dataclass(frozen=True, eq=False)
class Upward:
    """The result of the upward sweep.

    Attributes:
        tables: all blocks, shape ``(rows, batch or 1, *states)`` each; scaled if linear, else logarithms.
        log_scales: logarithm of the divisor of each result, for each block of products, shape ``(rows, batch
            or 1)``; empty where tables are logarithms.
        log_partition: shape ``(batch or 1,)``.
    """

    tables: list[Tensor]
    log_scales: list[Tensor]
    log_partition: Tensor


def upward(plan: Plan, tables: Sequence[Tensor], log_scale: Tensor) -> Upward:
    """Contract linear tables.

    Args:
        plan: compiled tree.
        tables: nonnegative blocks of the model, shape ``(rows, batch or 1, *states)``.
        log_scale: logarithm of what the tables were divided by, in all, shape ``(batch or 1,)``.
    """
    blocks = list(tables)
    total = log_scale
    scales = []
    for _, products in _watched_products(plan, "upward sweep", range(len(plan.products))):
        result = _contract(products, gather(blocks, products.left), gather(blocks, products.right))
        largest = result.detach().flatten(2).amax(2) if result.ndim > 2 else result.detach()
        largest = torch.where(largest > 0, largest, 1)
        divisor = largest.view(*largest.shape, *[1] * (result.ndim - 2))
        result = result / divisor if result.requires_grad else result.div_(divisor)
        blocks.append(result)
        scales.append(largest.log())
        total = total + scales[-1].sum(0)
        if result.ndim == 2:
            total = total + safe_log(result).sum(0)
    for block, row in plan.lonely:
        total = total + safe_log(blocks[block][row].flatten(1).sum(1))
    return Upward(blocks, scales, total)


def upward_log(plan: Plan, tables: Sequence[Tensor], total: Total) -> Upward:
    """Contract logarithms of tables, without any loss of small entries; slower.

    Args:
        plan: compiled tree.
        tables: blocks of logarithms, shape ``(rows, batch or 1, *states)``.
        total: ``log_sum`` or ``maximum``.
    """
    blocks = list(tables)
    total_of_roots = torch.zeros(1, dtype=torch.float64, device=blocks[0].device)
    for _, products in _watched_products(plan, "sweep of logarithms", range(len(plan.products))):
        block = _contract_logs(products, gather(blocks, products.left), gather(blocks, products.right), total)
        blocks.append(block)
        if block.ndim == 2:
            total_of_roots = total_of_roots + block.sum(0)
    for number, row in plan.lonely:
        total_of_roots = total_of_roots + total(blocks[number][row].flatten(1))
    return Upward(blocks, [], total_of_roots)


def _watched_products(plan: Plan, stage: str, numbers: Iterable[int]) -> Iterator[tuple[int, Products]]:
    """Blocks of products of a plan by number, reported by the multiplications that they take.

    Args:
        plan: compiled tree.
        stage: for the watch.
        numbers: numbers of the blocks, in the order in which they are computed.
    """
    if not is_watched():
        yield from ((number, plan.products[number]) for number in numbers)
        return
    order = list(numbers)
    done = list(accumulate((_operations(plan.products[number]) for number in order), initial=0.0))
    for place, number in enumerate(order):
        report(stage, done[place] / done[-1])
        yield number, plan.products[number]
    report(stage, 1.0)


def _operations(products: Products) -> float:
    size = float(len(products.variables) or 1)
    for states in products.sizes:
        size *= states
    return size


def log_sum(x: Tensor) -> Tensor:
    """Log-sum-exp along the last axis; -inf where all are."""
    top = x.detach().amax(-1, keepdim=True)
    top = torch.where(top.isfinite(), top, 0)
    return safe_log((x - top).exp().sum(-1)) + top[..., 0]


def safe_log(x: Tensor) -> Tensor:
    """Logarithm; -inf at 0, with derivative 0 there instead of NaN."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1).log(), -torch.inf)


def maximum(x: Tensor) -> Tensor:
    """Maximum along the last axis."""
    return x.amax(-1)


def gather(blocks: Sequence[Tensor], source: Source) -> Tensor:
    """The operands of products, shape ``(rows, batch or 1, *states)``."""
    if source.is_whole:
        return blocks[source.blocks[0]]
    parts = []
    for block, rows in zip(source.blocks, source.rows, strict=True):
        table = blocks[block]
        if len(rows) == 1:
            parts.append(table.narrow(0, int(rows[0]), 1))
        else:
            parts.append(table.index_select(0, rows.to(table.device)))
    if len(parts) == 1:
        gathered = parts[0]
    else:
        batch = max(part.shape[1] for part in parts)
        gathered = torch.cat([part.expand(-1, batch, *part.shape[2:]) for part in parts])
    if source.inverse is None:
        return gathered
    return gathered.index_select(0, source.inverse.to(gathered.device))


def _contract(products: Products, left: Tensor, right: Tensor) -> Tensor:
    rank = len(products.sizes)
    return contract(left, products.left_axes, right, products.right_axes, products.axes, rank)


def contract(
    left: Tensor,
    left_axes: Sequence[int],
    right: Tensor,
    right_axes: Sequence[int],
    axes: Sequence[int],
    rank: int,
) -> Tensor:
    """Product of two stacks of tables, summed over the axes that the result does not have."""
    lead = [rank, rank + 1]
    return torch.einsum(left, [*lead, *left_axes], right, [*lead, *right_axes], [*lead, *axes])


def _contract_logs(products: Products, left: Tensor, right: Tensor, total: Total) -> Tensor:
    axes = (*products.axes, *products.summed)
    joint = aligned(left, products.left_axes, axes) + aligned(right, products.right_axes, axes)
    if not products.summed:
        return joint
    count = len(products.summed)
    shape = [products.sizes[k] for k in products.summed]
    joint = joint.expand(*joint.shape[: joint.ndim - count], *shape)
    return total(joint.flatten(-count))


def aligned(table: Tensor, own: Sequence[int], axes: Sequence[int]) -> Tensor:
    """A stack of tables with its axes in a given order, of size 1 where it has none."""
    present = [k for k in axes if k in own]
    table = table.permute(0, 1, *(2 + own.index(k) for k in present))
    shape, position = list(table.shape[:2]), 2
    for k in axes:
        if k in own:
            shape.append(table.shape[position])
            position += 1
        else:
            shape.append(1)
    return table.reshape(shape)


def joint_logs(
    tables: Sequence[tuple[tuple[int, ...], Tensor]], scope: Sequence[int], states: Sequence[int]
) -> Tensor:
    """Sum of the logarithms of tables over a scope that contains theirs, shape ``(batch or 1, *states)``.

    Args:
        tables: variables of each table, and its logarithms, shape ``(batch or 1, *states)``.
        scope: variables of the result.
        states: number of states of each variable.
    """
    total = torch.zeros(1, *(states[v] for v in scope), dtype=torch.float64)
    for own, logs in tables:
        total = total + aligned(logs[None], own, scope)[0]
    return total


@dataclass(frozen=True, eq=False)
class Downward:
    """The result of the downward sweep.

    Attributes:
        cotangents: by block, shape of its tables, with axes of size 1 where an operand was summed alone; None
            for blocks that were not asked for. Each table has its own scale.
        is_exact: whether no entry that was lost in the upward sweep could count, shape ``(batch or 1,)``.
    """

    cotangents: list[Tensor | None]
    is_exact: Tensor


def downward(plan: Plan, up: Upward, wanted: set[int]) -> Downward:
    """Cotangents of all products and of the wanted blocks of the model.

    Args:
        plan: compiled tree.
        up: upward sweep of linear tables.
        wanted: numbers of the blocks of the model whose cotangents are needed.
    """
    cotangents: list[Tensor | None] = [None] * len(up.tables)
    logs: list[Tensor | None] = [None] * len(up.tables)
    worst = torch.full_like(up.log_partition.detach(), -torch.inf)
    for block, row in plan.lonely:
        if block in wanted:
            table = up.tables[block]
            _store(
                cotangents, block, torch.tensor([row]), torch.ones_like(table[row : row + 1]), table, False
            )
    for number, products in _watched_products(plan, "downward sweep", reversed(range(len(plan.products)))):
        block = plan.leaves + number
        own = cotangents[block]
        if own is None:
            # results without axes: the last product of a component
            own, log = torch.ones_like(up.tables[block]), torch.zeros_like(up.log_scales[number])
        else:
            own_log = logs[block]
            assert own_log is not None
            log = own_log
        sides = (
            (products.left, products.left_axes, products.right, products.right_axes),
            (products.right, products.right_axes, products.left, products.left_axes),
        )
        for target, target_axes, other, other_axes in sides:
            if not any(k >= plan.leaves or k in wanted for k in target.blocks):
                continue
            reach = {*products.axes, *other_axes}
            axes = [k for k in target_axes if k in reach]
            rank = len(products.sizes)
            cotangent = contract(own, products.axes, gather(up.tables, other), other_axes, axes, rank)
            cotangent = aligned(cotangent, axes, target_axes)
            largest = cotangent.detach().flatten(2).amax(2) if cotangent.ndim > 2 else cotangent.detach()
            largest = torch.where(largest > 0, largest, 1)
            log_here = log + largest.log() - up.log_scales[number]
            worst = torch.maximum(worst, log_here.amax(0))
            cotangent = cotangent / largest.view(*largest.shape, *[1] * (cotangent.ndim - 2))
            start = 0
            for part, rows in enumerate(target.rows):
                k = target.blocks[part]
                if k >= plan.leaves or k in wanted:
                    whole = target.is_whole
                    values = _rows_of(cotangent, target, start, len(rows))
                    _store(cotangents, k, rows, values, up.tables[k], whole)
                    if k >= plan.leaves:
                        values = _rows_of(log_here, target, start, len(rows))
                        _store(logs, k, rows, values, up.log_scales[k - plan.leaves], whole)
                start += len(rows)
    return Downward(cotangents, worst < _TRUSTED)


def _rows_of(x: Tensor, source: Source, start: int, count: int) -> Tensor:
    """Rows of a part of the operands, in the order of that part."""
    if source.places is None:
        return x.narrow(0, start, count)
    return x.index_select(0, source.places[start : start + count].to(x.device))


def _store(
    stacks: list[Tensor | None], block: int, rows: Tensor, values: Tensor, like: Tensor, is_whole: bool
) -> None:
    """Write rows of a stack, which is made when the first of them are written."""
    if is_whole:
        stacks[block] = values
        return
    batch = max(values.shape[1], like.shape[1])
    stack = stacks[block]
    if stack is None:
        stack = values.new_zeros(len(like), batch, *like.shape[2:])
    elif stack.shape[1] < batch:
        stack = stack.expand(-1, batch, *stack.shape[2:]).contiguous()
    values = values.expand(len(rows), stack.shape[1], *stack.shape[2:])
    rows = rows.to(stack.device)
    differentiable = stack.requires_grad or values.requires_grad
    stacks[block] = (
        stack.index_copy(0, rows, values) if differentiable else stack.index_copy_(0, rows, values)
    )
