"""The updates of a run one after another: which of them count, and which messages stay valid between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import repeat

import torch

from ..graph.interactions import Shapes
from .coloured import coloured_steps
from .greedy import greedy_rounds
from .orders import Coloured, Greedy, Listed, Order
from .plan import Plan, PlannedUpdate
from .state import State


def live_steps(
    plan: Plan, steps: Sequence[PlannedUpdate], want: Collection[str], overwrites: bool = True
) -> list[PlannedUpdate]:
    """The steps that can influence the last values of what is wanted; the others need not run.

    Args:
        plan: of the graph.
        steps: the whole schedule.
        want: names of variables.
        overwrites: is the value that an update leaves independent of the one before, if all nodes are
            updated?
    """
    needed = set(want)
    live: list[PlannedUpdate] = []
    for step in reversed(steps):
        if step.name not in needed:
            continue
        live.append(step)
        # a variable whose update reads its own value is among its sources, and so needed again below
        if step.nodes is None and overwrites:
            needed.discard(step.name)
        for inlet in plan.changing[step.name]:
            needed.update(inlet.sources)
    return live[::-1]


def mark_reuse(plan: Plan, steps: Sequence[PlannedUpdate], cyclic: bool) -> list[PlannedUpdate]:
    """The same steps, each with the messages that its variable's next update will find unchanged.

    Args:
        plan: of the graph.
        steps: a schedule.
        cyclic: does the schedule repeat? If not, nothing need be kept past a variable's last update.
    """
    # backwards, with the place of the next update of each variable, in the next round if the schedule repeats
    following: dict[str, int] = {}
    if cyclic:
        following = {step.name: place + len(steps) for place, step in reversed(list(enumerate(steps)))}
    marked: list[PlannedUpdate] = []
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        until = following.get(step.name)
        reused: frozenset[int] = frozenset()
        if until is not None:
            # unchanged: neither this variable nor one that is updated before its next update
            reused = frozenset(
                inlet.key
                for inlet in plan.changing[step.name]
                if all(
                    source != step.name and following.get(source, until) >= until for source in inlet.sources
                )
            )
        marked.append(replace(step, reused=reused))
        following[step.name] = place
    return marked[::-1]


def steps_by_round(
    state: State, order: Order, generator: torch.Generator | None = None, until: float | None = None
) -> Iterator[list[PlannedUpdate]]:
    """The steps of one round after another, without end; those that are the same in all are compiled once.

    Args:
        state: of the run, on whose values greedy orders depend.
        order: of the blocks.
        generator: of random orders.
        until: tolerance of the run, on which greedy orders depend.
    """
    plan, shapes, device = state.plan, state.evidence.shapes, state.evidence.like.device
    if isinstance(order, Greedy):
        yield from greedy_rounds(state, plan.steps(order.items, shapes, device), until)
    if isinstance(order, (Listed, Coloured)):
        yield from repeat(mark_reuse(plan, round_of(plan, order, shapes, device), cyclic=True))
    while True:
        yield plan.steps(order.round(generator), shapes, device)


def round_of(
    plan: Plan, order: Listed | Coloured, shapes: Shapes, device: torch.device
) -> list[PlannedUpdate]:
    """The steps of every round of an order that is the same in all of them."""
    if isinstance(order, Listed):
        return plan.steps(order.items, shapes, device)
    items = order.items
    return plan.lasting_round(
        order, shapes, device, lambda: coloured_steps(plan, plan.steps(items, shapes, device), shapes)
    )
