"""Quadratic energies of declarations as sparse matrices.

Products of the precision matrix with vectors are differences of gradients of the energy. Columns that meet in
no row are read from one product (Curtis, Powell and Reid, 1974), so that a chain of any length takes three.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from torch import Tensor

from ..cache import BoundedCache
from ..descent.energy import double_precision_terms
from ..graph.adjacency import Adjacency, adjacency
from ..graph.colouring import greedy_colours
from ..graph.declaration import Declaration
from ..graph.dynamic import shapes_of

Shapes = Mapping[str, tuple[int, ...]]

_AT_ONCE = 2**23
"""Number of entries of all energies whose gradients are computed at a time."""

_SIZES = 16
"""Number of sizes of a graph whose patterns are kept."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Coupled entries of the variables of a graph.

    Attributes:
        key: the sizes and the variables.
        shapes: shape of each variable.
        rows, columns: pairs of coupled entries, each pair once: the diagonal first, then those with
            ``rows < columns``, shape ``(pairs,)``.
        probe: for each entry, the product from which its column is read, shape ``(entries,)``.
        probes: number of products.
    """

    key: object
    shapes: Shapes
    rows: Tensor
    columns: Tensor
    probe: Tensor
    probes: int

    @property
    def entries(self) -> int:
        """Number of entries."""
        return len(self.probe)

    def entry_name(self, entry: int) -> str:
        """An entry as text, such as ``x[0, 3]``."""
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            if entry < size:
                index = ", ".join(str(int(k)) for k in np.unravel_index(entry, shape)) if shape else ""
                return f"{name}[{index}]" if shape else name
            entry -= size
        raise IndexError(entry)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Energies 1/2 x'Px - h'x + c, in float64.

    Attributes:
        precision: P at the pairs of the pattern, shape ``(energies, pairs)``.
        linear: h, shape ``(energies, entries)``.
        constant: c, shape ``(energies,)``.
    """

    precision: Tensor
    linear: Tensor
    constant: Tensor

    def times(self, pattern: Pattern, x: Tensor) -> Tensor:
        """P x, shape ``(energies, entries, batch)``.

        Args:
            pattern: coupled entries.
            x: shape ``(energies or 1, entries, batch)``.
        """
        rows, columns = pattern.rows, pattern.columns
        zero = x.new_zeros(len(self.constant), *x.shape[1:])
        product = zero.index_add(1, rows, self.precision[..., None] * x[:, columns])
        off = slice(pattern.entries, None)
        return product.index_add(1, columns[off], self.precision[:, off, None] * x[:, rows[off]])


def pattern_of(graph: Declaration, sizes: Mapping[str, int], variables: Collection[str]) -> Pattern:
    """Coupled entries of some variables of a graph at given sizes; made once.

    Raises:
        DeclarationError: for sizes that are missing or contradict the declaration.
    """
    cached: BoundedCache[object, Pattern]
    cached = graph.memo((__name__, "patterns"), lambda: BoundedCache(_SIZES))
    key = (tuple(sorted(sizes.items())), frozenset(variables))
    return cached.get_or_make(key, lambda: _pattern(graph, sizes, key, variables))


