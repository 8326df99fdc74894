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
from .exchanges import Exchange, exchanges
from .invariance import altered_variables
from .letters import Names, Written
from .tape import Nodes, Tape

_MOST_VALUES = 64
"""Largest number of values of an index at each of which permutations of another one are tried."""


def unequal_indices(tape: Tape, graph: FactorGraph) -> list[tuple[Symmetry, frozenset[str]]]:
    """Indices that are exchangeable in the mask only, each with the variables whose law is not invariant.

    A network with shared embeddings is equivariant under every permutation of nodes that keeps the
    mask and the embeddings, so the joint law must be invariant under each. These are more than the
    permutations of an index everywhere at once: in ``y = (x[0] * x[1]).sum()`` of an array x of two
    rows the columns are exchangeable, but the mask is also symmetric under exchanges within one
    row. Three kinds are checked: permutations of the index everywhere, in a single variable, and
    at one value of another index only: at its first and last value, and at all others (as many as
    ``_MOST_VALUES``) where this index is not exchangeable itself, so that its values differ. The
    indices that are left must survive exchanges of single nodes with equal neighbours, and of two axes
    at pairs of their values (``exchanges``).

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
    others = [other for other, _ in all_indices]
    ends = [
        _everywhere(symmetry) + _partial(symmetry, _ends(symmetry, others, adjacency), adjacency)
        for symmetry in exchangeable
    ]
    altered = _altered(tape, ends)
    equal = {id(symmetry) for symmetry, names in zip(exchangeable, altered) if not names}
    unlike = [other for other in others if id(other) not in equal]
    middles = [
        [] if names else _partial(symmetry, _middles(symmetry, unlike), adjacency)
        for symmetry, names in zip(exchangeable, altered)
    ]
    altered = [one | more for one, more in zip(altered, _altered(tape, middles))]
    unequal = {symmetry: names for symmetry, names in zip(exchangeable, altered) if names}
    shared = [symmetry for symmetry in exchangeable if symmetry not in unequal]
    while shared and (more := _unequal_by_exchanges(tape, adjacency, shared)):
        unequal |= more
        shared = [symmetry for symmetry in shared if symmetry not in unequal]
    return [(symmetry, frozenset(unequal[symmetry])) for symmetry in exchangeable if symmetry in unequal]


def _unequal_by_exchanges(
    tape: Tape, adjacency: Adjacency, shared: Sequence[Symmetry]
) -> dict[Symmetry, set[str]]:
    """Symmetries along which embeddings must differ, because nodes that they share exchange their places in
    the mask, and the law is another one; each with the variables whose law is.

    Where several symmetries relate the nodes, one that is enough is chosen, if there is one.
    """
    tried = [
        exchange for exchange in exchanges(adjacency, shared) if _leaves_invariant(adjacency, exchange.moved)
    ]
    altered = altered_variables(tape, [exchange.moved for exchange in tried])
    unequal: dict[Symmetry, set[str]] = {}
    for exchange, names in zip(tried, altered, strict=True):
        if names and not any(symmetry in unequal for symmetry in exchange.along):
            for symmetry in _enough(tape, adjacency, shared, exchange):
                unequal.setdefault(symmetry, set()).update(names)
    return unequal


def _enough(
    tape: Tape, adjacency: Adjacency, shared: Sequence[Symmetry], exchange: Exchange
) -> Sequence[Symmetry]:
    """The first symmetry of an exchange without which no exchange changes the law; else all of them."""
    for symmetry in exchange.along if len(exchange.along) > 1 else ():
        others = exchanges(adjacency, [other for other in shared if other is not symmetry])
        moved = [other.moved for other in others if _leaves_invariant(adjacency, other.moved)]
        if not any(altered_variables(tape, moved)):
            return [symmetry]
    return exchange.along


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


def _altered(tape: Tape, permutations: Sequence[Sequence[Nodes]]) -> list[set[str]]:
    """Variables whose law changes under one of several permutations; a set for each list of them."""
    names = iter(altered_variables(tape, [permutation for own in permutations for permutation in own]))
    return [set().union(*(next(names) for _ in own)) for own in permutations]


def _everywhere(symmetry: Symmetry) -> list[Nodes]:
    """Generators of the permutations of an index at all nodes that have it."""
    return [symmetry.permutation(order).numpy() for order in generators(symmetry.size)]


def _partial(symmetry: Symmetry, parts: Sequence[Nodes], adjacency: Adjacency) -> list[Nodes]:
    """The same at parts of these nodes, given by masks, as far as they leave the mask of the graph
    invariant."""
    identity = np.arange(adjacency.count)
    own = symmetry.values() >= 0
    distinct = {part[own].tobytes(): part for part in parts if part[own].any() and not part[own].all()}
    everywhere = _everywhere(symmetry)
    permutations = [
        np.where(part, permutation, identity) for part in distinct.values() for permutation in everywhere
    ]
    return [permutation for permutation in permutations if _leaves_invariant(adjacency, permutation)]


def _ends(symmetry: Symmetry, others: Sequence[Symmetry], adjacency: Adjacency) -> list[Nodes]:
    """Masks of the nodes of each variable, and of those at the first and last value of other indices."""
    own = symmetry.values() >= 0
    variables = _variable_of(adjacency.shapes)
    parts = [variables == number for number in np.unique(variables[own])]
    for other in others:
        if other is not symmetry:
            values = other.values()
            parts += [values == value for value in {0, other.size - 1}]
    return parts


def _middles(symmetry: Symmetry, others: Sequence[Symmetry]) -> list[Nodes]:
    """Masks of the nodes at each further value of other indices."""
    parts = []
    for other in others:
        if other is not symmetry and other.size > 2:
            chosen = np.linspace(1, other.size - 2, min(other.size - 2, _MOST_VALUES)).round().astype(int)
            parts += [other.values() == value for value in np.unique(chosen)]
    return parts


def _variable_of(shapes: Mapping[str, tuple[int, ...]]) -> Nodes:
    """Number of the variable of each node, shape ``(nodes,)``."""
    return np.repeat(
        np.arange(len(shapes)), [int(np.prod(shape, dtype=np.int64)) for shape in shapes.values()]
    )


def _leaves_invariant(adjacency: Adjacency, permutation: Nodes) -> bool:
    """Whether the mask is invariant under a permutation of the nodes."""
    return adjacency.permuted(torch.from_numpy(permutation)).same_entries(adjacency)
