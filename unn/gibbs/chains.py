"""Markov chains of all variables that are not given, side by side, and exchanges between couplings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..descent.collect import collect_evidence
from ..descent.entries import entries_of
from ..descent.evidence import Evidence, Given
from ..descent.model import expanded
from ..descent.orders import Listed
from ..descent.plan import Plan, PlannedUpdate
from ..descent.schedule import steps_by_round
from ..descent.shares import factors_share, regularizer_share
from ..descent.state import State
from ..descent.updates import Sample
from ..errors import (
    ConvergenceWarning,
    DeclarationError,
    DivergenceError,
    InferenceError,
    ObservationError,
)
from ..graph.arrays import Constant
from ..graph.boundedness import boundedness_of
from ..graph.bounds import refusal_of_bounds
from ..graph.declaration import Declaration
from ..graph.dynamic import shapes_of
from ..graph.factor import Constraint, EnergyFactor
from ..graph.partial import Partial
from ..noise import uniform
from ..regularizers import Elementwise, Regularizer
from ..regularizers.base import batch_sum
from .conditions import Conditions, refusal_of_constraints
from .langevin import Langevin


def refusal(graph: Declaration) -> str:
    """Why no chains can run on a graph, in one sentence that names the variable or factor; empty if they
    can."""
    for name, factor in graph.factors.items():
        if not isinstance(factor, (EnergyFactor, Constraint)):
            return f"factor {name!r} ({type(factor).__name__}) has no energy, so that chains cannot follow it"
    reason = refusal_of_bounds(graph) or refusal_of_constraints(graph)
    if reason:
        return reason
    for name, variable in graph.variables.items():
        if not _has_conditional(variable.regularizer):
            return (
                f"variable {name!r} has the regularizer {variable.regularizer!r}, whose conditional "
                "distribution has no exact sampler"
            )
    return ""


def _has_conditional(regularizer: Regularizer) -> bool:
    if isinstance(regularizer, Elementwise):
        return type(regularizer).entry_sample is not Elementwise.entry_sample
    return type(regularizer).conditional_sample is not Regularizer.conditional_sample


class Chains:
    """Chains under exp(-(Psi + E_separate + coupling E_joint) / temperature), where E_joint is the energy of
    the factors between variables that are not given, or between nodes of one, and E_separate that of others.

    Each query has ``chains`` times ``levels`` chains, neighbours in the batch. A sweep draws every variable
    that is not given once, in colour classes where it interacts with itself, each from its exact conditional
    distribution; variables without one move by Langevin dynamics. The first state is one of the coupling 0,
    moved to values that satisfy the constraints. These hold at every coupling.

    Args:
        graph: declaration.
        given: evidence by variable, complete or partial, and values of constants; a batch axis of 1 is
            repeated.
        queries: number of queries.
        chains: number of chains of each.
        levels: number of couplings from 0 to 1 of each chain; 1 for the coupling 1 alone.
        sizes: sizes of the axes without a static size.
        lengths: lengths of ragged axes by axis, shape ``(queries,)``.
        temperature: above 0.
        generator: random number generator.
        initial: values in which variables start, shape ``(batch, *axes)``; drawn if they are left out.

    Raises:
        DeclarationError: for a graph that has no chains; names the variable or factor.
        ObservationError: for evidence that does not fit.
        InferenceError: for a variable that neither exact draws nor Langevin dynamics can move, constraints
            that no values seem to satisfy, or constraints beside ragged lengths.
    """

    def __init__(
        self,
        graph: Declaration,
        given: Given,
        queries: int,
        chains: int,
        levels: int = 1,
        *,
        sizes: Mapping[str, int] | None = None,
        lengths: Mapping[str, Tensor] | None = None,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        initial: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.graph, self.generator = graph, generator
        self.queries, self.chains, self.levels = queries, chains, levels
        repeats = chains * levels
        evidence_of = {name: _repeated(graph, name, x, queries, repeats) for name, x in given.items()}
        lengths = {axis: x.repeat_interleave(repeats, 0) for axis, x in (lengths or {}).items()}
        plan = _plan_of(graph, evidence_of)
        if lengths and graph.constraints:
            raise InferenceError(
                f"graph {graph.name!r}: chains keep to constraints on complete axes alone; run sequences of "
                "each length by themselves, without lengths."
            )
        evidence = _evidence(graph, evidence_of, plan.free, queries * repeats, sizes, lengths)
        couplings = torch.linspace(0, 1, levels) if levels > 1 else torch.ones(1)
        self.couplings = couplings.repeat(queries * chains).to(evidence.like)
        self.temperature = temperature
        self.state = State(plan, evidence, (), self._rule(), generator=generator)
        self._langevin = {
            name: Langevin(self.state, name, generator)
            for name in plan.free
            if plan.update_kinds[name] == "inner solver"
        }
        self._rounds = steps_by_round(self.state, Listed(plan.free))
        self._sweeps = 0
        self._conditions = self._conditions_of(graph)
        self.restart(initial)

    def _conditions_of(self, graph: Declaration) -> Conditions | None:
        if not graph.constraints:
            return None
        conditions = Conditions(self.state, self.queries, self.generator)
        for name in self.state.plan.free:
            steps = self.state.plan.steps([name], self.state.evidence.shapes, self.couplings.device)
            if conditions.covers(name) and not all(map(self.state.closed_form, steps)):
                raise InferenceError(
                    f"graph {graph.name!r}: variable {name!r} has constraints and no closed form given the "
                    "others, so that chains cannot move it."
                )
        return conditions

    @torch.no_grad()
    def restart(self, initial: Mapping[str, Tensor] | None = None) -> None:
        """Draw all variables that are not given at the coupling 0, and satisfy the constraints.

        Args:
            initial: values in which variables start instead, shape ``(batch, *axes)``.
        """
        evidence = self.state.evidence
        for name in self.state.plan.free:
            if initial is not None and name in initial:
                self.assign(name, initial[name].to(evidence.like))
                continue
            t = self.state.separate(name).expand(evidence.batch, *evidence.shapes[name])
            mask = evidence.masks.get(name)
            self.assign(
                name,
                evidence.regularizers[name].conditional_sample(t, self.temperature, mask, self.generator),
            )

        if self._conditions is not None:
            self._conditions.settle()

    def assign(self, name: str, x: Tensor) -> None:
        """Give a variable a value, shape ``(batch, *axes)``; observed entries stay."""
        self.state.replace(PlannedUpdate(name), x)

    def couple(self, coupling: float) -> None:
        """Set one coupling, from 0 to 1, for all chains."""
        self.couplings = torch.full_like(self.couplings, coupling)
        self.state.rule = self._rule()

    def _rule(self) -> Sample:
        if bool((self.couplings == 1).all()):
            return Sample(self.temperature)
        return Sample(self.temperature, self.couplings)

    @torch.no_grad()
    def sweep(self, adapts: bool = False) -> None:
        """Draw every variable once, and exchange the couplings of neighbouring levels.

        Args:
            adapts: whether step sizes of Langevin dynamics adapt.
        """
        for step in next(self._rounds):
            if self._conditions is not None and self._conditions.covers(step.name):
                self._conditions.draw(step)
            elif self.state.closed_form(step):
                self.state.update(step)
            else:
                self._move(step.name).move(step, adapts)
        if self._conditions is not None:
            self._conditions.exchange()
        if self.levels > 1:
            self._exchange()
        self._sweeps += 1

    @property
    def has_langevin(self) -> bool:
        """Whether some variables have moved by Langevin dynamics, or will."""
        return bool(self._langevin)

    def log_steps(self) -> dict[str, Tensor]:
        """Logarithm of the step size of each variable that has moved by Langevin dynamics, the mean over
        chains, a scalar."""
        steps = {name: moves.log_step for name, moves in self._langevin.items()}
        return {name: step.mean() for name, step in steps.items() if step is not None}

    def set_log_steps(self, log_steps: Mapping[str, Tensor]) -> None:
        """Set the step sizes of variables that move by Langevin dynamics, as ``log_steps`` returns them."""
        for name, log_step in log_steps.items():
            self._move(name).log_step = log_step.to(self.couplings).expand(len(self.couplings))

    def _move(self, name: str) -> Langevin:
        # a variable whose nodes interact with themselves has no colour classes
        if name not in self._langevin:
            self._langevin[name] = Langevin(self.state, name, self.generator)
        return self._langevin[name]

    def _exchange(self) -> None:
        """Propose to exchange the couplings of every other pair of neighbouring levels (Swendsen and Wang,
        1986)."""
        energy = self.joint_energy().view(-1, self.levels)
        couplings = self.couplings.view(-1, self.levels)
        order = couplings.argsort(1)
        first = self._sweeps % 2
        low, high = order[:, first:-1:2], order[:, first + 1 :: 2]
        difference = couplings.gather(1, low) - couplings.gather(1, high)
        gain = difference * (energy.gather(1, low) - energy.gather(1, high)) / self.temperature
        accepted = uniform(gain.shape, gain, self.generator).log() < gain
        exchanged = couplings.clone()
        exchanged.scatter_(1, low, torch.where(accepted, couplings.gather(1, high), couplings.gather(1, low)))
        exchanged.scatter_(
            1, high, torch.where(accepted, couplings.gather(1, low), couplings.gather(1, high))
        )
        self.couplings = exchanged.flatten()
        self.state.rule = self._rule()

    def check(self) -> None:
        """Check where the chains have got to.

        Raises:
            DivergenceError: as ``require_finite``.
            InferenceError: for a constraint that they violate.

        Warns:
            ConvergenceWarning: for queries whose chains constraints hold in place.
        """
        self.require_finite()
        if self._conditions is None:
            return
        self._conditions.require_satisfied()
        held = self._conditions.held()
        if bool(held.any()):
            warnings.warn(
                f"graph {self.graph.name!r}: constraints hold all chains of {int(held.sum())} of {len(held)} "
                "queries where they started, which is not a draw: no single node and no pair of nodes of a "
                "group with a fixed number of ones can change alone. Use unn.exact or the engine 'search'.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def require_finite(self) -> None:
        """Check that no chain has left for infinity.

        Raises:
            DivergenceError: names the variable, and says whether the energy has a minimum.
        """
        for name in self.state.plan.free:
            bad = ~entries_of(self.state.values[name].isfinite()).all(1)
            if bool(bad.any()):
                given = [other for other in self.graph.variables if other not in self.state.plan.free]
                raise DivergenceError(
                    f"graph {self.graph.name!r}: variable {name!r} is NaN or infinite in {int(bad.sum())} of "
                    f"{len(bad)} chains. The energy: {boundedness_of(self.graph, given)}"
                )

    @torch.no_grad()
    def joint_energy(self) -> Tensor:
        """Energy of the factors between variables that are not given, shape ``(batch,)``."""
        state = self.state
        zero = state.evidence.like.new_zeros(state.evidence.batch)
        return factors_share(state.plan.joint_factors, state.values, zero)

    @torch.no_grad()
    def log_volume(self) -> Tensor:
        """The exact log-partition at the coupling 0, shape ``(batch,)``, float64."""
        state = self.state
        scores = {name: state.separate(name) for name in state.plan.free}
        total = self._log_sum(scores)
        # what is left of the energy where all scores are taken away does not depend on the values
        constant = factors_share(state.plan.separate_factors, state.values, torch.zeros_like(total))
        for name, t in scores.items():
            constant = constant + batch_sum(state.values[name].double() * t.double())
        return total - constant / self.temperature

    @property
    def are_independent(self) -> bool:
        """Whether no factor joins two of the variables that are not given, or two nodes of one."""
        plan = self.state.plan
        return all(not plan.changing[name] for name in plan.free)

    def _log_sum(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Logarithm of the sum of exp((<x, t> - Psi(x)) / temperature) over the values that are not given,
        shape ``(batch,)``, float64.

        Args:
            scores: t, by variable, shape ``(batch or 1, *axes)``.
        """
        evidence = self.state.evidence
        total = evidence.like.new_zeros(evidence.batch, dtype=torch.float64)
        for name in self.graph.variables:
            regularizer, exists = evidence.regularizers[name], evidence.masks.get(name)
            x = self.state.values[name]
            if name not in scores:
                total = total - regularizer_share(regularizer, x, exists) / self.temperature
                continue
            t = scores[name].double().expand(evidence.batch, *evidence.shapes[name])
            if name in evidence.observed and name not in evidence.restricted:
                known = evidence.observed[name][1]
                free = ~known
                if exists is not None:
                    known, free = known & exists, free & exists
                share = batch_sum(torch.where(known, x * t, 0)) - regularizer_share(regularizer, x, known)
                total, exists = total + share / self.temperature, free
            total = total + regularizer.conditional_log_partition(t, self.temperature, exists)
        return total

    def values(self, names: tuple[str, ...] | None = None) -> dict[str, Tensor]:
        """Values of the chains at the coupling 1, shape ``(queries, chains, *axes)``."""
        place = self.couplings.view(-1, self.levels).argmax(1)
        rows = torch.arange(len(place), device=place.device) * self.levels + place
        result = {}
        for name in tuple(self.graph.variables) if names is None else names:
            x = self.state.result(name)
            x = x if self.levels == 1 else x[rows]
            result[name] = x.view(self.queries, self.chains, *x.shape[1:])
        return result


