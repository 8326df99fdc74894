"""The best arborescence, and exact samples of arborescences, from packed scores (``factors.matrix_tree``)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unn.errors import ObservationError

from .matrix_tree import marginals, present

Scores = NDArray[np.float64]
Heads = NDArray[np.int64]


def decode(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> Tensor:
    """The heads of the best arborescence: shape ``(batch, n)``, int64; a root is its own head, padding has -1.

    Exact for one root and for several: where the best heads of all modifiers form a tree they are the answer, which is checked for the whole
    batch at once; elsewhere cycles are contracted (Chu and Liu, 1965; Edmonds, 1967), with a penalty on every root that is larger than any
    tree's score where there must be one.

    Args:
        scores: shape ``(batch, n, n)``, packed; -inf forbids.
        lengths: of each sentence, shape ``(batch,)``.
        single_root: exactly one modifier hangs on the root; else at least one.

    Raises:
        ObservationError: for scores or lengths of another shape, NaN or +inf, or a sentence without any arborescence; names it.
    """
    exists = present(scores, lengths)
    if not scores.numel():
        return torch.full(scores.shape[:2], -1, dtype=torch.int64, device=scores.device)
    wide = scores.detach().double()
    both = exists[:, :, None] & exists[:, None, :]
    wide = torch.where(both, wide, -torch.inf)
    greedy = wide.argmax(1)
    rooted = hanging(greedy, exists)
    roots = ((greedy == torch.arange(scores.shape[1], device=scores.device)) & exists).sum(1)
    possible = (torch.where(exists, wide.amax(1), 0) > -torch.inf).all(1)
    fine = rooted & possible & ((roots == 1) if single_root else (roots >= 1)) | ~exists.any(1)
    result = torch.where(exists, greedy, -1)
    for b in (~fine).nonzero().squeeze(1).tolist():
        size = int(exists[b].sum())
        found = best_heads(wide[b, :size, :size].cpu().numpy(), single_root)
        if found is None:
            raise ObservationError(f"trees: sentence {b} of the batch has no arborescence: the arcs that are forbidden, or given, leave none.")
        result[b, :size] = torch.from_numpy(found).to(result.device)
    return result


def sample(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True, generator: torch.Generator | None = None) -> Tensor:
    """Exact samples of arborescences: the heads of one for each element of the batch, shape ``(batch, n)``; arguments as for ``decode``.

    The head of one modifier after another is drawn from its marginals given those drawn before, which costs n factorisations.

    Raises:
        ObservationError: as for ``decode``.
    """
    exists = present(scores, lengths)
    left = torch.where(exists[:, :, None] & exists[:, None, :], scores.detach().double(), -torch.inf)
    heads = torch.full(scores.shape[:2], -1, dtype=torch.int64, device=scores.device)
    nodes = torch.arange(scores.shape[1], device=scores.device)
    for m in range(scores.shape[1]):
        here = exists[:, m]
        if not bool(here.any()):
            continue
        chances = marginals(left, lengths, single_root)[:, :, m].clamp_min(0)
        lost = here & ~(chances.sum(1) > 0.5)
        if bool(lost.any()):
            b = int(lost.nonzero()[0])
            raise ObservationError(f"trees: sentence {b} of the batch has no arborescence: the arcs that are forbidden, or given, leave none.")
        chances = torch.where(here[:, None], chances, (nodes == m).double())
        place = generator.device if generator is not None else chances.device
        drawn = torch.multinomial(chances.to(place), 1, generator=generator).to(scores.device)[:, 0]
        heads[:, m] = torch.where(here, drawn, -1)
        column = torch.where(nodes[None] == drawn[:, None], left[:, :, m], -torch.inf)
        left = left.clone()
        left[:, :, m] = torch.where(here[:, None], column, left[:, :, m])
    return heads


def hanging(heads: Tensor, exists: Tensor) -> Tensor:
    """Do all nodes that exist hang on roots, which are their own heads? Both of shape ``(batch, n)``; returns shape ``(batch,)``."""
    heads = torch.where(exists, heads, torch.arange(heads.shape[1], device=heads.device))
    # after enough doublings everything hangs on a node that is its own head, unless there is a cycle
    above = heads
    for _ in range(max(1, heads.shape[1]).bit_length()):
        above = above.gather(1, above)
    return (heads.gather(1, above) == above).all(1)


def best_heads(scores: Scores, single_root: bool) -> Heads | None:
    """The heads of the best arborescence of one sentence; None if there is none."""
    n = len(scores)
    # node 0 is the root of all, and modifiers are 1 to n
    full = np.full((n + 1, n + 1), -np.inf)
    full[1:, 1:] = scores
    full[0, 1:] = scores.diagonal()
    np.fill_diagonal(full, -np.inf)
    if single_root:
        finite = full[np.isfinite(full)]
        if not len(finite):
            return None
        # larger than the difference of any two trees, so that one root is always better than two (Zmigrod et al., 2020)
        full[0] -= n * (finite.max() - finite.min()) + 1
    heads = _contracted(full)
    if heads is None:
        return None
    found = heads[1:] - 1
    roots = found < 0
    if single_root and roots.sum() != 1:
        return None
    packed: Heads = np.where(roots, np.arange(n), found)
    return packed


def _contracted(scores: Scores) -> Heads | None:
    """Chu-Liu-Edmonds with node 0 as root: the best head of every node, then cycles as nodes of their own."""
    # a loop, since a long sentence of equal words has as many cycles as words
    levels: list[tuple[Heads, Heads, Heads, Heads, Heads]] = []
    while True:
        heads: Heads = scores.argmax(0)
        heads[0] = 0
        if len(scores) > 1 and not np.isfinite(scores[heads[1:], np.arange(1, len(scores))]).all():
            return None
        cycle = _cycle(heads)
        if cycle is None:
            break
        inside = np.zeros(len(scores), dtype=bool)
        inside[cycle] = True
        outside = np.flatnonzero(~inside)
        # what entering the cycle at each of its nodes changes
        entering = scores[np.ix_(outside, cycle)] - scores[heads[cycle], cycle]
        leaving = scores[np.ix_(cycle, outside)]
        levels.append((heads, cycle, outside, entering.argmax(1), leaving.argmax(0)))
        size = len(outside)
        smaller = np.full((size + 1, size + 1), -np.inf)
        smaller[:size, :size] = scores[np.ix_(outside, outside)]
        smaller[:size, size] = entering.max(1)
        smaller[size, :size] = leaving.max(0)
        scores = smaller
    found = heads
    for heads, cycle, outside, entry, leaf in reversed(levels):
        size = len(outside)
        gate = int(found[size])
        heads[cycle[entry[gate]]] = outside[gate]
        chosen = found[1:size]
        from_cycle = chosen == size
        heads[outside[1:]] = np.where(from_cycle, cycle[leaf[1:]], outside[np.where(from_cycle, 0, chosen)])
        found = heads
    return found


def _cycle(heads: Heads) -> Heads | None:
    """The nodes of one cycle that does not hold the root; None if there is none."""
    state = np.zeros(len(heads), dtype=np.int64)
    state[0] = -1
    for start in range(1, len(heads)):
        node, path = start, []
        while state[node] == 0:
            state[node] = start
            path.append(node)
            node = int(heads[node])
        if state[node] == start:
            return np.array(path[path.index(node) :])
        for seen in path:
            state[seen] = -1
    return None
