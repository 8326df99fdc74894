"""Readings of independent nodes in order of falling probability."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from torch import Tensor


def readings(log_probabilities: Tensor) -> Iterator[Tensor]:
    """Values of independent nodes, all of them in turn, the most probable first.

    Each reading is the best one with some changes; the order is that of a search over changes with a priority
    queue, which needs time proportional to the logarithm of their number for each (Lawler, 1972). Readings of
    probability 0 are left out.

    Args:
        log_probabilities: shape ``(nodes, values)``; minus infinity for excluded values.

    Yields:
        The value of each node, shape ``(nodes,)``.
    """
    order = log_probabilities.argsort(dim=1, descending=True, stable=True)
    ranked = log_probabilities.gather(1, order)
    best = order[:, 0]
    if bool((ranked[:, 0] == -math.inf).any()):
        return
    yield best.clone()
    # the loss of log-probability by the second, third, ... value of each node, in order of the second
    losses = (ranked[:, :1] - ranked[:, 1:]).double()
    by_second = losses[:, 0].argsort(stable=True).tolist() if losses.shape[1] else []
    lost = losses.tolist()
    queue: list[tuple[float, tuple[tuple[int, int], ...]]] = []

    def push(loss: float, changes: tuple[tuple[int, int], ...]) -> None:
        if loss < math.inf:
            heapq.heappush(queue, (loss, changes))

    def of(place: int, rank: int) -> float:
        return float(lost[by_second[place]][rank])

    if by_second:
        push(of(0, 0), ((0, 0),))
    while queue:
        loss, changes = heapq.heappop(queue)
        reading = best.clone()
        for place, rank in changes:
            node = by_second[place]
            reading[node] = order[node, rank + 1]
        yield reading
        # a change is followed by the next value of its node, by a change of the next node as well, or, if it
        # is the first of its node, by a change of the next node instead
        *before, (place, rank) = changes
        if rank + 1 < losses.shape[1]:
            push(loss + of(place, rank + 1) - of(place, rank), (*before, (place, rank + 1)))
        if place + 1 < len(by_second):
            push(loss + of(place + 1, 0), (*changes, (place + 1, 0)))
            if rank == 0:
                push(loss + of(place + 1, 0) - of(place, 0), (*before, (place + 1, 0)))
