"""The best arborescence, and exact samples of arborescences, from packed scores
(``factors.trees.matrix_tree``)."""

from __future__ import annotations

import torch
from torch import Tensor

from unn.errors import ObservationError

from .best_tree import best_trees
from .matrix_tree import existing_nodes, marginals


def decode(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> Tensor:
    """Heads of the best arborescence, shape ``(batch, n)``, int64; a root is its own head, padding is -1.

    Exact for one root and for several, under any finite mask. If the best heads of all modifiers form a
    tree, they are the solution, which is checked for the whole batch at once; otherwise cycles are
    contracted (``best_tree``). Only -inf forbids: if every tree must break a soft mask, such as -1e30, the
    result is the best of them.

    Args:
        scores: shape ``(batch, n, n)``, packed; -inf forbids.
        lengths: number of words of each sentence, shape ``(batch,)``.
        single_root: exactly one modifier is attached to the root; otherwise at least one.

    Raises:
        ObservationError: for scores or lengths of another shape, NaN or +inf, or a sentence without
            any arborescence; the message contains its index.
    """
    exists = existing_nodes(scores, lengths)
    if not scores.numel():
        return torch.full(scores.shape[:2], -1, dtype=torch.int64, device=scores.device)
    wide = scores.detach().double()
    both = exists[:, :, None] & exists[:, None, :]
    wide = torch.where(both, wide, -torch.inf)
    greedy = wide.argmax(1)
    rooted = is_forest(greedy, exists)
    roots = ((greedy == torch.arange(scores.shape[1], device=scores.device)) & exists).sum(1)
    possible = (torch.where(exists, wide.amax(1), 0) > -torch.inf).all(1)
    fine = rooted & possible & ((roots == 1) if single_root else (roots >= 1)) | ~exists.any(1)
    result = torch.where(exists, greedy, -1)
    rest = (~fine).nonzero().squeeze(1)
    if not len(rest):
        return result
    heads, feasible = best_trees(wide[rest].cpu().numpy(), exists[rest].sum(1).cpu().numpy(), single_root)
    if not feasible.all():
        b = int(rest[int((~feasible).argmax())])
        raise ObservationError(
            f"trees: sentence {b} of the batch has no arborescence: the arcs that are forbidden, or given, "
            "leave none."
        )
    result[rest] = torch.from_numpy(heads).to(result.device)
    return result


def sample(
    scores: Tensor,
    lengths: Tensor | None = None,
    single_root: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Exact samples of arborescences: heads, one tree per batch element, shape ``(batch, n)``.

    Arguments as for ``decode``. Heads are drawn in turn, each from its marginals given those drawn before, at
    the cost of n factorisations.

    Raises:
        ObservationError: as for ``decode``.
    """
    exists = existing_nodes(scores, lengths)
    remaining = torch.where(exists[:, :, None] & exists[:, None, :], scores.detach().double(), -torch.inf)
    heads = torch.full(scores.shape[:2], -1, dtype=torch.int64, device=scores.device)
    nodes = torch.arange(scores.shape[1], device=scores.device)
    for m in range(scores.shape[1]):
        here = exists[:, m]
        if not bool(here.any()):
            continue
        probabilities = marginals(remaining, lengths, single_root)[:, :, m].clamp_min(0)
        impossible = here & ~(probabilities.sum(1) > 0.5)
        if bool(impossible.any()):
            b = int(impossible.nonzero()[0])
            raise ObservationError(
                f"trees: sentence {b} of the batch has no arborescence: the arcs that are forbidden, or "
                "given, leave none."
            )
        probabilities = torch.where(here[:, None], probabilities, (nodes == m).double())
        device = generator.device if generator is not None else probabilities.device
        drawn = torch.multinomial(probabilities.to(device), 1, generator=generator).to(scores.device)[:, 0]
        heads[:, m] = torch.where(here, drawn, -1)
        column = torch.where(nodes[None] == drawn[:, None], remaining[:, :, m], -torch.inf)
        remaining = remaining.clone()
        remaining[:, :, m] = torch.where(here[:, None], column, remaining[:, :, m])
    return heads


def is_forest(heads: Tensor, exists: Tensor) -> Tensor:
    """Check that all existing nodes descend from roots, which are their own heads.

    Both arguments have shape ``(batch, n)``; the result is boolean, shape ``(batch,)``.
    """
    heads = torch.where(exists, heads, torch.arange(heads.shape[1], device=heads.device))
    # after enough doublings each ancestor is its own head, unless there is a cycle
    ancestors = heads
    for _ in range(max(1, heads.shape[1]).bit_length()):
        ancestors = ancestors.gather(1, ancestors)
    return (heads.gather(1, ancestors) == ancestors).all(1)
