"""Contraction of latent variables: the graph of the observable variables alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import ascii_lowercase

import numpy as np
from scipy.sparse.csgraph import connected_components

from ..errors import DeclarationError, suggest
from .adjacency import Adjacency, adjacency
from .arrays import Reference, Variable
from .declaration import Declaration
from .interactions import Nodes
from .structure import Pairs


def contract_latents(
    graph: Declaration, observable: Collection[str], sizes: Mapping[str, int] | None = None
) -> Declaration:
    """Declare the observable variables of a graph alone; the neighbours of a latent variable become
    neighbours.

    Two observable nodes interact if they do in the graph, or if a path between them has latent nodes only in
    its interior: these are the edges that remain when latent variables are eliminated, as in summing them
    out. The result has no energy, and no constraint of the graph.

    Args:
        graph: declaration.
        observable: names of the variables to keep; if these are all, the result is the graph itself.
        sizes: sizes of the axes without a static size; the result has them as static sizes.

    Raises:
        DeclarationError: for an unknown name, an empty selection, or missing sizes.
    """
    for name in observable:
        if name not in graph.variables:
            raise DeclarationError(
                f"graph {graph.name!r} has no variable {name!r}.{suggest(name, graph.variables)}"
            )
    if not observable:
        raise DeclarationError(
            f"graph {graph.name!r}: no variable is observable, so nothing is left to model."
        )
    if len(set(observable)) == len(graph.variables):
        return graph
    whole = adjacency(graph, sizes or {})
    table = graph.size_table
    solved = table.solve({table.root(axis): size for axis, size in (sizes or {}).items()})
    variables = [variable for name, variable in graph.variables.items() if name in observable]
    axes: dict[str, int] = {}
    for variable in variables:
        shape = table.shape(variable, solved)
        axes |= {axis: int(size or 0) for axis, size in zip(variable.axes, shape, strict=True)}
    result = type(graph)(graph.name, **axes)
    copies = {
        variable.name: result.variable(
            variable.name,
            variable.pattern,
            variable.regularizer,
            bounds=variable.bounds.arrays() if variable.bounds else None,
        )
        for variable in variables
    }
    rows, columns = _remaining_edges(whole, [variable.name for variable in variables])
    starts, shapes = whole.starts, whole.shapes
    names = [variable.name for variable in variables]
    for k, one in enumerate(names):
        for other in names[k:]:
            inside = _within(rows, starts[one], shapes[one]) & _within(columns, starts[other], shapes[other])
            if one == other:
                inside &= rows < columns
            pairs = rows[inside] - starts[one], columns[inside] - starts[other]
            if len(pairs[0]):
                left, right = _references(copies[one], copies[other])
                result.factor(Pairs(left, right, pairs, directed=False, name=f"{one} {other}"))
    return result


def _remaining_edges(whole: Adjacency, observable: Collection[str]) -> tuple[Nodes, Nodes]:
    """Edges between observable nodes after elimination of the latent ones, in both directions."""
    visible = np.concatenate([np.full(size, name in observable) for name, size in whole.blocks])
    matrix = whole.matrix.astype(np.int8)
    latent = np.flatnonzero(~visible)
    kept = np.flatnonzero(visible)
    direct = matrix[kept][:, kept]
    if len(latent):
        count, component = connected_components(matrix[latent][:, latent], directed=False)
        # boundary[i, c]: observable node i touches the connected component c of latent nodes
        assignment = np.zeros((len(latent), count), dtype=np.int32)
        assignment[np.arange(len(latent)), component] = 1
        boundary = ((matrix[kept][:, latent].astype(np.int32) @ assignment) > 0).astype(np.int32)
        through = boundary @ boundary.T > 0
        rows, columns = np.nonzero(through | (direct.toarray() > 0))
    else:
        rows, columns = direct.nonzero()
    return kept[rows], kept[columns]


def _within(nodes: Nodes, start: int, shape: tuple[int, ...]) -> np.ndarray:
    mask: np.ndarray = (nodes >= start) & (nodes < start + int(np.prod(shape, dtype=np.int64)))
    return mask


def _references(one: Variable, other: Variable) -> tuple[Reference, Reference]:
    """References with a distinct letter for each axis."""
    letters = iter(ascii_lowercase)
    first = [next(letters) for _ in one.axes]
    second = [next(letters) for _ in other.axes]
    return one[" ".join(first)], other[" ".join(second)]
