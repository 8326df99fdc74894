"""Symmetries of a declaration: permutations of axes that leave it invariant, so that embeddings may be
shared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ObservationError
from .adjacency import Adjacency, Nodes, adjacency
from .arrays import Variable
from .declaration import Declaration
from .disjoint_sets import DisjointSets
from .factor import Factor
from .interactions import node_dimensions

AxisPart = tuple[str, int, int]
"""A variable, one of its node axes, and the number of a part of that axis, slowest first; 0 if it is not
split."""


@dataclass(frozen=True, eq=False)
class SplitPart:
    """A part of an axis of a variable, whose index splits as ``(before, at, after)``, slowest first.

    Attributes:
        variable: name of the variable.
        axis: position among its node axes.
        before: number of values of the slower parts together.
        after: number of values of the faster parts together.
    """

    variable: str
    axis: int
    before: int = 1
    after: int = 1


@dataclass(frozen=True, eq=False)
class Symmetry:
    """An exchangeable index: permuting its values everywhere at once leaves the adjacency invariant, M = pi
    M.

    Attributes:
        name: axes that it indexes, such as ``"A.i C.i"``; ``"X.row[1]"`` is the second part of a split axis.
        size: number of values.
        parts: parts of axes that it indexes.
        shapes: sizes of the node axes, by variable.
    """

    name: str
    size: int
    parts: tuple[SplitPart, ...]
    shapes: Mapping[str, tuple[int, ...]]

    def permutation(self, order: Sequence[int] | Tensor | Nodes) -> Tensor:
        """The permutation of nodes that maps value v of the index to ``order[v]``, shape ``(nodes,)``.

        Raises:
            ObservationError: if the order is not a permutation of the values.
        """
        values = np.asarray(order, dtype=np.int64)
        if values.shape != (self.size,) or not np.array_equal(np.sort(values), np.arange(self.size)):
            raise ObservationError(
                f"symmetry {self.name!r}: expected a permutation of {self.size} values, got {list(order)}."
            )
        return torch.from_numpy(_permute_nodes(self.parts, self.shapes, values))

    def values(self) -> Nodes:
        """Value of the index at each node, shape ``(nodes,)``; -1 at nodes without it."""
        columns = []
        for name, shape in self.shapes.items():
            along = np.full(shape, -1, dtype=np.int64)
            for part in self.parts:
                if part.variable == name:
                    along = np.indices(shape)[part.axis] // part.after % self.size
            columns.append(along.ravel())
        return np.concatenate(columns) if columns else np.zeros(0, np.int64)

    def __repr__(self) -> str:
        return f"Symmetry({self.name!r}, {self.size} values)"


def symmetries(graph: Declaration, sizes: Mapping[str, int]) -> list[Symmetry]:
    """Exchangeable indices of nodes, derived from the patterns and verified on the adjacency.

    A letter is a candidate unless it is shifted or indexes a parameter or a constant. Letters of the same
    axis are permuted together, as are the axes that a letter indexes. A candidate is reported if two
    permutations that generate the symmetric group leave the adjacency invariant, and the bounds of entries.

    Args:
        graph: the declaration.
        sizes: sizes of the dynamic axes, by name.

    Raises:
        DeclarationError: for a size that is missing, unknown or contradicts the declaration.
    """
    matrix = adjacency(graph, sizes)
    return [
        symmetry
        for symmetry in candidates(graph, matrix.shapes)
        if symmetry.size > 1 and _is_invariant(symmetry, matrix) and _keeps_bounds(symmetry, graph)
    ]


def embedding_indices(adjacency: Adjacency, shared: Sequence[Symmetry]) -> Tensor:
    """Embedding number of each node if embeddings are shared along exchangeable indices, shape ``(nodes,)``.

    Structured-diffusion paper, Section 3.2; without shared indices, every node has its own embedding.
    """
    numbers: list[Nodes] = []
    start = 0
    for name, shape in adjacency.shapes.items():
        index = shared_index(name, shape, shared)
        flat = np.ravel_multi_index(tuple(index), shape).ravel() if shape else np.zeros(1, np.int64)
        distinct, inverse = np.unique(flat, return_inverse=True)
        numbers.append(inverse.ravel() + start)
        start += len(distinct)
    return torch.from_numpy(np.concatenate(numbers)) if numbers else torch.zeros(0, dtype=torch.int64)


def shared_index(variable: str, shape: tuple[int, ...], shared: Sequence[Symmetry]) -> list[Nodes]:
    """Index of each node along each axis, shape ``shape``, with all values of the shared indices set to 0."""
    index: list[Nodes] = list(np.indices(shape)) if shape else []
    for symmetry in shared:
        for part in symmetry.parts:
            if part.variable == variable:
                along, block = index[part.axis], part.after * symmetry.size
                index[part.axis] = along // block * block + along % part.after
    return index


def generators(size: int) -> list[Nodes]:
    """Generators of the symmetric group on ``size`` values: the exchange of the first two, and the cycle."""
    if size < 2:
        return []
    exchange = np.arange(size)
    exchange[:2] = 1, 0
    return [exchange, np.roll(np.arange(size), 1)][: size - 1]


def letters_along(symmetry: Symmetry, factor: Factor, graph: Declaration) -> set[str]:
    """Letters of a factor along the axes that a symmetry permutes.

    Args:
        symmetry: symmetry of the graph.
        factor: factor of the graph.
        graph: the declaration.
    """
    parts = {(part.variable, part.axis, part.before, part.after) for part in symmetry.parts}
    letters = set()
    for reference in factor.references:
        if not isinstance(reference.array, Variable):
            continue
        for axis, dimension in enumerate(node_dimensions(reference)):
            sizes = [1]
            if len(dimension.letters) > 1:
                extents = _letter_sizes(factor, graph, symmetry.shapes)
                sizes = [extents[letter] for letter in dimension.letters]
            for k, letter in enumerate(dimension.letters):
                if (reference.array.name, axis, math.prod(sizes[:k]), math.prod(sizes[k + 1 :])) in parts:
                    letters.add(letter)
    return letters


@dataclass(frozen=True, eq=False)
class Assumption:
    """Two indices with shared embeddings that a factor fully relates without declaring them exchangeable.

    Attributes:
        factor: factor that relates the indices.
        letters: letter of the factor for each index.
        shared: the two indices; twice the same one where both letters of a child run over its values.
    """

    factor: Factor
    letters: tuple[str, str]
    shared: tuple[Symmetry, Symmetry]


def assumptions(graph: Declaration, shared: Sequence[Symmetry]) -> list[Assumption]:
    """Assumptions beyond the declaration that are made by sharing embeddings.

    Args:
        graph: the declaration.
        shared: symmetries of the graph along which embeddings are shared.
    """
    assumed = []
    for factor in graph.factors.values():
        pairs = factor.assumed_exchangeable()
        letters_by_index = (
            [(symmetry, letters_along(symmetry, factor, graph)) for symmetry in shared] if pairs else []
        )
        for letters in pairs:
            left, right = (
                [symmetry for symmetry, along in letters_by_index if letter in along] for letter in letters
            )
            assumed += [
                Assumption(factor, letters, (one, other))
                for one in left
                for other in right
                if (one is other) == _index_one_node(factor, letters)
            ]
    return assumed


def _index_one_node(factor: Factor, letters: tuple[str, str]) -> bool:
    """Whether two letters index the nodes of the first reference of a factor, its child, together."""
    return set(letters) <= set(factor.references[0].letters)


def candidates(graph: Declaration, shapes: Mapping[str, tuple[int, ...]]) -> list[Symmetry]:
    """Indices that are exchangeable by their patterns, not verified on the adjacency.

    Args:
        graph: the declaration.
        shapes: sizes of the axes that index nodes, by variable.
    """
    return [index for index, barred in indices(graph, shapes) if not barred]


def indices(graph: Declaration, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[Symmetry, bool]]:
    """All indices of nodes tied by patterns, each with whether a factor breaks its exchangeability.

    Args:
        graph: the declaration.
        shapes: sizes of the axes that index nodes, by variable.
    """
    splits = _splits(graph, shapes)
    classes = DisjointSets[AxisPart]()
    for name, shape in shapes.items():
        for axis in range(len(shape)):
            for k in range(len(splits.get((name, axis), ())) or 1):
                classes.root((name, axis, k))
    barred: set[AxisPart] = set()
    for factor in graph.factors.values():
        fixed = factor.ordered_letters()
        uses: dict[str, list[tuple[AxisPart, ...]]] = {}
        for reference in factor.references:
            if not isinstance(reference.array, Variable):
                continue
            for axis, dim in enumerate(node_dimensions(reference)):
                name = reference.array.name
                count = len(splits.get((name, axis), ())) or 1
                if len(dim.letters) > 1:
                    extents = _letter_sizes(factor, graph, shapes)
                    # no permutation of the chosen parts permutes the letters of another split
                    if tuple(extents[x] for x in dim.letters) != splits[name, axis]:
                        barred |= {(name, axis, k) for k in range(count)}
                    for k, letter in enumerate(dim.letters):
                        uses.setdefault(letter, []).append(
                            ((name, axis, k),) if len(dim.letters) == count else ()
                        )
                else:
                    uses.setdefault(dim.letters[0], []).append(tuple((name, axis, k) for k in range(count)))
        for letter, axis_parts in uses.items():
            whole = {axis_part for group in axis_parts for axis_part in group}
            if letter in fixed or len({len(group) for group in axis_parts}) > 1 or () in axis_parts:
                barred |= whole
            for group in axis_parts[1:]:
                for a, b in zip(axis_parts[0], group, strict=False):
                    classes.merge(a, b)
    barred_roots = {classes.root(axis_part) for axis_part in barred}
    result = []
    for root, members in classes.sets().items():
        parts = tuple(_part(axis_part, splits, shapes) for axis_part in members)
        sizes = {_size(axis_part, splits, shapes) for axis_part in members}
        if len(sizes) == 1:
            names = [
                f"{name}.{graph.variables[name].axes[axis]}" + (f"[{k}]" if (name, axis) in splits else "")
                for name, axis, k in members
            ]
            result.append((Symmetry(" ".join(names), sizes.pop(), parts, shapes), root in barred_roots))
    return result


def _splits(
    graph: Declaration, shapes: Mapping[str, tuple[int, ...]]
) -> dict[tuple[str, int], tuple[int, ...]]:
    """Sizes of the parts of split axes, by variable and node axis; an axis tied to a split one is split as
    well."""
    splits: dict[tuple[str, int], tuple[int, ...]] = {}
    uses = [
        (factor, (reference.array.name, axis), dim.letters)
        for factor in graph.factors.values()
        for reference in factor.references
        if isinstance(reference.array, Variable)
        for axis, dim in enumerate(node_dimensions(reference))
    ]
    for factor, axis_key, letters in uses:
        if len(letters) > 1:
            sizes = _letter_sizes(factor, graph, shapes)
            splits.setdefault(axis_key, tuple(sizes[x] for x in letters))
    changed = bool(splits)
    while changed:
        changed = False
        for factor, axis_key, letters in uses:
            for other, other_axis, other_letters in uses:
                if (
                    other is factor
                    and len(letters) == 1
                    and other_letters == letters
                    and other_axis in splits
                    and axis_key not in splits
                ):
                    splits[axis_key] = splits[other_axis]
                    changed = True
    return splits


def _letter_sizes(
    factor: Factor, graph: Declaration, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Extents of the letters of a factor, with feature axes as declared."""
    static = graph.size_table.static
    known = {
        r.array.name: (
            *shapes[r.array.name],
            *(size or 0 for size in graph.size_table.shape(r.array, static)[len(shapes[r.array.name]) :]),
        )
        for r in factor.references
        if r.array.name in shapes
    }
    return factor.letter_sizes(known)


