"""The discrete nodes of a declaration: categories, binary nodes and spins, and evidence about them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import DeclarationError, ObservationError, suggest
from ..graph.arrays import Variable
from ..graph.declaration import Declaration
from ..graph.devices import moved
from ..graph.dynamic import check_mapping, shapes_of
from ..graph.partial import Partial
from ..regularizers import BinaryEntropy, LogPartition, SignedEntropy
from ..regularizers.base import ordinary
from ..regularizers.simplex import is_categorical
from .tables import TableEvidence

Given = Mapping[str, Tensor | Partial]
_Evidence = TypeVar("_Evidence", bound=Tensor | Partial)


@dataclass(frozen=True)
class NodeRange:
    """The nodes of a variable among those of a graph.

    Attributes:
        name: name of the variable.
        first: number of its first node.
        node_shape: sizes of its node axes.
        feature_shape: sizes of its feature axes; empty for binary nodes and spins.
        low, high: the two values of nodes without features.
        structured: whether the nodes are entries of structures, which are their joint values.
    """

    name: str
    first: int
    node_shape: tuple[int, ...]
    feature_shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    structured: bool = False

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return math.prod(self.node_shape)

    @property
    def states(self) -> int:
        """Number of states of a node."""
        return math.prod(self.feature_shape) if self.feature_shape else 2

    def values_of_states(self) -> Tensor:
        """The value of each state, shape ``(states, *feature axes)``, float64."""
        if not self.feature_shape:
            return torch.tensor([self.low, self.high], dtype=torch.float64)
        return torch.eye(self.states, dtype=torch.float64).view(self.states, *self.feature_shape)

    def numbers(self) -> Tensor:
        """Numbers of the nodes, shape of the node axes."""
        return torch.arange(self.first, self.first + self.nodes).view(self.node_shape)


class Nodes:
    """The discrete nodes of a graph at given sizes.

    Args:
        graph: declaration whose variables are categorical, binary, spins or structured; each entry of a
            structured variable is a binary node.
        sizes: sizes of the axes without a static size.
        variables: names of the variables; all by default.

    Attributes:
        graph: the declaration.
        ranges: nodes of each variable, by name.
        shapes: shapes of all arrays without batch axes.

    Raises:
        DeclarationError: for a variable without finitely many states, or sizes that are missing.
    """

    def __init__(
        self, graph: Declaration, sizes: Mapping[str, int], variables: Collection[str] | None = None
    ) -> None:
        reason = refusal_of_nodes(graph) if variables is None else ""
        if reason:
            raise DeclarationError(f"graph {graph.name!r}: {reason}.")
        self.graph = graph
        self.shapes = shapes_of(graph, sizes, graph.arrays)
        self.ranges: dict[str, NodeRange] = {}
        first = 0
        for name, variable in graph.variables.items():
            if variables is not None and name not in variables:
                continue
            shape = self.shapes[name]
            structured = is_structured(variable)
            whole = structured or _is_two_valued(variable)
            features = 0 if whole else len(variable.axes) - len(variable.node_axes)
            split = len(shape) - features
            low = -1.0 if isinstance(variable.regularizer, SignedEntropy) else 0.0
            own = NodeRange(name, first, shape[:split], shape[split:], low, structured=structured)
            self.ranges[name] = own
            first += own.nodes
        self.count = first

    @cached_property
    def structured(self) -> tuple[str, ...]:
        """Names of the structured variables."""
        return tuple(name for name, own in self.ranges.items() if own.structured)

    @cached_property
    def states(self) -> tuple[int, ...]:
        """Number of states of each node."""
        return tuple(own.states for own in self.ranges.values() for _ in range(own.nodes))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes, such as ``X[0, 3]``."""
        result = []
        for own in self.ranges.values():
            for index in np.ndindex(*own.node_shape):
                result.append(f"{own.name}[{', '.join(map(str, index))}]" if index else own.name)
        return tuple(result)

    def evidence(
        self, given: Given, scores: Mapping[str, Tensor] | None = None, batch: int | None = None
    ) -> TableEvidence:
        """Convert evidence to states.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            scores: soft evidence: logarithms of weights of the states, by variable, shape ``(batch or
                1, *node axes, states)``.
            batch: batch size; that of the evidence by default.

        Raises:
            ObservationError: for unknown variables, wrong shapes, or values that are no states.
        """
        scores = scores or {}
        for name in (*given, *scores):
            if name not in self.ranges:
                raise ObservationError(
                    f"graph {self.graph.name!r} has no variable {name!r}.{suggest(name, self.ranges)}"
                )
        parts = {name: self._states(self.ranges[name], x) for name, x in given.items()}
        batch = batch or max((len(x) for x in parts.values()), default=1)
        values = torch.full((batch, self.count), -1)
        for name, states in parts.items():
            own = self.ranges[name]
            if len(states) not in (1, batch):
                raise ObservationError(
                    f"variable {name!r}: {len(states)} batch elements are given, but {batch} by other values."
                )
            values[:, own.first : own.first + own.nodes] = states
        soft = {}
        for name, x in scores.items():
            own = self.ranges[name]
            expected = (*own.node_shape, own.states)
            if not isinstance(x, Tensor) or tuple(x.shape[1:]) != expected:
                shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise ObservationError(
                    f"variable {name!r}: scores need shape (batch, {', '.join(map(str, expected))}), got "
                    f"{shape}."
                )
            for k, node in enumerate(x.reshape(len(x), own.nodes, own.states).unbind(1)):
                soft[own.first + k] = node
        return TableEvidence(values, soft)

    def _states(self, own: NodeRange, given: Tensor | Partial) -> Tensor:
        """States of the nodes of a variable, -1 where unobserved, shape ``(batch, nodes)``."""
        value, mask = (given.value, given.mask) if isinstance(given, Partial) else (given, None)
        shape = (*own.node_shape, *own.feature_shape)
        check_shape(own.name, value, shape)
        flat = value.reshape(len(value), own.nodes, *([own.states] if own.feature_shape else []))
        if mask is None:
            observed = torch.ones(len(value), own.nodes, dtype=torch.bool)
        else:
            fits = mask.ndim > 0 and tuple(mask.shape) == tuple(value.shape[: mask.ndim])
            if mask.dtype != torch.bool or not fits:
                raise ObservationError(
                    f"variable {own.name!r}: the mask of a partial observation must be boolean and have the "
                    f"shape of the value, {tuple(value.shape)}, or of its first axes."
                )
            whole = mask.reshape(*mask.shape, *[1] * (value.ndim - mask.ndim)).expand(value.shape)
            whole = whole.reshape(len(value), own.nodes, math.prod(own.feature_shape))
            if not torch.equal(whole.all(2), whole.any(2)):
                raise ObservationError(
                    f"variable {own.name!r}: the features of a node must be observed together or not at all."
                )
            observed = whole.all(2).cpu()
        if own.feature_shape:
            valid = ((flat == 0) | (flat == 1)).all(2) & ((flat == 1).sum(2) == 1)
            states = (flat == 1).to(torch.uint8).argmax(2)
            wanted = f"one-hot over its {own.states} options"
        else:
            valid = (flat == own.low) | (flat == own.high)
            states = (flat == own.high).long()
            wanted = f"{own.low:g} or {own.high:g}"
        if not bool((valid.cpu() | ~observed).all()):
            raise ObservationError(f"variable {own.name!r}: the values of its nodes must be {wanted}.")
        return torch.where(observed, states.cpu(), -1)

    def means(self, probabilities: Tensor) -> dict[str, Tensor]:
        """Means by variable from probabilities of states, shape ``(batch, *axes)``.

        Args:
            probabilities: shape ``(batch, nodes or more, most states)``.
        """
        result = {}
        for name, own in self.ranges.items():
            p = probabilities[:, own.first : own.first + own.nodes, : own.states]
            # without nodes there may be no second state
            two_valued = own.low * p[..., :1].sum(2) + own.high * p[..., 1:].sum(2)
            mean = p if own.feature_shape else two_valued
            result[name] = mean.reshape(len(p), *own.node_shape, *own.feature_shape).contiguous()
        return result

    def values(self, states: Tensor) -> dict[str, Tensor]:
        """Values by variable, shape ``(*batch, *axes)``.

        Args:
            states: shape ``(*batch, nodes or more)``.
        """
        result = {}
        for name, own in self.ranges.items():
            of_states = own.values_of_states().to(states.device)
            x = of_states[states[..., own.first : own.first + own.nodes]]
            result[name] = x.reshape(*states.shape[:-1], *own.node_shape, *own.feature_shape)
        return result