def check_evidence(
    graph: Declaration,
    given: Given,
    queries: int,
    sizes: Mapping[str, int] | None,
    lengths: Mapping[str, Tensor],
) -> None:
    """Check evidence before it has a row for each chain, so that messages count queries.

    Raises:
        ObservationError: for evidence that does not fit.
    """
    rows = {name: _repeated(graph, name, x, queries, 1) for name, x in given.items()}
    _evidence(graph, rows, _plan_of(graph, rows).free, queries, sizes, lengths)


def _plan_of(graph: Declaration, given: Given) -> Plan:
    return Plan.of_energies(graph, [name for name, x in given.items() if isinstance(x, Tensor)])


def _evidence(
    graph: Declaration,
    given: Given,
    free: Sequence[str],
    batch: int,
    sizes: Mapping[str, int] | None,
    lengths: Mapping[str, Tensor],
) -> Evidence:
    """Evidence for all chains; the first value of a free variable gives the batch size.

    Raises:
        ObservationError: for evidence that does not fit, or sizes that are unknown.
    """
    if not free or free[0] in given:
        return collect_evidence(graph, given, None, lengths, sizes)
    known, static = dict(sizes or {}), graph.size_table.static
    tensors = {name: x.value if isinstance(x, Partial) else x for name, x in given.items()}
    for name, x in tensors.items():
        if name in graph.arrays:
            axes = graph.arrays[name].axes
            own = zip(axes, x.shape[x.ndim - len(axes) :], strict=False)
            known |= {axis: size for axis, size in own if axis not in static}
    try:
        shape = shapes_of(graph, known, free[:1])[free[0]]
    except DeclarationError as error:
        raise ObservationError(str(error)) from error
    floats = (x for x in (*tensors.values(), *graph.fixed_values().values()) if x.is_floating_point())
    start = next(floats, torch.empty(())).new_zeros(batch, *shape)
    return collect_evidence(graph, given, {free[0]: start}, lengths, sizes)


def is_unbatched(graph: Declaration, name: str, value: Tensor | Partial) -> bool:
    """Whether a value is one of a constant for all queries, without a batch axis."""
    array = graph.arrays.get(name)
    return isinstance(array, Constant) and isinstance(value, Tensor) and value.ndim == len(array.axes)


def _repeated(
    graph: Declaration, name: str, value: Tensor | Partial, queries: int, repeats: int
) -> Tensor | Partial:
    """Evidence with a row for each chain.

    Raises:
        ObservationError: for another number of rows.
    """
    if is_unbatched(graph, name, value):
        return value
    rows = expanded(name, value, queries)
    if isinstance(rows, Partial):
        return Partial(*(x.repeat_interleave(repeats, 0) for x in (rows.value, rows.mask)))
    return rows.repeat_interleave(repeats, 0)
