"""Files of grids with removed edges, split into training and test grids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from unn.errors import DataError

from ..reading import locate, read_arrays
from .grid import Grid, Instance

_HELD_OUT = 1000
"""Grids at the end of a file that are the test grids, if it names none; at most a fifth."""

_AXES = {
    "edges": 2,
    "endpoints": 2,
    "edge_kept": 2,
    "edge_kept_packed": 2,
    "train_idx": 1,
    "test_idx": 1,
}
"""Arrays of a file and their numbers of axes."""


@dataclass(frozen=True)
class GridSplit:
    """Grids of one file.

    Attributes:
        training: training grids.
        test: test grids.
    """

    training: list[Instance]
    test: list[Instance]


@lru_cache(maxsize=4)
def load_grids(path: str, grid: Grid) -> GridSplit:
    """Grids of a file.

    The file (.npz) holds ``edges``, the two nodes of each edge, shape ``(edges, 2)``; ``endpoints``, the two
    nodes of each grid, shape ``(grids, 2)``; and ``edge_kept``, shape ``(grids, edges)``, or
    ``edge_kept_packed`` with eight of them in a byte. ``train_idx`` and ``test_idx`` are the numbers of the
    training and the test grids; without them the last 1,000 are test grids, at most a fifth.

    Args:
        path: the file, looked up in ``$UNN_DATA`` if missing.
        grid: size of the grids.

    Raises:
        DataError: for a file that is missing or malformed, edges of another grid, and nodes that no path
            joins.
    """
    arrays = _arrays(path)
    edges = [(min(e), max(e)) for e in arrays["edges"].tolist()]
    if sorted(edges) != sorted(grid.edges):
        raise DataError(
            f"{path}: its edges are not those of a grid of {grid.rows} x {grid.columns} nodes; give --rows "
            "and --columns."
        )
    if "edge_kept" in arrays:
        open_edges = arrays["edge_kept"]
    else:
        open_edges = np.unpackbits(arrays["edge_kept_packed"], axis=1)[:, : len(edges)]
    ends = arrays["endpoints"]
    if open_edges.shape != (len(ends), len(edges)) or ends.shape != (len(ends), 2) or not len(ends):
        raise DataError(
            f"{path}: open edges of shape {open_edges.shape} and nodes of shape {ends.shape}, expected "
            f"(grids, {len(edges)}) and (grids, 2)."
        )
    order = [edges.index(edge) for edge in grid.edges]
    instances = [
        Instance(tuple(row), start, end)
        for row, (start, end) in zip((open_edges[:, order] > 0).tolist(), ends.tolist(), strict=True)
    ]
    for number, instance in enumerate(instances):
        nodes = grid.rows * grid.columns
        if not (0 <= instance.start < nodes and 0 <= instance.end < nodes):
            raise DataError(f"{path}: grid {number} joins nodes that the grid does not have.")
        if (
            grid.distances(instance.open_edges, instance.end)[instance.start] is None
            or instance.start == instance.end
        ):
            raise DataError(f"{path}: no path joins the two nodes of grid {number}.")
    held_out = min(_HELD_OUT, len(instances) // 5)
    every = np.arange(len(instances))
    training = arrays.get("train_idx", every[: len(every) - held_out])
    test = arrays.get("test_idx", every[len(every) - held_out :])
    if not len(training) or not len(test):
        raise DataError(f"{path}: {len(instances)} grids; at least five are needed to hold some out.")
    if max(training.max(), test.max()) >= len(instances):
        raise DataError(f"{path}: train_idx or test_idx has a number beyond its {len(instances)} grids.")
    return GridSplit([instances[k] for k in training], [instances[k] for k in test])


def grid_of_file(path: str) -> Grid:
    """The grid whose edges a file lists.

    Raises:
        DataError: as ``load_grids``, and for edges of no grid.
    """
    edges = sorted((min(edge), max(edge)) for edge in _arrays(path)["edges"].tolist())
    nodes = max((node for edge in edges for node in edge), default=0) + 1
    if not 1 < nodes <= len(edges) + 1:
        raise DataError(f"{path}: its edges are those of no grid.")
    for rows in range(1, nodes + 1):
        grid = Grid(rows, nodes // rows)
        if nodes % rows == 0 and sorted(grid.edges) == edges:
            return grid
    raise DataError(f"{path}: its edges are those of no grid.")


def _arrays(path: str) -> Mapping[str, np.ndarray[Any, Any]]:
    arrays = read_arrays(locate(path), "grids")
    lacking = [name for name in ("edges", "endpoints") if name not in arrays]
    if "edge_kept" not in arrays and "edge_kept_packed" not in arrays:
        lacking.append("edge_kept")
    if lacking:
        raise DataError(f"{path}: the file lacks {', '.join(lacking)}.")
    for name, axes in _AXES.items():
        kinds = "biu" if name == "edge_kept" else "iu"
        if name in arrays and (arrays[name].ndim != axes or arrays[name].dtype.kind not in kinds):
            raise DataError(
                f"{path}: {name} must be an array of whole numbers with {axes} axes, got "
                f"{arrays[name].dtype} of shape {arrays[name].shape}."
            )
    for name in ("edges", "endpoints"):
        if arrays[name].shape[1] != 2:
            raise DataError(f"{path}: {name} must have two nodes in a row, got {arrays[name].shape[1]}.")
    if "edge_kept" in arrays and ((arrays["edge_kept"] != 0) & (arrays["edge_kept"] != 1)).any():
        raise DataError(f"{path}: edge_kept must have zeros and ones alone.")
    if "edge_kept_packed" in arrays and arrays["edge_kept_packed"].dtype != np.uint8:
        raise DataError(
            f"{path}: edge_kept_packed must hold bytes (uint8), got {arrays['edge_kept_packed'].dtype}."
        )
    splits = [name for name in ("train_idx", "test_idx") if name in arrays]
    for name in splits:
        if not len(arrays[name]):
            raise DataError(f"{path}: {name} is empty.")
        if (arrays[name] < 0).any():
            raise DataError(f"{path}: {name} has a negative number.")
    if len(splits) == 2 and len(np.intersect1d(arrays["train_idx"], arrays["test_idx"])):
        raise DataError(f"{path}: train_idx and test_idx have grids in common.")
    return arrays
