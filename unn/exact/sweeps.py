"""The upward sweep over a compiled tree: products of tables, from its leaves to its roots.

Every table is divided by its largest entry, whose logarithm is added to the log-partition.
Tables that are larger than both of their factors are not scaled, since the next product makes them smaller
again; and none is scaled where no product can leave the range of the numbers.

Within the sweeps the batch is the last axis, so that the operations of a large batch run over contiguous
memory even where variables have few states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product

import torch
from torch import Tensor

from .plan import LARGE_BATCH, Plan, Products, Rows, Source
from .progress import is_watched, report

SAFE = 500.0
"""Absolute logarithm up to which a product of entries neither underflows nor overflows."""

_MATRIX = 8
"""Number of rows and columns from which products of matrices are left to a library of linear algebra."""

_TERMS = 64
"""Number of terms up to which a sum of products is computed term by term."""

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
        log_bounds: bound on the logarithms of the entries of each block; empty where tables are logarithms.
        is_safe: whether no product of entries of tables underflows or overflows.
    """

    tables: list[Tensor]
    log_scales: list[Tensor]
    log_partition: Tensor
    log_bounds: list[float] = field(default_factory=list)
    is_safe: bool = False


def upward(plan: Plan, tables: Sequence[Tensor], log_scale: Tensor, log_range: float = math.inf) -> Upward:
    """Contract linear tables.

    Args:
        plan: compiled tree.
        tables: nonnegative blocks of the model, shape ``(rows, batch or 1, *states)``.
        log_scale: logarithm of what the tables were divided by, in all, shape ``(batch or 1,)``.
        log_range: absolute logarithm of the smallest product of positive entries, one of each table; results
            are not scaled if it is small.
    """
    is_safe = max(log_range, sum(map(math.log, plan.states))) <= SAFE
    blocks = [_batch_last(table) for table in tables]
    bounds = [0.0] * len(blocks)
    total = log_scale
    scales = []
    for _, products in watched_products(plan, "upward sweep", range(len(plan.products))):
        left, right = gather(blocks, products.left, -1), gather(blocks, products.right, -1)
        result = contract(left, products.left_axes, right, products.right_axes, products.axes)
        # results without axes are scaled always, for their logarithms have higher derivatives
        if (is_safe and products.axes) or grows(
            products, products.axes, products.left_axes, products.right_axes
        ):
            bounds.append(
                bound_of(bounds, products.left) + bound_of(bounds, products.right) + _log_sum_of(products)
            )
            scales.append(total.new_zeros(len(result), 1))
        else:
            result, scale = scaled(result)
            bounds.append(0.0)
            scales.append(scale)
            total = total + scale.sum(0)
        blocks.append(result)
        if result.ndim == 2:
            total = total + safe_log(result).sum(0)
    for block, row in plan.lonely:
        total = total + safe_log(blocks[block][row].flatten(0, -2).sum(0))
    return Upward([table.movedim(-1, 1) for table in blocks], scales, total, bounds, is_safe)


def _batch_last(table: Tensor) -> Tensor:
    """A stack of tables with its batch as the last axis, and contiguous if the batch is large."""
    moved = table.movedim(1, -1)
    return moved.contiguous() if table.shape[1] >= LARGE_BATCH else moved


def scaled(table: Tensor) -> tuple[Tensor, Tensor]:
    """Tables divided by their largest entries, and the logarithms of these, shape ``(rows, batch or 1)``."""
    largest = table.detach()
    if table.ndim > 2:
        largest = largest.flatten(1, -2).amax(1)
    largest = torch.where(largest > 0, largest, 1)
    divisor = largest.view(len(largest), *[1] * (table.ndim - 2), largest.shape[-1])
    return table / divisor if table.requires_grad else table.div_(divisor), largest.log()


