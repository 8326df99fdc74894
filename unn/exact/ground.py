"""Tables of a declaration: every factor over the states of discrete nodes.

A category of s options and a binary node are variables with s and two states; values of
``SignedEntropy`` have the states -1 and 1. The weight of all values is ``exp(-E)``, so the
distribution is that of the energy on the corners of the domains. Constraints that count
(``Constraint.groups``) are tables of 0 and 1, or chains of counters where a group is large. Factors of
one plate are one family, whatever its size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..cache import BoundedCache
from ..errors import DeclarationError, ObservationError, suggest
from ..graph.arrays import Constant, Reference, Variable
from ..graph.declaration import Declaration
from ..graph.factor import Constraint, EnergyFactor
from ..graph.partial import Partial
from ..graph.patterns import Pattern
from ..graph.sizes import LetterSizes
from ..graph.views import starts_of, view
from ..regularizers import BinaryEntropy, SignedEntropy
from .plan import Plan
from .tables import Family, TableEvidence, TableModel

Given = Mapping[str, Tensor | Partial]

_MOST = 2**27
"""Largest number of entries of the tables of one factor."""
_DIRECT = 4096
"""Largest number of entries of a table of one counted group; larger groups are chains of counters."""
NEVER = -1e29
"""Logarithms up to this stand for weight 0, as finite numbers must in constants of a declaration."""
_CONDITION = re.compile(r"\s*(\w+)\s*(?:!=|<=|>=|<|>)\s*(\w+)\s*")


@dataclass(frozen=True)
class NodeRange:
    """The nodes of a variable among those of a graph.

    Attributes:
        name: name of the variable.
        first: number of its first node.
        node_shape: sizes of its node axes.
        feature_shape: sizes of its feature axes; empty for binary nodes and spins.
        low, high: the two values of nodes without features.
    """

    name: str
    first: int
    node_shape: tuple[int, ...]
    feature_shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0

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
        graph: declaration whose variables are categorical, binary or spins.
        sizes: sizes of the axes without a static size.

    Attributes:
        graph: the declaration.
        ranges: nodes of each variable, by name.
        shapes: shapes of all arrays without batch axes.

    Raises:
        DeclarationError: for a variable without finitely many states, or sizes that are missing.
    """

    def __init__(self, graph: Declaration, sizes: Mapping[str, int]) -> None:
        reason = refusal_of_variables(graph)
        if reason:
            raise DeclarationError(f"graph {graph.name!r}: {reason}.")
        self.graph = graph
        table = graph.size_table
        solved = table.solve({table.root(axis): size for axis, size in sizes.items()})
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, array in graph.arrays.items():
            shape = table.shape(array, solved)
            if None in shape:
                axis = array.axes[shape.index(None)]
                raise DeclarationError(
                    f"graph {graph.name!r}: the size of axis {axis!r} of {name!r} is unknown; pass "
                    f"sizes={{{axis!r}: ...}}."
                )
            self.shapes[name] = tuple(int(size or 0) for size in shape)
        self.ranges: dict[str, NodeRange] = {}
        first = 0
        for name, variable in graph.variables.items():
            shape = self.shapes[name]
            features = 0 if _is_two_valued(variable) else len(variable.axes) - len(variable.node_axes)
            split = len(shape) - features
            low = -1.0 if isinstance(variable.regularizer, SignedEntropy) else 0.0
            own = NodeRange(name, first, shape[:split], shape[split:], low)
            self.ranges[name] = own
            first += own.nodes
        self.count = first

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
        if not isinstance(value, Tensor) or tuple(value.shape[1:]) != shape or not len(value):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            expected = ", ".join(map(str, ("batch", *shape)))
            raise ObservationError(f"variable {own.name!r} needs a tensor of shape ({expected}), got {got}.")
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
            whole = whole.reshape(len(value), own.nodes, -1)
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
            mean = p if own.feature_shape else own.low * p[..., 0] + own.high * p[..., 1]
            result[name] = mean.reshape(len(p), *own.node_shape, *own.feature_shape)
        return result

    def values(self, states: Tensor) -> dict[str, Tensor]:
        """Values by variable, shape ``(*batch, *axes)``.

        Args:
            states: shape ``(*batch, nodes or more)``.
        """
        result = {}
        for name, own in self.ranges.items():
            x = own.values_of_states()[states[..., own.first : own.first + own.nodes]]
            result[name] = x.reshape(*states.shape[:-1], *own.node_shape, *own.feature_shape)
        return result


def refusal_of_variables(graph: Declaration) -> str:
    """Why a variable has not finitely many states, in one sentence that names it; empty if all have."""
    for name, variable in graph.variables.items():
        over = variable.regularizer.over_axes(variable.axes)
        if not _is_two_valued(variable) and not (over and over == variable.feature_axes):
            return (
                f"variable {name!r} is neither categorical, binary nor a spin, so it has no finite number of "
                "states"
            )
    return "" if graph.variables else "the graph has no variables"


