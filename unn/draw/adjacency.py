"""Adjacency matrices as edge counts per cell, without building the dense matrix."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from numbers import Integral
from string import ascii_letters, digits

import numpy as np
from numpy.typing import NDArray

from ..errors import ObservationError
from .theme import shortened
from .values import as_array, described

Blocks = Sequence[tuple[str, int]]
"""The name and the number of nodes of each block, in order."""

SHADES = " .:-=+*#%@"
KEYS = ascii_letters + digits


def adjacency_text(rows: object, columns: object, blocks: Blocks, width: int = 60) -> str:
    """The adjacency matrix as text: one character for a cell of pairs, from ' ' (no edge) over '.' to '@'
    (most edges per pair).

    Args:
        rows: source node of each edge, integers of shape ``(edges,)``, an array or a tensor.
        columns: target node of each edge, likewise.
        blocks: name and number of nodes of each block, in order.
        width: maximum number of characters per line.

    Returns:
        Lines of at most ``width`` characters: a letter for each block above its columns, letter and name
        beside its rows.

    Raises:
        ObservationError: if an edge has a node that does not exist, or the width is too small for the blocks.
    """
    sources, targets, nodes = checked_edges("adjacency_text", rows, columns, blocks)
    sizes = [size for _, size in blocks]
    keys = [KEYS[k] if k < len(KEYS) else "+" for k in range(len(blocks))]
    names = [
        shortened(f"{key} {name}", max(6, width // 3), "~")
        for key, (name, _) in zip(keys, blocks, strict=True)
    ]
    margin = max(map(len, names)) + 1
    if width - margin < len(blocks):
        raise ObservationError(
            f"adjacency_text needs a width of at least {margin + len(blocks)} for these {len(blocks)} "
            f"blocks, got {width}."
        )
    # lines between blocks only where the width suffices
    bar = "|" if width - margin >= 4 * len(blocks) else ""
    across = _allot(sizes, min(nodes, width - margin - len(bar) * (len(blocks) - 1)))
    down = _allot(sizes, min(nodes, max(len(blocks), width // 2)))
    per_pair = _per_pair(sources, targets, _starts(sizes, down), _starts(sizes, across))
    most = float(per_pair.max(initial=0))
    # a cell with any edge is never blank
    levels = np.ceil(np.sqrt(per_pair / (most or 1)) * (len(SHADES) - 1)).astype(int)
    shades = ["".join(SHADES[level] for level in row) for row in levels]
    lines = [" " * margin + bar.join(key.ljust(k) for key, k in zip(keys, across, strict=True))]
    right, below = np.cumsum(across)[:-1].tolist(), [0, *np.cumsum(down).tolist()]
    for name, top, bottom in zip(names, below, below[1:], strict=False):
        if bar and top:
            lines.append(" " * margin + "+".join("-" * k for k in across))
        for k, row in enumerate(shades[top:bottom]):
            parts = [row[a:b] for a, b in zip([0, *right], [*right, len(row)], strict=True)]
            lines.append((name if k == 0 else "").ljust(margin) + bar.join(parts))
    scale = f"; '@' is {_counted(f'{most:.3g}', 'edge')} per pair of nodes" if most else ""
    counts = f"{_counted(f'{len(sources):,}', 'edge')} between {_counted(f'{nodes:,}', 'node')}"
    lines += textwrap.wrap(f"{counts}{scale}", width)
    return "\n".join(line.rstrip() for line in lines)


def _counted(number: str, noun: str) -> str:
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"


def checked_edges(
    who: str, rows: object, columns: object, blocks: Blocks
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Check edges and blocks; return the source and target nodes of the edges and the number of nodes.

    Raises:
        ObservationError: if a block or an edge is invalid.
    """
    for block in blocks:
        if not (
            isinstance(block, tuple) and len(block) == 2 and isinstance(block[1], Integral) and block[1] >= 0
        ):
            raise ObservationError(
                f"{who}: a block is its name and its number of nodes, such as ('label', 10), got {block!r}."
            )
    nodes = sum(int(size) for _, size in blocks)
    if not nodes:
        raise ObservationError(
            f"{who} needs blocks with at least one node, such as [('image', 64), ('label', 10)], got "
            f"{blocks!r}."
        )
    ends = [
        _checked_coordinates(who, word, value, nodes)
        for word, value in (("rows", rows), ("columns", columns))
    ]
    if len(ends[0]) != len(ends[1]):
        raise ObservationError(
            f"{who} got {len(ends[0])} rows, but {len(ends[1])} columns; an edge has one of each."
        )
    return ends[0], ends[1], nodes


