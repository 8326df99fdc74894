"""Who interacts with whom among the nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import DeclarationError, UnknownNameError, unknown
from .graph import FactorGraph
from .interactions import node_count, node_shape

Nodes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A sparse symmetric boolean matrix over all nodes, in the order of the graph's variables; every node sees itself.

    Attributes:
        rows: of the entries, sorted, shape ``(entries,)``.
        columns: of the entries, sorted within a row, shape ``(entries,)``.
        shapes: by variable, the sizes of the axes that index its nodes; empty for a variable that is one node.
    """

    rows: Nodes
    columns: Nodes
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def blocks(self) -> list[tuple[str, int]]:
        """The variables in order, and how many nodes each has."""
        return [(name, int(np.prod(shape, dtype=np.int64))) for name, shape in self.shapes.items()]

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return sum(size for _, size in self.blocks)

    def nodes(self, name: str) -> Tensor:
        """The numbers of the nodes of a variable, in the shape of its node axes.

        Raises:
            UnknownNameError: if there is no such variable.
        """
        if name not in self.shapes:
            raise UnknownNameError(unknown("variable", name, self.shapes))
        start = 0
        for other, size in self.blocks:
            if other == name:
                return torch.arange(start, start + size).reshape(self.shapes[name])
            start += size
        raise AssertionError(name)

    def index(self) -> Tensor:
        """Rows and columns of the entries, shape ``(2, entries)``, int64."""
        return torch.from_numpy(np.stack([self.rows, self.columns]))

    def dense(self) -> Tensor:
        """The matrix, shape ``(nodes, nodes)``, boolean."""
        matrix = torch.zeros(self.count, self.count, dtype=torch.bool)
        matrix[tuple(self.index())] = True
        return matrix

    def __repr__(self) -> str:
        return f"Adjacency({self.count} nodes in {', '.join(f'{name} {size}' for name, size in self.blocks)}; {len(self.rows)} entries)"


def adjacency(graph: FactorGraph, sizes: Mapping[str, int]) -> Adjacency:
    """Two nodes interact if a term of a factor holds both, in either order; a child and its parents do, parents among themselves do not.

    This is the attention mask of Graphically Structured Diffusion Models (Weilbach, Harvey and Wood, 2023), Section 3.

    Args:
        graph: the declaration.
        sizes: of the axes without a static one, by name.

    Raises:
        DeclarationError: for a size that is missing, unknown or contradicts the declaration.
    """
    shapes = _shapes(graph, sizes)
    starts: dict[str, int] = {}
    total = 0
    for name, variable in graph.variables.items():
        starts[name] = total
        total += node_count(variable, shapes)
    entries = [np.arange(total) * (total + 1)]
    for factor in graph.factors.values():
        for one, i, other, j in factor.interactions(shapes):
            a, b = i + starts[one], j + starts[other]
            entries += [a * total + b, b * total + a]
    # an entry as one number: sorting numbers is much faster than sorting pairs
    flat = np.unique(np.concatenate(entries))
    rows, columns = np.divmod(flat, max(1, total))
    return Adjacency(rows, columns, {name: node_shape(variable, shapes) for name, variable in graph.variables.items()})


def _shapes(graph: FactorGraph, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    table = graph.size_table
    axes = list(dict.fromkeys(axis for array in graph.arrays.values() for axis in array.axes))
    known: dict[str, int] = {}
    for axis, size in sizes.items():
        if axis not in axes:
            raise DeclarationError(f"adjacency: graph {graph.name!r}: " + unknown("axis", axis, axes))
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise DeclarationError(f"adjacency: axis {axis!r} needs a size that is a whole number >= 0, got {size!r}.")
        before = {**table.static, **known}.get(table.root(axis))
        if before not in (None, size):
            raise DeclarationError(f"adjacency: axis {axis!r} has size {before} in graph {graph.name!r}, but {size} was given.")
        known[table.root(axis)] = size
    solved = table.solve(known)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, array in graph.arrays.items():
        shape = table.shape(array, solved)
        if name in graph.variables and None in shape:
            axis = array.axes[shape.index(None)]
            raise DeclarationError(f"adjacency: variable {name!r} has no size for axis {axis!r}; pass it, g.adjacency({axis}=...).")
        if None not in shape:
            shapes[name] = tuple(size for size in shape if size is not None)
    return shapes
