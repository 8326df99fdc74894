"""Exact sub-blocks: colour classes of the nodes of a variable that meets itself in a factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..arrays import Reference, Variable
from ..factor import Factor
from ..regularizers import Elementwise

Shapes = Mapping[str, tuple[int, ...]]


def node_axis_count(variable: Variable) -> int:
    """How many leading axes index nodes; all of them where the regularizer treats every entry alone and no bar is declared."""
    if variable.node_axes == 0 and isinstance(variable.regularizer, Elementwise):
        return len(variable.axes)
    return variable.node_axes


def meets_itself(factor: Factor, variable: Variable) -> bool:
    """Does the variable occur several times in this factor?"""
    return sum(reference.array.name == variable.name for reference in factor.references) > 1


def node_pairs(factor: Factor, variable: Variable, shapes: Shapes) -> np.ndarray:
    """The pairs of nodes of one variable that some term of the factor multiplies, shape ``(pairs, 2)``, flat indices."""
    places = [r for r in factor.references if r.array.name == variable.name]
    sizes = factor.letter_sizes(shapes)
    pairs = [_pairs(factor, one, other, variable, shapes[variable.name], sizes) for k, one in enumerate(places) for other in places[k + 1 :]]
    return np.unique(np.concatenate(pairs), axis=0)


def colour_classes(variable: Variable, factors: Sequence[Factor], shapes: Shapes) -> list[np.ndarray] | None:
    """Split the nodes into classes without interaction inside; None if a node meets itself, so that no such split exists.

    Returns:
        Boolean arrays of the shape of the node axes; greedy colouring in the order of the nodes (two classes on a grid).
    """
    shape = shapes[variable.name][: node_axis_count(variable)]
    pairs = np.concatenate([node_pairs(f, variable, shapes) for f in factors if meets_itself(f, variable)])
    if (pairs[:, 0] == pairs[:, 1]).any():
        return None
    count = int(np.prod(shape, dtype=np.int64))
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    starts = np.searchsorted(both[:, 0], np.arange(count + 1))
    colours = np.full(count, -1)
    for node in range(count):
        taken = colours[both[starts[node] : starts[node + 1], 1]]
        free = np.ones(taken.size + 1, dtype=bool)
        free[taken[(taken >= 0) & (taken <= taken.size)]] = False
        colours[node] = int(np.argmax(free))
    return [(colours == colour).reshape(shape) for colour in range(int(colours.max()) + 1)]


def _pairs(factor: Factor, one: Reference, other: Reference, variable: Variable, shape: tuple[int, ...], sizes: Mapping[str, int]) -> np.ndarray:
    count = node_axis_count(variable)
    dims = [reference.pattern.dimensions[:count] for reference in (one, other)]
    letters = list(dict.fromkeys(letter for group in dims for dim in group for letter in dim.letters))
    starts = {letter: max(0, *(-d.shift for r in factor.references for d in r.pattern.dimensions if d.letters == (letter,)), 0) for letter in letters}
    grid = np.indices([sizes[letter] for letter in letters]).reshape(len(letters), -1) if letters else np.zeros((0, 1), int)
    index = {letter: grid[k] + starts[letter] for k, letter in enumerate(letters)}
    keep = factor.keeps(index)
    flat = []
    for group in dims:
        node = np.zeros(grid.shape[1], dtype=np.int64)
        for dim, size in zip(group, shape, strict=False):
            along = np.zeros_like(node)
            for letter in dim.letters:
                along = along * sizes[letter] + index[letter]
            node = node * size + along + dim.shift
        flat.append(node)
    pairs = np.stack(flat, axis=1)
    return pairs if keep is None else pairs[keep]