def refusal_of_factors(graph: Declaration) -> str:
    """Why a factor is no table, in one sentence that names it; empty if all are."""
    for name, factor in graph.factors.items():
        if isinstance(factor, EnergyFactor):
            if factor.product() is None:
                kind = type(factor).__name__
                return f"factor {name!r} ({kind}) is no product of arrays, so it has no tables"
        elif not isinstance(factor, Constraint):
            return f"factor {name!r} ({type(factor).__name__}) has no energy"
        elif type(factor).groups is Constraint.groups:
            return f"constraint {name!r} ({type(factor).__name__}) does not count, so it has no tables"
    return ""


def _is_two_valued(variable: Variable) -> bool:
    kinds = BinaryEntropy, SignedEntropy
    return isinstance(variable.regularizer, kinds) and variable.axes == variable.node_axes


def ground(
    nodes: Nodes,
    constants: Mapping[str, Tensor] | None = None,
    plans: BoundedCache[object, Plan] | None = None,
) -> TableModel:
    """The tables of a graph.

    Differentiable by the parameters of the graph.

    Args:
        nodes: nodes of the graph.
        constants: values of the constants without a declared value, shape ``(batch, *axes)`` or ``(*axes)``.
        plans: plans of earlier tables of the same graph; none by default.

    Raises:
        DeclarationError: for a factor that is no table, with its name and the reason.
        ObservationError: for constants that are missing.
    """
    graph = nodes.graph
    reason = refusal_of_factors(graph)
    if reason:
        raise DeclarationError(f"graph {graph.name!r}: {reason}.")
    graph.require_parameters()
    families: list[Family] = []
    states, names = list(nodes.states), list(nodes.names)
    for factor in graph.factors.values():
        if isinstance(factor, EnergyFactor):
            families += _product_tables(nodes, factor, constants or {})
        else:
            assert isinstance(factor, Constraint)
            families += _counted_tables(nodes, factor, states, names)
    model = TableModel(tuple(states), tuple(families), tuple(names), graph.name)
    return model if plans is None else replace(model, plans=plans)


def _product_tables(nodes: Nodes, factor: EnergyFactor, constants: Mapping[str, Tensor]) -> list[Family]:
    """Tables of minus a sum of products: one for each index of the letters of node axes."""
    sizes = factor.letter_sizes(nodes.shapes)
    starts = starts_of(factor.references)
    slots = [r for r in factor.references if isinstance(r.array, Variable)]
    node_letters = list(dict.fromkeys(x for r in slots for x in _node_pattern(nodes, r).letters))
    symbols: dict[str, int] = {}
    for reference in factor.references:
        for letter in reference.letters:
            symbols.setdefault(letter, len(symbols))
    batch, first_state = len(symbols), len(symbols) + 1
    operands: list[Tensor | list[int]] = []
    slot = 0
    for reference in factor.references:
        if isinstance(reference.array, Variable):
            own = nodes.ranges[reference.array.name]
            pattern = _feature_pattern(nodes, reference)
            x = view(own.values_of_states(), pattern, sizes, starts, factor.indices)
            operands += [x, [first_state + slot, *(symbols[x] for x in pattern.letters)]]
            slot += 1
        else:
            x = _array_value(nodes, reference, constants)
            if not bool(x.detach().isfinite().all()):
                raise ObservationError(
                    f"{reference.array.kind} {reference.array.name!r} of graph {nodes.graph.name!r} has NaN "
                    "or infinite entries; -1e30 stands for the logarithm of 0."
                )
            lead = [batch] if x.ndim > len(reference.array.axes) else []
            x = view(x.double(), reference.pattern, sizes, starts, factor.indices)
            operands += [x, [*lead, *(symbols[x] for x in reference.letters)]]
    keep = _kept_terms(factor, node_letters, sizes)
    if keep is None:
        mask = _condition_mask(factor, sizes)
        if mask is not None:
            operands += [mask[0], [symbols[letter] for letter in mask[1]]]
    present = {k for labels in operands[1::2] for k in labels if isinstance(labels, list)}
    result = [symbols[x] for x in node_letters if symbols[x] in present]
    result += [k for k in [batch] if k in present]
    result += [first_state + k for k in range(slot)]
    states = [nodes.ranges[r.array.name].states for r in slots]
    terms = math.prod(sizes[letter] for letter in node_letters)
    if not terms:
        return []
    if terms * math.prod(states) > _MOST:
        raise DeclarationError(
            f"graph {nodes.graph.name!r}: factor {factor.name!r} has {terms} tables of "
            f"{math.prod(states)} entries, more than exact inference takes."
        )
    logs = torch.einsum(*operands, result)
    for position, letter in enumerate(node_letters):
        if symbols[letter] not in present:
            repeated = *logs.shape[:position], sizes[letter], *logs.shape[position:]
            logs = logs.unsqueeze(position).expand(repeated)
    if batch not in present:
        logs = logs.unsqueeze(len(node_letters))
    logs = logs.reshape(terms, logs.shape[len(node_letters)], *states)
    logs = torch.where(logs <= NEVER, -torch.inf, logs)
    scopes = torch.stack(
        [_node_numbers(nodes, r, node_letters, sizes, starts, factor).reshape(-1) for r in slots], 1
    )
    if keep is not None:
        logs, scopes = logs[keep], scopes[keep]
        if not len(scopes):
            return []
    return _with_distinct_variables(Family(scopes, logs))


