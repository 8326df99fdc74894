"""Adjacency matrix of the nodes of a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from ..errors import DeclarationError, ObservationError, UnknownNameError, unknown
from .declaration import Declaration
from .dynamic import check_sizes
from .interactions import Nodes as Nodes
from .interactions import Relation, node_count, node_shape


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A sparse boolean matrix over all nodes, in the order of the variables of the graph; it includes the
    diagonal.

    As an attention mask, the node of a row attends to the nodes of its columns.

    Attributes:
        rows: rows of the entries, sorted, shape ``(entries,)``.
        columns: columns of the entries, sorted within each row, shape ``(entries,)``.
        shapes: sizes of the axes that index nodes, by variable; empty for a variable with a single node.
        relations: declared relations; the entries are their pairs, the reversed pairs and the diagonal. Empty
            if the entries do not come from a declaration.
    """

    rows: Nodes
    columns: Nodes
    shapes: Mapping[str, tuple[int, ...]]
    relations: tuple[Relation, ...] = ()

    @property
    def blocks(self) -> list[tuple[str, int]]:
        """Variables in order, with their numbers of nodes."""
        return [(name, math.prod(shape)) for name, shape in self.shapes.items()]

    @property
    def count(self) -> int:
        """Number of nodes."""
        return sum(size for _, size in self.blocks)

    @cached_property
    def starts(self) -> dict[str, int]:
        """Number of the first node of each variable."""
        starts: dict[str, int] = {}
        total = 0
        for name, size in self.blocks:
            starts[name] = total
            total += size
        return starts

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The matrix in scipy's CSR format, shape ``(nodes, nodes)``."""
        ends = np.searchsorted(self.rows, np.arange(self.count + 1))
        return sparse.csr_array(
            (np.ones(len(self.rows), dtype=bool), self.columns, ends), shape=(self.count, self.count)
        )

    def nodes(self, name: str) -> Tensor:
        """The numbers of the nodes of a variable, in the shape of its node axes.

        Raises:
            UnknownNameError: for an unknown variable.
        """
        if name not in self.shapes:
            raise UnknownNameError(unknown("variable", name, self.shapes))
        shape = self.shapes[name]
        return torch.arange(self.starts[name], self.starts[name] + math.prod(shape)).reshape(shape)

    def names(self) -> list[str]:
        """Names of the nodes: ``"C[0,1,2]"``, or ``"K"`` for a variable with a single node."""
        return [
            f"{name}[{','.join(map(str, position))}]" if shape else name
            for name, shape in self.shapes.items()
            for position in np.ndindex(*shape)
        ]

    def index(self) -> Tensor:
        """Rows and columns of the entries, shape ``(2, entries)``, int64."""
        return torch.from_numpy(np.stack([self.rows, self.columns]))

    def dense(self) -> Tensor:
        """The matrix, shape ``(nodes, nodes)``, boolean."""
        matrix = torch.zeros(self.count, self.count, dtype=torch.bool)
        matrix[tuple(self.index())] = True
        return matrix

    def directed(self) -> Adjacency:
        """Drop the entries by which a parent attends to its child; keep those by which a child attends to its
        parents.

        An ablation (structured-diffusion paper, Figure 7): attention cannot carry information from children
        to parents.

        Raises:
            DeclarationError: if the entries do not come from a declaration.
        """
        if not self.relations:
            raise DeclarationError(
                "adjacency: only an adjacency with the relations of a declaration has a direction."
            )
        rows, columns = _ends(self.relations, self.starts, self.count, both=False)
        return self._with(rows, columns)

    def random(self, generator: torch.Generator) -> Adjacency:
        """A random symmetric adjacency with the same number of entries and the full diagonal.

        An ablation (structured-diffusion paper, Figure 7).
        """
        n, pairs = self.count, int((self.rows != self.columns).sum()) // 2
        seed = int(torch.randint(2**62, (), generator=generator))
        pairs_drawn = np.random.default_rng(seed).choice(n * (n - 1) // 2, size=pairs, replace=False)
        # pairs (i, j) with j < i, counted row by row
        i = ((1 + np.sqrt(1 + 8 * pairs_drawn.astype(np.float64))) / 2).astype(np.int64)
        i -= i * (i - 1) // 2 > pairs_drawn
        i += (i + 1) * i // 2 <= pairs_drawn
        j = pairs_drawn - i * (i - 1) // 2
        nodes = np.arange(n)
        return self._with(np.concatenate([nodes, i, j]), np.concatenate([nodes, j, i]))

    def permuted(self, order: Sequence[int] | Tensor) -> Adjacency:
        """The matrix after renumbering node k as ``order[k]``; blocks keep their names.

        Raises:
            ObservationError: if the order is not a permutation of the nodes.
        """
        numbers = np.asarray(order, dtype=np.int64)
        if numbers.shape != (self.count,) or not np.array_equal(np.sort(numbers), np.arange(self.count)):
            raise ObservationError(f"adjacency: expected a permutation of {self.count} nodes.")
        return self._with(numbers[self.rows], numbers[self.columns])

    def same_entries(self, other: Adjacency) -> bool:
        """Whether another matrix has the same entries."""
        return np.array_equal(self.rows, other.rows) and np.array_equal(self.columns, other.columns)

    def _with(self, rows: Nodes, columns: Nodes) -> Adjacency:
        """An adjacency of the same nodes with other entries, given in any order."""
        rows, columns = _sorted(rows, columns, self.count)
        return replace(self, rows=rows, columns=columns, relations=())

    def __repr__(self) -> str:
        return (
            f"Adjacency({self.count} nodes in {', '.join(f'{name} {size}' for name, size in self.blocks)}; "
            f"{len(self.rows)} entries)"
        )


def adjacency(graph: Declaration, sizes: Mapping[str, int]) -> Adjacency:
    """Build the adjacency of a graph: two nodes interact if they occur in the same term of a factor.

    A child interacts with each parent; parents do not interact with one another. This is the attention mask
    of Graphically Structured Diffusion Models (Weilbach, Harvey and Wood, 2023), Section 3.

    Args:
        graph: the declaration.
        sizes: sizes of the dynamic axes, by name.

    Raises:
        DeclarationError: for a size that is missing, unknown or contradicts the declaration.
    """
    shapes = _shapes(graph, sizes)
    empty = Adjacency(
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        {name: node_shape(variable, shapes) for name, variable in graph.variables.items()},
        tuple(relation for factor in graph.factors.values() for relation in factor.interactions(shapes)),
    )
    assert empty.count == sum(node_count(variable, shapes) for variable in graph.variables.values())
    one, other = _ends(empty.relations, empty.starts, empty.count, both=True)
    rows, columns = _sorted(one, other, empty.count)
    return replace(empty, rows=rows, columns=columns)


def _ends(
    relations: Sequence[Relation], starts: Mapping[str, int], count: int, both: bool
) -> tuple[Nodes, Nodes]:
    """Rows and columns of the diagonal and all relations, with repeats; ``both`` adds reversed directed
    pairs."""
    rows, columns = [np.arange(count)], [np.arange(count)]
    for relation in relations:
        i, j = relation.pairs
        i, j = i + starts[relation.left.variable], j + starts[relation.right.variable]
        rows.append(i)
        columns.append(j)
        if both or not relation.directed:
            rows.append(j)
            columns.append(i)
    return np.concatenate(rows), np.concatenate(columns)


def _sorted(rows: Nodes, columns: Nodes, count: int) -> tuple[Nodes, Nodes]:
    """Sorted distinct entries."""
    # scipy counts instead of comparing, several times faster than sorting
    matrix = sparse.coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(count, count)).tocsr()
    matrix.sort_indices()
    return np.repeat(np.arange(count), np.diff(matrix.indptr)), matrix.indices.astype(np.int64)


def _shapes(graph: Declaration, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    table = graph.size_table
    check_sizes(graph, sizes)
    solved = table.solve({table.root(axis): size for axis, size in sizes.items()})
    shapes: dict[str, tuple[int, ...]] = {}
    for name, array in graph.arrays.items():
        shape = table.shape(array, solved)
        if name in graph.variables and None in shape:
            axis = array.axes[shape.index(None)]
            raise DeclarationError(
                f"graph {graph.name!r}: the size of axis {axis!r} of variable {name!r} is unknown; give it "
                f"as sizes={{{axis!r}: ...}}, or to a method of the graph by name, such as "
                f"g.adjacency({axis}=...)."
            )
        if None not in shape:
            shapes[name] = tuple(size for size in shape if size is not None)
    return shapes
