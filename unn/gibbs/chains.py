"""Markov chains of all variables that are not given, side by side, and exchanges between couplings."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..descent.collect import collect_evidence
from ..descent.evidence import Evidence, Given
from ..descent.orders import Listed
from ..descent.plan import Plan, PlannedUpdate
from ..descent.schedule import steps_by_round
from ..descent.shares import factor_share, regularizer_share
from ..descent.state import State
from ..descent.updates import Sample
from ..errors import DivergenceError, ObservationError, UnnError
from ..graph.arrays import Constant
from ..graph.boundedness import boundedness_of
from ..graph.declaration import Declaration
from ..graph.factor import EnergyFactor
from ..graph.partial import Partial
from ..noise import uniform
from ..regularizers import Elementwise, Regularizer
from ..regularizers.base import batch_sum
from .langevin import Langevin


def refusal(graph: Declaration) -> str:
    """Why no chains can run on a graph, in one sentence that names the variable or factor; empty if they
    can."""
    for name, factor in graph.factors.items():
        if not isinstance(factor, EnergyFactor):
            return f"factor {name!r} ({type(factor).__name__}) has no energy, so that chains cannot follow it"
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
    """Chains under exp(-(Psi + coupling E) / temperature) with E the energy of the factors.

    Each query has ``chains`` times ``levels`` chains, neighbours in the batch. A sweep draws every variable
    that is not given once, in colour classes where it interacts with itself, each from its exact conditional
    distribution; variables without one move by Langevin dynamics. The first state is one of independent
    variables.

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

    Raises:
        DeclarationError: for a graph that has no chains; names the variable or factor.
        ObservationError: for evidence that does not fit.
        InferenceError: for a variable that neither exact draws nor Langevin dynamics can move.
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
    ) -> None:
        self.graph, self.generator = graph, generator
        self.queries, self.chains, self.levels = queries, chains, levels
        repeats = chains * levels
        evidence_of = {name: _repeated(graph, name, x, queries, repeats) for name, x in given.items()}
        lengths = {axis: x.repeat_interleave(repeats, 0) for axis, x in (lengths or {}).items()}
        fixed = [name for name, x in evidence_of.items() if isinstance(x, Tensor)]
        plan = Plan.of(graph, fixed)
        if plan.free:
            evidence = _evidence(graph, evidence_of, plan.free[0], queries * repeats, sizes, lengths)
        else:
            evidence = collect_evidence(graph, evidence_of, None, lengths, sizes)
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
        self.restart()

    @torch.no_grad()
    def restart(self) -> None:
        """Draw all variables that are not given as if they were independent."""
        evidence = self.state.evidence
        for name in self.state.plan.free:
            t = evidence.like.new_zeros(evidence.batch, *evidence.shapes[name])
            mask = evidence.masks.get(name)
            self.assign(
                name,
                evidence.regularizers[name].conditional_sample(t, self.temperature, mask, self.generator),
            )

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
            if self.state.closed_form(step):
                self.state.update(step)
            else:
                self._move(step.name).move(step, adapts)
        if self.levels > 1:
            self._exchange()
        self._sweeps += 1

    def _move(self, name: str) -> Langevin:
        # a variable whose nodes interact with themselves has no colour classes
        if name not in self._langevin:
            self._langevin[name] = Langevin(self.state, name, self.generator)
        return self._langevin[name]

    def _exchange(self) -> None:
        """Propose to exchange the couplings of every other pair of neighbouring levels (Swendsen and Wang,
        1986)."""
        energy = self.factor_energy().view(-1, self.levels)
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

    def require_finite(self) -> None:
        """Check that no chain has left for infinity.

        Raises:
            DivergenceError: names the variable, and says whether the energy has a minimum.
        """
        for name in self.state.plan.free:
            bad = ~self.state.values[name].isfinite().flatten(1).all(1)
            if bool(bad.any()):
                given = [other for other in self.graph.variables if other not in self.state.plan.free]
                raise DivergenceError(
                    f"graph {self.graph.name!r}: variable {name!r} is NaN or infinite in {int(bad.sum())} of "
                    f"{len(bad)} chains. The energy: {boundedness_of(self.graph, given)}"
                )

    @torch.no_grad()
    def factor_energy(self) -> Tensor:
        """Energy of the factors, without the regularizers, shape ``(batch,)``."""
        state = self.state
        total = state.evidence.like.new_zeros(state.evidence.batch)
        for factor in self.graph.energy_factors:
            total = total + factor_share(factor, state.values)
        return total

    def log_volume(self) -> Tensor:
        """Log-partition at coupling 0: of the variables that are not given, with the share of those that are
        in exp(-Psi / temperature); shape ``(batch,)``, float64.

        Raises:
            UnnError: for a variable given in part whose entries are not independent.
        """
        evidence = self.state.evidence
        total = evidence.like.new_zeros(evidence.batch, dtype=torch.float64)
        for name in self.graph.variables:
            mask = evidence.masks.get(name)
            if name in self.state.plan.free:
                if name not in evidence.observed or name in evidence.restricted:
                    continue
                known = evidence.observed[name][1]
                mask = known if mask is None else known & mask
            share = regularizer_share(evidence.regularizers[name], self.state.values[name], mask)
            total = total - share.double() / self.temperature
        for name in self.state.plan.free:
            mask = evidence.masks.get(name)
            if name in evidence.observed and name not in evidence.restricted:
                free = ~evidence.observed[name][1]
                mask = free if mask is None else free & mask
            t = evidence.like.new_zeros(evidence.batch, *evidence.shapes[name], dtype=torch.float64)
            regularizer = evidence.regularizers[name]
            total = total + regularizer.conditional_log_partition(t, self.temperature, mask)
        return total

    @property
    def are_independent(self) -> bool:
        """Whether no factor joins two of the variables that are not given, or two nodes of one."""
        plan = self.state.plan
        return all(not plan.changing[name] for name in plan.free)

    @torch.no_grad()
    def log_partition_of_independent(self) -> Tensor:
        """The exact log-partition where ``are_independent``, shape ``(batch,)``, float64."""
        state, evidence = self.state, self.state.evidence
        total = self.log_volume()
        for factor in self.graph.energy_factors:
            if not any(name in state.plan.free for name in factor.variables):
                total = total - factor_share(factor, state.values).double() / self.temperature
        for name in state.plan.free:
            mask, regularizer = evidence.masks.get(name), evidence.regularizers[name]
            t = state.preactivation(PlannedUpdate(name)).double()
            t = t.expand(evidence.batch, *t.shape[1:])
            if name in evidence.observed and name not in evidence.restricted:
                observed, known = evidence.observed[name]
                total = total + batch_sum(torch.where(known, observed * t, 0)) / self.temperature
                mask = ~known if mask is None else ~known & mask
            for scale, scores in ((1, t), (-1, torch.zeros_like(t))):
                total = total + scale * regularizer.conditional_log_partition(scores, self.temperature, mask)
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