def quadratic_form(
    graph: Declaration, pattern: Pattern, fixed: Mapping[str, Tensor] | None = None
) -> Quadratic:
    """The energies of a graph as quadratic forms of the variables of a pattern.

    Args:
        graph: declaration with an energy that is quadratic in these.
        pattern: coupled entries.
        fixed: values of the other variables and of constants, shape ``(energies or 1, *axes)``; one energy by
            default.
    """
    fixed = fixed or {}
    energies = max((len(x) for x in fixed.values()), default=1)
    largest = max(1, pattern.entries, *(x[0].numel() for x in fixed.values()))
    at_once = max(1, _AT_ONCE // ((1 + pattern.probes) * largest))
    parts = [
        _quadratic_forms(
            graph, pattern, {name: x if len(x) == 1 else x[rows] for name, x in fixed.items()}, len(rows)
        )
        for rows in torch.arange(energies).split(at_once)
    ]
    return Quadratic(
        torch.cat([part.precision for part in parts]),
        torch.cat([part.linear for part in parts]),
        torch.cat([part.constant for part in parts]),
    )


def _quadratic_forms(
    graph: Declaration, pattern: Pattern, fixed: Mapping[str, Tensor], energies: int
) -> Quadratic:
    size, count = pattern.entries, 1 + pattern.probes
    differentiable = torch.is_grad_enabled() and any(
        x.requires_grad for x in (*graph.parameters(), *fixed.values())
    )
    with torch.inference_mode(False), torch.enable_grad():
        points = torch.zeros(energies * count, size, dtype=torch.float64)
        directions = torch.zeros(count, size, dtype=torch.float64)
        directions[1 + pattern.probe, torch.arange(size)] = 1
        leaves = {name: x.requires_grad_() for name, x in split(points, pattern.shapes).items()}
        others = {
            name: x.double().expand(energies, *x.shape[1:]).repeat_interleave(count, 0)
            for name, x in fixed.items()
        }
        terms = double_precision_terms(graph, {**leaves, **others})
        shares = [term.expand(len(points)) for term in terms.values()]
        energy = torch.stack(shares).sum(0)
        gradients = _flat_gradients(energy.sum(), leaves, create_graph=True)
        # products of the Hessian, in which large linear terms leave no rounding errors
        along = (gradients.unflatten(0, (energies, count)) * directions).sum()
        products = torch.zeros_like(gradients)
        if along.requires_grad:
            products = _flat_gradients(along, leaves, create_graph=differentiable)
    constant, linear = energy[::count], -gradients[::count]
    if not differentiable:
        products, linear, constant = products.detach(), linear.detach(), constant.detach()
    products = products.unflatten(0, (energies, count))[:, 1:]
    precision = products[:, pattern.probe[pattern.columns], pattern.rows]
    transposed = products[:, pattern.probe[pattern.rows], pattern.columns]
    return Quadratic((precision + transposed) / 2, linear, constant)


def _flat_gradients(total: Tensor, leaves: Mapping[str, Tensor], *, create_graph: bool) -> Tensor:
    """Gradients by variables in a row, shape ``(batch, entries)``."""
    gradients = torch.autograd.grad(
        total, list(leaves.values()), create_graph=create_graph, materialize_grads=True
    )
    return torch.cat([x.reshape(len(x), -1) for x in gradients], 1)


def split(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Values by variable, shape ``(*batch, *axes)``, of rows of entries, shape ``(*batch, entries)``."""
    parts = flat.split([math.prod(shape) for shape in shapes.values()], -1)
    return {
        name: part.reshape(*flat.shape[:-1], *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _pattern(
    graph: Declaration, sizes: Mapping[str, int], key: object, variables: Collection[str]
) -> Pattern:
    shapes = shapes_of(graph, sizes, [name for name in graph.variables if name in variables])
    node_rows, node_columns = _couplings(adjacency(graph, sizes), shapes)
    channels = np.concatenate(
        [
            np.full(math.prod(shape[: len(graph.variables[name].node_axes)]), _features(graph, name, shape))
            for name, shape in shapes.items()
        ]
    )
    first = np.cumsum(channels) - channels
    upper = node_rows <= node_columns
    rows, columns = _entries(node_rows[upper], node_columns[upper], first, channels)
    apart = rows < columns
    diagonal = np.arange(int(channels.sum()))
    # nodes of one colour are no neighbours and have none in common; columns of one node have channels
    couplings = coo_array((np.ones(len(node_rows)), (node_rows, node_columns)), shape=(len(channels),) * 2)
    colours = greedy_colours(couplings @ couplings)
    most = int(channels.max(initial=1))
    node = np.repeat(np.arange(len(channels)), channels)
    probe = colours[node] * most + diagonal - first[node]
    used, number = np.unique(probe, return_inverse=True)
    return Pattern(
        key,
        shapes,
        torch.from_numpy(np.concatenate([diagonal, rows[apart]])),
        torch.from_numpy(np.concatenate([diagonal, columns[apart]])),
        torch.from_numpy(number.astype(np.int64)),
        len(used),
    )


def _couplings(nodes: Adjacency, names: Collection[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of adjacent nodes of some variables, numbered among these, sorted by row."""
    number = np.full(nodes.count, -1)
    first = 0
    for name, size in nodes.blocks:
        if name in names:
            number[nodes.starts[name] : nodes.starts[name] + size] = np.arange(first, first + size)
            first += size
    rows, columns = number[nodes.rows], number[nodes.columns]
    both = (rows >= 0) & (columns >= 0)
    return rows[both], columns[both]


def _entries(
    rows: NDArray[np.int64], columns: NDArray[np.int64], first: NDArray[np.int64], channels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of entries of pairs of nodes."""
    left, right = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for a in np.unique(channels):
        for b in np.unique(channels):
            chosen = (channels[rows] == a) & (channels[columns] == b)
            i, j = np.divmod(np.arange(a * b), b)
            left.append((first[rows[chosen]][:, None] + i).ravel())
            right.append((first[columns[chosen]][:, None] + j).ravel())
    return np.concatenate(left), np.concatenate(right)


def _features(graph: Declaration, name: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape[len(graph.variables[name].node_axes) :])
