"""The k best arborescences of packed scores (``factors.matrix_tree``), in order."""

from __future__ import annotations

import heapq
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unn.errors import ObservationError

from .arborescence import best_heads
from .matrix_tree import present


def k_best(scores: Tensor, k: int, lengths: Tensor | None = None, single_root: bool = True) -> tuple[Tensor, Tensor]:
    """The k best arborescences of each sentence, from the best on, and their scores.

    Exact, by partition: all trees but the best are those that leave it first at the modifier 1, 2, ... n, and each of these parts has a best tree of
    its own (Lawler, 1972). That takes at most k n runs of ``decode``, one after another, so it is for a few sentences and not for training.

    Args:
        scores: shape ``(batch, n, n)``, packed; -inf forbids.
        k: how many, at least 1.
        lengths: of each sentence, shape ``(batch,)``.
        single_root: exactly one modifier hangs on the root; else at least one.

    Returns:
        Heads, shape ``(batch, k, n)``, int64, as of ``decode``, and scores, shape ``(batch, k)``. Where a sentence has fewer trees, heads are -1
        and scores -inf.

    Raises:
        ObservationError: as for ``decode``, or for a k that is not a whole number >= 1.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ObservationError(f"trees: the number of best trees must be a whole number >= 1, got {k!r}.")
    exists = present(scores, lengths)
    heads = torch.full((len(scores), k, scores.shape[1]), -1, dtype=torch.int64)
    totals = torch.full((len(scores), k), -torch.inf, dtype=scores.dtype)
    for b in range(len(scores)):
        size = int(exists[b].sum())
        found = _ranked(scores[b, :size, :size].detach().double().cpu().numpy(), k, single_root) if size else []
        if size and not found:
            raise ObservationError(f"trees: sentence {b} of the batch has no arborescence: the arcs that are forbidden, or given, leave none.")
        for rank, (total, own) in enumerate(found):
            totals[b, rank] = total
            heads[b, rank, :size] = torch.from_numpy(own)
    return heads.to(scores.device), totals.to(scores.device)


def _ranked(scores: NDArray[np.float64], k: int, single_root: bool) -> list[tuple[float, NDArray[np.int64]]]:
    modifiers = np.arange(len(scores))
    number = count()
    waiting: list[tuple[float, int, NDArray[np.int64], NDArray[np.float64], int]] = []

    def offer(part: NDArray[np.float64], fixed: int) -> None:
        own = best_heads(part, single_root)
        if own is not None:
            # the scores of the sentence, not of the part: what is forbidden there is not in the tree
            heapq.heappush(waiting, (-float(scores[own, modifiers].sum()), next(number), own, part, fixed))

    offer(scores, 0)
    found: list[tuple[float, NDArray[np.int64]]] = []
    while waiting and len(found) < k:
        total, _, own, part, fixed = heapq.heappop(waiting)
        found.append((-total, own))
        for m in range(fixed, len(scores)):
            rest = part.copy()
            rest[own[m], m] = -np.inf
            offer(rest, m)
            # from here on, this modifier keeps its head
            kept = part[own[m], m]
            part = part.copy()
            part[:, m] = -np.inf
            part[own[m], m] = kept
    return found