def _evidence(
    graph: Declaration,
    given: Given,
    free: str,
    batch: int,
    sizes: Mapping[str, int] | None,
    lengths: Mapping[str, Tensor],
) -> Evidence:
    """Evidence for all chains; the first value of one variable gives the batch size.

    Raises:
        ObservationError: for evidence that does not fit, or sizes that are unknown.
    """
    table = graph.size_table
    known: dict[str, int] = {table.root(axis): size for axis, size in (sizes or {}).items()}
    for name, x in given.items():
        array = graph.arrays.get(name)
        shape = (x.value if isinstance(x, Partial) else x).shape
        if array is not None and len(array.axes):
            known |= {table.root(a): n for a, n in zip(array.axes, shape[-len(array.axes) :], strict=False)}
    if free in given:
        return collect_evidence(graph, given, None, lengths, sizes)
    try:
        solved = table.shape(graph.variables[free], table.solve({**table.static, **known}))
    except UnnError as error:
        raise ObservationError(f"graph {graph.name!r}: {error}") from error
    if None in solved:
        axis = graph.variables[free].axes[solved.index(None)]
        raise ObservationError(
            f"graph {graph.name!r}: the size of axis {axis!r} of {free!r} is unknown; pass sizes={{{axis!r}: "
            "...}."
        )
    like = next((x for x in given.values() if isinstance(x, Tensor) and x.is_floating_point()), None)
    if like is None:
        like = next(
            (x.value for x in given.values() if isinstance(x, Partial)),
            next((x for x in graph.fixed_values().values() if x.is_floating_point()), torch.empty(())),
        )
    start = like.new_zeros(batch, *(int(n or 0) for n in solved))
    return collect_evidence(graph, given, {free: start}, lengths, sizes)


def _repeated(
    graph: Declaration, name: str, value: Tensor | Partial, queries: int, repeats: int
) -> Tensor | Partial:
    """Evidence with a row for each chain.

    Raises:
        ObservationError: for another number of rows.
    """
    if isinstance(value, Partial):
        return Partial(
            _repeated_rows(name, value.value, queries, repeats),
            _repeated_rows(name, value.mask, queries, repeats),
        )
    array = graph.arrays.get(name)
    if isinstance(array, Constant) and isinstance(value, Tensor) and value.ndim == len(array.axes):
        return value
    return _repeated_rows(name, value, queries, repeats)


def _repeated_rows(name: str, x: Tensor, queries: int, repeats: int) -> Tensor:
    if not isinstance(x, Tensor) or not x.ndim or x.shape[0] not in (1, queries):
        shown = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ObservationError(
            f"variable {name!r}: evidence for {queries} queries has a batch axis of size {queries} or 1, got "
            f"{shown}."
        )
    return x.expand(queries, *x.shape[1:]).repeat_interleave(repeats, 0)
