"""Diameter of an adjacency."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csgraph

from .adjacency import Adjacency


def longest_shortest_path(adjacency: Adjacency) -> int:
    """The largest distance between two connected nodes, in steps.

    Attention over the graph carries information one step per layer, so a denoiser needs at least as many
    layers for every value to depend on every other (structured-diffusion paper, Appendix E). Exact: nodes
    whose distance bounds cannot exceed the current maximum are skipped (Takes and Kosters, 2011).
    """
    if not adjacency.count:
        return 0
    # symmetric and floating-point, on which scipy is several times faster
    matrix = (adjacency.matrix + adjacency.matrix.T).astype(np.float64)
    parts, part_of = csgraph.connected_components(matrix, directed=False)
    lower = np.zeros(adjacency.count, dtype=np.int64)
    upper = np.bincount(part_of, minlength=parts)[part_of] - 1
    degree = np.diff(matrix.indptr)
    largest, far = 0, True
    while True:
        open_ = np.flatnonzero((upper > largest) & (lower < upper))
        if not open_.size:
            return max(largest, int(lower.max()))
        # alternate between the most remote and the most central candidate
        key = upper[open_] if far else -lower[open_]
        best = open_[key == key.max()]
        node = int(best[np.argmax(degree[best])])
        far = not far
        distance = csgraph.shortest_path(matrix, indices=node, unweighted=True)
        reached = np.flatnonzero(np.isfinite(distance))
        steps = distance[reached].astype(np.int64)
        eccentricity = int(steps.max())
        largest = max(largest, eccentricity)
        lower[reached] = np.maximum(lower[reached], np.maximum(steps, eccentricity - steps))
        upper[reached] = np.minimum(upper[reached], eccentricity + steps)
        lower[node] = upper[node] = eccentricity
