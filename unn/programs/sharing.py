"""Indices of a traced graph with a symmetric mask along which a network must nevertheless not share
embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from ..factor_graph import FactorGraph
from ..graph.adjacency import Adjacency
from ..graph.symmetries import Symmetry, generators, indices, letters_along
from .invariance import altered_variables
from .letters import Names, Written
from .tape import Nodes, Tape


def unequal_indices(tape: Tape, graph: FactorGraph) -> list[tuple[Symmetry, frozenset[str]]]:
    """Indices that are exchangeable in the mask only, each with the variables whose law is not invariant.

    A network with shared embeddings is equivariant under every permutation of nodes that keeps the
    mask and the embeddings, so the joint law must be invariant under each. These are more than the
    permutations of an index everywhere at once: in ``y = (x[0] * x[1]).sum()`` of an array x of two
    rows the columns are exchangeable, but the mask is also symmetric under exchanges within one
    row. Three kinds are checked: permutations of the index everywhere, in a single variable, and
    at the first or the last value of another index only.

    Args:
        tape: tape of a complete run.
        graph: graph of this run.
    """
    shapes = {variable.name: variable.nodes.shape for variable in tape.variables.values()}
    all_indices = [(symmetry, barred) for symmetry, barred in indices(graph, shapes) if symmetry.size > 1]
    exchangeable = [symmetry for symmetry, barred in all_indices if not barred]
    if not exchangeable:
        return []
    adjacency = graph.adjacency()
    owners, permutations = [], []
    for number, symmetry in enumerate(exchangeable):
        for permutation in _permutations(symmetry, [other for other, _ in all_indices], adjacency):
            owners.append(number)
            permutations.append(permutation)
    altered: list[set[str]] = [set() for _ in exchangeable]
    for number, names in zip(owners, altered_variables(tape, permutations)):
        altered[number] |= names
    return [(symmetry, frozenset(names)) for symmetry, names in zip(exchangeable, altered) if names]


def with_ordered(
    written: Sequence[Written],
    graph: FactorGraph,
    names: Names,
    unequal: Sequence[tuple[Symmetry, frozenset[str]]],
) -> list[Written]:
    """The factors of a program, with the letters of unequal indices declared as ordered.

    Args:
        written: the factors.
        graph: graph with these factors.
        names: names of axes.
        unequal: result of ``unequal_indices``.
    """
    factors = list(graph.factors.values())
    children = {factor.references[0][0] for factor in written}
    ordered: list[set[str]] = [set() for _ in factors]
    root_axes: dict[str, set[int]] = {}
    for symmetry, altered in unequal:
        letters = [letters_along(symmetry, factor, graph) for factor in factors]
        # a variable without parents is not the child of any factor yet
        roots = [
            part
            for part in symmetry.parts
            if part.variable in altered - children and part.before == part.after == 1
        ]
        for part in roots:
            root_axes.setdefault(part.variable, set()).add(part.axis)
        own = [k for k, factor in enumerate(written) if letters[k] and factor.references[0][0] in altered]
        if not own and not roots:
            own = [k for k, along in enumerate(letters) if along][:1]
        for k in own:
            ordered[k] |= letters[k]
    return [
        *(names.ordered_factor(variable, axes) for variable, axes in root_axes.items()),
        *(
            replace(factor, ordered=" ".join(sorted(letters)))
            for factor, letters in zip(written, ordered, strict=True)
        ),
    ]


def _permutations(symmetry: Symmetry, others: Sequence[Symmetry], adjacency: Adjacency) -> list[Nodes]:
    """Generators of the permutations of an index, everywhere and on parts of the nodes that leave the mask
    invariant."""
    everywhere = [symmetry.permutation(order).numpy() for order in generators(symmetry.size)]
    identity = np.arange(adjacency.count)
    own = symmetry.values() >= 0
    variables = _variable_of(adjacency.shapes)
    parts = [variables == number for number in np.unique(variables[own])]
    for other in others:
        if other is not symmetry:
            values = other.values()
            parts += [values == value for value in {0, other.size - 1}]
    distinct = {part[own].tobytes(): part for part in parts if part[own].any() and not part[own].all()}
    partial = [
        np.where(part, permutation, identity) for part in distinct.values() for permutation in everywhere
    ]
    return everywhere + [permutation for permutation in partial if _leaves_invariant(adjacency, permutation)]


def _variable_of(shapes: Mapping[str, tuple[int, ...]]) -> Nodes:
    """Number of the variable of each node, shape ``(nodes,)``."""
    return np.repeat(
        np.arange(len(shapes)), [int(np.prod(shape, dtype=np.int64)) for shape in shapes.values()]
    )


def _leaves_invariant(adjacency: Adjacency, permutation: Nodes) -> bool:
    """Whether the mask is invariant under a permutation of the nodes."""
    return adjacency.permuted(torch.from_numpy(permutation)).same_entries(adjacency)
