"""The compiled graph: which messages reach which variable, and how each block is minimised."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..cache import BoundedCache
from ..errors import InferenceError
from ..graph.arrays import Variable
from ..graph.colouring import colour_classes, meets_itself, node_pairs
from ..graph.declaration import Declaration
from ..graph.factor import EnergyFactor, SharedMessages
from ..graph.fusion import Fusion
from ..graph.interactions import Shapes
from ..plain import array_of, planned
from .orders import Block, Item, Order

UpdateKind = Literal["closed form", "coloured", "inner solver"]


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
class PlannedUpdate:
    """One update.

    Attributes:
        name: the variable.
        nodes: only these of its nodes: boolean, ready to broadcast against ``(batch, *axes)``.
        reused: keys of the messages that are still valid at the variable's next update, so worth keeping;
            None if that is not known.
        round: the number of its round, from 0.
        rows: only in these batch elements, shape ``(batch,)``; in all if None.
    """

    name: str
    nodes: Tensor | None = None
    reused: frozenset[int] | None = None
    round: int = 0
    rows: Tensor | None = None

    def __str__(self) -> str:
        return self.name if self.nodes is None else f"{self.name} ({int(self.nodes.sum())} nodes)"


@dataclass(frozen=True, eq=False)
class FusedSum:
    """The sum of the messages to a variable that a fusion computes at once.

    Attributes:
        number: place of the fusion that computes it among those of the run.
        keys: by name of a replaced factor, the key of its message; None if the message never changes.
        complete: whether there are no other messages to the variable.
    """

    number: int
    keys: Mapping[str, int | None]
    complete: bool

    def reused(self, step: PlannedUpdate) -> frozenset[str] | None:
        """Names of the factors whose messages are valid at the next update; None if that is not known."""
        if step.reused is None:
            return None
        return frozenset([name for name, key in self.keys.items() if key is None or key in step.reused])


@dataclass(frozen=True, eq=False)
class Reception:
    """Sources of the messages of each variable: fusions, and factors that no fusion covers.

    Attributes:
        static: by variable, the messages that never change.
        changing: by variable, the messages that depend on values of free variables.
        fused: by variable, the sum that a fusion computes; variables without one are missing.
        fusions: rules that compute the messages of several factors at once.
    """

    static: Mapping[str, Sequence[Inlet]]
    changing: Mapping[str, Sequence[Inlet]]
    fused: Mapping[str, FusedSum]
    fusions: tuple[Fusion, ...]


def require_energies(graph: Declaration) -> None:
    """Check that every factor has an energy.

    Raises:
        InferenceError: names the first that has none.
    """
    for factor in graph.factors.values():
        if not isinstance(factor, EnergyFactor):
            raise InferenceError(f"graph {graph.name!r}: {factor.refusal()}")


class Plan:
    """Compiled coordinate descent on a graph for a set of fixed variables.

    Args:
        graph: complete, with all parameters.
        fixed: names of fully observed variables.

    Raises:
        DeclarationError: if a parameter lacks sizes.
    """

    def __init__(self, graph: Declaration, fixed: frozenset[str]) -> None:
        graph.require_parameters()
        self.graph = graph
        self.free = tuple(name for name in graph.variables if name not in fixed)
        self.static: dict[str, list[Inlet]] = {name: [] for name in self.free}
        self.changing: dict[str, list[Inlet]] = {name: [] for name in self.free}
        self.update_kinds: dict[str, UpdateKind] = dict.fromkeys(self.free, "closed form")
        self.curved_neighbours: set[str] = set()
        key = 0
        for factor in graph.energy_factors:
            shared = factor if isinstance(factor, SharedMessages) else None
            free = [name for name in factor.variables if name in self.update_kinds]
            for name in free:
                variable = graph.variables[name]
                affine = factor.affine_in(name)
                own = [] if affine else [name]
                sources = tuple(own + [other for other in free if other != name])
                (self.changing if sources else self.static)[name].append(Inlet(factor, sources, key, shared))
                key += 1
                if affine:
                    continue
                if (
                    factor.multilinear
                    and meets_itself(factor, variable)
                    and self.update_kinds[name] != "inner solver"
                ):
                    self.update_kinds[name] = "coloured"
                else:
                    self.update_kinds[name] = "inner solver"
            if not factor.multilinear:
                self.curved_neighbours.update(free)
        for name, how in self.update_kinds.items():
            if how == "coloured" and not graph.variables[name].node_axes:
                self.update_kinds[name] = "inner solver"
        self._colours: BoundedCache[object, list[Tensor] | None] = BoundedCache(64)
        self._pairs: BoundedCache[object, np.ndarray] = BoundedCache(64)
        self._lasting_rounds: BoundedCache[object, list[PlannedUpdate]] = BoundedCache(16)
        self._single = Reception(self.static, self.changing, {}, ())
        self._receptions: BoundedCache[tuple[int, ...], Reception] = BoundedCache(8)

    @classmethod
    def of(cls, graph: Declaration, fixed: Collection[str]) -> Plan:
        """The plan for these observed variables, kept until the declaration of the graph changes.

        Raises:
            InferenceError: if a factor has no energy; names it.
            DeclarationError: if a parameter lacks sizes.
        """
        require_energies(graph)
        return cls.of_energies(graph, fixed)

    @classmethod
    def of_energies(cls, graph: Declaration, fixed: Collection[str]) -> Plan:
        """As ``of``, for methods that keep to the factors without an energy in another way."""
        key = frozenset(name for name in fixed if name in graph.variables)
        return graph.memo((cls, key), lambda: cls(graph, key))

    @cached_property
    def separate_factors(self) -> tuple[EnergyFactor, ...]:
        """The factors that join no two variables that are not given, nor two nodes of one: their energy is
        affine in each."""
        joining = {inlet.factor.name for name in self.free for inlet in self.changing[name]}
        return tuple(f for f in self.graph.energy_factors if f.name not in joining)

    @cached_property
    def joint_factors(self) -> tuple[EnergyFactor, ...]:
        """The other factors with an energy."""
        return tuple(f for f in self.graph.energy_factors if f not in self.separate_factors)

    def prepare(self) -> None:
        """Let every factor do its once-only work now, for the sizes known from the declaration."""
        table = self.graph.size_table
        typical = {
            axis: size
            for a in self.graph.arrays.values()
            for axis in a.axes
            if (size := table.static.get(table.root(axis)))
        }
        for factor in self.graph.factors.values():
            factor.prepare(typical)

    def factors_of(self, name: str) -> list[EnergyFactor]:
        """The factors that touch a free variable."""
        return [inlet.factor for inlet in (*self.static[name], *self.changing[name])]

    def reception(self, fusions: tuple[Fusion, ...]) -> Reception:
        """Sources of the messages of each variable, where fusions compute some of them."""
        if not fusions:
            return self._single
        # fusions need not be hashable; the entry holds them, so that no other object gets the same address
        addresses = tuple([id(fusion) for fusion in fusions])
        return self._receptions.get_or_make(addresses, lambda: self._divided(fusions))

    def _divided(self, fusions: tuple[Fusion, ...]) -> Reception:
        fused: dict[str, FusedSum] = {}
        for number, fusion in enumerate(fusions):
            for name, factors in fusion.replaces.items():
                # a block without a closed form goes to the inner solver, which needs the messages one by one
                if self.update_kinds.get(name) == "closed form":
                    keys: dict[str, int | None] = dict.fromkeys(factors)
                    keys |= {i.factor.name: i.key for i in self.changing[name] if i.factor.name in keys}
                    complete = all(factor.name in keys for factor in self.factors_of(name))
                    fused[name] = FusedSum(number, keys, complete)
        static, changing = (
            {
                name: [i for i in inlets if name not in fused or i.factor.name not in fused[name].keys]
                for name, inlets in kind.items()
            }
            for kind in (self.static, self.changing)
        )
        return Reception(static, changing, fused, fusions)

    def steps(self, items: Sequence[Item], shapes: Shapes, device: torch.device) -> list[PlannedUpdate]:
        """The updates of the blocks of an order; a variable that meets itself becomes its colour classes.

        Raises:
            InferenceError: for a block whose nodes interact or whose shape does not fit.
        """
        out: list[PlannedUpdate] = []
        # steps outlive the call: nodes made as inference tensors could not be saved for a later backward pass
        with torch.inference_mode(False):
            for item in items:
                if isinstance(item, Block):
                    out.append(self._block(item, shapes, device))
                    continue
                classes = (
                    self._classes(item, shapes, device) if self.update_kinds[item] == "coloured" else None
                )
                out.extend(
                    [PlannedUpdate(item)]
                    if classes is None
                    else [PlannedUpdate(item, nodes) for nodes in classes]
                )
        return out

    def _classes(self, name: str, shapes: Shapes, device: torch.device) -> list[Tensor] | None:
        factors = [factor for factor in self.factors_of(name) if not factor.affine_in(name)]
        involved = dict.fromkeys([name, *(array for factor in factors for array in factor.operands)])
        key = (name, device, tuple(shapes[array] for array in involved))
        variable = self.graph.variables[name]
        return self._colours.get_or_make(
            key, lambda: planned(lambda: _coloured_nodes(variable, factors, shapes, device))
        )

    def node_pairs(self, factor: EnergyFactor, variable: Variable, shapes: Shapes) -> np.ndarray:
        """Pairs of nodes of a variable that meet in a factor, flat indices, shape ``(pairs, 2)``."""
        key = (variable.name, factor.name, tuple(shapes[array] for array in factor.operands))
        return self._pairs.get_or_make(key, lambda: planned(lambda: node_pairs(factor, variable, shapes)))

    def lasting_round(
        self, order: Order, shapes: Shapes, device: torch.device, make: Callable[[], list[PlannedUpdate]]
    ) -> list[PlannedUpdate]:
        """The round of an order that is the same in all rounds, made once."""
        return self._lasting_rounds.get_or_make((order, device, tuple(shapes.items())), make)

    def _block(self, block: Block, shapes: Shapes, device: torch.device) -> PlannedUpdate:
        variable = self.graph.variable_named(block.name)
        shape = shapes[block.name][: len(variable.node_axes)]
        if not isinstance(block.nodes, Tensor):
            raise InferenceError(
                f"order: a block of variable {block.name!r} needs boolean nodes of shape {shape} as a "
                f"tensor, got {block.nodes!r}."
            )
        if block.nodes.dtype != torch.bool or tuple(block.nodes.shape) != shape:
            raise InferenceError(
                f"order: a block of variable {block.name!r} needs boolean nodes of shape {shape}, "
                f"got {block.nodes.dtype} of shape {tuple(block.nodes.shape)}."
            )
        if block.nodes.device.type == "meta" != device.type:
            raise InferenceError(
                f"order: the nodes of a block of variable {block.name!r} are on device {block.nodes.device}, "
                "which holds no values."
            )
        nodes = block.nodes
        if self.update_kinds[block.name] == "coloured":
            flat = array_of(nodes).ravel()
            for factor in self.factors_of(block.name):
                if meets_itself(factor, variable):
                    pairs = self.node_pairs(factor, variable, shapes)
                    clash = pairs[flat[pairs[:, 0]] & flat[pairs[:, 1]]]
                    if len(clash):
                        raise InferenceError(
                            f"order: a block of variable {block.name!r} holds nodes {int(clash[0, 0])} and "
                            f"{int(clash[0, 1])} (counted flat), which interact in factor {factor.name!r}; "
                            "name only nodes without interaction, or the whole variable."
                        )

        def spread() -> Tensor:
            return _spread(nodes.to(device, copy=True), variable)

        # what compiled code keeps are plain tensors, and it need not be left
        return PlannedUpdate(
            block.name, spread() if torch.compiler.is_dynamo_compiling() else planned(spread)
        )


def _coloured_nodes(
    variable: Variable, factors: Sequence[EnergyFactor], shapes: Shapes, device: torch.device
) -> list[Tensor] | None:
    """Flags of the nodes of each colour class; None if a node interacts with itself."""
    classes = colour_classes(variable, factors, shapes)
    if classes is None:
        return None
    return [_spread(torch.from_numpy(nodes).to(device), variable) for nodes in classes]


def _spread(nodes: Tensor, variable: Variable) -> Tensor:
    """Node flags with axes of size 1 for the batch and the features."""
    return nodes.view(1, *nodes.shape, *[1] * (len(variable.axes) - nodes.ndim))
