"""The downward pass that assigns states: exact samples, or the most probable values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .plan import Plan
from .sweeps import Upward, gather

Choose = Callable[[Tensor, int], Tensor]
"""Chooses among weights along the last axis, shape ``(rows, batch, count, combinations)`` to all but
the last;
the second argument is the number of choices of each assignment before."""


def assign(plan: Plan, up: Upward, choose: Choose, batch: int, count: int, are_logs: bool) -> Tensor:
    """Assign states to all variables, from the roots of the tree to its leaves.

    Each product chooses the states of the variables that it sums out, given those of its result.

    Args:
        plan: compiled tree.
        up: upward sweep; in the semiring of the maximum for the most probable values.
        choose: see ``Choose``.
        batch: batch size.
        count: number of assignments of each batch element.
        are_logs: whether the tables of the sweep are logarithms.

    Returns:
        States, shape ``(batch, count, variables)``.
    """
    device = up.log_partition.device
    made = 0
    states = torch.zeros(len(plan.states), batch, count, dtype=torch.long, device=device)
    for block, row in plan.lonely:
        table = up.tables[block][row : row + 1]
        every = tuple(range(table.ndim - 2))
        weights = _selected(table, every, every, table.shape[2:], {}, batch, count)
        _write(
            states, plan.leaf_variables[block][row : row + 1], every, table.shape[2:], choose(weights, made)
        )
        made += 1
    for products in reversed(plan.products):
        if not products.summed:
            continue
        variables = products.variables.to(device)
        known = {k: states[variables[:, k]] for k in products.axes}
        parts = [
            _selected(gather(up.tables, source, 1), own, products.summed, products.sizes, known, batch, count)
            for source, own in (
                (products.left, products.left_axes),
                (products.right, products.right_axes),
            )
        ]
        weights = parts[0] + parts[1] if are_logs else parts[0] * parts[1]
        _write(states, products.variables, products.summed, products.sizes, choose(weights, made))
        made += len(weights)
    return states.permute(1, 2, 0)


def _selected(
    table: Tensor,
    own: Sequence[int],
    summed: Sequence[int],
    sizes: Sequence[int],
    known: dict[int, Tensor],
    batch: int,
    count: int,
) -> Tensor:
    """Entries of a stack of tables at known states, for all combinations of the summed axes.

    Returns:
        Shape ``(rows, batch, count, combinations)``.
    """
    device = table.device
    table = table.expand(-1, batch, *table.shape[2:]).contiguous()
    shape = [sizes[k] for k in summed]
    grid = torch.cartesian_prod(*(torch.arange(size, device=device) for size in shape))
    grid = grid.view(-1, len(summed))
    index = torch.zeros(len(table), batch, count, len(grid), dtype=torch.long, device=device)
    for k in own:
        state = grid[:, summed.index(k)] if k in summed else known[k][..., None]
        index = index * sizes[k] + state
    flat = table.flatten(2) if table.ndim > 2 else table[..., None]
    return flat.gather(2, index.flatten(2)).view(index.shape)


def _write(
    states: Tensor, variables: Tensor, summed: Sequence[int], sizes: Sequence[int], chosen: Tensor
) -> None:
    """Store the states of the chosen combinations."""
    for k in reversed(summed):
        states[variables[:, k].to(states.device)] = chosen % sizes[k]
        chosen = chosen // sizes[k]


def choices(plan: Plan) -> int:
    """Number of choices of one assignment."""
    return len(plan.lonely) + sum(len(p.variables) for p in plan.products if p.summed)


def most_probable(weights: Tensor, made: int) -> Tensor:
    """The largest weight; the first of equals."""
    return weights.argmax(-1)


def drawn(uniforms: Tensor, are_logs: bool) -> Choose:
    """Draw in proportion to weights, or to the exponentials of logarithms.

    Args:
        uniforms: uniform random numbers, shape ``(batch, count, choices)``; the draws of one batch
            element do not depend on the others.
        are_logs: whether weights are logarithms.
    """

    def choose(weights: Tensor, made: int) -> Tensor:
        if are_logs:
            top = weights.amax(-1, keepdim=True)
            weights = (weights - torch.where(top.isfinite(), top, 0)).exp()
        cumulative = weights.cumsum(-1)
        uniform = uniforms[..., made : made + len(weights)].permute(2, 0, 1)[..., None].to(cumulative)
        # rounding must not select beyond the last positive weight
        return (cumulative <= uniform * cumulative[..., -1:]).sum(-1).clamp(max=weights.shape[-1] - 1)

    return choose
