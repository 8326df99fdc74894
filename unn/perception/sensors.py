"""Pairs of a discrete variable and the continuous variable from which its values are perceived."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.arrays import Reference
from ..graph.declaration import Declaration
from ..graph.interactions import node_dimensions
from ..graph.structure import Depends
from ..networks.tokens import kinds
from ..solver.layout import refusal_of_constraints, refusal_of_groups


@dataclass(frozen=True)
class Sensor:
    """A discrete variable whose nodes each depend on one node of a continuous variable.

    Attributes:
        value: name of the discrete variable.
        features: name of the continuous variable.
    """

    value: str
    features: str


def sensors(graph: Declaration) -> list[Sensor]:
    """The pairs of a graph, by its ``Depends`` factors that join a continuous variable to one discrete
    variable, node by node."""
    kind = kinds(graph)
    pairs = []
    for factor in graph.factors.values():
        if not isinstance(factor, Depends) or len(factor.parents) != 1:
            continue
        references = (factor.child, factor.parents[0])
        real = [r for r in references if kind[r.array.name] == "real"]
        discrete = [r for r in references if kind[r.array.name] != "real"]
        if len(real) != 1:
            continue
        letters = [_plain_letters(reference) for reference in (discrete[0], real[0])]
        if letters[0] is not None and letters[0] == letters[1]:
            pairs.append(Sensor(discrete[0].array.name, real[0].array.name))
    return pairs


def _plain_letters(reference: Reference) -> tuple[str, ...] | None:
    """The letters of the nodes of a reference; None if it splits, shifts or indexes an axis, or repeats a
    letter."""
    dimensions = node_dimensions(reference)
    if any(len(d.letters) != 1 or d.shift or d.index is not None for d in dimensions):
        return None
    letters = tuple(d.letters[0] for d in dimensions)
    return letters if len(set(letters)) == len(letters) else None


def refusal(graph: Declaration) -> str:
    """Why values of a graph cannot be perceived, in one sentence that names the variable or constraint; empty
    if they can."""
    continuous = [name for name, kind in kinds(graph).items() if kind == "real"]
    if not continuous:
        return "the graph has no continuous variable from which values could be perceived"
    pairs = sensors(graph)
    for name in continuous:
        values = [pair.value for pair in pairs if pair.features == name]
        if len(values) != 1:
            return (
                f"variable {name!r} is continuous, and {len(values) or 'no'} discrete variables are joined "
                "to it by a factor Depends of two references with the same letters of nodes"
            )
    return refusal_of_constraints(graph) or refusal_of_groups(graph)
