"""The downward sweep over a compiled tree: cotangents, from its roots to its leaves.

The cotangent of a table is the product of all that lies outside of it; a table times its cotangent is
proportional to the marginal of its variables. Where products could leave the range of the numbers, cotangents
are divided by their largest entries too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .plan import AxisOrder, Plan, Products, Rows, Source
from .sweeps import SAFE, Upward, aligned_last, bound_of, contract, gather, grows, scaled, watched_products

_TRUSTED = 290 * math.log(10)
"""Bound on the logarithm of cotangents: entries below 1e-308, which are lost, then count less than 1e-18."""


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
    tables = [table.movedim(1, -1) for table in up.tables]
    cotangents: list[Tensor | None] = [None] * len(tables)
    for block, row in plan.lonely:
        if block in wanted:
            rows = slice(row, row + 1)
            _store(cotangents, block, rows, torch.ones_like(tables[block][rows]), tables[block], False)
    if up.is_safe or is_shallow(plan, up):
        _multiply(plan, wanted, tables, cotangents)
        is_exact = torch.ones_like(up.log_partition, dtype=torch.bool)
    else:
        is_exact = _multiply_scaled(plan, up, wanted, tables, cotangents)
    return Downward([None if x is None else x.movedim(-1, 1) for x in cotangents], is_exact)


def is_shallow(plan: Plan, up: Upward) -> bool:
    """Whether nothing that either sweep loses can count, even if no cotangent is scaled.

    A path from a table to its root has at most one product of each block. The sum of a table times its
    cotangent is the product of the divisors along the path, and a cotangent is at most the number of terms
    along it. What is lost is below 1e-307, and counts at most e^500 times as much.
    """
    terms = sum(math.log(math.prod(products.sizes)) for products in plan.products)
    if not up.log_scales or terms > SAFE / 2:
        return not up.log_scales
    least = torch.stack([scale.amin() for scale in up.log_scales]).clamp(max=0).sum()
    return bool(least >= -SAFE / 2)


def _multiply(plan: Plan, wanted: set[int], tables: list[Tensor], cotangents: list[Tensor | None]) -> None:
    """Fill in the cotangents, none of which is scaled."""
    for number, products in watched_products(plan, "downward sweep", reversed(range(len(plan.products)))):
        block = plan.leaves + number
        own = cotangents[block]
        if own is None:
            # results without axes: the last product of a component
            own = torch.ones_like(tables[block])
        for side in _sides(plan, products, wanted):
            if _multiply_into(own, products, side, tables, cotangents):
                continue
            cotangent = _cotangent(own, products, side, tables)
            for part in _parts(plan, side.target, wanted):
                values = _in_own_order(_rows_of(cotangent, side.target, part), part.order)
                _store(cotangents, part.block, part.rows, values, tables[part.block], side.target.is_whole)


def _multiply_scaled(
    plan: Plan, up: Upward, wanted: set[int], tables: list[Tensor], cotangents: list[Tensor | None]
) -> Tensor:
    """Fill in the cotangents, divided by their largest entries; return ``Downward.is_exact``."""
    logs: list[Tensor | None] = [None] * len(tables)
    bounds = [0.0] * len(tables)
    worst = torch.full_like(up.log_partition.detach(), -torch.inf)
    for number, products in watched_products(plan, "downward sweep", reversed(range(len(plan.products)))):
        block = plan.leaves + number
        own, log = cotangents[block], logs[block]
        if own is None or log is None:
            own, log = torch.ones_like(tables[block]), torch.zeros_like(up.log_scales[number])
        # what a result lost before it was divided, not only what its stored entries may lose
        lost = (log - up.log_scales[number]).amax(0) + bounds[block]
        worst = torch.maximum(worst, lost)
        for side in _sides(plan, products, wanted):
            cotangent = _cotangent(own, products, side, tables)
            log_here = log - up.log_scales[number]
            bound = 0.0
            if grows(products, side.axes, products.axes, side.other_axes):
                reach = {*products.axes, *side.other_axes}
                terms = math.prod(products.sizes[k] for k in reach.difference(side.axes))
                bound = bounds[block] + bound_of(up.log_bounds, side.other) + math.log(terms)
            else:
                cotangent, scale = scaled(cotangent)
                log_here = log_here + scale
            worst = torch.maximum(worst, log_here.amax(0) + bound)
            whole = side.target.is_whole
            for part in _parts(plan, side.target, wanted):
                k = part.block
                bounds[k] = max(bounds[k], bound)
                values = _in_own_order(_rows_of(cotangent, side.target, part), part.order)
                _store(cotangents, k, part.rows, values, tables[k], whole)
                if k >= plan.leaves:
                    values = _rows_of(log_here, side.target, part)
                    _store(logs, k, part.rows, values, up.log_scales[k - plan.leaves], whole)
    return worst < _TRUSTED


@dataclass(frozen=True, eq=False)
class _Side:
    """One operand of products.

    Attributes:
        target: where the operands are.
        target_axes: numbers of their axes.
        other: where the other operands are.
        other_axes: numbers of the axes of these.
        axes: axes of the operands that the results or the other operands have too.
    """

    target: Source
    target_axes: tuple[int, ...]
    other: Source
    other_axes: tuple[int, ...]
    axes: tuple[int, ...]


def _sides(plan: Plan, products: Products, wanted: set[int]) -> Iterator[_Side]:
    """The operands whose cotangents are needed."""
    left, right = (products.left, products.left_axes), (products.right, products.right_axes)
    for (target, own), (other, other_axes) in ((left, right), (right, left)):
        if any(block >= plan.leaves or block in wanted for block in target.blocks):
            axes = tuple(k for k in own if k in products.axes or k in other_axes)
            yield _Side(target, own, other, other_axes, axes)


def _cotangent(own: Tensor, products: Products, side: _Side, tables: list[Tensor]) -> Tensor:
    """Cotangents of operands, shape ``(rows, *states, batch or 1)``.

    Args:
        own: cotangents of the products.
        products: the products.
        side: the operands.
        tables: all blocks.
    """
    other = gather(tables, side.other, -1)
    cotangent = contract(own, products.axes, other, side.other_axes, side.axes)
    return aligned_last(cotangent, side.axes, side.target_axes)


def _multiply_into(
    own: Tensor, products: Products, side: _Side, tables: list[Tensor], cotangents: list[Tensor | None]
) -> bool:
    """Write cotangents where they belong, if the operands are a slice of a block with the axes of the
    products, which then sum nothing; return whether they are.

    It saves a pass over the batch, which counts for the messages of a star.
    """
    target, (block, *others) = side.target, side.target.blocks
    rows = target.rows[0]
    if others or target.is_whole or target.places is not None or not isinstance(rows, slice):
        return False
    if target.orders != (None,) or not side.target_axes == side.other_axes == products.axes:
        return False
    like, other = tables[block], gather(tables, side.other, -1)
    stack = cotangents[block]
    stack = torch.empty_like(like) if stack is None else stack
    if not own.shape[1:] == other.shape[1:] == stack.shape[1:]:
        return False
    if own.requires_grad or other.requires_grad or stack.requires_grad:
        return False
    torch.mul(own, other, out=stack[rows])
    cotangents[block] = stack
    return True


@dataclass(frozen=True, eq=False)
class _Part:
    """Operands that are in one block: rows of it, in an order of axes; from a row of all operands on, a
    number of them."""

    block: int
    rows: Rows
    order: AxisOrder | None
    start: int
    count: int


def _parts(plan: Plan, source: Source, wanted: set[int]) -> Iterator[_Part]:
    """The parts of operands whose cotangents are needed."""
    start = 0
    for block, rows, order, count in zip(
        source.blocks, source.rows, source.orders, source.counts, strict=True
    ):
        if block >= plan.leaves or block in wanted:
            yield _Part(block, rows, order, start, count)
        start += count


def _rows_of(x: Tensor, source: Source, part: _Part) -> Tensor:
    """Rows of a part of the operands, in the order of that part."""
    if source.places is None:
        return x.narrow(0, part.start, part.count)
    return x.index_select(0, source.places[part.start : part.start + part.count].to(x.device))


def _in_own_order(cotangent: Tensor, order: AxisOrder | None) -> Tensor:
    """Cotangents of tables whose axes were taken in another order, shape ``(rows, *states, batch)``."""
    if order is None:
        return cotangent
    return cotangent.permute(0, *(1 + order.index(k) for k in range(len(order))), -1)


def _store(
    stacks: list[Tensor | None], block: int, rows: Rows, values: Tensor, like: Tensor, is_whole: bool
) -> None:
    """Write rows of a stack, which is made when the first of them are written."""
    if is_whole:
        stacks[block] = values
        return
    batch = max(values.shape[-1], like.shape[-1])
    stack = stacks[block]
    if stack is None:
        # each table is an operand of one product, or of none and alone, so that every row is written
        stack = values.new_empty(*like.shape[:-1], batch)
    elif stack.shape[-1] < batch:
        stack = stack.expand(*stack.shape[:-1], batch).contiguous()
    values = values.expand(-1, *stack.shape[1:])
    if stack.requires_grad or values.requires_grad:
        numbers = torch.arange(len(stack))[rows].to(stack.device)
        stacks[block] = stack.index_copy(0, numbers, values)
        return
    if isinstance(rows, slice):
        stack[rows] = values
    else:
        stack.index_copy_(0, rows.to(stack.device), values)
    stacks[block] = stack
