"""Which nodes interact: pairs of nodes that one term of a factor holds, by enumerating the letters of its references."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .arrays import Reference, Variable
from .patterns import Dimension
from .regularizers import Elementwise

if TYPE_CHECKING:
    from .factor import Factor

Shapes = Mapping[str, tuple[int, ...]]
Nodes = NDArray[np.int64]
Pairs = tuple[str, Nodes, str, Nodes]
"""Two variables, and the flat indices of nodes of the one and of the other that interact, shape ``(pairs,)`` each."""


def node_axis_count(variable: Variable) -> int:
    """How many leading axes index nodes; all of them where the regularizer treats every entry alone and no bar is declared."""
    if variable.node_axes == 0 and isinstance(variable.regularizer, Elementwise):
        return len(variable.axes)
    return variable.node_axes


def node_shape(variable: Variable, shapes: Shapes) -> tuple[int, ...]:
    """The sizes of the axes that index nodes; empty for a variable that is one node."""
    return shapes[variable.name][: node_axis_count(variable)]


def node_count(variable: Variable, shapes: Shapes) -> int:
    """How many nodes a variable has."""
    return int(np.prod(node_shape(variable, shapes), dtype=np.int64))


def term_pairs(factor: Factor, one: Reference, other: Reference, shapes: Shapes, apart: Collection[str] = ()) -> tuple[Nodes, Nodes]:
    """The nodes of two references that meet in some term of the factor, flat indices, shape ``(pairs,)`` each.

    Args:
        factor: that holds both references.
        one, other: to variables.
        shapes: of all arrays without batch axes.
        apart: letters that run on their own in the second reference, so that all their values meet.
    """
    sizes = factor.letter_sizes(shapes)
    renamed = {letter: f"{letter}'" for letter in apart}
    groups = [_node_dimensions(reference) for reference in (one, other)]
    names = [[letter for dim in groups[0] for letter in dim.letters], [renamed.get(x, x) for dim in groups[1] for x in dim.letters]]
    letters = list(dict.fromkeys([*names[0], *names[1]]))
    plain = {letter: letter.rstrip("'") for letter in letters}
    places = [dim for reference in factor.references for dim in reference.pattern.dimensions]
    low = {letter: max([0, *(-dim.shift for dim in places if dim.letters == (plain[letter],))]) for letter in letters}
    grid = np.indices([sizes[plain[letter]] for letter in letters]).reshape(len(letters), -1) if letters else np.zeros((0, 1), np.int64)
    index = {letter: grid[k] + low[letter] for k, letter in enumerate(letters)}
    second = {letter: index[renamed.get(letter, letter)] for dim in groups[1] for letter in dim.letters}
    pairs = _flat(one, index, sizes, shapes, grid.shape[1]), _flat(other, second, sizes, shapes, grid.shape[1])
    kept = None if apart else factor.keeps(index)
    return pairs if kept is None else (pairs[0][kept], pairs[1][kept])


def product_pairs(factor: Factor, shapes: Shapes) -> list[Pairs]:
    """All pairs of references to variables that a product multiplies."""
    places = [r for r in factor.references if isinstance(r.array, Variable)]
    return [(a.array.name, i, b.array.name, j) for k, a in enumerate(places) for b in places[k + 1 :] for i, j in [term_pairs(factor, a, b, shapes)]]


def clique_pairs(factor: Factor, each: Sequence[str], shapes: Shapes) -> list[Pairs]:
    """All pairs of nodes that the references reach for one value of the letters ``each``."""
    found: list[Pairs] = []
    for a, b in combinations_with_replacement(factor.references, 2):
        apart = [letter for letter in b.letters if letter not in each]
        i, j = term_pairs(factor, a, b, shapes, apart)
        found.append((a.array.name, i, b.array.name, j))
    return found


def complete_pairs(variables: Sequence[Variable], shapes: Shapes) -> list[Pairs]:
    """All nodes of some variables with one another."""
    found: list[Pairs] = []
    for a, b in combinations_with_replacement(variables, 2):
        i, j = np.indices((node_count(a, shapes), node_count(b, shapes))).reshape(2, -1)
        found.append((a.name, i, b.name, j))
    return found


def node_of(reference: Reference, index: Sequence[Nodes], shapes: Shapes) -> Nodes:
    """The flat index of the node that holds an entry of a variable, given the entry's index along each axis, shape of the indices."""
    assert isinstance(reference.array, Variable)
    node = np.zeros_like(index[0])
    for along, size in zip(index, node_shape(reference.array, shapes), strict=False):
        node = node * size + along
    return node


def _node_dimensions(reference: Reference) -> Sequence[Dimension]:
    assert isinstance(reference.array, Variable)
    return reference.pattern.dimensions[: node_axis_count(reference.array)]


def _flat(reference: Reference, index: Mapping[str, Nodes], sizes: Mapping[str, int], shapes: Shapes, count: int) -> Nodes:
    """The flat index of the node at which a reference looks, for each value of the letters."""
    node = np.zeros(count, dtype=np.int64)
    for dim, size in zip(_node_dimensions(reference), shapes[reference.array.name], strict=False):
        along = np.zeros_like(node)
        for letter in dim.letters:
            along = along * sizes[letter] + index[letter]
        node = node * size + along + dim.shift
    return node
