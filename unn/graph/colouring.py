"""Exact sub-blocks: colour classes of the nodes of a variable that interacts with itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array, sparray

from .arrays import Variable
from .factor import Factor
from .interactions import Shapes, node_shape, term_relation


def meets_itself(factor: Factor, variable: Variable) -> bool:
    """Whether the variable occurs several times in the factor."""
    return sum(reference.array.name == variable.name for reference in factor.references) > 1


def node_pairs(factor: Factor, variable: Variable, shapes: Shapes) -> np.ndarray:
    """Pairs of nodes of a variable that occur in a common term of the factor, flat indices, shape ``(pairs,
    2)``."""
    references = [r for r in factor.references if r.array.name == variable.name]
    pairs = [
        np.stack(term_relation(factor, one, other, shapes).pairs, axis=1)
        for k, one in enumerate(references)
        for other in references[k + 1 :]
    ]
    return np.unique(np.concatenate(pairs), axis=0)


def colour_classes(variable: Variable, factors: Sequence[Factor], shapes: Shapes) -> list[np.ndarray] | None:
    """Split nodes into classes without inner interactions by greedy colouring in node order (two classes on a
    grid).

    Returns:
        Boolean arrays of the shape of the node axes; None if a node interacts with itself.
    """
    shape = node_shape(variable, shapes)
    pairs = np.concatenate([node_pairs(f, variable, shapes) for f in factors if meets_itself(f, variable)])
    if (pairs[:, 0] == pairs[:, 1]).any():
        return None
    count = int(np.prod(shape, dtype=np.int64))
    colours = greedy_colours(coo_array((np.ones(len(pairs)), pairs.T), shape=(count, count)))
    return [(colours == colour).reshape(shape) for colour in range(int(colours.max()) + 1)]


def greedy_colours(adjacency: sparray) -> np.ndarray:
    """Colour of each node, different from those of its neighbours: the first free one, in node order.

    Args:
        adjacency: edges in either or both directions; the diagonal is ignored, shape ``(nodes, nodes)``.
    """
    matrix = coo_array(adjacency)
    rows, columns = matrix.coords
    between = rows != columns
    both = np.concatenate([np.stack([rows, columns], 1)[between], np.stack([columns, rows], 1)[between]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    count = matrix.shape[0]
    starts = np.searchsorted(both[:, 0], np.arange(count + 1))
    colours = np.full(count, -1)
    for node in range(count):
        taken = colours[both[starts[node] : starts[node + 1], 1]]
        free = np.ones(taken.size + 1, dtype=bool)
        free[taken[(taken >= 0) & (taken <= taken.size)]] = False
        colours[node] = int(np.argmax(free))
    return colours
