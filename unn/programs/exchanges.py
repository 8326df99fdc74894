"""Exchanges of nodes, and of axes at pairs of values, that keep the mask of a graph and the embeddings of a
network.

A network cannot distinguish such nodes, although no permutation of an index exchanges them: x[0, 1] and
x[1, 0] have the same neighbours in ``x[i, j] = y[i] - y[j]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..graph.adjacency import Adjacency
from ..graph.symmetries import Symmetry, embedding_indices, generators, moved_nodes
from .tape import Nodes

_MOST_CLASSES = 16
"""Largest number of classes of like nodes with one embedding of which exchanges are tried."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A permutation of nodes.

    Attributes:
        moved: new number of each node, shape ``(nodes,)``.
        along: the symmetries of which the nodes that it moves have different values.
    """

    moved: Nodes
    along: tuple[Symmetry, ...]


def exchanges(adjacency: Adjacency, shared: Sequence[Symmetry]) -> list[Exchange]:
    """Exchanges of nodes with equal neighbours, and of the two axes of pairs of values.

    Args:
        adjacency: of the graph.
        shared: symmetries along which a network shares its embeddings.
    """
    return [*_of_like_nodes(adjacency, shared), *_of_axes(adjacency, shared)]


def _of_like_nodes(adjacency: Adjacency, shared: Sequence[Symmetry]) -> Iterator[Exchange]:
    """Generators of the permutations of nodes with one embedding and the same neighbours, apart from
    themselves."""
    embeddings = embedding_indices(adjacency, shared).numpy()
    values = [symmetry.values() for symmetry in shared]
    for embedding in np.unique(embeddings):
        nodes = np.flatnonzero(embeddings == embedding)
        classes = _like(adjacency, nodes)
        chosen = np.linspace(0, len(classes) - 1, min(len(classes), _MOST_CLASSES)).round().astype(int)
        for members in (classes[number] for number in np.unique(chosen)):
            along = tuple(
                symmetry
                for symmetry, value in zip(shared, values, strict=True)
                if len(np.unique(value[members])) > 1
            )
            for order in generators(len(members)):
                moved = np.arange(adjacency.count)
                moved[members] = members[order]
                yield Exchange(moved, along)


def _like(adjacency: Adjacency, nodes: Nodes) -> list[Nodes]:
    """Classes of at least two of the nodes with equal neighbours: with themselves where they are neighbours,
    without where they are not."""
    matrix = adjacency.matrix
    closed: dict[bytes, list[int]] = {}
    opened: dict[bytes, list[int]] = {}
    for node in nodes.tolist():
        row = np.sort(matrix.indices[matrix.indptr[node] : matrix.indptr[node + 1]])
        others = row[row != node]
        closed.setdefault(np.sort(np.append(others, node)).tobytes(), []).append(node)
        opened.setdefault(others.tobytes(), []).append(node)
    return [np.array(members) for members in (*closed.values(), *opened.values()) if len(members) > 1]


def _of_axes(adjacency: Adjacency, shared: Sequence[Symmetry]) -> Iterator[Exchange]:
    """Exchanges of two axes that one symmetry indexes, at pairs of its values and everywhere, in all
    variables that have both."""
    for symmetry in shared:
        axes: dict[str, list[int]] = {}
        for part in symmetry.parts:
            if part.before == part.after == 1:
                axes.setdefault(part.variable, []).append(part.axis)
        both = {name: own for name, own in axes.items() if len(own) > 1}
        pairs = [(0, 1), (symmetry.size - 2, symmetry.size - 1), None]
        for pair in dict.fromkeys(pairs) if both else ():
            for chosen in combinations(range(max(map(len, both.values()))), 2):
                moved = _transposed(adjacency, both, chosen, pair)
                yield Exchange(moved, (symmetry,))


def _transposed(
    adjacency: Adjacency,
    both: dict[str, list[int]],
    chosen: tuple[int, int],
    pair: tuple[int, int] | None,
) -> Nodes:
    """The exchange of two axes, chosen among those that a symmetry indexes in each variable, at the nodes
    where they have a pair of values; at all nodes without a pair."""

    def move(name: str, index: list[Nodes]) -> None:
        own = both.get(name, [])
        if len(own) > chosen[1]:
            one, other = own[chosen[0]], own[chosen[1]]
            a, b = index[one], index[other]
            applies = pair is None or ((a == pair[0]) & (b == pair[1])) | ((a == pair[1]) & (b == pair[0]))
            index[one], index[other] = np.where(applies, b, a), np.where(applies, a, b)

    return moved_nodes(adjacency.shapes, move)