def _node_pattern(nodes: Nodes, reference: Reference) -> Pattern:
    count = len(nodes.ranges[reference.array.name].node_shape)
    return Pattern(reference.pattern.dimensions[:count])


def _feature_pattern(nodes: Nodes, reference: Reference) -> Pattern:
    count = len(nodes.ranges[reference.array.name].node_shape)
    return Pattern(reference.pattern.dimensions[count:])


def _node_numbers(
    nodes: Nodes,
    reference: Reference,
    letters: Sequence[str],
    sizes: LetterSizes,
    starts: dict[str, int],
    factor: EnergyFactor,
) -> Tensor:
    """Number of the node of a reference, for each index of some letters; shape of their sizes."""
    pattern = _node_pattern(nodes, reference)
    numbers = view(nodes.ranges[reference.array.name].numbers(), pattern, sizes, starts, factor.indices)
    own = list(pattern.letters)
    shape = [sizes[letter] if letter in own else 1 for letter in letters]
    order = [own.index(letter) for letter in letters if letter in own]
    return numbers.permute(order).reshape(shape).expand([sizes[letter] for letter in letters])


def _array_value(nodes: Nodes, reference: Reference, constants: Mapping[str, Tensor]) -> Tensor:
    """The value of a parameter or constant, with a leading batch axis where it was given with one."""
    name = reference.array.name
    if isinstance(reference.array, Constant) and name in constants:
        x = constants[name]
        axes = len(nodes.shapes[name])
        fits = isinstance(x, Tensor) and x.ndim - axes in (0, 1) and len(x.reshape(-1)) > 0
        if not fits or tuple(x.shape[x.ndim - axes :]) != nodes.shapes[name] or x.is_complex():
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ObservationError(
                f"constant {name!r} needs a tensor of real numbers of shape "
                f"({', '.join(map(str, ('batch', *nodes.shapes[name])))}), got {got}."
            )
        return x
    value = getattr(nodes.graph, name, None)
    if not isinstance(value, Tensor):
        raise ObservationError(f"constant {name!r} has no value; pass it with the evidence.")
    return value


def _kept_terms(factor: EnergyFactor, letters: Sequence[str], sizes: LetterSizes) -> Tensor | None:
    """Mask of the terms that a condition between letters of nodes selects; None without such a condition."""
    grids = np.meshgrid(*(np.arange(sizes[letter]) for letter in letters), indexing="ij")
    kept = factor.keeps({letter: grid.reshape(-1) for letter, grid in zip(letters, grids, strict=True)})
    return None if kept is None else torch.from_numpy(kept)


def _condition_mask(factor: EnergyFactor, sizes: LetterSizes) -> tuple[Tensor, tuple[str, str]] | None:
    """Mask over two letters of a condition that involves letters of features, and these letters."""
    match = _CONDITION.fullmatch(factor.product() or "")
    if match is None:
        return None
    left, right = match.groups()
    rows, columns = np.meshgrid(np.arange(sizes[left]), np.arange(sizes[right]), indexing="ij")
    kept = factor.keeps({left: rows, right: columns})
    assert kept is not None
    return torch.from_numpy(kept).double(), (left, right)


def _with_distinct_variables(family: Family) -> list[Family]:
    """Split a family by which of its axes belong to the same variable, and take the diagonals of these."""
    scopes = family.scopes
    arity = scopes.shape[1]
    ordered = scopes.sort(1).values
    if not bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        return [family]
    first = torch.zeros_like(scopes)
    for axis in range(arity):
        same = scopes[:, : axis + 1] == scopes[:, axis, None]
        first[:, axis] = same.to(torch.uint8).argmax(1)
    patterns, which = first.unique(dim=0, return_inverse=True)
    result = []
    for number, pattern in enumerate(patterns.tolist()):
        rows = (which == number).nonzero()[:, 0]
        axes = sorted(set(pattern))
        logs = family.logs if len(patterns) == 1 else family.logs[rows]
        if len(axes) < arity:
            logs = torch.einsum(logs, [0, 1, *(2 + k for k in pattern)], [0, 1, *(2 + k for k in axes)])
        result.append(Family(scopes[rows][:, axes], logs))
    return result