def _size(
    axis_part: AxisPart,
    splits: Mapping[tuple[str, int], tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
) -> int:
    name, axis, k = axis_part
    return splits[name, axis][k] if (name, axis) in splits else shapes[name][axis]


def _part(
    axis_part: AxisPart,
    splits: Mapping[tuple[str, int], tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
) -> SplitPart:
    name, axis, k = axis_part
    sizes = splits.get((name, axis), (shapes[name][axis],))
    return SplitPart(
        name, axis, int(np.prod(sizes[:k], dtype=np.int64)), int(np.prod(sizes[k + 1 :], dtype=np.int64))
    )


def _is_invariant(symmetry: Symmetry, adjacency: Adjacency) -> bool:
    """Whether the matrix is invariant under the generators of the symmetric group."""
    return all(
        adjacency.permuted(symmetry.permutation(order)).same_entries(adjacency)
        for order in generators(symmetry.size)
    )


def _keeps_bounds(symmetry: Symmetry, graph: Declaration) -> bool:
    """Whether the bounds of the entries of each variable are equal along the index."""
    for part in symmetry.parts:
        bounds = graph.variables[part.variable].bounds
        if bounds is None or bounds.shape[part.axis] == 1:
            continue
        for x in bounds.arrays():
            along = np.moveaxis(x, part.axis, 0).reshape(part.before, symmetry.size, part.after, -1)
            if not bool((along == along[:, :1]).all()):
                return False
    return True


def moved_nodes(shapes: Mapping[str, tuple[int, ...]], move: Callable[[str, list[Nodes]], None]) -> Nodes:
    """New number of each node, numbered one variable after another, shape ``(nodes,)``.

    Args:
        shapes: sizes of the node axes, by variable.
        move: changes, in place, the indices along each axis of the nodes of a variable, in its shape.
    """
    moved: list[Nodes] = []
    start = 0
    for name, shape in shapes.items():
        index: list[Nodes] = list(np.indices(shape)) if shape else []
        move(name, index)
        flat = np.ravel_multi_index(tuple(index), shape).ravel() if shape else np.zeros(1, np.int64)
        moved.append(flat + start)
        start += flat.size
    return np.concatenate(moved) if moved else np.zeros(0, np.int64)


def _permute_nodes(parts: Sequence[SplitPart], shapes: Mapping[str, tuple[int, ...]], order: Nodes) -> Nodes:
    def move(name: str, index: list[Nodes]) -> None:
        for part in parts:
            if part.variable == name:
                along = index[part.axis]
                value = along // part.after % len(order)
                index[part.axis] = along + (order[value] - value) * part.after

    return moved_nodes(shapes, move)
