"""Axes along which a declaration stays the same when they are permuted: they decide where embeddings may be shared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ObservationError
from .adjacency import Adjacency, Nodes, adjacency
from .arrays import Variable
from .declaration import Declaration
from .factor import Factor
from .interactions import node_axis_count

Place = tuple[str, int, int]
"""A variable, one of its node axes, and a part of that axis: 0 where the axis is not split, else the parts count from the slowest."""


@dataclass(frozen=True, eq=False)
class Part:
    """One way to take an axis of a variable apart: its index is ``(before, at, after)``, slowest first.

    Attributes:
        variable: its name.
        axis: position among its node axes.
        before: how many values the slower parts have together.
        after: how many values the faster parts have together.
    """

    variable: str
    axis: int
    before: int = 1
    after: int = 1


@dataclass(frozen=True, eq=False)
class Symmetry:
    """An index that can be permuted everywhere at once without a change in who interacts with whom, M = pi M.

    Attributes:
        name: the axes it indexes, such as ``"A.i C.i"``; ``"X.row[1]"`` is the second part of an axis that a factor splits.
        size: how many values it has.
        parts: where it occurs.
        shapes: of the nodes of all variables.
    """

    name: str
    size: int
    parts: tuple[Part, ...]
    shapes: Mapping[str, tuple[int, ...]]

    def permutation(self, order: Sequence[int] | Tensor | Nodes) -> Tensor:
        """Where each node goes when value v of the index becomes ``order[v]``, shape ``(nodes,)``.

        Raises:
            ObservationError: if the order is no permutation of the values.
        """
        new = np.asarray(order, dtype=np.int64)
        if new.shape != (self.size,) or not np.array_equal(np.sort(new), np.arange(self.size)):
            raise ObservationError(f"symmetry {self.name!r}: expected a permutation of {self.size} values, got {list(order)}.")
        return torch.from_numpy(_moved(self.parts, self.shapes, new))

    def values(self) -> Nodes:
        """The value of the index at each node, shape ``(nodes,)``; -1 at nodes that it does not index."""
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
    """The indices of nodes that are exchangeable, found from the patterns and verified on the adjacency.

    A letter is a candidate unless it is shifted or multiplies a parameter or a constant; letters that meet in one axis move together, as do the
    axes they index. A candidate is reported if two permutations that generate all others leave the adjacency as it is.

    Args:
        graph: the declaration.
        sizes: of the axes without a static one, by name.

    Raises:
        DeclarationError: for a size that is missing, unknown or contradicts the declaration.
    """
    found = adjacency(graph, sizes)
    return [symmetry for symmetry in candidates(graph, found.shapes) if symmetry.size > 1 and _holds(symmetry, found)]


def embedding_indices(adjacency: Adjacency, shared: Sequence[Symmetry]) -> Tensor:
    """The number of each node's embedding if all values of some exchangeable indices share theirs, shape ``(nodes,)``.

    Structured-diffusion paper, Section 3.2; with no index shared, every node has its own.
    """
    numbers: list[Nodes] = []
    start = 0
    for name, shape in adjacency.shapes.items():
        index = shared_index(name, shape, shared)
        flat = np.ravel_multi_index(tuple(index), shape).ravel() if shape else np.zeros(1, np.int64)
        kinds, own = np.unique(flat, return_inverse=True)
        numbers.append(own.ravel() + start)
        start += len(kinds)
    return torch.from_numpy(np.concatenate(numbers)) if numbers else torch.zeros(0, dtype=torch.int64)


def shared_index(variable: str, shape: tuple[int, ...], shared: Sequence[Symmetry]) -> list[Nodes]:
    """The index of each node along each axis, shape ``shape``, all values of some exchangeable indices taken for their first."""
    index: list[Nodes] = list(np.indices(shape)) if shape else []
    for symmetry in shared:
        for part in symmetry.parts:
            if part.variable == variable:
                along, block = index[part.axis], part.after * symmetry.size
                index[part.axis] = along // block * block + along % part.after
    return index


def generators(size: int) -> list[Nodes]:
    """Permutations that generate all others of so many values: the exchange of the first two, and the cycle."""
    if size < 2:
        return []
    exchange = np.arange(size)
    exchange[:2] = 1, 0
    return [exchange, np.roll(np.arange(size), 1)][: size - 1]


def letters_along(symmetry: Symmetry, factor: Factor, graph: Declaration) -> set[str]:
    """The letters of a factor that run along an index, in any of the axes that it permutes.

    Args:
        symmetry: of the graph.
        factor: of the graph.
        graph: the declaration.
    """
    places = {(part.variable, part.axis, part.before, part.after) for part in symmetry.parts}
    letters = set()
    for reference in factor.references:
        if not isinstance(reference.array, Variable):
            continue
        for axis, dimension in enumerate(reference.pattern.dimensions[: node_axis_count(reference.array)]):
            sizes = [1]
            if len(dimension.letters) > 1:
                extents = _letter_sizes(factor, graph, symmetry.shapes)
                sizes = [extents[letter] for letter in dimension.letters]
            for k, letter in enumerate(dimension.letters):
                if (reference.array.name, axis, math.prod(sizes[:k]), math.prod(sizes[k + 1 :])) in places:
                    letters.add(letter)
    return letters


@dataclass(frozen=True, eq=False)
class Assumption:
    """Two shared indices all of whose values a factor relates, without a statement that they are exchangeable.

    Attributes:
        factor: that relates them.
        letters: of the factor, one for each index.
        shared: the two indices.
    """

    factor: Factor
    letters: tuple[str, str]
    shared: tuple[Symmetry, Symmetry]


def assumptions(graph: Declaration, shared: Sequence[Symmetry]) -> list[Assumption]:
    """What sharing embeddings along some indices assumes beyond the declaration.

    Args:
        graph: the declaration.
        shared: symmetries of the graph along which embeddings are to be shared.
    """
    assumed = []
    for factor in graph.factors.values():
        pairs = factor.assumed_exchangeable()
        along = [(symmetry, letters_along(symmetry, factor, graph)) for symmetry in shared] if pairs else []
        for letters in pairs:
            ones, others = ([symmetry for symmetry, own in along if letter in own] for letter in letters)
            assumed += [Assumption(factor, letters, (one, other)) for one in ones for other in others if one is not other]
    return assumed


def candidates(graph: Declaration, shapes: Mapping[str, tuple[int, ...]]) -> list[Symmetry]:
    """The indices that the patterns call exchangeable, not verified.

    Args:
        graph: the declaration.
        shapes: by variable, the sizes of the axes that index its nodes.
    """
    return [index for index, barred in indices(graph, shapes) if not barred]


def indices(graph: Declaration, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[Symmetry, bool]]:
    """All indices of nodes that the patterns tie together, each with whether a factor tells its values apart.

    Args:
        graph: the declaration.
        shapes: by variable, the sizes of the axes that index its nodes.
    """
    splits = _splits(graph, shapes)
    classes = _Classes()
    for name, shape in shapes.items():
        for axis in range(len(shape)):
            for k in range(len(splits.get((name, axis), ())) or 1):
                classes.find((name, axis, k))
    barred: set[Place] = set()
    for factor in graph.factors.values():
        fixed = factor.ordered_letters()
        seen: dict[str, list[tuple[Place, ...]]] = {}
        for reference in factor.references:
            if not isinstance(reference.array, Variable):
                continue
            for axis, dim in enumerate(reference.pattern.dimensions[: node_axis_count(reference.array)]):
                name = reference.array.name
                count = len(splits.get((name, axis), ())) or 1
                if len(dim.letters) > 1 and not fixed.isdisjoint(dim.letters):
                    extents = _letter_sizes(factor, graph, shapes)
                    # split in another way than the axis was taken apart
                    if tuple(extents[x] for x in dim.letters) != splits[name, axis]:
                        barred |= {(name, axis, k) for k in range(count)}
                if len(dim.letters) > 1:
                    for k, letter in enumerate(dim.letters):
                        seen.setdefault(letter, []).append(((name, axis, k),) if len(dim.letters) == count else ())
                else:
                    seen.setdefault(dim.letters[0], []).append(tuple((name, axis, k) for k in range(count)))
        for letter, places in seen.items():
            whole = {place for group in places for place in group}
            if letter in fixed or len({len(group) for group in places}) > 1 or () in places:
                barred |= whole
            for group in places[1:]:
                for a, b in zip(places[0], group, strict=False):
                    classes.join(a, b)
    wrong = {classes.find(place) for place in barred}
    found = []
    for root, members in classes.members().items():
        parts = tuple(_part(place, splits, shapes) for place in members)
        sizes = {_size(place, splits, shapes) for place in members}
        if len(sizes) == 1:
            names = [f"{name}.{graph.variables[name].axes[axis]}" + (f"[{k}]" if (name, axis) in splits else "") for name, axis, k in members]
            found.append((Symmetry(" ".join(names), sizes.pop(), parts, shapes), root in wrong))
    return found


def _splits(graph: Declaration, shapes: Mapping[str, tuple[int, ...]]) -> dict[tuple[str, int], tuple[int, ...]]:
    """By variable and node axis, the sizes of the parts into which factors split it; an axis that is tied to a split one is split as well."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    places = [
        (factor, (reference.array.name, axis), dim.letters)
        for factor in graph.factors.values()
        for reference in factor.references
        if isinstance(reference.array, Variable)
        for axis, dim in enumerate(reference.pattern.dimensions[: node_axis_count(reference.array)])
    ]
    for factor, where, letters in places:
        if len(letters) > 1:
            sizes = _letter_sizes(factor, graph, shapes)
            found.setdefault(where, tuple(sizes[x] for x in letters))
    changed = bool(found)
    while changed:
        changed = False
        for factor, where, letters in places:
            for other, there, same in places:
                if other is factor and len(letters) == 1 and same == letters and there in found and where not in found:
                    found[where] = found[there]
                    changed = True
    return found


