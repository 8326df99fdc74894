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
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cache import BoundedCache
from ..errors import DeclarationError, InferenceError, ObservationError
from ..graph.arrays import Constant, Reference, Variable
from ..graph.declaration import Declaration
from ..graph.factor import Constraint, EnergyFactor
from ..graph.patterns import Pattern
from ..graph.sizes import LetterSizes
from ..graph.views import starts_of, view
from ..plain import is_vmapped
from ..regularizers import Regularizer
from .counting import counted_tables
from .nodes import NodeRange, Nodes, refusal_of_nodes, refusal_of_variables
from .plan import Plan
from .tables import Family, TableModel

_MOST = 2**27
"""Largest number of entries of the tables of one factor."""
NEVER = -1e29
"""Logarithms up to this stand for weight 0, as finite numbers must in constants of a declaration."""
Indices = Mapping[str, NDArray[np.int64]]
"""The values of each letter."""
_CONDITION = re.compile(r"\s*(\w+)\s*(?:!=|<=|>=|<|>)\s*(\w+)\s*")


def refusal_of_factors(graph: Declaration) -> str:
    """Why a factor is no table, in one sentence that names it; empty if all are."""
    for name, factor in graph.factors.items():
        if isinstance(factor, EnergyFactor):
            if factor.product() is None:
                kind = type(factor).__name__
                return f"factor {name!r} ({kind}) is no product of arrays, so it has no tables"
        elif not isinstance(factor, Constraint):
            return f"factor {name!r} ({type(factor).__name__}) has no energy"
        elif not factor.is_counted:
            return f"constraint {name!r} ({type(factor).__name__}) does not count, so it has no tables"
    return ""


def refusal_of_tables(graph: Declaration) -> str:
    """Why a graph has no tables, in one sentence that names the variable or factor; empty if it has,
    as far as its static sizes tell."""
    return refusal_of_variables(graph) or refusal_of_structures(graph)


def refusal_of_structures(graph: Declaration) -> str:
    """As ``refusal_of_tables``, for graphs that may have structured variables."""
    reason = refusal_of_nodes(graph) or refusal_of_factors(graph)
    if reason:
        return reason
    try:
        nodes = Nodes(graph, {})
    except DeclarationError:
        # sizes may come with the queries
        return ""
    try:
        for constraint in graph.constraints:
            constraint.groups({name: nodes.shapes[name] for name in constraint.variables})
    except DeclarationError as error:
        return str(error).rstrip(".")
    return ""


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
    families = _regularizer_tables(nodes)
    states, names = list(nodes.states), list(nodes.names)
    for factor in graph.factors.values():
        if isinstance(factor, EnergyFactor):
            families += _product_tables(nodes, factor, constants or {})
        else:
            assert isinstance(factor, Constraint)
            families += counted_tables(nodes, factor, states, names)
    model = TableModel(tuple(states), tuple(families), tuple(names), graph.name)
    return model if plans is None else replace(model, plans=plans)


def _regularizer_tables(nodes: Nodes) -> list[Family]:
    """Tables of the regularizers that are not 0 at the states of their nodes."""
    families = []
    for name, own in nodes.ranges.items():
        if name not in nodes.structured:
            regularizer = nodes.graph.variables[name].regularizer
            if regularizer.treats_nodes_alike(len(own.feature_shape)):
                logs = -regularizer.value(own.values_of_states()).expand(own.nodes, -1)
            else:
                logs = _logs_by_node(regularizer, own)
            if bool((logs != 0).any()):
                families.append(Family(own.numbers().reshape(-1, 1), logs.double()[:, None]))
    return families


def _logs_by_node(regularizer: Regularizer, own: NodeRange) -> Tensor:
    """Minus the regularizer at the states of each node, shape ``(nodes, states)``."""
    values = own.values_of_states()
    rows = []
    for node in range(own.nodes):
        # all other nodes are padding
        exists = torch.zeros(own.nodes, *own.feature_shape, dtype=torch.bool)
        exists[node] = True
        x = torch.zeros(own.states, *exists.shape, dtype=values.dtype)
        x[:, node] = values
        shape = *own.node_shape, *own.feature_shape
        rows.append(-regularizer.value(x.reshape(own.states, *shape), exists.reshape(shape)))
    return torch.stack(rows)


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
            if is_vmapped(x):
                raise InferenceError(
                    f"exact inference reads the values of {reference.array.kind} "
                    f"{reference.array.name!r}, which torch.func.vmap does not allow; give constants with a "
                    "batch axis instead, or loop."
                )
            if not bool(x.detach().isfinite().all()):
                raise ObservationError(
                    f"{reference.array.kind} {reference.array.name!r} of graph {nodes.graph.name!r} has NaN "
                    "or infinite entries; -1e30 stands for the logarithm of 0."
                )
            lead = [batch] if x.ndim > len(reference.array.axes) else []
            x = view(x.to("cpu", torch.float64), reference.pattern, sizes, starts, factor.indices)
            operands += [x, [*lead, *(symbols[x] for x in reference.letters)]]
    indices = {letter: starts.get(letter, 0) + np.arange(sizes[letter]) for letter in symbols}
    keep = _kept_terms(factor, node_letters, indices)
    if keep is None:
        mask = _condition_mask(factor, indices)
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


def _kept_terms(factor: EnergyFactor, letters: Sequence[str], indices: Indices) -> Tensor | None:
    """Mask of the terms that a condition between letters of nodes selects; None without such a condition."""
    grids = np.meshgrid(*(indices[letter] for letter in letters), indexing="ij")
    selected = factor.keeps({letter: grid.reshape(-1) for letter, grid in zip(letters, grids, strict=True)})
    return None if selected is None else torch.from_numpy(selected)


def _condition_mask(factor: EnergyFactor, indices: Indices) -> tuple[Tensor, tuple[str, str]] | None:
    """Mask over two letters of a condition that involves letters of features, and these letters."""
    match = _CONDITION.fullmatch(factor.product() or "")
    if match is None:
        return None
    left, right = match.groups()
    rows, columns = np.meshgrid(indices[left], indices[right], indexing="ij")
    selected = factor.keeps({left: rows, right: columns})
    assert selected is not None
    return torch.from_numpy(selected).double(), (left, right)


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
