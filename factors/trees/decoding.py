"""The best arborescence, and exact samples of arborescences, from packed scores (``factors.trees.matrix_tree``)."""

from __future__ import annotations

import torch
from torch import Tensor

from unn.errors import ObservationError

from .best_tree import best_trees
from .matrix_tree import marginals, present


def decode(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> Tensor:
    """The heads of the best arborescence: shape ``(batch, n)``, int64; a root is its own head, padding has -1.

    Exact for one root and for several, under any finite mask: where the best heads of all modifiers form a tree they are the answer, which is
    checked for the whole batch at once; elsewhere cycles are contracted (``best_tree``). Only -inf forbids: where every tree must break a
    soft mask, such as -1e30, the best of these is found.

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
    rest = (~fine).nonzero().squeeze(1)
    if not len(rest):
        return result
    heads, found = best_trees(wide[rest].cpu().numpy(), exists[rest].sum(1).cpu().numpy(), single_root)
    if not found.all():
        b = int(rest[int((~found).argmax())])
        raise ObservationError(f"trees: sentence {b} of the batch has no arborescence: the arcs that are forbidden, or given, leave none.")
    result[rest] = torch.from_numpy(heads).to(result.device)
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
