"""Interacting nodes: groups of nodes that occur in the same terms of a factor, from the letters of its
references."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .arrays import Indices, Reference, Variable
from .patterns import Dimension

if TYPE_CHECKING:
    from .factor import Factor

Shapes = Mapping[str, tuple[int, ...]]
Nodes = NDArray[np.int64]
PairMask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class NodeLayout:
    """Regular layout of groups of nodes in the node axes of a variable: split axes into letters, slice,
    transpose.

    Attributes:
        sizes: sizes of the letters in the order of the axes, before slicing.
        starts: start of the slice of each letter.
        lengths: length of each slice.
        order: positions of the letters; those that index groups first, then those that index members.
        groups: number of letters that index groups.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    order: tuple[int, ...]
    groups: int

    @property
    def whole(self) -> bool:
        """Whether every node is in some group."""
        return self.sizes == self.lengths


@dataclass(frozen=True, eq=False)
class Side:
    """The nodes of one variable in a relation.

    Attributes:
        variable: name of the variable.
        nodes: flat indices among the nodes of the variable, shape ``(groups, members)``.
        layout: layout of the nodes, if it is regular.
    """

    variable: str
    nodes: Nodes
    layout: NodeLayout | None = None


@dataclass(frozen=True, eq=False)
class Relation:
    """A union of bipartite graphs between groups of nodes of two variables, which may be the same.

    Attributes:
        left: nodes on the first side, shape ``(groups, m)``.
        right: nodes on the second side, shape ``(groups, n)``.
        mask: mask of the pairs that interact, shape ``(groups, m, n)``; None for all. Pairs are distinct.
        directed: whether ``left`` holds children and ``right`` their parents.
    """

    left: Side
    right: Side
    mask: PairMask | None = None
    directed: bool = False

    @cached_property
    def pairs(self) -> tuple[Nodes, Nodes]:
        """Interacting pairs, flat indices, shape ``(pairs,)`` each."""
        i, j = np.broadcast_arrays(self.left.nodes[:, :, None], self.right.nodes[:, None, :])
        if self.mask is not None:
            return i[self.mask], j[self.mask]
        return i.ravel(), j.ravel()

    def transpose(self) -> Relation:
        """The relation with its two sides exchanged."""
        return Relation(self.right, self.left, None if self.mask is None else self.mask.transpose(0, 2, 1))


def node_axis_count(variable: Variable) -> int:
    """Number of leading axes that index nodes."""
    return len(variable.node_axes)


def node_shape(variable: Variable, shapes: Shapes) -> tuple[int, ...]:
    """Sizes of the axes that index nodes; empty for a variable with a single node."""
    return shapes[variable.name][: len(variable.node_axes)]


def node_count(variable: Variable, shapes: Shapes) -> int:
    """Number of nodes of a variable."""
    return int(np.prod(node_shape(variable, shapes), dtype=np.int64))


def node_dimensions(reference: Reference) -> Sequence[Dimension]:
    """The dimensions of a reference to a variable that index its nodes."""
    assert isinstance(reference.array, Variable)
    return reference.pattern.dimensions[: len(reference.array.node_axes)]


def ordered_letters_of(references: Sequence[Reference]) -> set[str]:
    """Letters that break exchangeability: shifted, used in an index, or along parameters and constants."""
    shifted = {
        dim.letters[0]
        for r in references
        for dim in r.pattern.dimensions
        if dim.shift or dim.index is not None
    }
    return shifted | {letter for r in references if not isinstance(r.array, Variable) for letter in r.letters}


def term_relation(
    factor: Factor, left: Reference, right: Reference, shapes: Shapes, independent: Collection[str] = ()
) -> Relation:
    """Pairs of nodes of two references that occur in the same term of the factor; shared letters index the
    groups.

    Args:
        factor: factor with both references.
        left, right: references to variables.
        shapes: shapes of all arrays without batch axes.
        independent: letters that run independently in the second reference: all their values are paired.
    """
    sizes = factor.letter_sizes(shapes)
    if not all(sizes.values()):
        no_nodes = np.zeros((0, 1), dtype=np.int64)
        return Relation(Side(left.array.name, no_nodes), Side(right.array.name, no_nodes))
    dims = [dim for reference in factor.references for dim in reference.pattern.dimensions]
    low = {letter: max([0, *(-dim.shift for dim in dims if dim.letters == (letter,))]) for letter in sizes}
    source_letters = list(dict.fromkeys(x for dim in node_dimensions(left) for x in dim.letters))
    target_letters = list(dict.fromkeys(x for dim in node_dimensions(right) for x in dim.letters))
    shared = [x for x in source_letters if x in target_letters and x not in independent]
    own, others = (
        [x for x in source_letters if x not in shared],
        [x for x in target_letters if x not in shared],
    )
    sides = [
        _side(r, shared, members, sizes, low, shapes, factor.indices)
        for r, members in ((left, own), (right, others))
    ]
    mask = None
    if not independent:
        letters = [*shared, *own, *others]
        # a pair interacts if a term exists for some value of the letters that do not index it
        all_letters = [*letters, *(x for x in sizes if x not in letters)]
        grid = np.indices([sizes[x] for x in all_letters], sparse=True)
        term_mask = factor.keeps({x: grid[k] + low[x] for k, x in enumerate(all_letters)})
        if term_mask is not None:
            exists = np.any(term_mask, axis=tuple(range(len(letters), len(all_letters))), keepdims=False)
            mask = np.broadcast_to(exists, [sizes[x] for x in letters]).reshape(
                *sides[0].nodes.shape, sides[1].nodes.shape[1]
            )
    if any(dim.index is not None for reference in (left, right) for dim in node_dimensions(reference)):
        mask = _first_of_each_pair(sides[0].nodes, sides[1].nodes, mask)
    return Relation(sides[0], sides[1], mask)


