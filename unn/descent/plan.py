"""The compiled graph: which messages reach which variable, and how each block is minimised. Found once, run often."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Literal

import torch
from torch import Tensor

from ..cache import BoundedCache
from ..errors import InferenceError, unknown
from ..graph.arrays import Variable
from ..graph.colouring import colour_classes, meets_itself, node_pairs
from ..graph.declaration import Declaration
from ..graph.factor import EnergyFactor, Factor, SharedMessages
from ..graph.interactions import Shapes
from .orders import Block, Item, Listed, Order

How = Literal["closed form", "coloured", "inner solver"]


@dataclass(frozen=True, eq=False)
class Inlet:
    """A message into a variable.

    Attributes:
        factor: that sends it.
        sources: the variables on whose values it depends.
        key: identifies the message among all of the plan.
        shared: the factor, if its messages can be computed in parts.
    """

    factor: EnergyFactor
    sources: tuple[str, ...]
    key: int
    shared: SharedMessages | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """One update.

    Attributes:
        name: the variable.
        nodes: only these of its nodes: boolean, ready to broadcast against ``(batch, *axes)``.
        reused: keys of the messages that are still valid at the variable's next update, so worth keeping; None if that is not known.
        round: the number of its round, from 0.
    """

    name: str
    nodes: Tensor | None = None
    reused: frozenset[int] | None = None
    round: int = 0

    def __str__(self) -> str:
        return self.name if self.nodes is None else f"{self.name} ({int(self.nodes.sum())} nodes)"


def require_energies(graph: Declaration) -> None:
    """Check that every factor has an energy.

    Raises:
        InferenceError: names the first that has none.
    """
    for factor in graph.factors.values():
        if not isinstance(factor, EnergyFactor):
            raise InferenceError(f"graph {graph.name!r}: {factor.refusal()}")


class Plan:
    """How to run coordinate descent on a graph when some variables are fixed.

    Args:
        graph: complete, with all parameters.
        fixed: names of fully observed variables.

    Raises:
        InferenceError: if a factor has no energy; names it.
        DeclarationError: if a parameter lacks sizes.
    """

    def __init__(self, graph: Declaration, fixed: frozenset[str]) -> None:
        graph.require_parameters()
        require_energies(graph)
        self.graph = graph
        self.free = tuple(name for name in graph.variables if name not in fixed)
        self.static: dict[str, list[Inlet]] = {name: [] for name in self.free}
        self.changing: dict[str, list[Inlet]] = {name: [] for name in self.free}
        self.how: dict[str, How] = dict.fromkeys(self.free, "closed form")
        self.curved_neighbours: set[str] = set()
        key = 0
        for factor in graph.energy_factors:
            shared = factor if isinstance(factor, SharedMessages) else None
            free = [name for name in factor.variables if name in self.how]
            for name in free:
                variable = graph.variables[name]
                affine = factor.affine_in(name)
                own = [] if affine else [name]
                sources = tuple(own + [other for other in free if other != name])
                (self.changing if sources else self.static)[name].append(Inlet(factor, sources, key, shared))
                key += 1
                if affine:
                    continue
                if factor.multilinear and meets_itself(factor, variable) and self.how[name] != "inner solver":
                    self.how[name] = "coloured"
                else:
                    self.how[name] = "inner solver"
            if not factor.multilinear:
                self.curved_neighbours.update(free)
        for name, how in self.how.items():
            if how == "coloured" and not graph.variables[name].node_axes:
                self.how[name] = "inner solver"
        self._colours: BoundedCache[object, list[Tensor] | None] = BoundedCache(64)

    @classmethod
    def of(cls, graph: Declaration, fixed: Collection[str]) -> Plan:
        """The plan for these observed variables; made once for a graph and kept until its declaration changes."""
        key = frozenset(name for name in fixed if name in graph.variables)
        return graph.memo((cls, key), lambda: cls(graph, key))

    def prepare(self) -> None:
        """Let every factor do its once-only work now, for the sizes known from the declaration."""
        table = self.graph.size_table
        typical = {axis: size for a in self.graph.arrays.values() for axis in a.axes if (size := table.static.get(table.root(axis)))}
        for factor in self.graph.factors.values():
            factor.prepare(typical)

    def factors_of(self, name: str) -> list[EnergyFactor]:
        """The factors that touch a free variable."""
        return [inlet.factor for inlet in (*self.static[name], *self.changing[name])]

    def steps(self, items: Sequence[Item], shapes: Shapes, device: torch.device) -> list[Step]:
        """The exact updates that an order's blocks stand for; a variable that meets itself becomes its colour classes.

        Raises:
            InferenceError: for a block whose nodes interact or whose shape does not fit.
        """
        out: list[Step] = []
        # steps outlive the call: nodes made as inference tensors could not be saved for a later backward pass
        with torch.inference_mode(False):
            for item in items:
                if isinstance(item, Block):
                    out.append(self._block(item, shapes, device))
                    continue
                classes = self._classes(item, shapes, device) if self.how[item] == "coloured" else None
                out.extend([Step(item)] if classes is None else [Step(item, nodes) for nodes in classes])
        return out

    def _classes(self, name: str, shapes: Shapes, device: torch.device) -> list[Tensor] | None:
        factors = [factor for factor in self.factors_of(name) if not factor.affine_in(name)]
        involved = dict.fromkeys([name, *(array for factor in factors for array in factor.operands)])
        key = (name, device, tuple(shapes[array] for array in involved))

        def colour() -> list[Tensor] | None:
            variable = self.graph.variables[name]
            classes = colour_classes(variable, factors, shapes)
            if classes is None:
                return None
            return [_spread(torch.from_numpy(nodes).to(device), variable) for nodes in classes]

        return self._colours.get_or_make(key, colour)

    def _block(self, block: Block, shapes: Shapes, device: torch.device) -> Step:
        variable = self.graph.variable_named(block.name)
        shape = shapes[block.name][: len(variable.node_axes)]
        if not isinstance(block.nodes, Tensor):
            raise InferenceError(f"order: a block of variable {block.name!r} needs boolean nodes of shape {shape} as a tensor, got {block.nodes!r}.")
        if block.nodes.dtype != torch.bool or tuple(block.nodes.shape) != shape:
            raise InferenceError(
                f"order: a block of variable {block.name!r} needs boolean nodes of shape {shape}, "
                f"got {block.nodes.dtype} of shape {tuple(block.nodes.shape)}."
            )
        if block.nodes.device.type == "meta" != device.type:
            raise InferenceError(f"order: the nodes of a block of variable {block.name!r} are on device {block.nodes.device}, which holds no values.")
        nodes = block.nodes.to(device, copy=True)
        if self.how[block.name] == "coloured":
            flat = nodes.flatten().cpu().numpy()
            for factor in self.factors_of(block.name):
                if meets_itself(factor, variable):
                    pairs = node_pairs(factor, variable, shapes)
                    clash = pairs[flat[pairs[:, 0]] & flat[pairs[:, 1]]]
                    if len(clash):
                        raise InferenceError(
                            f"order: a block of variable {block.name!r} holds nodes {int(clash[0, 0])} and {int(clash[0, 1])} (counted flat), "
                            f"which interact in factor {factor.name!r}; name only nodes without interaction, or the whole variable."
                        )
        return Step(block.name, _spread(nodes, variable))


def check_order(graph: Declaration, order: Order, fixed: Collection[str], present: Collection[str]) -> None:
    """Check the names of an order against what is given.

    Raises:
        InferenceError: for unknown or observed names, for everything given, and for variables that nothing would ever set.
    """
    free = [name for name in graph.variables if name not in fixed]
    if not free:
        raise InferenceError(f"graph {graph.name!r}: every variable is given, so nothing is left to infer; leave out the ones you want.")
    for name in order.names:
        if name not in graph.variables:
            raise InferenceError(f"order: graph {graph.name!r}: " + unknown("variable", name, graph.variables))
        if name in fixed:
            raise InferenceError(f"order: variable {name!r} is given, so it cannot be updated; leave it out of the order, or of what is given.")
    for name in free:
        if name not in order.names and name not in present:
            raise InferenceError(
                f"order: variable {name!r} is neither given nor in the order {list(order.names)}; add it, give it, or hold it with "
                f"initial={{{name!r}: 'zero'}}."
            )


def check_reach(graph: Declaration, given: Collection[str], fixed: Collection[str], want: Collection[str]) -> None:
    """Check that what is given can influence what is wanted.

    Raises:
        InferenceError: for an unknown or observed name, or one that no chain of factors connects to what is given.
    """
    reached = set(given)
    frontier = list(given)
    neighbours: dict[str, set[str]] = {}
    for factor in graph.factors.values():
        for name in factor.operands:
            neighbours.setdefault(name, set()).update(factor.variables)
    while frontier:
        for name in neighbours.get(frontier.pop(), ()):
            if name not in reached:
                reached.add(name)
                frontier.append(name)
    for name in want:
        if name not in graph.variables:
            raise InferenceError(f"want: graph {graph.name!r}: " + unknown("variable", name, graph.variables))
        if name in fixed:
            raise InferenceError(f"want: variable {name!r} is given, so there is nothing to infer; want another one.")
        if name not in reached:
            raise InferenceError(
                f"want: variable {name!r} cannot be reached from what is given ({', '.join(sorted(given)) or 'nothing'}): "
                "no chain of factors connects them; add a factor, or give a variable that it meets."
            )


def default_order(graph: Declaration, given: Mapping[str, object] | Collection[str], fixed: Collection[str]) -> tuple[str, ...]:
    """The free variables by their distance from what is given, ties in the order of declaration."""
    meets: dict[str, list[Factor]] = {}
    for factor in graph.factors.values():
        for name in factor.variables:
            meets.setdefault(name, []).append(factor)
    distance = {name: 0 for name in given if name in graph.variables}
    frontier = list(distance)
    for name in frontier:
        for factor in meets.get(name, ()):
            for other in factor.variables:
                if other not in distance:
                    distance[other] = distance[name] + 1
                    frontier.append(other)
    free = [name for name in graph.variables if name not in fixed]
    return tuple(sorted(free, key=lambda name: distance.get(name, len(frontier))))


def live_steps(plan: Plan, steps: Sequence[Step], want: Collection[str], overwrites: bool = True) -> list[Step]:
    """The steps that can influence the last values of what is wanted; the others need not run.

    Args:
        plan: of the graph.
        steps: the whole schedule.
        want: names of variables.
        overwrites: is the value that an update leaves independent of the one before, if all nodes are updated?
    """
    needed = set(want)
    live: list[Step] = []
    for step in reversed(steps):
        if step.name not in needed:
            continue
        live.append(step)
        # a variable whose update reads its own value is among its sources, and so needed again below
        if step.nodes is None and overwrites:
            needed.discard(step.name)
        for inlet in plan.changing[step.name]:
            needed.update(inlet.sources)
    return live[::-1]


def mark_reuse(plan: Plan, steps: Sequence[Step], cyclic: bool) -> list[Step]:
    """The same steps, each with the messages that its variable's next update will find unchanged.

    Args:
        plan: of the graph.
        steps: a schedule.
        cyclic: does the schedule repeat? If not, nothing need be kept past a variable's last update.
    """
    # backwards, with the place of the next update of each variable; of a schedule that repeats, that of its next round
    following: dict[str, int] = {}
    if cyclic:
        following = {step.name: place + len(steps) for place, step in reversed(list(enumerate(steps)))}
    marked: list[Step] = []
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        until = following.get(step.name)
        reused: frozenset[int] = frozenset()
        if until is not None:
            # unchanged: neither this variable nor one that is updated before its next update
            reused = frozenset(
                inlet.key
                for inlet in plan.changing[step.name]
                if all(source != step.name and following.get(source, until) >= until for source in inlet.sources)
            )
        marked.append(replace(step, reused=reused))
        following[step.name] = place
    return marked[::-1]


def steps_by_round(
    plan: Plan, order: Order, shapes: Shapes, device: torch.device, generator: torch.Generator | None
) -> Iterator[list[Step]]:
    """The steps of one round after another, without end; those of a list are compiled once.

    Args:
        plan: of the graph.
        order: of the blocks.
        shapes: of all arrays, without batch axes.
        device: of the run.
        generator: of random orders.
    """
    if isinstance(order, Listed):
        yield from repeat(mark_reuse(plan, plan.steps(order.round(generator), shapes, device), cyclic=True))
    while True:
        yield plan.steps(order.round(generator), shapes, device)


def _spread(nodes: Tensor, variable: Variable) -> Tensor:
    """Node flags with axes of size 1 for the batch and the features."""
    return nodes.view(1, *nodes.shape, *[1] * (len(variable.axes) - nodes.ndim))
