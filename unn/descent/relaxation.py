"""Relaxation of a declaration: penalties in place of constraints, so that coordinate descent applies."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import TypeVar

from ..errors import InferenceError, unknown
from ..graph.arrays import Reference
from ..graph.declaration import Declaration
from ..graph.factor import EnergyFactor
from ..graph.patterns import parse_pattern

G = TypeVar("G", bound=Declaration)


def relax(graph: G, weight: float | Mapping[str, float] = 1.0, *, learned: bool = False) -> G:
    """A copy of a declaration in which every constraint is replaced by its penalties, for coordinate descent.

    This is the penalty method (Nocedal and Wright, 2006, Chapter 17): the larger the weight, the nearer the
    minima are to values that satisfy the constraints, and the harder they are to reach. Factors of structure
    alone, such as ``Depends`` and ``Clique``, are left out. The copy shares no parameters with the graph;
    check its solutions by the constraints of the graph, ``factor.violations_of(values)``.

    Args:
        graph: the declaration, which is not changed.
        weight: weight of the penalties, a number > 0; or one for each constraint by its name.
        learned: declare a parameter ``log_weight_NAME`` for each constraint, initially 0, by whose
            exponential its weight is multiplied.

    Returns:
        A graph for ``unn.infer`` and ``unn.Unrolled``; all of its factors have an energy.

    Raises:
        InferenceError: for a constraint without penalties, weights that do not fit the constraints, or
            variables that occur in no factor with an energy.

    Example:
        >>> relaxed = unn.relax(sudoku, weight=4.0)
        >>> unn.infer(relaxed, {"X": unn.Partial(digits, given)}, until=1e-4)
    """
    if not isinstance(graph, Declaration):
        raise InferenceError(f"relax takes a unn.FactorGraph first, got {type(graph).__name__}.")
    relaxed = copy.deepcopy(graph)
    weights = _weights(relaxed, weight)
    constraints = relaxed.constraints
    relaxed.remove_factors([name for name, f in relaxed.factors.items() if not isinstance(f, EnergyFactor)])
    for constraint in constraints:
        log_weight: Reference | None = None
        if learned:
            name = "log_weight_" + re.sub(r"\W+", "_", constraint.name).strip("_")
            while name in relaxed.arrays:
                name += "_"
            log_weight = Reference(relaxed.parameter(name, "", init="zeros"), parse_pattern(""))
        penalties = constraint.penalties(weights[constraint.name], log_weight)
        if not penalties:
            raise InferenceError(
                f"graph {graph.name!r}: constraint {constraint.name!r} ({type(constraint).__name__}) has no "
                "penalties, so coordinate descent cannot take it into account; give its class a method "
                "penalties(weight, log_weight), which may return [LossEnergy(self, weight, log_weight)] if "
                "it has a loss, or relax a graph without it."
            )
        for penalty in penalties:
            relaxed.factor(penalty)
    coupled = {name for factor in relaxed.energy_factors for name in factor.variables}
    uncoupled = [name for name in relaxed.variables if name not in coupled]
    if uncoupled:
        names = ", ".join(map(repr, uncoupled))
        raise InferenceError(
            f"graph {graph.name!r}: no energy remains for "
            f"{'variable' if len(uncoupled) == 1 else 'variables'} {names}, which only factors of structure "
            "couple; denoisers serve such a graph (unn.Denoiser). For coordinate descent add a factor with "
            "an energy (Multilinear, SquaredResidual) or a constraint on "
            f"{'it' if len(uncoupled) == 1 else 'them'}."
        )
    return relaxed


def _weights(graph: Declaration, weight: float | Mapping[str, float]) -> dict[str, float]:
    """The weight of each constraint, by its name.

    Raises:
        InferenceError: for names of no constraint, or constraints without a weight.
    """
    names = [factor.name for factor in graph.constraints]
    if not isinstance(weight, Mapping):
        return dict.fromkeys(names, weight)
    for name in weight:
        if name not in names:
            raise InferenceError(f"weight: graph {graph.name!r}: " + unknown("constraint", name, names))
    missing = [name for name in names if name not in weight]
    if missing:
        raise InferenceError(
            f"weight: graph {graph.name!r}: constraint {missing[0]!r} has no weight; give one for each of "
            f"{', '.join(names)}, or a single number for all."
        )
    return dict(weight)