def _checked_coordinates(who: str, word: str, value: object, nodes: int) -> NDArray[np.int64]:
    array = as_array(value)
    if array is not None and array.ndim == 1 and not array.size:
        return np.zeros(0, dtype=np.int64)
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
        kind = f" of {array.dtype}" if array is not None and array.ndim == 1 else ""
        raise ObservationError(
            f"{who}: {word} are integers of shape (edges,), one for each edge, got {described(value)}{kind}."
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= nodes:
        raise ObservationError(
            f"{who}: {word} go from {low} to {high}, but the blocks have {nodes} nodes, from 0 to "
            f"{nodes - 1}."
        )
    return array.astype(np.int64, copy=False)


def binned_edges(
    begins: NDArray[np.int64], ends: NDArray[np.int64], nodes: int, limit: int
) -> tuple[NDArray[np.int64], int]:
    """Count the edges in at most ``limit`` x ``limit`` square cells.

    Returns:
        The counts, shape ``(cells, cells)``, and the number of nodes per side of a cell; the last
        may have fewer.
    """
    width = math.ceil(nodes / limit)
    cells = math.ceil(nodes / width)
    counts = np.bincount(begins // width * cells + ends // width, minlength=cells * cells)
    return counts.reshape(cells, cells), width


def edges_per_pair(counts: NDArray[np.int64], nodes: int, width: int) -> NDArray[np.float64]:
    """Divide the count of each cell by its number of node pairs."""
    sides = np.minimum(width, nodes - width * np.arange(len(counts)))
    return np.asarray(counts / np.outer(sides, sides), dtype=np.float64)


def _allot(sizes: Sequence[int], total: int) -> list[int]:
    """Number of characters for each block: proportional, but at least one and at most one per node."""
    total = max(total, len(sizes))
    spare = [max(size - 1, 0) for size in sizes]
    sums = np.cumsum([0, *spare]) * ((total - len(sizes)) / (sum(spare) or 1))
    return [1 + int(extra) for extra in np.diff(np.floor(sums + 0.5))]


def _starts(sizes: Sequence[int], cells: Sequence[int]) -> NDArray[np.int64]:
    """First node of each cell, for blocks split into the given numbers of cells, then the number of nodes."""
    before = np.cumsum([0, *sizes])
    starts = [
        int(start) + j * size // k
        for start, size, k in zip(before, sizes, cells, strict=False)
        for j in range(k)
    ]
    return np.asarray([*starts, before[-1]], dtype=np.int64)


def _per_pair(
    sources: NDArray[np.int64], targets: NDArray[np.int64], down: NDArray[np.int64], across: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Edges per pair of nodes in the cells with the given first nodes."""
    shape = (len(down) - 1, len(across) - 1)
    row, column = (
        np.searchsorted(down[:-1], sources, "right") - 1,
        np.searchsorted(across[:-1], targets, "right") - 1,
    )
    counts = np.bincount(row * shape[1] + column, minlength=math.prod(shape)).reshape(shape)
    # cells of blocks without nodes have no pairs, and no edges
    return np.asarray(counts / np.maximum(np.outer(np.diff(down), np.diff(across)), 1), dtype=np.float64)
