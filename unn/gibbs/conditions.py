"""Counting constraints that Markov chains keep to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor

from ..descent.plan import PlannedUpdate
from ..descent.shares import factors_share
from ..descent.state import State
from ..descent.updates import Sample
from ..errors import InferenceError
from ..graph.colouring import greedy_colours
from ..graph.declaration import Declaration
from ..graph.factor import Constraint
from ..networks.tokens import Slot, kinds
from ..noise import uniform
from ..ops.sparse import sums
from ..solver.layout import Layout

_SWEEPS = 2000
"""Most sweeps in the search for a first state that satisfies all constraints."""
_DIRECT = 20
"""Sweeps with the largest weight of violations, with which this search begins."""
_HEATING = 100
"""Sweeps in which the weight then rises, again and again."""
_WEAKEST, _STRONGEST = 0.5, 8.0
"""Weights of a violation at the start and the end of these sweeps."""
_DENSE = 2**16
"""Entries up to which matrices are dense: products with small sparse ones cost more."""


def refusal_of_constraints(graph: Declaration) -> str:
    """Why chains cannot keep to a constraint, in one sentence that names it; empty if they can."""
    discrete = [name for name, kind in kinds(graph).items() if kind != "real"]
    for constraint in graph.constraints:
        kind = type(constraint).__name__
        if type(constraint).groups is Constraint.groups:
            return (
                f"constraint {constraint.name!r} ({kind}) has no energy and does not count entries, so that "
                "chains cannot keep to it"
            )
        for name in constraint.variables:
            if name not in discrete:
                return (
                    f"constraint {constraint.name!r} ({kind}) counts entries of {name!r}, which is neither "
                    "categorical nor binary, so that chains cannot keep to it"
                )
    return ""


class Conditions:
    """The constraints of a graph, as limits on the number of ones in groups of candidates (node, value).

    Draws of a node leave out the values that would break a constraint, given all other nodes; nodes without
    a common group are drawn at once. In groups with a fixed number of ones, where a single node often has
    one value left, pairs of nodes exchange their values.

    Args:
        state: values of all variables; discrete ones are one-hot or 0 and 1.
        generator: random number generator.

    Raises:
        InferenceError: for a constraint that does not count entries at these sizes.
    """

    def __init__(self, state: State, generator: torch.Generator | None) -> None:
        self._state, self._generator = state, generator
        graph, shapes = state.plan.graph, state.evidence.shapes
        self._graph = graph
        sizes = {
            axis: size
            for name, variable in graph.variables.items()
            for axis, size in zip(variable.axes, shapes[name], strict=True)
            if axis not in graph.sizes
        }
        layout = Layout(graph, sizes)
        self._slots = layout.frame.slots
        families = layout.families[len(self._slots) :]
        counted = {family.name for family in families}
        own_shapes = {name: slot.shape for name, slot in self._slots.items()}
        for constraint in graph.constraints:
            if constraint.name not in counted and not constraint.groups(own_shapes):
                raise InferenceError(
                    f"graph {graph.name!r}: constraint {constraint.name!r} ({type(constraint).__name__}) "
                    "does not count entries at these sizes, so that chains cannot keep to it."
                )
        candidates, groups, lower, upper = [], [], [], []
        first = 0
        for family in families:
            count, members = family.entries.shape
            candidates.append(family.entries.flatten())
            groups.append(torch.arange(first, first + count).repeat_interleave(members))
            least, most = family.bounds
            lower.append(torch.full((count,), least))
            upper.append(torch.full((count,), members if most is None else most))
            first += count
        none = torch.zeros(0, dtype=torch.long)
        candidate, group = torch.cat([none, *candidates]), torch.cat([none, *groups])
        self._index(layout, candidate, group, torch.cat([none, *lower]), torch.cat([none, *upper]))
        self._fixed = self._fixed_groups(candidate, group)
        self._classes: dict[str, list[Tensor]] = {}

    def _index(self, layout: Layout, candidate: Tensor, group: Tensor, lower: Tensor, upper: Tensor) -> None:
        """Incidence of candidates, parts (the candidates of one node in a group) and groups."""
        dtype, device = self._state.evidence.like.dtype, self._state.evidence.like.device
        node = layout.frame.node_of_number
        nodes, groups, count = layout.frame.nodes, len(lower), layout.candidates
        keys, part = (group * nodes + node[candidate]).unique(return_inverse=True)
        pairs, weight = (part * count + candidate).unique(return_counts=True)
        part_group, part_node = keys // nodes, keys % nodes
        numbers = torch.arange(len(keys))
        self._node, self._nodes = node.to(device), nodes
        self._part_group, self._part_node = part_group.to(device), part_node
        self._pair_part = (pairs // count).to(device)
        self._pair_weight = weight.to(dtype).to(device)[:, None]
        self._lower, self._upper = (x.to(dtype).to(device)[:, None] for x in (lower, upper))

        def matrix(sets: Tensor, members: Tensor, rows: int, columns: int) -> Tensor:
            x = sums(sets, members, (rows, columns), dtype)
            return (x.to_dense() if rows * columns <= _DENSE else x).to(device)

        self._to_parts = matrix(part, candidate, len(keys), count)
        self._to_groups = matrix(part_group, numbers, groups, len(keys))
        self._to_nodes = matrix(part_node, numbers, nodes, len(keys))
        self._to_candidates = matrix(pairs % count, torch.arange(len(pairs)), count, len(pairs))
        self._never = layout.never.to(dtype).to(device)[:, None]

    def _fixed_groups(self, candidate: Tensor, group: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """By variable, the nodes of groups with a fixed number of ones: padded, shape ``(groups, most)``, and
        how many each has."""
        fixed: dict[str, list[Tensor]] = {}
        exact = (self._lower == self._upper)[:, 0].cpu()
        node = self._node.cpu()
        for number in exact.nonzero()[:, 0].tolist():
            members = node[candidate[group == number]].unique()
            for name, slot in self._slots.items():
                inside = (members >= slot.nodes.start) & (members < slot.nodes.stop)
                if len(members) > 1 and bool(inside.all()):
                    fixed.setdefault(name, []).append(members - slot.nodes.start)
        padded = {}
        for name, parts in fixed.items():
            most = max(map(len, parts))
            rows = torch.stack([torch.nn.functional.pad(x, (0, most - len(x))) for x in parts])
            padded[name] = (rows, torch.tensor([len(x) for x in parts]))
        return padded

    def covers(self, name: str) -> bool:
        """Whether a variable is in a constraint."""
        return any(name in constraint.variables for constraint in self._graph.constraints)

    def satisfied(self) -> Tensor:
        """Mask of the chains whose values satisfy all constraints, shape ``(batch,)``."""
        return self._satisfied(self._candidates(self._state.values))

    @torch.no_grad()
    def settle(self) -> None:
        """Move the chains that violate constraints to values that satisfy them.

        Nodes are drawn with a weight of violations that rises and falls, until all chains have none. This
        start has no distribution of its own; sweeps follow it.

        Raises:
            InferenceError: for chains that do not get there.
        """
        rule = self._state.rule
        assert isinstance(rule, Sample)
        evidence, plan = self._state.evidence, self._state.plan
        names = [name for name in plan.free if self.covers(name)]
        steps = plan.steps(names, evidence.shapes, evidence.like.device)
        bad = ~self.satisfied()
        for number in range(_SWEEPS if steps else 0):
            if not bool(bad.any()):
                break
            weight = _weight(number)
            for step in steps:
                self._draw(step, weight, bad)
            bad = ~self.satisfied()
        if bool(bad.any()):
            raise InferenceError(
                f"graph {self._graph.name!r}: no values that satisfy all constraints and the evidence were "
                f"reached in {int(bad.sum())} of {len(bad)} chains; there may be none. The engine 'search' "
                "solves constraints, and a part of its answer can be given here as evidence."
            )
        self._require_satisfied()

    def _require_satisfied(self) -> None:
        """Check the constraints by themselves, whose groups may be less than they ask for."""
        values = {name: self._state.result(name) for name in self._graph.variables}
        for constraint in self._graph.constraints:
            if bool((constraint.violations_of(values) > 0).any()):
                raise InferenceError(
                    f"graph {self._graph.name!r}: counts alone do not satisfy constraint "
                    f"{constraint.name!r} ({type(constraint).__name__}), so that chains cannot keep to it."
                )

    @torch.no_grad()
    def draw(self, step: PlannedUpdate) -> None:
        """Draw a block from its conditional distribution among the values that break no constraint."""
        self._draw(step, None, None)

    def _draw(self, step: PlannedUpdate, weight: float | None, chains: Tensor | None) -> None:
        """Draw a block, class by class.

        Args:
            step: block, affine in the energy given the others.
            weight: weight of a violation; None for draws that have none.
            chains: mask of the chains that move; all if None.
        """
        state, rule, name = self._state, self._state.rule, step.name
        assert isinstance(rule, Sample)
        regularizer, mask = state.evidence.regularizers[name], state.evidence.masks.get(name)
        t = rule.scaled(state.preactivation(step)) / rule.temperature
        t = t.expand(state.evidence.batch, *t.shape[1:])
        for nodes in self._classes_of(name):
            own = nodes if step.nodes is None else nodes & step.nodes
            if not bool(own.any()):
                continue
            excess = self._excess(self._candidates(state.values))
            scores = _without(t, self._slots[name], excess, weight)
            x = regularizer.conditional_sample(scores, 1.0, mask, self._generator)
            if chains is not None:
                along = chains.view(-1, *[1] * (x.ndim - 1))
                x = torch.where(along, x, state.values[name])
            state.replace(replace(step, nodes=own), x)

    @torch.no_grad()
    def exchange(self) -> None:
        """Propose exchanges of the values of two nodes, one after another, as many as groups with a fixed
        number of ones have nodes; accepted by the Metropolis rule."""
        state, rule = self._state, self._state.rule
        assert isinstance(rule, Sample)
        for name, (nodes, counts) in self._fixed.items():
            if name not in state.plan.free:
                continue
            factors = [f for f in state.plan.graph.energy_factors if name in f.variables]
            zero = state.evidence.like.new_zeros(state.evidence.batch)
            slot, x = self._slots[name], state.values[name]
            energy = factors_share(factors, state.values, zero)
            known = self._known(name)
            rows = torch.arange(len(x), device=x.device)
            for _ in range(int(nodes.unique().numel())):
                one, other = self._pairs(nodes, counts, x)
                flat = x.reshape(len(x), slot.nodes.stop - slot.nodes.start, -1)
                moved = flat.clone()
                moved[rows, one], moved[rows, other] = flat[rows, other], flat[rows, one]
                proposal = moved.view_as(x)
                values = {**state.values, name: proposal}
                after = factors_share(factors, values, zero)
                gain = rule.scaled(energy - after) / rule.temperature
                accepted = uniform(gain.shape, gain, self._generator).log() < gain
                accepted &= self._satisfied(self._candidates(values))
                if known is not None:
                    accepted &= ~(known[rows, one] | known[rows, other])
                x = torch.where(accepted.view(-1, *[1] * (x.ndim - 1)), proposal, x)
                energy = torch.where(accepted, after, energy)
            state.replace(PlannedUpdate(name), x)

    def _pairs(self, nodes: Tensor, counts: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Two different nodes of a random group for each chain, shape ``(batch,)`` each."""
        draws = uniform((3, len(like)), like.new_zeros(()), self._generator).double().cpu()
        group = (draws[0] * len(counts)).long().clamp(max=len(counts) - 1)
        size = counts[group]
        one = torch.minimum((draws[1] * size).long(), size - 1)
        step = 1 + torch.minimum((draws[2] * (size - 1)).long(), size - 2)
        pair = (nodes[group, one], nodes[group, (one + step) % size])
        return pair[0].to(like.device), pair[1].to(like.device)

    def _known(self, name: str) -> Tensor | None:
        """Mask of the nodes that are given, shape ``(batch, nodes)``; None if none is."""
        evidence, slot = self._state.evidence, self._slots[name]
        if name not in evidence.observed:
            return None
        where = evidence.observed[name][1].expand(evidence.batch, *evidence.shapes[name])
        return where.reshape(evidence.batch, slot.nodes.stop - slot.nodes.start, -1).any(-1)

    def _candidates(self, values: Mapping[str, Tensor]) -> Tensor:
        """Which candidates are true, shape ``(candidates, batch)``."""
        batch = self._state.evidence.batch
        parts = []
        for name, slot in self._slots.items():
            x = values[name].expand(batch, *slot.shape).reshape(batch, -1)
            parts.append(torch.stack([1 - x, x], 2).flatten(1) if slot.kind == "binary" else x)
        return torch.cat(parts, 1).T.contiguous()

    def _excess(self, z: Tensor) -> Tensor:
        """By how much the groups of its node would miss their limits if the node had each value, the others
        as they are, shape ``(candidates, batch)``."""
        own = self._to_parts @ z
        rest = (self._to_groups @ own)[self._part_group] - own
        without = self._beyond(rest, self._part_group)
        chosen = rest[self._pair_part] + self._pair_weight
        change = self._beyond(chosen, self._part_group[self._pair_part]) - without[self._pair_part]
        return (self._to_nodes @ without)[self._node] + self._to_candidates @ change + self._never

    def _satisfied(self, z: Tensor) -> Tensor:
        counts = self._to_groups @ (self._to_parts @ z)
        beyond = self._beyond(counts, torch.arange(len(counts), device=counts.device))
        return (beyond.sum(0) + (self._never * z).sum(0)) == 0

    def _beyond(self, counts: Tensor, groups: Tensor) -> Tensor:
        """Distance of counts from the limits of their groups, shape of ``counts``."""
        return (self._lower[groups] - counts).clamp(min=0) + (counts - self._upper[groups]).clamp(min=0)

    def _classes_of(self, name: str) -> list[Tensor]:
        """Nodes of a variable in classes without common groups, boolean, shape ``(1, *nodes, 1, ...)``."""
        if name not in self._classes:
            slot = self._slots[name]
            count = slot.nodes.stop - slot.nodes.start
            own = (self._part_node >= slot.nodes.start) & (self._part_node < slot.nodes.stop)
            groups = self._part_group.cpu()[own].numpy()
            nodes = (self._part_node[own] - slot.nodes.start).numpy()
            shape = (len(self._lower), count)
            incidence = coo_array((np.ones(len(nodes)), (groups, nodes)), shape=shape).tocsr()
            features = [1] * (len(slot.shape) - len(slot.node_shape))
            colours = torch.from_numpy(greedy_colours(incidence.T @ incidence))
            colours = colours.view(1, *slot.node_shape, *features).to(self._state.evidence.like.device)
            self._classes[name] = [colours == colour for colour in range(int(colours.max()) + 1)]
        return self._classes[name]


def _weight(sweep: int) -> float:
    """Weight of a violation in a sweep of the search for a first state."""
    if sweep < _DIRECT:
        return _STRONGEST
    share = (sweep - _DIRECT) % _HEATING / (_HEATING - 1)
    return _WEAKEST * math.exp(share * math.log(_STRONGEST / _WEAKEST))


def _without(t: Tensor, slot: Slot, excess: Tensor, weight: float | None) -> Tensor:
    """Scores less a penalty for each violation, or -inf (inf where 0 is excluded) for values that violate.

    Args:
        t: scores, shape ``(batch, *axes)``.
        slot: layout of the variable.
        excess: violations by candidate, shape ``(candidates, batch)``.
        weight: weight of a violation; None excludes them.
    """
    own = excess[slot.numbers].T
    if slot.kind == "binary":
        zero, one = own[:, ::2].reshape(t.shape), own[:, 1::2].reshape(t.shape)
        if weight is not None:
            return t + weight * (zero - one)
        t = torch.where(one > 0, -math.inf, t)
        return torch.where((zero > 0) & (one == 0), math.inf, t)
    own = own.reshape(t.shape)
    return t - weight * own if weight is not None else torch.where(own > 0, -math.inf, t)