def _counted_tables(nodes: Nodes, factor: Constraint, states: list[int], names: list[str]) -> list[Family]:
    """Tables of 0 and 1 of the groups of a constraint; counters are added to the variables."""
    shapes = {name: nodes.shapes[name] for name in factor.variables}
    families = []
    groups = factor.groups(shapes)
    if not groups:
        raise DeclarationError(
            f"graph {nodes.graph.name!r}: constraint {factor.name!r} ({type(factor).__name__}) has no groups "
            "of entries that it counts, so it has no tables."
        )
    for part in groups:
        node_parts, state_parts = [], []
        for name, entries in part.entries.items():
            own = nodes.ranges[name]
            entry = torch.from_numpy(np.ascontiguousarray(entries))
            if own.feature_shape:
                node_parts.append(own.first + entry // own.states)
                state_parts.append(entry % own.states)
            else:
                node_parts.append(own.first + entry)
                state_parts.append(torch.ones_like(entry))
        scopes, counted = torch.cat(node_parts, 1), torch.cat(state_parts, 1)
        if not scopes.numel():
            continue
        upper = scopes.shape[1] if part.upper is None else part.upper
        for family, own_states in _distinct_groups(scopes, counted, states):
            families += _count_families(family, own_states, part.lower, upper, states, names, factor.name)
    return families


def _distinct_groups(scopes: Tensor, counted: Tensor, states: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Groups by their distinct nodes, and how often each state of these counts.

    Args:
        scopes: node of each member, shape ``(groups, members)``.
        counted: state of each member that counts, same shape.
        states: number of states of each node.

    Returns:
        Nodes, shape ``(groups, nodes)``, and counts, shape ``(groups, nodes, most states)``, by number
        of nodes.
    """
    most = max(states)
    by_shape: dict[tuple[int, ...], tuple[list[list[int]], list[Tensor]]] = {}
    for members, own in zip(scopes.tolist(), counted, strict=True):
        distinct = list(dict.fromkeys(members))
        counts = torch.zeros(len(distinct), most)
        places = torch.tensor([distinct.index(node) for node in members])
        counts.index_put_((places, own), torch.ones(len(members)), accumulate=True)
        key = tuple(states[node] for node in distinct)
        groups, weights = by_shape.setdefault(key, ([], []))
        groups.append(distinct)
        weights.append(counts)
    return [(torch.tensor(groups), torch.stack(weights)) for groups, weights in by_shape.values()]


def _count_families(
    scopes: Tensor,
    counts: Tensor,
    lower: int,
    upper: int,
    states: list[int],
    names: list[str],
    name: str,
) -> list[Family]:
    """Tables of groups: of all their nodes, or of a chain of counters."""
    sizes = [states[node] for node in scopes[0].tolist()]
    groups = len(scopes)
    if math.prod(sizes) <= _DIRECT:
        total = torch.zeros(groups, *[1] * len(sizes))
        for axis, size in enumerate(sizes):
            shape = [groups, *(size if k == axis else 1 for k in range(len(sizes)))]
            total = total + counts[:, axis, :size].reshape(shape)
        allowed = (total >= lower) & (total <= upper)
        return [Family(scopes, torch.where(allowed, 0.0, -torch.inf).double()[:, None])]
    # counters saturate beyond what the bounds tell apart
    cap = max(lower, upper + 1) if upper < counts.sum((1, 2)).max() else lower
    number = torch.arange(cap + 1)
    families = []
    before: Tensor | None = None
    for axis, size in enumerate(sizes):
        # reached[g, c, s]: the counter after this node
        start = number if before is not None else number[:1]
        reached = (start[None, :, None] + counts[:, axis, None, :size]).clamp(max=cap)
        last = axis == len(sizes) - 1
        if last:
            allowed = (reached >= lower) & (reached <= upper)
            logs, columns = torch.where(allowed, 0.0, -torch.inf).double(), []
        else:
            hit = reached[..., None] == number
            logs = torch.where(hit, 0.0, -torch.inf).double()
            columns = [torch.arange(len(states), len(states) + groups)]
            for group in range(groups):
                names.append(f"{name} counter {group}.{axis}")
                states.append(cap + 1)
        logs = logs if before is not None else logs[:, 0]
        own = [scopes[:, axis]] if before is None else [before, scopes[:, axis]]
        families.append(Family(torch.stack([*own, *columns], 1), logs[:, None]))
        before = columns[0] if columns else None
    return families
