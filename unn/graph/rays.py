"""Half-lines along which an energy decreases without limit."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import UnnError
from ..regularizers import NonNegative
from .arrays import Parameter, Variable
from .couplings import grows_like_a_square

if TYPE_CHECKING:
    from .declaration import Declaration
    from .factor import EnergyFactor

_STARTS = 4
_SWEEPS = 30
_FAR = 2.0**40
_MOST_ENTRIES = 200_000
"""Largest number of entries of a graph that is searched."""


@dataclass(frozen=True)
class Ray:
    """The half-line ``start + t * direction``, t >= 0, along which an energy falls like minus a power of t.

    Attributes:
        start: value of every unobserved variable, shape ``(1, *axes)``, float64.
        direction: direction of each moving variable, whose domain is unbounded; the others are constant.
        power: exponent; the energy falls like -t^power.
        factors: names of the factors that fall.
        sizes: assumed sizes of dynamic axes.
        parameters: names of the parameters whose present values the ray depends on.
    """

    start: dict[str, Tensor]
    direction: dict[str, Tensor]
    power: int
    factors: tuple[str, ...]
    sizes: dict[str, int]
    parameters: tuple[str, ...]

    def at(self, t: float) -> dict[str, Tensor]:
        """The values of all unobserved variables at one point of the ray."""
        return {
            name: x + t * self.direction[name] if name in self.direction else x
            for name, x in self.start.items()
        }

    def __str__(self) -> str:
        settings = [f"size {size} of {axis}" for axis, size in self.sizes.items()]
        settings += [f"the present values of {', '.join(self.parameters)}"] if self.parameters else []
        where = f" (with {' and '.join(settings)})" if settings else ""
        names = ", ".join(sorted(self.direction))
        return f"With t times a direction of {names} it falls like -t^{self.power}{where}."


def falling_ray(
    graph: Declaration,
    candidates: Sequence[EnergyFactor],
    factors: Sequence[EnergyFactor],
    given: Collection[str],
) -> Ray | None:
    """Search for a ray by aligning the variables of a candidate with its messages, and verify it on the whole
    energy.

    Only polynomial energies with regularizers of quadratic growth are searched, since finitely many values
    prove nothing about others.

    Args:
        graph: graph of the factors.
        candidates: factors whose fall may outweigh the regularizers.
        factors: all factors with an energy.
        given: names of observed variables and constants.
    """
    if not candidates:
        return None
    try:
        search = _Search(graph, factors, given)
    except UnnError:
        # the dynamic sizes cannot be small
        return None
    groups: list[list[EnergyFactor]] = [[factor] for factor in candidates]
    quadratic = [factor for factor in candidates if factor.degree(search.open_names) == 2]
    if len(quadratic) > 1:
        groups.append(quadratic)
    for group in groups:
        if search.can_follow(group):
            ray = search.ray(group)
            if ray is not None:
                return ray
    return None


class _Search:
    """Values in float64 on the CPU: declared ones where known, and small sizes for dynamic axes."""

    def __init__(self, graph: Declaration, factors: Sequence[EnergyFactor], given: Collection[str]) -> None:
        self.graph, self.factors = graph, factors
        table = graph.size_table
        known = dict(table.static)
        self.sizes: dict[str, int] = {}
        for axis in dict.fromkeys(axis for v in graph.variables.values() for axis in v.axes):
            if table.root(axis) not in known:
                self.sizes[axis] = 2
                known = table.solve({**known, table.root(axis): 2})
        self.fixed = {
            name: x.detach().double().cpu() for name, x in graph.fixed_values().items() if not x.is_meta
        }
        free = [v for v in graph.variables.values() if v.name not in given]
        self.shapes = {v.name: tuple(size or 0 for size in table.shape(v, known)) for v in free}
        self.open_names = [v.name for v in free if not v.regularizer.bounded]
        self.start = {}
        self.fits = sum(math.prod(shape) for shape in self.shapes.values()) <= _MOST_ENTRIES
        if self.fits:
            for v in free:
                zero = torch.zeros(1, *self.shapes[v.name], dtype=torch.float64)
                self.start[v.name] = zero if v.name in self.open_names else v.regularizer.mirror(zero)

    def can_follow(self, group: Sequence[EnergyFactor]) -> bool:
        """Whether these factors have known values, polynomial energies and quadratic regularizers."""
        moved = [name for f in group for name in f.variables if name in self.open_names]
        return (
            self.fits
            and all(f.multilinear and self._known(f) for f in group)
            and all(grows_like_a_square(self.graph.variables[name].regularizer) for name in moved)
            and all(math.prod(self.shapes[name]) > 0 for f in group for name in f.variables)
        )

    def ray(self, group: Sequence[EnergyFactor]) -> Ray | None:
        """A ray along which these factors fall; None without success, or if a factor cannot be computed in
        float64."""
        try:
            rays = (self.verified(group, *self.aligned(group, seed)) for seed in range(_STARTS))
            return next((ray for ray in rays if ray is not None), None)
        except RuntimeError:
            return None

    def aligned(
        self, group: Sequence[EnergyFactor], seed: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Align values of bounded variables and directions of unbounded ones with the messages of the
        factors."""
        generator = torch.Generator().manual_seed(seed)
        start, direction = dict(self.start), {}
        names = list(dict.fromkeys(name for f in group for name in f.variables))
        for name in names:
            noise = torch.randn(1, *self.shapes[name], dtype=torch.float64, generator=generator)
            if name in self.open_names:
                direction[name] = _unit(self._feasible(name, noise))
            else:
                start[name] = self.graph.variables[name].regularizer.mirror(10 * noise)
        for _ in range(_SWEEPS):
            for name in names:
                values = {**self.fixed, **start, **direction}
                messages = [f.message(name, values, self.shapes[name]) for f in group if name in f.variables]
                message = torch.stack(torch.broadcast_tensors(start[name], *messages)[1:]).sum(0)
                if name not in direction:
                    scores = message / message.abs().amax().clamp(min=1e-300)
                    start[name] = self.graph.variables[name].regularizer.mirror(1e3 * scores)
                    continue
                toward = self._feasible(name, message)
                if len(group) == 1:
                    affine = group[0].affine_in(name)
                    toward = _unit(toward) if affine else _unit(direction[name] + _unit(toward))
                direction[name] = toward if bool(toward.any()) else direction[name]
            if len(group) > 1:
                length = sum(float(x.square().sum()) for x in direction.values()) ** 0.5
                direction = {name: x / max(length, 1e-300) for name, x in direction.items()}
        return start, direction

    def verified(
        self, group: Sequence[EnergyFactor], start: dict[str, Tensor], direction: dict[str, Tensor]
    ) -> Ray | None:
        """The ray, if the total energy falls along it like a power of t that no unknown term can outweigh."""
        parameters: dict[str, None] = {}
        counted: list[EnergyFactor] = []
        outside: list[float] = []
        for factor in self.factors:
            if not set(factor.variables) & set(direction) or self._vanishes(factor, start, direction):
                continue
            moved = [name for name in direction if name in factor.variables]
            if not (factor.multilinear or all(factor.affine_in(name) for name in moved)):
                return None
            if factor.multilinear and self._known(factor):
                counted.append(factor)
                continue
            # bound on the growth of an energy that is affine in each of its variables
            degree = factor.degree(moved)
            outside.append(math.inf if degree is None else max(degree, len(moved)))
        for factor in counted:
            parameters.update(
                dict.fromkeys(r.array.name for r in factor.references if isinstance(r.array, Parameter))
            )
        near, far = (self._shares(counted, start, direction, t) for t in (_FAR, 2 * _FAR))
        low, lower = math.fsum(near), math.fsum(far)
        if not (math.isfinite(lower) and low < 0 and lower < 0 and -lower > 1e-9 * math.fsum(map(abs, far))):
            return None
        exponent = math.log2(lower / low)
        power = round(exponent)
        if abs(exponent - power) > 1e-3 or max([1.0, *outside]) >= power:
            return None
        return Ray(
            start, direction, power, tuple(f.name for f in group), self.sizes_of(group), tuple(parameters)
        )

    def sizes_of(self, group: Sequence[EnergyFactor]) -> dict[str, int]:
        """Assumed sizes of the axes of these factors."""
        axes = {
            axis
            for f in group
            for r in f.references
            if isinstance(r.array, Variable)
            for axis in r.array.axes
        }
        return {axis: size for axis, size in self.sizes.items() if axis in axes}

    def _shares(
        self,
        factors: Sequence[EnergyFactor],
        start: dict[str, Tensor],
        direction: dict[str, Tensor],
        t: float,
    ) -> list[float]:
        values = {**self.fixed, **start, **{name: start[name] + t * x for name, x in direction.items()}}
        shares = [float(self.graph.variables[name].regularizer.value(values[name])) for name in direction]
        return shares + [float(factor.energy(values)) for factor in factors]

    def _known(self, factor: EnergyFactor) -> bool:
        return all(name in self.fixed or name in self.shapes for name in factor.operands)

    def _vanishes(self, factor: EnergyFactor, start: dict[str, Tensor], direction: dict[str, Tensor]) -> bool:
        """Whether a constant variable of a multilinear factor is zero, so that its energy vanishes on the
        ray."""
        resting = [name for name in factor.variables if name in start and name not in direction]
        return factor.multilinear and any(not bool(start[name].any()) for name in resting)

    def _feasible(self, name: str, x: Tensor) -> Tensor:
        """The nearest direction in which the domain is unbounded."""
        return x.clamp(min=0) if isinstance(self.graph.variables[name].regularizer, NonNegative) else x


def _unit(x: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x)
    return x / length.clamp(min=1e-300)
