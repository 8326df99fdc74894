"""Updates that do not interact, merged into one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array

from ..errors import InferenceError
from ..graph.colouring import greedy_colours, meets_itself
from ..graph.interactions import Shapes
from .plan import Plan, PlannedUpdate


def coloured_steps(plan: Plan, steps: Sequence[PlannedUpdate], shapes: Shapes) -> list[PlannedUpdate]:
    """Updates by colour, those of one variable and one colour at once.

    No two updates of a colour meet in a factor, so that the result is that of one update after another.

    Args:
        plan: of the graph.
        steps: updates of a round, each node in at most one of them.
        shapes: of all arrays, without batch axes.

    Raises:
        InferenceError: for a node in several updates.
    """
    edges = _edges_between_variables(plan, steps)
    for name in dict.fromkeys(step.name for step in steps):
        edges += _edges_within(plan, name, steps, shapes)
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(pairs)), pairs.T), shape=(len(steps), len(steps)))
    colours = greedy_colours(graph)
    merged: dict[tuple[int, str], PlannedUpdate] = {}
    for colour, step in sorted(zip(colours.tolist(), steps, strict=True), key=lambda pair: pair[0]):
        earlier = merged.get((colour, step.name))
        if earlier is None:
            merged[colour, step.name] = step
        else:
            assert earlier.nodes is not None and step.nodes is not None
            merged[colour, step.name] = PlannedUpdate(step.name, earlier.nodes | step.nodes)
    return list(merged.values())


def _edges_between_variables(plan: Plan, steps: Sequence[PlannedUpdate]) -> list[tuple[int, int]]:
    """Pairs of updates of different variables that share a factor."""
    places: dict[str, list[int]] = {}
    for place, step in enumerate(steps):
        places.setdefault(step.name, []).append(place)
    joined = {
        (one, other)
        for factor in plan.graph.energy_factors
        for one in factor.variables
        for other in factor.variables
        if one < other and one in places and other in places
    }
    return [(a, b) for one, other in sorted(joined) for a in places[one] for b in places[other]]


def _edges_within(
    plan: Plan, name: str, steps: Sequence[PlannedUpdate], shapes: Shapes
) -> list[tuple[int, int]]:
    """Pairs of updates of one variable whose nodes meet in a factor."""
    own = [(place, step) for place, step in enumerate(steps) if step.name == name]
    if len(own) == 1:
        return []
    variable = plan.graph.variables[name]
    count = int(np.prod(shapes[name][: len(variable.node_axes)], dtype=np.int64))
    owner = np.full(count, -1)
    for place, step in own:
        nodes = None if step.nodes is None else step.nodes.flatten().cpu().numpy()
        if nodes is None or (owner[nodes] >= 0).any():
            raise InferenceError(
                f"Coloured: nodes of variable {name!r} are in several blocks; list each node once."
            )
        owner[nodes] = place
    edges: set[tuple[int, int]] = set()
    for factor in plan.factors_of(name):
        if not meets_itself(factor, variable):
            continue
        pairs = owner[plan.node_pairs(factor, variable, shapes)]
        pairs = np.unique(np.sort(pairs[(pairs >= 0).all(1)], 1), axis=0)
        edges |= {(int(a), int(b)) for a, b in pairs if a != b}
    return sorted(edges)
