"""Reachability from the evidence: the default order, and checks of orders and wanted variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..errors import InferenceError, unknown
from ..graph.declaration import Declaration
from ..graph.factor import Factor
from .orders import Order


def check_order(graph: Declaration, order: Order, fixed: Collection[str], present: Collection[str]) -> None:
    """Check the names of an order against what is given.

    Raises:
        InferenceError: for unknown or observed names, for everything given, and for variables that nothing
            would ever set.
    """
    free = [name for name in graph.variables if name not in fixed]
    if not free:
        raise InferenceError(
            f"graph {graph.name!r}: every variable is given, so nothing is left to infer; leave out the ones "
            "you want."
        )
    for name in order.names:
        if name not in graph.variables:
            raise InferenceError(
                f"order: graph {graph.name!r}: " + unknown("variable", name, graph.variables)
            )
        if name in fixed:
            raise InferenceError(
                f"order: variable {name!r} is given, so it cannot be updated; leave it out of the order, or "
                "of what is given."
            )
    for name in free:
        if name not in order.names and name not in present:
            raise InferenceError(
                f"order: variable {name!r} is neither given nor in the order {list(order.names)}; add it, "
                f"give it, or hold it with initial={{{name!r}: 'zero'}}."
            )


def check_reach(
    graph: Declaration, given: Collection[str], fixed: Collection[str], want: Collection[str]
) -> None:
    """Check that the evidence can influence each wanted variable.

    Raises:
        InferenceError: for an unknown or observed name, or one that no chain of factors connects to what is
            given.
    """
    reached = set(given)
    frontier = list(given)
    neighbours: dict[str, set[str]] = {}
    for factor in graph.factors.values():
        for name in factor.operands:
            neighbours.setdefault(name, set()).update(factor.variables)
    while frontier:
        for name in neighbours.get(frontier.pop(), ()):
            if name not in reached:
                reached.add(name)
                frontier.append(name)
    for name in want:
        if name not in graph.variables:
            raise InferenceError(f"want: graph {graph.name!r}: " + unknown("variable", name, graph.variables))
        if name in fixed:
            raise InferenceError(
                f"want: variable {name!r} is given, so there is nothing to infer; want another one."
            )
        if name not in reached:
            raise InferenceError(
                f"want: variable {name!r} cannot be reached from what is given "
                f"({', '.join(sorted(given)) or 'nothing'}): no chain of factors connects them; add a "
                "factor, or give a variable that it meets."
            )


def default_order(
    graph: Declaration, given: Mapping[str, object] | Collection[str], fixed: Collection[str]
) -> tuple[str, ...]:
    """The free variables by their distance from what is given, ties in the order of declaration."""
    meets: dict[str, list[Factor]] = {}
    for factor in graph.factors.values():
        for name in factor.variables:
            meets.setdefault(name, []).append(factor)
    distance = {name: 0 for name in given if name in graph.variables}
    frontier = list(distance)
    for name in frontier:
        for factor in meets.get(name, ()):
            for other in factor.variables:
                if other not in distance:
                    distance[other] = distance[name] + 1
                    frontier.append(other)
    free = [name for name in graph.variables if name not in fixed]
    return tuple(sorted(free, key=lambda name: distance.get(name, len(frontier))))
