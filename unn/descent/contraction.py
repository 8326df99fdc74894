"""A certificate that the energy has one fixed point, from operator norms of the factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from ..errors import DeclarationError, ObservationError
from ..graph.arrays import Parameter
from ..graph.declaration import Declaration
from ..graph.dynamic import shapes_of
from ..graph.factor import EnergyFactor
from ..graph.partial import Partial
from .collect import collect_evidence
from .entries import entries_of
from .evidence import Evidence, Given
from .plan import Plan

_SCALINGS = 30
"""Scalings after which couplings count as those of constants."""

_MARGIN = 1 - 1e-6
"""Keeps a scaled spectral radius below its limit in spite of rounding."""

_LARGEST = 2**26
"""Entries of a matrix whose norm is computed."""


@dataclass(frozen=True)
class Contraction:
    """How strongly the variables of a graph act on one another.

    Attributes:
        factor: spectral radius of the gains. Below 1 the energy is strongly convex: there is one fixed point,
            every order of exact updates converges to it, and rounds shrink the distance to it at least by
            this factor in the end, if no variable acts on itself. Infinite where a gain is not known.
        gains: by pair of variables, how much a change of the second can move the update of the first at most:
            the operator norm of the factors between them, times the Lipschitz constant of the activation.
        reason: why a gain is not known, in one sentence; empty if all are.
    """

    factor: float
    gains: Mapping[tuple[str, str], float]
    reason: str = ""

    def __bool__(self) -> bool:
        return self.factor < 1

    def __str__(self) -> str:
        if self.reason:
            return f"no certificate: {self.reason}"
        if self:
            if any(gain > 0 for (name, source), gain in self.gains.items() if name == source):
                # its nodes are updated one after another, which the norm of all of them does not bound
                return f"one fixed point; the spectral radius of the gains is {self.factor:.3g}"
            return f"one fixed point; in the end a round shrinks distances to {self.factor:.3g} or less"
        strongest = max(self.gains, key=lambda pair: self.gains[pair], default=("", ""))
        return (
            f"no certificate: the spectral radius of the gains is {self.factor:.3g}, not below 1; the "
            f"largest gain is {self.gains.get(strongest, 0.0):.3g}, of {strongest[1]!r} on {strongest[0]!r}"
        )


@torch.no_grad()
def contraction(
    graph: Declaration, given: Given | None = None, sizes: Mapping[str, int] | None = None
) -> Contraction:
    """The certificate of a graph, for the variables that are not given.

    With L the Lipschitz constants of the activations and N the operator norms of the matrices by which the
    messages depend on the other variables, the energy is strongly convex if the spectral radius of L N is
    below 1: its second derivative is at least 1/L - N, block by block. Dropout, whose energy is another one,
    is not counted: kept entries have 1/(1-p) times the Lipschitz constant.

    Args:
        graph: declaration.
        given: observed variables and constants by name, one row, shape ``(1, *axes)``. A variable that is
            given in part counts as not given, whose couplings are at least as strong.
        sizes: sizes of the axes that follow neither from the declaration nor from ``given``; the certificate
            holds for these.

    Raises:
        ObservationError: for values that do not fit, or of several rows.
        DeclarationError: for the size of an axis that is missing.
    """
    given = dict(given or {})
    plan = Plan.of(graph, _complete(given))
    stored = (x for x in (*graph.parameters(), *graph.buffers()) if x.is_floating_point())
    like = next(stored, torch.zeros(()))
    start = (
        {}
        if given
        else {name: like.new_zeros(1, *shapes_of(graph, sizes or {}, [name])[name]) for name in plan.free[:1]}
    )
    evidence = collect_evidence(graph, given, start or None, sizes=sizes)
    if evidence.batch != 1:
        raise ObservationError(
            f"contraction: norms are those of one example, got {evidence.batch} rows; pass x[k : k + 1]."
        )
    reason = _refusal(plan, evidence)
    if reason:
        return Contraction(math.inf, {}, reason)
    norms: dict[tuple[str, str], float] = {}
    for name in plan.free:
        sources = dict.fromkeys(source for inlet in plan.changing[name] for source in inlet.sources)
        for source in sources:
            factors = [inlet.factor for inlet in plan.changing[name] if source in inlet.sources]
            norms[name, source] = _norm(factors, evidence, name, source)
    gains = {
        (name, source): norm * evidence.regularizers[name].lipschitz for (name, source), norm in norms.items()
    }
    for (name, source), gain in gains.items():
        if not math.isfinite(gain):
            return Contraction(math.inf, gains, f"the gain of {source!r} on {name!r} is {gain}")
    matrix = torch.zeros(len(plan.free), len(plan.free), dtype=torch.float64)
    place = {name: k for k, name in enumerate(plan.free)}
    for (name, source), gain in gains.items():
        matrix[place[name], place[source]] = gain
    radius = float(torch.linalg.eigvals(matrix).abs().amax()) if len(plan.free) else 0.0
    return Contraction(radius, gains)


def _complete(given: Given) -> list[str]:
    """Names of what is given completely."""
    return [name for name, x in given.items() if not isinstance(x, Partial)]


def _refusal(plan: Plan, evidence: Evidence) -> str:
    """Why a gain is not known, in one sentence; empty if all are."""
    for name in plan.free:
        if not math.isfinite(evidence.regularizers[name].lipschitz):
            kind = repr(evidence.regularizers[name])
            return f"the activation of {name!r} ({kind}) has no known Lipschitz constant"
        for inlet in plan.changing[name]:
            kind = type(inlet.factor).__name__
            if not inlet.factor.multilinear:
                return f"factor {inlet.factor.name!r} ({kind}) is not multilinear"
            repeats = [r.array.name for r in inlet.factor.references if r.array.name in plan.free]
            if len(repeats) > 2:
                count = len(repeats)
                return (
                    f"factor {inlet.factor.name!r} ({kind}) multiplies {count} variables that are not given"
                )
    return ""


def _norm(factors: list[EnergyFactor], evidence: Evidence, name: str, source: str) -> float:
    """Operator norm of the sum of some messages to a variable as a linear map of another."""
    shape = evidence.shapes[source]
    count, rows = math.prod(shape), math.prod(evidence.shapes[name])
    if count * rows > _LARGEST:
        return _frobenius_bound(factors, evidence, name, source)
    like = evidence.like
    basis = torch.eye(count, dtype=like.dtype, device=like.device).view(count, *shape)
    matrix = _messages(factors, evidence, name, source, basis).double()
    return float(torch.linalg.matrix_norm(matrix, 2)) if bool(matrix.isfinite().all()) else math.nan


def _frobenius_bound(factors: list[EnergyFactor], evidence: Evidence, name: str, source: str) -> float:
    """An upper bound of the operator norm, row block by row block."""
    shape, count = evidence.shapes[source], math.prod(evidence.shapes[source])
    at_once = max(1, _LARGEST // math.prod(evidence.shapes[name]))
    total = 0.0
    for first in range(0, count, at_once):
        size = min(at_once, count - first)
        basis = torch.zeros(size, count, dtype=evidence.like.dtype, device=evidence.like.device)
        basis[torch.arange(size), torch.arange(first, first + size)] = 1
        part = _messages(factors, evidence, name, source, basis.view(size, *shape))
        total += float(part.double().square().sum())
    return math.sqrt(total)


def _messages(
    factors: list[EnergyFactor], evidence: Evidence, name: str, source: str, values: Tensor
) -> Tensor:
    """Messages to a variable for some values of another, shape ``(values, entries)``."""
    shape = evidence.shapes[name]
    context = {
        other: x.expand(len(values), *x.shape[1:]) if other in evidence.regularizers else x
        for other, x in evidence.values.items()
    }
    context[source] = values
    total = values.new_zeros(len(values), *shape)
    for factor in factors:
        total = total + factor.message(name, context, shape)
    return entries_of(total)


@torch.no_grad()
def spectral_normalise(
    graph: Declaration,
    factor: float = 0.9,
    given: Given | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Contraction:
    """Scale the couplings of a graph down so that it has one fixed point, in place.

    Parameters of factors between several variables that are not given are multiplied by one number, until the
    spectral radius of the gains is at most ``factor``; others, such as biases and frozen parameters
    (``requires_grad=False``), stay. Couplings that are weak
    enough are not changed. Called after each step of an optimiser it keeps the energy strongly convex during
    training (as spectral normalisation does with a matrix, Miyato et al., 2018).

    Args:
        graph: declaration.
        factor: largest spectral radius, between 0 and 1.
        given: as of ``contraction``.
        sizes: as of ``contraction``.

    Returns:
        The certificate after scaling.

    Raises:
        DeclarationError: for a factor out of range, gains that are not known, constants alone that couple
            more strongly, or a parametrization without an inverse.

    Example:
        >>> optimiser.step()
        >>> unn.spectral_normalise(g, 0.9, {"X": x[:1]})
    """
    number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    if not number or not 0 < factor < 1:
        raise DeclarationError(f"spectral_normalise: factor is a number between 0 and 1, got {factor!r}.")
    certificate = contraction(graph, given, sizes)
    if certificate.reason:
        raise DeclarationError(f"spectral_normalise: graph {graph.name!r}: {certificate.reason}.")
    observed = set(_complete(given or {}))
    coupled = {
        name
        for f in graph.energy_factors
        if sum(r.array.name in graph.variables and r.array.name not in observed for r in f.references) > 1
        for name in f.operands
        if isinstance(graph.arrays[name], Parameter) and _is_trained(graph, name)
    }
    for _ in range(_SCALINGS):
        if certificate.factor <= factor:
            return certificate
        for name in coupled:
            _scale(graph, name, factor / certificate.factor * _MARGIN)
        certificate = contraction(graph, given, sizes)
    raise DeclarationError(
        f"spectral_normalise: graph {graph.name!r} has the spectral radius {certificate.factor:.3g} by its "
        "constants, frozen parameters and parametrizations alone; make them smaller, or allow a larger "
        "factor."
    )


def _is_trained(graph: Declaration, name: str) -> bool:
    if parametrize.is_parametrized(graph, name):
        parametrization = graph.parametrizations[name]
        return any(parameter.requires_grad for parameter in parametrization.parameters())
    return graph.get_parameter(name).requires_grad


def _scale(graph: Declaration, name: str, number: float) -> None:
    """Multiply a parameter, in place; one with a parametrization through the inverse of this.

    Raises:
        DeclarationError: for a parametrization without an inverse.
    """
    if not parametrize.is_parametrized(graph, name):
        graph.get_parameter(name).mul_(number)
        return
    try:
        setattr(graph, name, getattr(graph, name) * number)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise DeclarationError(
            f"spectral_normalise: the parametrization of parameter {name!r} has no inverse: {error}"
        ) from error
