"""Who interacts with whom among the nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from ..errors import DeclarationError, ObservationError, UnknownNameError, unknown
from .declaration import Declaration
from .interactions import Nodes as Nodes
from .interactions import Relation, node_count, node_shape


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A sparse boolean matrix over all nodes, in the order of the graph's variables: a node of a row sees those of its columns, and itself.

    Attributes:
        rows: of the entries, sorted, shape ``(entries,)``.
        columns: of the entries, sorted within a row, shape ``(entries,)``.
        shapes: by variable, the sizes of the axes that index its nodes; empty for a variable that is one node.
        relations: groups of nodes that interact, as declared; together with the diagonal and turned round they are the entries. Empty where
            the entries follow no declaration.
    """

    rows: Nodes
    columns: Nodes
    shapes: Mapping[str, tuple[int, ...]]
    relations: tuple[Relation, ...] = ()

    @property
    def blocks(self) -> list[tuple[str, int]]:
        """The variables in order, and how many nodes each has."""
        return [(name, int(np.prod(shape, dtype=np.int64))) for name, shape in self.shapes.items()]

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return sum(size for _, size in self.blocks)

    @cached_property
    def starts(self) -> dict[str, int]:
        """By variable, the number of its first node."""
        starts: dict[str, int] = {}
        total = 0
        for name, size in self.blocks:
            starts[name] = total
            total += size
        return starts

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The same as a matrix of scipy, shape ``(nodes, nodes)``."""
        ends = np.searchsorted(self.rows, np.arange(self.count + 1))
        return sparse.csr_array((np.ones(len(self.rows), dtype=bool), self.columns, ends), shape=(self.count, self.count))

    def nodes(self, name: str) -> Tensor:
        """The numbers of the nodes of a variable, in the shape of its node axes.

        Raises:
            UnknownNameError: if there is no such variable.
        """
        if name not in self.shapes:
            raise UnknownNameError(unknown("variable", name, self.shapes))
        shape = self.shapes[name]
        return torch.arange(self.starts[name], self.starts[name] + int(np.prod(shape, dtype=np.int64))).reshape(shape)

    def names(self) -> list[str]:
        """What each node is called: ``"C[0,1,2]"``, or ``"K"`` for a variable that is one node."""
        return [
            f"{name}[{','.join(map(str, place))}]" if shape else name for name, shape in self.shapes.items() for place in np.ndindex(*shape)
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
        """Without the entries from which only a parent would see its child: information then flows along the arrows alone.

        An ablation (structured-diffusion paper, Figure 7): attention over it cannot carry information from children to parents.

        Raises:
            DeclarationError: if the entries follow no declaration.
        """
        if not self.relations:
            raise DeclarationError("adjacency: without the relations of a declaration there is no direction to keep.")
        one, other = _ends(self.relations, self.starts, self.count, both=False)
        return self._with(one, other)

    def random(self, generator: torch.Generator) -> Adjacency:
        """As many entries at random places, symmetric, every node seeing itself: an ablation (structured-diffusion paper, Figure 7)."""
        n, pairs = self.count, int((self.rows != self.columns).sum()) // 2
        seed = int(torch.randint(2**62, (), generator=generator))
        chosen = np.random.default_rng(seed).choice(n * (n - 1) // 2, size=pairs, replace=False)
        # pairs (i, j) with j < i, counted row by row
        i = ((1 + np.sqrt(1 + 8 * chosen.astype(np.float64))) / 2).astype(np.int64)
        i -= i * (i - 1) // 2 > chosen
        i += (i + 1) * i // 2 <= chosen
        j = chosen - i * (i - 1) // 2
        every = np.arange(n)
        return self._with(np.concatenate([every, i, j]), np.concatenate([every, j, i]))

    def permuted(self, order: Sequence[int] | Tensor) -> Adjacency:
        """The matrix after renaming node k to ``order[k]``; the blocks keep their names.

        Raises:
            ObservationError: if the order is no permutation of the nodes.
        """
        new = np.asarray(order, dtype=np.int64)
        if new.shape != (self.count,) or not np.array_equal(np.sort(new), np.arange(self.count)):
            raise ObservationError(f"adjacency: expected a permutation of {self.count} nodes.")
        return self._with(new[self.rows], new[self.columns])

    def same_entries(self, other: Adjacency) -> bool:
        """Has another matrix the same entries?"""
        return np.array_equal(self.rows, other.rows) and np.array_equal(self.columns, other.columns)

    def _with(self, rows: Nodes, columns: Nodes) -> Adjacency:
        """Other entries among the same nodes, in any order."""
        rows, columns = _sorted(rows, columns, self.count)
        return replace(self, rows=rows, columns=columns, relations=())

    def __repr__(self) -> str:
        return f"Adjacency({self.count} nodes in {', '.join(f'{name} {size}' for name, size in self.blocks)}; {len(self.rows)} entries)"


def adjacency(graph: Declaration, sizes: Mapping[str, int]) -> Adjacency:
    """Two nodes interact if a term of a factor holds both, in either order; a child and its parents do, parents among themselves do not.

    This is the attention mask of Graphically Structured Diffusion Models (Weilbach, Harvey and Wood, 2023), Section 3.

    Args:
        graph: the declaration.
        sizes: of the axes without a static one, by name.

    Raises:
        DeclarationError: for a size that is missing, unknown or contradicts the declaration.
    """
    shapes = _shapes(graph, sizes)
    found = Adjacency(
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        {name: node_shape(variable, shapes) for name, variable in graph.variables.items()},
        tuple(relation for factor in graph.factors.values() for relation in factor.interactions(shapes)),
    )
    assert found.count == sum(node_count(variable, shapes) for variable in graph.variables.values())
    one, other = _ends(found.relations, found.starts, found.count, both=True)
    rows, columns = _sorted(one, other, found.count)
    return replace(found, rows=rows, columns=columns)


def _ends(relations: Sequence[Relation], starts: Mapping[str, int], count: int, both: bool) -> tuple[Nodes, Nodes]:
    """Rows and columns of all relations and of the diagonal, some of them several times; directed ones turned round as well, or not."""
    rows, columns = [np.arange(count)], [np.arange(count)]
    for relation in relations:
        i, j = relation.pairs
        i, j = i + starts[relation.one.variable], j + starts[relation.other.variable]
        rows.append(i)
        columns.append(j)
        if both or not relation.directed:
            rows.append(j)
            columns.append(i)
    return np.concatenate(rows), np.concatenate(columns)


def _sorted(rows: Nodes, columns: Nodes, count: int) -> tuple[Nodes, Nodes]:
    """The entries in order, each once."""
    # scipy counts instead of comparing, several times faster than sorting
    matrix = sparse.coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(count, count)).tocsr()
    matrix.sort_indices()
    return np.repeat(np.arange(count), np.diff(matrix.indptr)), matrix.indices.astype(np.int64)


def _shapes(graph: Declaration, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
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
