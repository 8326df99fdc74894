"""Is an energy bounded below? What the degrees of the factors tell before anything runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from .arrays import Variable

if TYPE_CHECKING:
    from .factor import Factor
    from .graph import FactorGraph


class Bound(Enum):
    """What is known of the infimum of an energy."""

    BOUNDED = "bounded below"
    DEPENDS = "depends on the weights"
    UNBOUNDED = "unbounded below"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Boundedness:
    """The verdict on a graph, given what is observed.

    Attributes:
        bound: the verdict.
        degrees: for every factor with an energy, its degree in the unobserved unbounded variables (None: not known).
        unbounded: for the factors that decide the verdict, the variables in which they are of that degree.
    """

    bound: Bound
    degrees: dict[str, int | None]
    unbounded: dict[str, tuple[str, ...]]

    @property
    def bounded(self) -> bool:
        """Is the energy known to be bounded below for all weights?"""
        return self.bound is Bound.BOUNDED

    def __str__(self) -> str:
        if self.bound is Bound.BOUNDED:
            return "bounded below: every factor is of degree at most 1 in the unbounded variables."
        parts = "; ".join(
            f"{factor} is of degree {self.degrees[factor] if self.degrees[factor] is not None else 'unknown'} in {', '.join(names)}"
            for factor, names in self.unbounded.items()
        )
        names = ", ".join(sorted({name for group in self.unbounded.values() for name in group}))
        remedy = f"Bound one of {names} (Ball, Box, SignedEntropy), observe it, or run few iterations."
        if self.bound is Bound.DEPENDS:
            remedy = f"It is bounded where the weights are small against the quadratic regularizers of {names}."
        if self.bound is Bound.UNKNOWN:
            remedy = "State the degree of the factor, or watch the energy."
        return f"{self.bound.value}: {parts}. {remedy}"


def boundedness_of(graph: FactorGraph, given: Collection[str]) -> Boundedness:
    """Judge a graph (docs/theory.md, Boundedness).

    Regularizers of unbounded domains grow like a square: they outweigh factors of degree at most 1 in their variables, compete
    with those of degree 2, and lose against those of degree 3 or more, unless their weights vanish. A factor of degree 2 without any
    weight whose coupling is itself a free variable, as <S, Q K^T> in undirected attention, loses too: S may take a norm of 1 or more
    (all rows on one key), and then nothing holds Q and K along it.
    """
    inferred = [name for name in graph.variables if name not in given]
    free = [v.name for v in graph.variables.values() if v.name not in given and not v.regularizer.bounded]
    degrees: dict[str, int | None] = {}
    deciding: dict[Bound, dict[str, tuple[str, ...]]] = {bound: {} for bound in Bound}
    for factor in graph.factors.values():
        if not factor.inferable():
            continue
        degree = factor.degree(free)
        degrees[factor.name] = degree
        names = tuple(name for name in factor.variables if name in free)
        if degree is None:
            if names:
                deciding[Bound.UNKNOWN][factor.name] = names
        elif degree >= 3 or (degree == 2 and _weightless(factor) and (factor.degree(inferred) or 0) >= 3):
            deciding[Bound.UNBOUNDED][factor.name] = names
        elif degree == 2:
            deciding[Bound.DEPENDS][factor.name] = names
    for bound in (Bound.UNBOUNDED, Bound.UNKNOWN, Bound.DEPENDS):
        if deciding[bound]:
            return Boundedness(bound, degrees, deciding[bound])
    return Boundedness(Bound.BOUNDED, degrees, {})


def _weightless(factor: Factor) -> bool:
    return factor.multilinear and all(isinstance(reference.array, Variable) for reference in factor.references)
