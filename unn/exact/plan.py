"""Compilation of a contraction tree to few tensor operations: isomorphic products run as one.

Tables live in *blocks*: stacks of tables of the same sizes, shape ``(rows, batch, *states)``. The
first blocks are the tables of the model; each further one holds the results of products of the same
height in the tree, with the same pattern of axes. A chain of n variables then takes about log n
operations, not n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .elimination import Scope
from .tree import Tree

LARGE_BATCH = 64
"""Batch size from which passes over the batch take longer than operations."""

_STACKED = 2**14
"""Largest number of entries of a product that is stacked with others; larger ones would only be copied."""


Rows = slice | Tensor
"""Rows of a stack: their numbers, or a slice where they are equally spaced, which is read without a copy."""

AxisOrder = tuple[int, ...]
"""An order of axes."""


@dataclass(frozen=True, eq=False)
class Source:
    """Where the operands of a block's products are.

    Attributes:
        blocks: number of the block of each part.
        rows: rows of that block, for each part.
        counts: number of rows of each part.
        orders: order in which the axes of that block are taken, for each part; None for their own.
        places: position among the products of each row of the concatenated parts; None if in order.
        inverse: row of the concatenated parts of each product; None if in order.
        is_whole: whether the operands are all rows of one block, in order, with their own axes.
    """

    blocks: tuple[int, ...]
    rows: tuple[Rows, ...]
    counts: tuple[int, ...]
    orders: tuple[AxisOrder | None, ...]
    places: Tensor | None
    inverse: Tensor | None
    is_whole: bool


@dataclass(frozen=True, eq=False)
class Products:
    """Products of the same pattern, whose results are one block.

    Axes are numbered by their first occurrence in the left operand, then in the right one.

    Attributes:
        left, right: operands.
        left_axes, right_axes: axes of the operands, numbered.
        axes: axes of the result: those of both operands, of the left one, of the right one.
        summed: axes that are summed out.
        sizes: number of states of each axis.
        variables: variable of each axis, shape ``(rows, axes)``.
    """

    left: Source
    right: Source
    left_axes: tuple[int, ...]
    right_axes: tuple[int, ...]
    axes: tuple[int, ...]
    summed: tuple[int, ...]
    sizes: tuple[int, ...]
    variables: Tensor


@dataclass(frozen=True, eq=False)
class Reading:
    """Variables whose marginals are read from one axis of the tables of a block.

    Attributes:
        block: number of the block.
        axis: axis of its tables.
        rows: rows of the tables.
        variables: shape ``(variables,)``.
    """

    block: int
    axis: int
    rows: Rows
    variables: Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """A compiled tree.

    Attributes:
        states: number of states of each variable.
        leaves: number of blocks of the model.
        leaf_variables: variables of the axes of each block of the model, shape ``(rows, axes)``.
        products: further blocks, in order; those of a block have been computed before it.
        lonely: block and row of each table of the model that is in no product.
        readings: where the marginals of the variables are read.
        log_cost: log2 of the number of multiplications.
        log_largest: log2 of the number of entries of the largest table.
        entries: number of entries of all tables.
    """

    states: tuple[int, ...]
    leaves: int
    leaf_variables: tuple[Tensor, ...]
    products: tuple[Products, ...]
    lonely: tuple[tuple[int, int], ...]
    readings: tuple[Reading, ...]
    log_cost: float
    log_largest: float
    entries: int


def compile_plan(
    tree: Tree, blocks: Sequence[Sequence[Scope]], states: Sequence[int], batch: int = 1
) -> Plan:
    """Compile a tree.

    Args:
        tree: contraction tree, whose leaves are the tables of the blocks in order.
        blocks: variables of the axes of each table, by block.
        states: number of states of each variable.
        batch: number of contractions that run at once. Few operations are worth most for a single one, and
            few copies for many: then products are stacked only if the operands of each side are in one block.
    """
    place: dict[int, tuple[int, int]] = {}
    leaf_axes: list[Scope] = []
    for number, block in enumerate(blocks):
        for row, scope in enumerate(block):
            place[len(place)] = (number, row)
            leaf_axes.append(scope)
    axes = dict(enumerate(leaf_axes))
    height: dict[int, int] = dict.fromkeys(range(tree.leaves), 0)
    groups: dict[tuple[object, ...], list[int]] = {}
    # blocks of the operands: those of the model first, then groups as they come
    origins = {leaf: block for leaf, (block, _) in place.items()}
    numbers: dict[tuple[object, ...], int] = {}
    patterns: dict[int, tuple[Scope, Scope, Scope, Scope]] = {}
    # the smaller operand first
    children: dict[int, tuple[int, int]] = {}
    for node in tree.order():
        a, b = sorted(tree.children[node], key=lambda child: tree.size(tree.scopes[child]))
        children[node] = a, b
        height[node] = 1 + max(height[a], height[b])
        result_bits = tree.scopes[node]
        for child, sibling in ((a, b), (b, a)):
            if child < tree.leaves:
                axes[child] = _ordered_alike(axes[child], axes[sibling], result_bits)
        one, other = axes[a], axes[b]
        shared = set(one) & set(other)
        result = (
            *(v for v in one if v in shared and result_bits >> v & 1),
            *(v for v in one if v not in shared and result_bits >> v & 1),
            *(v for v in other if v not in shared and result_bits >> v & 1),
        )
        axes[node] = result
        letters = {v: k for k, v in enumerate(dict.fromkeys((*one, *other)))}
        numbered = tuple(tuple(letters[v] for v in scope) for scope in (one, other, result))
        sizes = tuple(states[v] for v in letters)
        patterns[node] = (*numbered, tuple(letters))  # type: ignore[assignment]
        alone = node if math.prod(sizes) > _STACKED else -1
        key: tuple[object, ...] = (height[node], numbered, sizes, alone)
        if batch >= LARGE_BATCH:
            key = (*key, origins[a], origins[b])
        groups.setdefault(key, []).append(node)
        origins[node] = numbers.setdefault(key, len(blocks) + len(numbers))
    ordered = sorted(groups.values(), key=lambda each: height[each[0]])
    _order_rows(ordered, children)

    def operands(nodes: Sequence[int], side: int) -> list[tuple[int, int, AxisOrder | None]]:
        """Block, row and order of axes of an operand of some products."""
        result = []
        for node in nodes:
            child = children[node][side]
            order = None
            if child < tree.leaves and axes[child] != leaf_axes[child]:
                order = tuple(leaf_axes[child].index(v) for v in axes[child])
            result.append((*place[child], order))
        return result

    products = []
    counts = [len(block) for block in blocks]
    entries = sum(len(block) * math.prod(states[v] for v in block[0]) for block in blocks if block)
    for number, nodes in enumerate(ordered):
        for row, node in enumerate(nodes):
            place[node] = (len(blocks) + number, row)
        one, other, result, _ = patterns[nodes[0]]
        sizes = tuple(states[v] for v in patterns[nodes[0]][3])
        products.append(
            Products(
                _source(operands(nodes, 0), counts),
                _source(operands(nodes, 1), counts),
                one,
                other,
                result,
                tuple(k for k in range(len(sizes)) if k not in result),
                sizes,
                torch.tensor([patterns[node][3] for node in nodes]).view(len(nodes), len(sizes)),
            )
        )
        entries += len(nodes) * math.prod(sizes[k] for k in result)
        counts.append(len(nodes))
    return Plan(
        tuple(states),
        len(blocks),
        tuple(torch.tensor([list(s) for s in b], dtype=torch.long).view(len(b), -1) for b in blocks),
        tuple(products),
        tuple(place[root] for root in tree.roots if root < tree.leaves),
        _readings(tree, axes | dict(enumerate(leaf_axes)), place, states),
        tree.log_cost(),
        tree.log_largest(),
        entries,
    )


def _order_rows(groups: Sequence[list[int]], children: Mapping[int, tuple[int, int]]) -> None:
    """Sort the products of each group by where they are used, from the roots downward.

    Results that are the operands of one group are then consecutive rows in its order, which need no copy;
    only tables of the model may have another order.

    Args:
        groups: nodes of the products of each block, operands before what they are used in.
        children: the two factors of each product.
    """
    use: dict[int, tuple[int, int, int]] = {}
    for number in reversed(range(len(groups))):
        nodes = groups[number]
        nodes.sort(key=lambda node: use.get(node, ()))
        for row, node in enumerate(nodes):
            for side, child in enumerate(children[node]):
                use[child] = (number, side, row)


def _ordered_alike(scope: Scope, sibling: Scope, result_bits: int) -> Scope:
    """Axes of a table of the model in an order that depends on its product alone.

    Products that differ only in the order of the axes of their tables then have the same pattern.

    Args:
        scope: variables of the table.
        sibling: variables of the other operand.
        result_bits: variables of the result.
    """

    def key(v: int) -> tuple[bool, bool, int]:
        is_kept, is_shared = bool(result_bits >> v & 1), v in sibling
        return not is_shared, is_kept is is_shared, (sibling if is_shared else scope).index(v)

    return tuple(sorted(scope, key=key))


def _source(operands: Sequence[tuple[int, int, AxisOrder | None]], counts: Sequence[int]) -> Source:
    """Where operands are, from the block, row and order of axes of each, and the number of rows of each
    block."""
    parts: dict[tuple[int, AxisOrder | None], tuple[list[int], list[int]]] = {}
    for position, (block, row, axes) in enumerate(operands):
        rows, positions = parts.setdefault((block, axes), ([], []))
        rows.append(row)
        positions.append(position)
    order = [position for _, positions in parts.values() for position in positions]
    in_order = order == list(range(len(operands)))
    first = operands[0][0]
    positions_of = torch.tensor(order)
    return Source(
        tuple(block for block, _ in parts),
        tuple(_rows(rows) for rows, _ in parts.values()),
        tuple(len(rows) for rows, _ in parts.values()),
        tuple(axes for _, axes in parts),
        None if in_order else positions_of,
        None if in_order else positions_of.argsort(),
        list(operands) == [(first, row, None) for row in range(counts[first])],
    )


def _rows(numbers: Sequence[int]) -> Rows:
    """Rows of a stack by their numbers."""
    spaced = range(numbers[0], numbers[-1] + 1, numbers[1] - numbers[0] if len(numbers) > 1 else 1)
    if spaced.step > 0 and list(spaced) == list(numbers):
        return slice(spaced.start, spaced.stop, spaced.step)
    return torch.tensor(numbers)


def _readings(
    tree: Tree, axes: dict[int, Scope], place: dict[int, tuple[int, int]], states: Sequence[int]
) -> tuple[Reading, ...]:
    """Read each variable from the smaller operand of the product in which it is summed out."""
    chosen: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def read(node: int, variable: int) -> None:
        block, row = place[node]
        chosen.setdefault((block, axes[node].index(variable)), []).append((row, variable))

    for root in tree.roots:
        if root < tree.leaves:
            for v in axes[root]:
                read(root, v)
    for node, (a, b) in tree.children.items():
        for v in {*axes[a], *axes[b]} - set(axes[node]):
            holders = [child for child in (a, b) if v in axes[child]]
            read(min(holders, key=lambda child: math.prod(states[u] for u in axes[child])), v)
    return tuple(
        Reading(block, axis, _rows([row for row, _ in rows]), torch.tensor([v for _, v in rows]))
        for (block, axis), rows in sorted((each, sorted(rows)) for each, rows in chosen.items())
    )
