"""Decide from the declaration whether an energy is bounded below."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from .arrays import Parameter
from .couplings import dominated, grows_like_a_square, never_negative
from .rays import Ray, falling_ray

if TYPE_CHECKING:
    from .declaration import Declaration
    from .factor import EnergyFactor


class Bound(Enum):
    """Verdict on the infimum of an energy."""

    BOUNDED = "bounded below"
    DEPENDS = "depends on the weights"
    UNBOUNDED = "unbounded below"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Boundedness:
    """The verdict on a graph for a set of observed arrays.

    ``BOUNDED`` holds for all values of parameters and observed arrays, ``UNBOUNDED`` for the present values
    of the parameters that ``ray`` names. ``DEPENDS`` means that both cases occur, ``UNKNOWN`` that neither
    could be proved.

    Attributes:
        bound: the verdict.
        degrees: degree of each energy in the unobserved unbounded variables, by factor; None if unknown.
        unbounded: those variables, by factor that decides the verdict.
        reasons: explanation for each of these factors.
        ray: half-line along which the energy decreases without limit, for ``UNBOUNDED``.
    """

    bound: Bound
    degrees: dict[str, int | None]
    unbounded: dict[str, tuple[str, ...]]
    reasons: tuple[str, ...] = ()
    ray: Ray | None = None

    @property
    def bounded(self) -> bool | None:
        """True if the energy is bounded below, False if it is not, None if unknown or dependent on the
        weights."""
        return {Bound.BOUNDED: True, Bound.UNBOUNDED: False}.get(self.bound)

    def __str__(self) -> str:
        parts = "; ".join(self.reasons)
        names = ", ".join(sorted({name for group in self.unbounded.values() for name in group}))
        if self.bound is Bound.BOUNDED:
            return f"bounded below: {parts}."
        if self.bound is Bound.DEPENDS:
            where = f"the weights are small against the quadratic regularizers of {names}"
            if any((self.degrees[factor] or 0) > 2 for factor in self.unbounded):
                where = f"the weights vanish, or have signs that leave {names} no direction of decrease"
            return f"depends on the weights: {parts}. It is bounded where {where}."
        if self.bound is Bound.UNKNOWN:
            return (
                f"unknown: {parts}. Say more in the factor (degree, bounded_below), bound one of {names}, "
                "or watch the energy of a run."
            )
        return (
            f"unbounded below: {parts}. {self.ray} Bound one of {names} (Ball, Box, SignedEntropy), observe "
            "it, or run few iterations."
        )


def boundedness_of(graph: Declaration, given: Collection[str]) -> Boundedness:
    """Decide whether the energy of a graph is bounded below (docs/theory.md, Boundedness).

    A regularizer outweighs factors of degree at most 1 in the unbounded variables. A factor that is bounded
    below together with the regularizer of one variable (``EnergyFactor.completed_by``) uses up that
    regularizer. The rest, of degree 2 or more, is bounded below if the energy of the factor is never
    negative, or if its coupling is small against quadratic regularizers; it is unbounded if there is a ray
    along which the total energy decreases without limit.
    """
    free = [v for v in graph.variables.values() if v.name not in given]
    open_names = {v.name for v in free if not v.regularizer.bounded}
    factors = graph.energy_factors
    degrees = {factor.name: factor.degree(sorted(open_names)) for factor in factors}
    decrease = {f: 0 if never_negative(graph, f) else degrees[f.name] for f in factors}
    completed = _completed(factors, decrease, open_names)
    undecided = [
        f
        for f in factors
        if f not in completed and decrease[f] not in (0, 1) and set(f.variables) & open_names
    ]
    if not undecided:
        return Boundedness(
            Bound.BOUNDED, degrees, {}, (_reason_of_low_degrees(degrees, decrease, completed),)
        )
    small = dominated(graph, undecided, factors, decrease, open_names)
    remaining = [f for f in undecided if f not in small]
    if not remaining:
        names = ", ".join(f.name for f in undecided)
        reason = f"the regularizers outweigh {names}, by the size of the constants and domains in it"
        return Boundedness(Bound.BOUNDED, degrees, {}, (reason,))
    weightless = [
        f
        for f in remaining
        if decrease[f] != 2 or not any(isinstance(r.array, Parameter) for r in f.references)
    ]
    ray = falling_ray(graph, [f for f in weightless if decrease[f] is not None], factors, given)
    if ray is not None:
        return _verdict(
            Bound.UNBOUNDED, [f for f in weightless if f.name in ray.factors], degrees, open_names, ray
        )
    unknown = [f for f in remaining if not _decided_by_weights(graph, f, factors, open_names, given)]
    if unknown:
        return _verdict(Bound.UNKNOWN, unknown, degrees, open_names)
    return _verdict(Bound.DEPENDS, remaining, degrees, open_names)


def _completed(
    factors: Sequence[EnergyFactor], decrease: dict[EnergyFactor, int | None], open_names: set[str]
) -> dict[EnergyFactor, str]:
    """Factors that are bounded below together with the regularizer of one variable, with that variable.

    Each regularizer serves one factor, and only if all other terms of its variable are bounded below, since
    it can no longer outweigh them.
    """
    completed: dict[EnergyFactor, str] = {}
    for factor in factors:
        name = factor.completed_by
        if decrease[factor] != 0 and name in open_names and name not in completed.values():
            completed[factor] = name
    while True:
        open_variables = {
            name for f in factors if f not in completed and decrease[f] != 0 for name in f.variables
        }
        remaining = {factor: name for factor, name in completed.items() if name not in open_variables}
        if len(remaining) == len(completed):
            return completed
        completed = remaining


def _decided_by_weights(
    graph: Declaration,
    factor: EnergyFactor,
    factors: Sequence[EnergyFactor],
    open_names: set[str],
    given: Collection[str],
) -> bool:
    """Whether only the free weights or observed values of a factor of known degree can outweigh quadratic
    terms."""
    own = [name for name in factor.variables if name in open_names]
    variable = any(
        isinstance(r.array, Parameter) or r.array.name in given or r.array.name not in _fixed(graph)
        for r in factor.references
    )
    return (
        factor.multilinear
        and factor.degree(own) is not None
        and variable
        and all(grows_like_a_square(graph.variables[name].regularizer) for name in own)
        and all(is_polynomial(f, open_names) for f in factors if set(f.variables) & set(own))
    )


def _fixed(graph: Declaration) -> set[str]:
    """Names of free variables, parameters and constants with values."""
    return {*graph.variables, *graph.fixed_values()}


def is_polynomial(factor: EnergyFactor, open_names: Collection[str]) -> bool:
    """Whether the energy is known to be a polynomial in these variables."""
    own = [name for name in factor.variables if name in open_names]
    return factor.multilinear or all(factor.affine_in(name) for name in own)


def _verdict(
    bound: Bound,
    factors: Sequence[EnergyFactor],
    degrees: dict[str, int | None],
    open_names: set[str],
    ray: Ray | None = None,
) -> Boundedness:
    unbounded = {f.name: tuple(name for name in f.variables if name in open_names) for f in factors}
    reasons = []
    for factor in factors:
        degree = degrees[factor.name]
        text = (
            f"{factor.name} is of degree {'unknown' if degree is None else degree} in "
            f"{', '.join(unbounded[factor.name])}"
        )
        if bound is Bound.UNKNOWN and factor.completed_by in open_names:
            text += (
                f", and the regularizer of {factor.completed_by}, which would bound it, is shared with other "
                "factors"
            )
        elif bound is Bound.UNKNOWN and degree is not None:
            text += ", and neither a bound nor a direction of unlimited decrease was found"
        reasons.append(text)
    return Boundedness(bound, degrees, unbounded, tuple(reasons), ray)


def _reason_of_low_degrees(
    degrees: dict[str, int | None],
    decrease: dict[EnergyFactor, int | None],
    completed: dict[EnergyFactor, str],
) -> str:
    signed = [
        f.name
        for f, degree in decrease.items()
        if degree == 0 and f not in completed and degrees[f.name] != 0
    ]
    if not signed and not completed:
        return "every factor is of degree at most 1 in the unbounded variables"
    parts = [f"the energy of {name} is never negative" for name in signed]
    parts += [
        f"{factor.name} is bounded below together with the regularizer of {name}"
        for factor, name in completed.items()
    ]
    return f"{', '.join(parts)}, and every other factor is of degree at most 1 in the unbounded variables"