def ordinary_evidence(given: Given | None) -> Given:
    """Evidence whose tensors autograd may save."""
    check_mapping("evidence", given)
    result: dict[str, Tensor | Partial] = {}
    for name, x in (given or {}).items():
        if isinstance(x, Partial):
            result[name] = Partial(ordinary(x.value), ordinary(x.mask))
        else:
            result[name] = ordinary(x) if isinstance(x, Tensor) else x
    return result


def on_cpu(values: Mapping[str, _Evidence]) -> dict[str, _Evidence]:
    """Values by name on the CPU, where exact inference reads them whatever the device of the graph is."""
    return moved(values, torch.device("cpu"))


def check_shape(name: str, value: object, shape: tuple[int, ...]) -> None:
    """Check that a given value is a tensor of at least one row of a shape.

    Raises:
        ObservationError: names the variable.
    """
    got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if not isinstance(value, Tensor) or not value.ndim or got[1:] != shape or not len(value):
        expected = ", ".join(map(str, ("batch", *shape)))
        raise ObservationError(f"variable {name!r} needs a tensor of shape ({expected}), got {got}.")


def check_rows(given: Given, count: int) -> None:
    """Check that evidence has one row, or one for each answer.

    Raises:
        ObservationError: names the variable.
    """
    for name, x in given.items():
        value = x.value if isinstance(x, Partial) else x
        if len(value) not in (1, count):
            raise ObservationError(
                f"variable {name!r}: {len(value)} rows are given, but {count} answers are wanted."
            )


def refusal_of_variables(graph: Declaration) -> str:
    """Why a variable has not finitely many states, in one sentence that names it; empty if all have."""
    for name, variable in graph.variables.items():
        if is_structured(variable):
            return f"variable {name!r} is structured, and its structures are not enumerated"
    return refusal_of_nodes(graph)


def refusal_of_nodes(graph: Declaration) -> str:
    """Why a variable is neither structured nor has finitely many states, in one sentence that names it;
    empty if each is one of these."""
    for name, variable in graph.variables.items():
        if not has_states(variable) and not is_structured(variable):
            return (
                f"variable {name!r} is neither categorical, binary nor a spin, so it has no finite number of "
                "states"
            )
    return "" if graph.variables else "the graph has no variables"


def is_structured(variable: Variable) -> bool:
    """Whether the values of a variable are structures, such as trees, of binary entries."""
    return isinstance(variable.regularizer, LogPartition)


def has_states(variable: Variable) -> bool:
    """Whether the nodes of a variable are categories, binary or spins."""
    return _is_two_valued(variable) or is_categorical(
        variable.regularizer, variable.axes, variable.feature_axes
    )


def _is_two_valued(variable: Variable) -> bool:
    kinds = BinaryEntropy, SignedEntropy
    return isinstance(variable.regularizer, kinds) and variable.axes == variable.node_axes