def _first_of_each_pair(left: Nodes, right: Nodes, mask: PairMask | None) -> PairMask:
    """Mask of the first occurrence of each pair, shape ``(groups, m, n)``; an index may repeat an edge."""
    flat = left[:, :, None] * (int(right.max()) + 1) + right[:, None, :]
    positions = np.arange(flat.size) if mask is None else np.flatnonzero(mask)
    _, first = np.unique(flat.ravel()[positions], return_index=True)
    distinct = np.zeros(flat.size, dtype=bool)
    distinct[positions[first]] = True
    return distinct.reshape(flat.shape)


def product_relations(factor: Factor, shapes: Shapes) -> list[Relation]:
    """Relations between all pairs of references to variables in a product."""
    references = [r for r in factor.references if isinstance(r.array, Variable)]
    return [
        term_relation(factor, a, b, shapes) for k, a in enumerate(references) for b in references[k + 1 :]
    ]


def clique_relations(factor: Factor, each: Sequence[str], shapes: Shapes) -> list[Relation]:
    """Relations between all nodes that the references address for each value of the letters ``each``."""
    return [
        term_relation(factor, a, b, shapes, [letter for letter in b.letters if letter not in each])
        for a, b in combinations_with_replacement(factor.references, 2)
    ]


def complete_relations(variables: Sequence[Variable], shapes: Shapes) -> list[Relation]:
    """Relations between all nodes of the variables."""
    sides = []
    for variable in variables:
        shape = node_shape(variable, shapes)
        layout = NodeLayout(shape, (0,) * len(shape), shape, tuple(range(len(shape))), 0)
        sides.append(Side(variable.name, np.arange(node_count(variable, shapes))[None], layout))
    return [Relation(a, b) for a, b in combinations_with_replacement(sides, 2)]


def listed_relation(left: str, i: Nodes, right: str, j: Nodes) -> Relation:
    """Relation given by pairs of nodes of two variables, flat indices, shape ``(pairs,)`` each."""
    return Relation(Side(left, i[:, None]), Side(right, j[:, None]))


def node_of(reference: Reference, index: Sequence[Nodes], shapes: Shapes) -> Nodes:
    """Flat index of the node of an entry of a variable, from its index along each axis; shape of the
    indices."""
    assert isinstance(reference.array, Variable)
    node = np.zeros_like(index[0])
    for along, size in zip(index, node_shape(reference.array, shapes), strict=False):
        node = node * size + along
    return node


def _side(
    reference: Reference,
    shared: Sequence[str],
    own: Sequence[str],
    sizes: Mapping[str, int],
    low: Mapping[str, int],
    shapes: Shapes,
    indices: Indices,
) -> Side:
    """The nodes that a reference addresses, by values of the shared letters (groups) and of its own
    (members)."""
    letters = [*shared, *own]
    grid = np.indices([sizes[x] for x in letters], sparse=True)
    index = {x: grid[k] + low[x] for k, x in enumerate(letters)}
    shape = [sizes[x] for x in letters]
    node = np.zeros([1] * len(letters), dtype=np.int64)
    for dim, size in zip(node_dimensions(reference), shapes[reference.array.name], strict=False):
        along = np.zeros_like(node)
        for letter in dim.letters:
            along = along * sizes[letter] + index[letter]
        along = along + dim.shift
        node = node * size + (along if dim.index is None else indices[dim.index].array[along])
    groups = int(np.prod(shape[: len(shared)], dtype=np.int64))
    members = int(np.prod(shape[len(shared) :], dtype=np.int64))
    nodes = np.broadcast_to(node, shape).reshape(groups, members)
    return Side(reference.array.name, nodes, _layout(reference, letters, len(shared), sizes, low, shapes))


def _layout(
    reference: Reference,
    letters: Sequence[str],
    groups: int,
    sizes: Mapping[str, int],
    low: Mapping[str, int],
    shapes: Shapes,
) -> NodeLayout | None:
    """Layout of the nodes of a reference; None for diagonals and indices."""
    dimensions = node_dimensions(reference)
    axes = [x for dim in dimensions for x in dim.letters]
    if len(axes) != len(set(axes)) or any(dim.index is not None for dim in dimensions):
        return None
    full_sizes: list[int] = []
    for dim, size in zip(dimensions, shapes[reference.array.name], strict=False):
        full_sizes += [size] if len(dim.letters) == 1 else [sizes[x] for x in dim.letters]
    starts = [low[x] + (dim.shift if len(dim.letters) == 1 else 0) for dim in dimensions for x in dim.letters]
    return NodeLayout(
        tuple(full_sizes),
        tuple(starts),
        tuple(sizes[x] for x in axes),
        tuple(axes.index(x) for x in letters),
        groups,
    )