def _letter_sizes(factor: Factor, graph: Declaration, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The extent of each letter of a factor, its feature axes as declared."""
    static = graph.size_table.static
    known = {
        r.array.name: (*shapes[r.array.name], *(size or 0 for size in graph.size_table.shape(r.array, static)[len(shapes[r.array.name]) :]))
        for r in factor.references
        if r.array.name in shapes
    }
    return factor.letter_sizes(known)


def _size(place: Place, splits: Mapping[tuple[str, int], tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> int:
    name, axis, k = place
    return splits[name, axis][k] if (name, axis) in splits else shapes[name][axis]


def _part(place: Place, splits: Mapping[tuple[str, int], tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> Part:
    name, axis, k = place
    sizes = splits.get((name, axis), (shapes[name][axis],))
    return Part(name, axis, int(np.prod(sizes[:k], dtype=np.int64)), int(np.prod(sizes[k + 1 :], dtype=np.int64)))


def _holds(symmetry: Symmetry, adjacency: Adjacency) -> bool:
    """Is the matrix the same after the two permutations, an exchange and a cycle, that generate all others?"""
    return all(adjacency.permuted(symmetry.permutation(order)).same_entries(adjacency) for order in generators(symmetry.size))


def _moved(parts: Sequence[Part], shapes: Mapping[str, tuple[int, ...]], order: Nodes) -> Nodes:
    moved: list[Nodes] = []
    start = 0
    for name, shape in shapes.items():
        index = list(np.indices(shape)) if shape else []
        for part in parts:
            if part.variable == name:
                along = index[part.axis]
                value = along // part.after % len(order)
                index[part.axis] = along + (order[value] - value) * part.after
        flat = np.ravel_multi_index(tuple(index), shape).ravel() if shape else np.zeros(1, np.int64)
        moved.append(flat + start)
        start += flat.size
    return np.concatenate(moved) if moved else np.zeros(0, np.int64)


class _Classes:
    """Places that move together."""

    def __init__(self) -> None:
        self._parent: dict[Place, Place] = {}

    def find(self, place: Place) -> Place:
        parent = self._parent.setdefault(place, place)
        if parent != place:
            parent = self._parent[place] = self.find(parent)
        return parent

    def join(self, one: Place, other: Place) -> None:
        self._parent[self.find(one)] = self.find(other)

    def members(self) -> dict[Place, list[Place]]:
        found: dict[Place, list[Place]] = {}
        for place in list(self._parent):
            found.setdefault(self.find(place), []).append(place)
        return found