def grows(products: Products, result: Sequence[int], left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether a table over some axes of products has more entries than those over the axes of its factors."""
    size, *factors = (math.prod(products.sizes[k] for k in axes) for axes in (result, left, right))
    return size > max(factors)


def bound_of(bounds: Sequence[float], source: Source) -> float:
    return max(bounds[block] for block in source.blocks)


def _log_sum_of(products: Products) -> float:
    """Logarithm of the number of terms of each entry of a result."""
    return math.log(math.prod(products.sizes[k] for k in products.summed))


def upward_log(plan: Plan, tables: Sequence[Tensor], total: Total) -> Upward:
    """Contract logarithms of tables, without any loss of small entries; slower.

    Args:
        plan: compiled tree.
        tables: blocks of logarithms, shape ``(rows, batch or 1, *states)``.
        total: ``log_sum`` or ``maximum``.
    """
    blocks = list(tables)
    total_of_roots = torch.zeros(1, dtype=torch.float64, device=blocks[0].device)
    for _, products in watched_products(plan, "sweep of logarithms", range(len(plan.products))):
        left, right = gather(blocks, products.left, 1), gather(blocks, products.right, 1)
        block = _contract_logs(products, left, right, total)
        blocks.append(block)
        if block.ndim == 2:
            total_of_roots = total_of_roots + block.sum(0)
    for number, row in plan.lonely:
        total_of_roots = total_of_roots + total(blocks[number][row].flatten(1))
    return Upward(blocks, [], total_of_roots)


def watched_products(plan: Plan, stage: str, numbers: Iterable[int]) -> Iterator[tuple[int, Products]]:
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


def gather(blocks: Sequence[Tensor], source: Source, batch_axis: int) -> Tensor:
    """The operands of products, in one stack.

    Args:
        blocks: stacks of tables.
        source: where the operands are.
        batch_axis: axis of the batch in all stacks, 1 or -1.
    """
    if source.is_whole:
        return blocks[source.blocks[0]]
    parts = []
    for block, rows, order in zip(source.blocks, source.rows, source.orders, strict=True):
        part = rows_of_stack(blocks[block], rows)
        if order is not None:
            first = 2 if batch_axis == 1 else 1
            axes = list(range(part.ndim))
            axes[first : first + len(order)] = [first + k for k in order]
            part = part.permute(axes)
        parts.append(part)
    if len(parts) == 1:
        gathered = parts[0]
    else:
        batch = max(part.shape[batch_axis] for part in parts)
        gathered = torch.cat([_repeated(part, batch, batch_axis) for part in parts])
    if source.inverse is None:
        return gathered
    return gathered.index_select(0, source.inverse.to(gathered.device))


def rows_of_stack(table: Tensor, rows: Rows) -> Tensor:
    """Rows of a stack of tables; a view of it for a slice."""
    return table[rows] if isinstance(rows, slice) else table.index_select(0, rows.to(table.device))


def _repeated(table: Tensor, batch: int, batch_axis: int) -> Tensor:
    """A stack of tables with one element of the batch repeated."""
    shape = [-1] * table.ndim
    shape[batch_axis] = batch
    return table.expand(shape)


def contract(
    left: Tensor,
    left_axes: Sequence[int],
    right: Tensor,
    right_axes: Sequence[int],
    axes: Sequence[int],
) -> Tensor:
    """Product of two stacks of tables, summed over the axes that the result does not have.

    Args:
        left, right: stacks, shape ``(rows, *states, batch or 1)``.
        left_axes, right_axes: numbers of their axes.
        axes: numbers of the axes of the result.

    Returns:
        Shape ``(rows, *states, batch or 1)``.
    """
    summed = [k for k in left_axes if k in right_axes and k not in axes]
    every = {*left_axes, *right_axes}
    if not summed and every == set(axes):
        return aligned_last(left, left_axes, axes) * aligned_last(right, right_axes, axes)
    if left.shape[-1] > right.shape[-1] == 1:
        # the result has the order of axes in memory of the operand that comes last
        left, left_axes, right, right_axes = right, right_axes, left, left_axes
    rows, batch = (1 + max(every, default=0) + k for k in range(2))
    if min(left.shape[-1], right.shape[-1]) >= LARGE_BATCH and not left.requires_grad | right.requires_grad:
        sizes = dict(zip((*left_axes, *right_axes), (*left.shape[1:-1], *right.shape[1:-1]), strict=True))
        free = [
            math.prod(sizes[k] for k in own if k in axes and k not in other)
            for own, other in ((left_axes, right_axes), (right_axes, left_axes))
        ]
        if min(free) < _MATRIX and math.prod(sizes[k] for k in summed) <= _TERMS:
            return _summed_in_place(left, left_axes, right, right_axes, axes)
    lead = [rows, *left_axes, batch], [rows, *right_axes, batch]
    return torch.einsum(left, lead[0], right, lead[1], [rows, *axes, batch])


def _summed_in_place(
    left: Tensor, left_axes: Sequence[int], right: Tensor, right_axes: Sequence[int], axes: Sequence[int]
) -> Tensor:
    """``contract`` of two large batches, term by term.

    Matrix products of a few states for each element of a batch take longer than passes over the batch.
    """
    left, left_axes = _summed_alone(left, left_axes, {*right_axes, *axes})
    right, right_axes = _summed_alone(right, right_axes, {*left_axes, *axes})
    summed = [k for k in left_axes if k not in axes]
    both = [(left, left_axes), (right, right_axes)]
    # an axis of size 1 is repeated
    sizes = [max(table.shape[1 + own.index(k)] for table, own in both) for k in summed]
    result: Tensor | None = None
    for states in product(*map(range, sizes)):
        state = dict(zip(summed, states, strict=True))
        one, other = (_entry(table, own, state, axes) for table, own in both)
        result = one * other if result is None else result.addcmul_(one, other)
    assert result is not None
    return result


def _entry(table: Tensor, own: Sequence[int], state: Mapping[int, int], axes: Sequence[int]) -> Tensor:
    """A stack of tables at states of some axes, with the others in a given order."""
    at = [state[k] % table.shape[1 + place] if k in state else slice(None) for place, k in enumerate(own)]
    return aligned_last(table[(slice(None), *at)], [k for k in own if k not in state], axes)


def _summed_alone(table: Tensor, own: Sequence[int], kept: set[int]) -> tuple[Tensor, list[int]]:
    """A stack of tables summed over the axes that nothing else has."""
    alone = [1 + place for place, k in enumerate(own) if k not in kept]
    return (table.sum(alone) if alone else table), [k for k in own if k in kept]


def aligned_last(table: Tensor, own: Sequence[int], axes: Sequence[int]) -> Tensor:
    """``aligned`` for stacks of shape ``(rows, *states, batch or 1)``."""
    return aligned(table.movedim(-1, 1), own, axes).movedim(1, -1)


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
