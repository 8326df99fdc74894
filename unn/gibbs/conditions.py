"""Counting constraints that Markov chains keep to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..descent.entries import entries_of
from ..descent.plan import PlannedUpdate
from ..descent.shares import factors_share
from ..descent.state import State
from ..descent.updates import Sample
from ..errors import InferenceError, ObservationError
from ..graph.declaration import Declaration
from ..networks.tokens import Slot, kinds
from ..noise import uniform
from ..regularizers import BinaryEntropy, Entropy, SimplexNorm, TsallisEntropy
from ..solver.layout import Layout
from .limits import Exchangeable, Limits

_DIRECT = 20
"""Sweeps with the largest weight of violations, with which the search for first states begins."""
_HEATING = 100
"""Sweeps in which the weight then rises, again and again."""
_SWEEPS = _DIRECT + 4 * _HEATING
"""Most sweeps in this search."""
_WEAKEST, _STRONGEST = 0.5, 8.0
"""Weights of a violation at the start and the end of these sweeps."""
_PREFERENCE = 4.0
"""Largest difference of the scores of a node in the sweeps in which the weight rises. Scores that differ by
more than the largest weight would keep a chain at values that violate."""
_DISCRETE = (BinaryEntropy, Entropy, SimplexNorm, TsallisEntropy)
"""Regularizers under which every value of a node is possible; derived ones may exclude some."""


def refusal_of_constraints(graph: Declaration) -> str:
    """Why chains cannot keep to a constraint, in one sentence that names it; empty if they can."""
    discrete = [
        name
        for name, kind in kinds(graph).items()
        if kind != "real" and type(graph.variables[name].regularizer) in _DISCRETE
    ]
    for constraint in graph.constraints:
        kind = type(constraint).__name__
        if not constraint.is_counted:
            return (
                f"constraint {constraint.name!r} ({kind}) has no energy and does not count entries, so that "
                "chains cannot keep to it"
            )
        for name in constraint.variables:
            if name not in discrete:
                return (
                    f"constraint {constraint.name!r} ({kind}) counts entries of {name!r}, which is neither "
                    "binary nor categorical with all categories allowed, so that chains cannot keep to it"
                )
    return ""


class Conditions:
    """The constraints of a graph, as limits on the number of ones in groups of candidates (node, value).

    Draws of a node leave out the values that would break a constraint, given all other nodes; nodes without
    a common group are drawn at once, so that the cost is quadratic in the size of a group. In groups with a
    fixed number of ones, where a single node often has one value left, pairs of nodes exchange their values.

    Args:
        state: values of all variables.
        queries: number of queries, each with equally many neighbouring batch elements.
        generator: random number generator.

    Raises:
        ObservationError: for evidence on a constrained variable that is not 0 or 1.
    """

    def __init__(self, state: State, queries: int, generator: torch.Generator | None) -> None:
        self._state, self._queries, self._generator = state, queries, generator
        self._moved = torch.zeros(state.evidence.batch, dtype=torch.bool, device=state.evidence.like.device)
        graph, shapes = state.plan.graph, state.evidence.shapes
        self._graph = graph
        sizes = {
            axis: size
            for name, variable in graph.variables.items()
            for axis, size in zip(variable.axes, shapes[name], strict=True)
            if axis not in graph.sizes
        }
        layout = Layout(graph, sizes)
        self._limits = Limits(layout, state.evidence.like.device)
        self._exchangeable = self._limits.exchangeable()
        self._check_evidence()

    def _check_evidence(self) -> None:
        """Check that what is given of constrained variables is 0 or 1.

        Raises:
            ObservationError: names the variable.
        """
        evidence = self._state.evidence
        for name in filter(self.covers, self._limits.slots):
            value, where = evidence.observed.get(name, (None, None))
            x = evidence.values[name] if name not in self._state.plan.free else value
            if x is None:
                continue
            good = (x == 0) | (x == 1)
            if where is not None:
                good = good | ~where
            if not bool(good.all()):
                raise ObservationError(
                    f"graph {self._graph.name!r}: variable {name!r} is in a constraint, so that its evidence "
                    "must be 0 or 1."
                )

    def covers(self, name: str) -> bool:
        """Whether a variable is in a constraint."""
        return any(name in constraint.variables for constraint in self._graph.constraints)

    def satisfied(self) -> Tensor:
        """Mask of the chains whose values satisfy all constraints, shape ``(batch,)``."""
        return self._limits.satisfied(self._candidates(self._state.values))

    @torch.no_grad()
    def settle(self) -> None:
        """Move the chains that violate constraints to values that satisfy them.

        Nodes are drawn with a weight of violations that rises and falls, and from scores of limited
        difference after the first attempt, until all chains have none; chains that do not get there in time
        start where another one of their query is. This start has no distribution of its own; sweeps follow
        it.

        Raises:
            InferenceError: for queries of which no chain gets there.
        """
        evidence, plan = self._state.evidence, self._state.plan
        names = [name for name in plan.free if self.covers(name)]
        steps = plan.steps(names, evidence.shapes, evidence.like.device)
        bad = ~self.satisfied()
        for number in range(_SWEEPS if steps else 0):
            if number >= _DIRECT + _HEATING:
                bad = self._copied(bad)
            if not bool(bad.any()):
                break
            search = _Search(_weight(number), math.inf if number < _DIRECT else _PREFERENCE)
            for step in steps:
                self._draw(step, search, bad)
            bad = ~self.satisfied()
        if bool(bad.any()):
            queries = bad.view(self._queries, -1).any(1).nonzero()[:, 0].tolist()
            shown = ", ".join(map(str, queries[:5])) + (", ..." if len(queries) > 5 else "")
            raise InferenceError(
                f"graph {self._graph.name!r}: no chain reached values that satisfy all constraints and the "
                f"evidence of query {shown} of {self._queries}; there may be none. The engine 'search' "
                "solves constraints, and a part of its answer can be given here as evidence."
            )
        self._moved.zero_()
        self.require_satisfied()

    def _copied(self, bad: Tensor) -> Tensor:
        """Start chains that violate constraints where a chain of the same query satisfies them; returns those
        that still violate."""
        rows = bad.view(self._queries, -1)
        donor = (
            torch.rand(rows.shape, generator=self._generator).to(bad.device).masked_fill(rows, -1.0).argmax(1)
        )
        solved = ~rows.all(1)
        first = torch.arange(self._queries, device=bad.device) * rows.shape[1]
        source = (first + donor)[:, None].expand(rows.shape).flatten()
        moved = bad & solved.repeat_interleave(rows.shape[1])
        for name in self._state.plan.free:
            x = self._state.values[name]
            along = moved.view(-1, *[1] * (x.ndim - 1))
            self._state.replace(PlannedUpdate(name), torch.where(along, x[source], x))
        return bad & ~moved

    def held(self) -> Tensor:
        """Mask of the queries of which no constrained value of any chain has changed since the start,
        although its chains, if there are several, have different values; shape ``(queries,)``."""
        moved = self._moved.view(self._queries, -1).any(1)
        if not any(self.covers(name) for name in self._state.plan.free):
            return torch.zeros_like(moved)
        z = self._candidates(self._state.values).T
        z = z.view(self._queries, len(z) // self._queries, -1)
        return ~moved & ((z != z[:, :1]).any(2).any(1) | (z.shape[1] == 1))

    def require_satisfied(self) -> None:
        """Check the constraints by themselves, whose groups may be less than they ask for.

        Raises:
            InferenceError: names the first that values violate.
        """
        values = {name: self._state.result(name) for name in self._graph.variables}
        for constraint in self._graph.constraints:
            if bool((constraint.violations_of(values) > 0).any()):
                raise InferenceError(
                    f"graph {self._graph.name!r}: values with the counts of constraint {constraint.name!r} "
                    f"({type(constraint).__name__}) violate it; it cannot be satisfied, or chains cannot "
                    "keep to it."
                )

    @torch.no_grad()
    def draw(self, step: PlannedUpdate) -> None:
        """Draw a block from its conditional distribution among the values that break no constraint."""
        self._draw(step, None, None)

    def _draw(self, step: PlannedUpdate, search: _Search | None, chains: Tensor | None) -> None:
        """Draw a block, class by class.

        Args:
            step: block, affine in the energy given the others.
            search: of a first state; None for draws that violate nothing.
            chains: mask of the chains that move; all if None.
        """
        state, rule, name = self._state, self._state.rule, step.name
        assert isinstance(rule, Sample)
        regularizer, mask = state.evidence.regularizers[name], state.evidence.masks.get(name)
        t = state.preactivation(step)
        t = rule.scaled(t.expand(state.evidence.batch, *t.shape[1:]), state.separate(name)) / rule.temperature
        for nodes in self._limits.classes(name):
            own = nodes if step.nodes is None else nodes & step.nodes
            if not bool(own.any()):
                continue
            excess = self._limits.excess(self._candidates(state.values))
            scores = _without(t, self._limits.slots[name], excess, search)
            old = state.values[name]
            x = regularizer.conditional_sample(scores, 1.0, mask, self._generator).to(old.dtype)
            if chains is not None:
                along = chains.view(-1, *[1] * (x.ndim - 1))
                x = torch.where(along, x, old)
            state.replace(replace(step, nodes=own), x)
            self._moved |= entries_of(state.values[name] != old).any(1)

    @torch.no_grad()
    def exchange(self) -> None:
        """Propose exchanges of the values of two nodes, one after another, as many as groups with a fixed
        number of ones have nodes; accepted by the Metropolis rule."""
        for family in self._exchangeable:
            if any(name in self._state.plan.free for name in family.names):
                self._exchange(family)

    def _exchange(self, family: Exchangeable) -> None:
        state, rule = self._state, self._state.rule
        assert isinstance(rule, Sample)
        factors = [f for f in state.plan.graph.energy_factors if set(f.variables) & set(family.names)]
        alone = [f for f in factors if f in state.plan.separate_factors]
        zero = state.evidence.like.new_zeros(state.evidence.batch)

        def counted(values: Mapping[str, Tensor]) -> Tensor:
            return rule.scaled(factors_share(factors, values, zero), factors_share(alone, values, zero))

        energy, known = counted(state.values), self._known(family.names)
        x = self._limits.rows(state.values, family.names, len(zero))
        rows = torch.arange(len(x), device=x.device)
        for _ in range(int(family.nodes.unique().numel())):
            one, other = self._pairs(family, zero)
            proposal = x.clone()
            proposal[rows, one], proposal[rows, other] = x[rows, other], x[rows, one]
            values = {**state.values, **self._limits.values_of(proposal, family.names)}
            after = counted(values)
            gain = (energy - after) / rule.temperature
            accepted = uniform(gain.shape, gain, self._generator).log() < gain
            accepted &= self._limits.satisfied(self._candidates(values))
            accepted &= ~(known[rows, one] | known[rows, other])
            self._moved |= accepted & (x[rows, one] != x[rows, other]).any(1)
            x = torch.where(accepted[:, None, None], proposal, x)
            energy = torch.where(accepted, after, energy)
        for name, value in self._limits.values_of(x, family.names).items():
            if name in state.plan.free:
                state.replace(PlannedUpdate(name), value)

    def _pairs(self, family: Exchangeable, like: Tensor) -> tuple[Tensor, Tensor]:
        """Two different nodes of a random group for each chain, shape ``(batch,)`` each."""
        draws = uniform((3, len(like)), like.new_zeros((), dtype=torch.float64), self._generator).cpu()
        group = (draws[0] * len(family.sizes)).long().clamp(max=len(family.sizes) - 1)
        size = family.sizes[group]
        one = torch.minimum((draws[1] * size).long(), size - 1)
        step = 1 + torch.minimum((draws[2] * (size - 1)).long(), size - 2)
        pair = (family.nodes[group, one], family.nodes[group, (one + step) % size])
        return pair[0].to(like.device), pair[1].to(like.device)

    def _known(self, names: list[str]) -> Tensor:
        """Mask of the nodes that are given, shape ``(batch, nodes)``."""
        evidence, masks = self._state.evidence, {}
        for name in names:
            shape = (evidence.batch, *self._limits.slots[name].shape)
            if name not in self._state.plan.free:
                masks[name] = torch.ones(shape, dtype=torch.bool, device=evidence.like.device)
            elif name in evidence.observed:
                masks[name] = evidence.observed[name][1].expand(shape)
            else:
                masks[name] = torch.zeros(shape, dtype=torch.bool, device=evidence.like.device)
        return self._limits.rows(masks, names, evidence.batch).any(-1)

    def _candidates(self, values: Mapping[str, Tensor]) -> Tensor:
        return self._limits.candidates(values, self._state.evidence.batch)


def _weight(sweep: int) -> float:
    """Weight of a violation in a sweep of the search for a first state."""
    if sweep < _DIRECT:
        return _STRONGEST
    share = (sweep - _DIRECT) % _HEATING / (_HEATING - 1)
    return _WEAKEST * math.exp(share * math.log(_STRONGEST / _WEAKEST))


@dataclass(frozen=True)
class _Search:
    """How nodes are drawn in a sweep of the search for a first state.

    Attributes:
        weight: weight of a violation.
        preference: largest difference of the scores of a node.
    """

    weight: float
    preference: float

    def limited(self, t: Tensor, slot: Slot) -> Tensor:
        """Scores of a variable, shape ``(batch, *axes)``, whose differences at each node are limited."""
        if self.preference == math.inf:
            return t
        if slot.kind == "binary":
            return t.clamp(-self.preference, self.preference)
        below = t - t.amax(-1, keepdim=True)
        return below * (self.preference / -below.amin(-1, keepdim=True).clamp(max=-self.preference))


def _without(t: Tensor, slot: Slot, excess: Tensor, search: _Search | None) -> Tensor:
    """Scores less a penalty for each violation, or -inf (inf where 0 is excluded) for values that violate.

    Args:
        t: scores, shape ``(batch, *axes)``.
        slot: layout of the variable.
        excess: violations by candidate, shape ``(candidates, batch)``.
        search: of a first state; None excludes values that violate.
    """
    own = excess[slot.numbers].T
    if slot.kind == "binary":
        zero, one = own[:, ::2].reshape(t.shape), own[:, 1::2].reshape(t.shape)
        if search is not None:
            return search.limited(t, slot) + search.weight * (zero - one)
        t = torch.where(one > 0, -math.inf, t)
        return torch.where((zero > 0) & (one == 0), math.inf, t)
    own = own.reshape(t.shape)
    if search is not None:
        return search.limited(t, slot) - search.weight * own
    return torch.where(own > 0, -math.inf, t)
