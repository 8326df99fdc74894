"""The k best arborescences of packed scores (``factors.trees.matrix_tree``), ranked."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unn.errors import ObservationError, whole_number

from .best_tree import as_integers, best_trees
from .matrix_tree import existing_nodes


def k_best(
    scores: Tensor, k: int, lengths: Tensor | None = None, single_root: bool = True
) -> tuple[Tensor, Tensor]:
    """The k best arborescences of each sentence, best first, and their scores.

    Exact, by partition: all other trees are divided by the first modifier, 1 ... n, whose head differs from
    that in the best tree, and the best tree of each part is a candidate (Lawler, 1972). This takes at most
    k n runs of ``decode``, so use it for a few sentences and not for training.

    Args:
        scores: shape ``(batch, n, n)``, packed; -inf forbids.
        k: number of trees, at least 1.
        lengths: number of words of each sentence, shape ``(batch,)``.
        single_root: exactly one modifier is attached to the root; otherwise at least one.

    Returns:
        Heads, shape ``(batch, k, n)``, int64, in the format of ``decode``, and scores, shape
        ``(batch, k)``. If a sentence has fewer trees, the remaining heads are -1 and scores -inf; scores of
        trees are clipped to the finite range of the dtype.

    Raises:
        ObservationError: as for ``decode``, or for a k that is not a whole number >= 1.
    """
    whole_number("trees: the number of best trees", k, 1, ObservationError)
    exists = existing_nodes(scores, lengths)
    heads = torch.full((len(scores), k, scores.shape[1]), -1, dtype=torch.int64)
    totals = torch.full((len(scores), k), -torch.inf, dtype=scores.dtype)
    limits = torch.finfo(scores.dtype)
    for b in range(len(scores)):
        size = int(exists[b].sum())
        trees = _rank(scores[b, :size, :size].detach().double().cpu().numpy(), k, single_root) if size else []
        if size and not trees:
            raise ObservationError(
                f"trees: sentence {b} of the batch has no arborescence: the arcs that are forbidden, or "
                "given, leave none."
            )
        for rank, (total, own) in enumerate(trees):
            totals[b, rank] = min(max(total, limits.min), limits.max)
            heads[b, rank, :size] = torch.from_numpy(own)
    return heads.to(scores.device), totals.to(scores.device)


def _rank(scores: NDArray[np.float64], k: int, single_root: bool) -> list[tuple[float, NDArray[np.int64]]]:
    """The best trees of one sentence and their scores, best first."""
    n = len(scores)
    modifiers = np.arange(n)
    # in integers, since soft masks would absorb the other scores
    exact = as_integers(scores)
    number = count()
    queue: list[tuple[Any, int, NDArray[np.int64], NDArray[np.float64], int]] = []

    def offer(parts: NDArray[np.float64], fixed: Sequence[int]) -> None:
        every, exists = best_trees(parts, np.full(len(parts), n), single_root)
        for heads, part, first in zip(every[exists], parts[exists], np.array(fixed)[exists], strict=True):
            # the scores of the sentence, not of the part: arcs that the part forbids are not in the tree
            heapq.heappush(queue, (-sum(exact[heads, modifiers]), next(number), heads, part, int(first)))

    offer(scores[None], [0])
    ranked: list[tuple[float, NDArray[np.int64]]] = []
    while queue and len(ranked) < k:
        _, _, heads, part, fixed = heapq.heappop(queue)
        with np.errstate(over="ignore"):
            ranked.append((float(scores[heads, modifiers].sum()), heads))
        free = range(fixed, n)
        if free:
            offer(np.stack(_partition(part, heads, free)), free)
    return ranked


def _partition(
    scores: NDArray[np.float64], heads: NDArray[np.int64], free: range
) -> list[NDArray[np.float64]]:
    """Scores of all trees but one, divided by the first modifier in ``free`` whose head differs."""
    parts = []
    for m in free:
        rest = scores.copy()
        rest[heads[m], m] = -np.inf
        parts.append(rest)
        # in all later parts, this modifier has the head of the tree
        own = scores[heads[m], m]
        scores = scores.copy()
        scores[:, m] = -np.inf
        scores[heads[m], m] = own
    return parts
