"""Log-partition and marginals of arborescences by elimination in the logarithmic domain: slow, without subtraction, for any scores."""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = -1e30
"""Stands for -inf in the logarithmic domain, where differences must stay numbers; no sum of scores comes near it."""


def eliminated(scores: Tensor, exists: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals without subtraction, for any scores."""
    again = torch.is_grad_enabled() and scores.requires_grad
    with torch.enable_grad():
        leaf = scores if again else scores.detach().requires_grad_()
        partition = _eliminate(leaf, exists, single_root)
        possible = partition.detach() > NEVER / 2
        (arcs,) = torch.autograd.grad(partition[possible].sum(), leaf, create_graph=again)
    # scores that are no numbers have no marginals, which is not to be taken for scores without any tree
    broken = ~(scores.detach() < torch.inf).all(2).all(1)
    partition = torch.where(possible, partition, -torch.inf).masked_fill(broken, torch.nan)
    arcs = torch.where(possible[:, None, None], arcs, 0).masked_fill(broken[:, None, None], torch.nan)
    return (partition, arcs) if again else (partition.detach(), arcs)


def _eliminate(scores: Tensor, exists: Tensor | None, single_root: bool) -> Tensor:
    """Remove one node after another: its head's arcs take over its modifiers, in proportion to the probability of each head.

    The node removed next is the one with the heaviest heads among those that remain, so that a forbidden arc is met only where all are.
    """
    batch, n = scores.shape[:2]
    arcs = torch.where(scores == -torch.inf, NEVER, scores)
    roots = arcs.diagonal(dim1=1, dim2=2)
    diagonal = torch.eye(n, dtype=torch.bool, device=scores.device)
    arcs = arcs.masked_fill(diagonal, NEVER)
    left = torch.ones(batch, n, dtype=torch.bool, device=scores.device) if exists is None else exists
    total = scores.new_zeros(batch)
    rows = torch.arange(batch, device=scores.device)
    for _ in range(n - 1):
        inner = left[:, :, None] & left[:, None, :]
        heads = torch.where(inner, arcs, NEVER)
        weight = torch.logsumexp(heads, 1) if single_root else torch.logsumexp(torch.cat([heads, roots[:, None]], 1), 1)
        several = left.sum(1) > 1
        node = torch.where(left, weight.detach(), -torch.inf).argmax(1)
        own, column, row = weight[rows, node], heads[rows, :, node], heads[rows, node]
        total = total + torch.where(several, own, 0)
        share = torch.maximum(column - own[:, None], column.new_tensor(NEVER))
        # a path that comes back to where it began is a cycle, and in no tree
        taken = (share[:, :, None] + row[:, None]).masked_fill(diagonal, NEVER)
        arcs = torch.where(several[:, None, None], _added(arcs, taken), arcs)
        root_share = torch.maximum(roots[rows, node] - own, own.new_tensor(NEVER))
        roots = torch.where(several[:, None], _added(roots, root_share[:, None] + row), roots)
        left = left & ~(torch.nn.functional.one_hot(node, n).bool() & several[:, None])
    last = torch.where(left, roots, NEVER).amax(1)
    return total + torch.where(left.any(1), last, 0)


def _added(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b); the second derivative of ``torch.logaddexp`` is NaN where the two are far apart."""
    return torch.logsumexp(torch.stack([a, b]), 0)
