"""Learning from two phases: contrastive Hebbian learning and equilibrium propagation.

Both compare fixed points of the energy, and need no derivative of the rounds: gradients are those of the
energy with respect to its parameters, at values that count as constant.
"""

from __future__ import annotations

import copy
import math
import numbers
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ..errors import ConvergenceWarning, InferenceError, ObservationError, unknown
from ..graph.arrays import Reference
from ..graph.boundedness import boundedness_of
from ..graph.declaration import Declaration
from ..graph.factor import EnergyFactor, Values
from ..graph.patterns import parse_pattern
from ..no_gradients import no_gradients
from ..regularizers import SquaredNorm
from ..regularizers.base import batch_sum
from .collect import collect_evidence
from .infer import infer
from .orders import Item, Listed, Order, as_order

Cost = Callable[[Tensor, Tensor], Tensor]


class ContrastiveHebbian(nn.Module):
    """Contrastive Hebbian learning: energy with the targets given, less the energy without them.

    The loss is E(clamped) - E(free), the mean over the batch, at the fixed points of both phases (Movellan,
    1991, eq. 10). It is at least 0 where the free phase reaches the global minimum, and 0 where the targets
    are inferred exactly.

    Args:
        graph: declaration, whose parameters are learned.
        given: variables given in both phases.
        targets: variables given in the clamped phase alone.
        order: order of the rounds; by distance from what is given by default.
        until: largest change of an entry at a fixed point.
        iterations: largest number of rounds of a phase.

    Raises:
        InferenceError: for an energy without a lower bound, or names that do not fit.

    Example:
        >>> loss = unn.ContrastiveHebbian(g, given="X", targets="Y")
        >>> loss({"X": images, "Y": labels}).backward()
    """

    def __init__(
        self,
        graph: Declaration,
        given: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        order: Order | Sequence[Item] | None = None,
        until: float = 1e-4,
        iterations: int = 1000,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.given, self.targets = _names(graph, given, targets)
        self.order = None if order is None else _listed(order)
        self.until, self.iterations = until, iterations

    def forward(self, values: Mapping[str, Tensor]) -> Tensor:
        """The loss, a scalar; gradients reach the parameters alone.

        Args:
            values: examples of what is given and of the targets, shape ``(batch, *axes)``; those of other
                variables are left out.

        Raises:
            InferenceError: for a module with active dropout.
            ObservationError: for values that are missing, unknown or do not fit.
        """
        _require_one_energy(self.graph)
        known = _examples(self.graph, values, (*self.given, *self.targets))
        with no_gradients():
            free = self._phase({name: known[name] for name in self.given}, self.order, None)
            start = {name: x for name, x in free.items() if name not in known}
            order = None if self.order is None else _without(self.order, self.targets)
            # raises for targets that do not fit, also where nothing else is inferred
            collect_evidence(self.graph, known)
            clamped = self._phase(known, order, start) if start else known
        gap: Tensor = self.graph.energy(clamped) - self.graph.energy(free)
        return gap.mean()

    def _phase(
        self, given: Mapping[str, Tensor], order: Listed | None, start: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        return _fixed_point(self.graph, given, order, self.until, self.iterations, start)


class EquilibriumPropagation(nn.Module):
    """Equilibrium propagation: the gradient of a cost at the fixed point from a second, nudged fixed point.

    The cost C is that of the targets at the free fixed point, the mean over the batch. The nudged phases
    minimise E + nudge <y, c> and E - nudge <y, c>, with c the derivative of the cost at the free fixed point;
    the gradient is (dE/dtheta (nudged) - dE/dtheta (nudged the other way)) / (2 nudge), which tends to that
    of the cost with the square of the nudge (Scellier and Bengio, 2017; both signs: Laborieux et al., 2021).
    With a cost that is linear around the free phase, all updates keep their closed forms. The value of the
    loss is the cost itself.

    Args:
        graph: declaration, whose parameters are learned.
        given: variables that are given.
        targets: variables with a cost.
        cost: cost of a target from its values and their examples, shape ``(batch, *axes)`` each, to
            ``(batch,)``; half the squared error by default.
        order: order of the rounds; by distance from what is given by default.
        nudge: strength of the cost, above 0.
        until: largest change of an entry at a fixed point; well below the nudge.
        iterations: largest number of rounds of a phase.

    Raises:
        InferenceError: for an energy without a lower bound, or names that do not fit.

    Example:
        >>> loss = unn.EquilibriumPropagation(g, given="X", targets="Y", nudge=0.1)
        >>> loss({"X": images, "Y": labels}).backward()
    """

    def __init__(
        self,
        graph: Declaration,
        given: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        cost: Cost | None = None,
        order: Order | Sequence[Item] | None = None,
        nudge: float = 0.1,
        until: float = 1e-6,
        iterations: int = 1000,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.given, self.targets = _names(graph, given, targets)
        self.order = None if order is None else _listed(order)
        self.until, self.iterations = until, iterations
        number = isinstance(nudge, numbers.Real) and not isinstance(nudge, bool)
        if not number or not 0 < nudge < math.inf:
            raise InferenceError(f"EquilibriumPropagation: nudge is a finite number above 0, got {nudge!r}.")
        self.nudge = float(nudge)
        self.cost = _half_squared_error if cost is None else cost
        if not callable(self.cost):
            raise InferenceError(f"cost: a function of a target and its examples, got {cost!r}.")
        self._made_for: object = None
        self._nudged: tuple[Declaration, ...] = ()
        self._nudged_graphs()

    def forward(self, values: Mapping[str, Tensor]) -> Tensor:
        """The cost, a scalar, with the gradient of equilibrium propagation for the parameters.

        Args:
            values: examples of what is given and of the targets, shape ``(batch, *axes)``; those of other
                variables are left out.

        Raises:
            InferenceError: for a module with active dropout.
            ObservationError: for values that are missing, unknown or do not fit.
        """
        _require_one_energy(self.graph)
        known = _examples(self.graph, values, (*self.given, *self.targets))
        given = {name: known[name] for name in self.given}
        with no_gradients():
            free = self._phase(self.graph, given, None)
            cost, slopes = self._cost(free, known)
            start = {name: x for name, x in free.items() if name not in given}
            ends = [self._phase(graph, {**given, **slopes}, start) for graph in self._nudged_graphs()]
        up, down = ({name: end[name] for name in self.graph.variables} for end in ends)
        difference: Tensor = self.graph.energy(up) - self.graph.energy(down)
        slope = difference.mean() / (2 * self.nudge)
        return slope + (cost - slope).detach()

    def _cost(
        self, free: Mapping[str, Tensor], known: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The cost, a scalar, and its derivatives by the names of their variables, for each example."""
        total: Tensor | None = None
        slopes: dict[str, Tensor] = {}
        for name in self.targets:
            with torch.enable_grad():
                y = free[name].detach().requires_grad_()
                _check_target(name, known[name], y)
                cost = self.cost(y, known[name].to(y))
                if not isinstance(cost, Tensor) or cost.shape != (len(y),):
                    shown = tuple(cost.shape) if isinstance(cost, Tensor) else type(cost).__name__
                    raise InferenceError(
                        f"cost: variable {name!r} needs one number for each example, "
                        f"shape {(len(y),)}, got {shown}."
                    )
                if not cost.requires_grad:
                    raise InferenceError(f"cost: that of variable {name!r} does not depend on its values.")
                (slope,) = torch.autograd.grad(cost.sum(), y)
            slopes[_slope(name)] = slope
            mean = cost.detach().mean()
            total = mean if total is None else total + mean
        assert total is not None
        return total, slopes

    def _phase(
        self, graph: Declaration, given: Mapping[str, Tensor], start: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        return _fixed_point(graph, given, self.order, self.until, self.iterations, start)

    def _nudged_graphs(self) -> tuple[Declaration, ...]:
        """Nudged copies of the graph, with its present modules, parameters and constants; made anew where
        these or its arrays and factors have been replaced."""
        tensors = (*self.graph.parameters(), *self.graph.buffers())
        parts = (*self.graph.arrays.values(), *self.graph.factors.values(), *self.graph.modules())
        made_for = (*((id(x), x.dtype, x.device) for x in tensors), *map(id, parts))
        if made_for != self._made_for:
            signs = (1.0, -1.0)
            self._nudged = tuple(_nudged(self.graph, self.targets, sign * self.nudge) for sign in signs)
            self._made_for = made_for
        return self._nudged


def _fixed_point(
    graph: Declaration,
    given: Mapping[str, Tensor],
    order: Listed | None,
    until: float,
    iterations: int,
    start: Mapping[str, Tensor] | None,
) -> dict[str, Tensor]:
    """The values of a phase, with a warning where they are not at rest."""
    solution = infer(
        graph, given, order=order, until=until, iterations=iterations, initial=start, trace=False
    )
    if not solution.converged:
        warnings.warn(
            f"a phase has not reached a fixed point, so that the gradient is not exact: {solution.message}",
            ConvergenceWarning,
            stacklevel=6,
        )
    return solution.values


class _Nudge(EnergyFactor):
    """E = strength <y, slope>."""

    def __init__(self, y: Reference, slope: Reference, strength: float) -> None:
        super().__init__(y, slope, name=f"nudge of {y.array.name}")
        self.strength = strength

    def energy(self, values: Values) -> Tensor:
        y, slope = (values[reference.array.name] for reference in self.references)
        return self.strength * batch_sum(y * slope)

    def affine_in(self, target: str) -> bool:
        return True

    def degree(self, names: Collection[str]) -> int:
        return len(set(names) & set(self.variables))


def _nudged(graph: Declaration, targets: Sequence[str], strength: float) -> Declaration:
    """A copy of a graph with the same parameters and a linear cost of the targets, whose slopes are
    variables."""
    modules = [module for module in graph.modules() if module is not graph]
    shared: dict[int, Any] = {id(x): x for x in (*graph.parameters(), *graph.buffers(), *modules)}
    nudged = copy.deepcopy(graph, shared)
    for name in targets:
        y = nudged.variables[name]
        letters = " ".join(f"x{k}" for k in range(len(y.axes)))
        slope = nudged.variable(_slope(name), " ".join(y.axes), SquaredNorm())
        pattern = parse_pattern(letters)
        nudged.factor(_Nudge(Reference(y, pattern), Reference(slope, pattern), strength))
    return nudged


def _slope(name: str) -> str:
    return f"slope_of_{name}"


def _half_squared_error(y: Tensor, target: Tensor) -> Tensor:
    return batch_sum((y - target) ** 2) / 2


def _names(
    graph: Declaration, given: str | Sequence[str], targets: str | Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of what is given and of the targets, which are distinct variables of a bounded energy."""
    if not isinstance(graph, Declaration):
        raise InferenceError(f"graph: a unn.FactorGraph, got {type(graph).__name__}.")
    for what, names in (("given", given), ("targets", targets)):
        if not isinstance(names, Sequence):
            raise InferenceError(f"{what}: a name or a list of names, got {names!r}.")
    known, aims = (tuple(dict.fromkeys([x] if isinstance(x, str) else x)) for x in (given, targets))
    for what, names in (("given", known), ("targets", aims)):
        for name in names:
            if name not in graph.variables:
                raise InferenceError(
                    f"{what}: graph {graph.name!r}: " + unknown("variable", name, graph.variables)
                )
    if not aims:
        raise InferenceError("targets: name at least one variable.")
    if not known:
        raise InferenceError(
            "given: name at least one variable, from which both phases start; an energy of which nothing is "
            "given is learned by sampling (the engine gibbs)."
        )
    for name in aims:
        if name in known:
            raise InferenceError(f"targets: variable {name!r} is given, so that there is nothing to learn.")
    verdict = boundedness_of(graph, known)
    if verdict.bounded is False:
        raise InferenceError(f"graph {graph.name!r}: there is no fixed point. The energy: {verdict}")
    return known, aims


def _check_target(name: str, target: Tensor, y: Tensor) -> None:
    """Check that examples of a target have its shape and are finite.

    Raises:
        ObservationError: names the variable.
    """
    if target.shape != y.shape:
        raise ObservationError(
            f"variable {name!r}: examples of the target have the shape {tuple(y.shape)}, got "
            f"{tuple(target.shape)}."
        )
    if not bool(target.isfinite().all()):
        raise ObservationError(f"variable {name!r}: some examples of the target are NaN or infinite.")


def _require_one_energy(graph: Declaration) -> None:
    """Check that all phases have the same energy.

    Raises:
        InferenceError: for a module that draws anew whenever it is called; names it.
    """
    for name, module in graph.named_modules():
        if module.training and isinstance(module, _DropoutNd) and module.p:
            raise InferenceError(
                f"graph {graph.name!r}: module {name!r} ({module!r}) draws another mask in every call, so "
                "that the phases have different energies; set it to evaluation, "
                f"graph.get_submodule({name!r}).eval(), or train with unn.Unrolled."
            )


def _examples(graph: Declaration, values: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    if not isinstance(values, Mapping):
        raise ObservationError(
            f"graph {graph.name!r}: examples are a mapping from names to tensors, got "
            f"{type(values).__name__}."
        )
    for name in values:
        if name not in graph.variables:
            raise ObservationError(f"graph {graph.name!r}: " + unknown("variable", name, graph.variables))
    for name in names:
        if not isinstance(values.get(name), Tensor):
            raise ObservationError(f"graph {graph.name!r}: variable {name!r} needs examples, a tensor.")
    return {name: values[name] for name in names}


def _listed(order: Order | Sequence[Item]) -> Listed:
    """An order with the same blocks in every round.

    Raises:
        InferenceError: for another one.
    """
    listed = as_order(order)
    if not isinstance(listed, Listed):
        raise InferenceError(f"order: both phases run the same blocks in every round, got {listed!r}.")
    return listed


def _without(order: Listed, names: Sequence[str]) -> Listed:
    """The blocks without those of some variables."""
    return Listed(
        tuple(item for item in order.items if (item if isinstance(item, str) else item.name) not in names)
    )
