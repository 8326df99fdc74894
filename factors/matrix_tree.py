"""Log-partition and marginals of arborescences, by the matrix-tree theorem, exact at any scale of the scores.

Scores are packed: ``scores[b, h, m]`` is that of the arc from head h to modifier m, ``scores[b, m, m]`` that of m being a root; -inf forbids.
The weight of a tree is the exponential of the sum of its arcs' scores (undirected-network paper, Section 5; Koo et al., 2007).

The Laplacian's diagonal is a sum of what its other entries subtract again, so that cycles of strong arcs leave nothing but rounding behind:
no shift of the scores cures it. The fast path factorises the Laplacian in float64 and measures how far its entries cancel; what does not pass is
eliminated without any subtraction, in the logarithmic domain (Grassmann, Taksar and Heyman, 1985).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unn.errors import ObservationError

_NEVER = -1e30
"""Stands for -inf in the logarithmic domain, where differences must stay numbers; no sum of scores comes near it."""

_WORST = {(torch.float64, torch.float64): 30.0, (torch.float32, torch.float32): 10.0, (torch.float32, torch.float64): 1e4}
"""By the dtypes of result and factorisation, the largest cancellation at which the digits of the result are still resolved."""


def log_partition(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> Tensor:
    """The logarithm of the sum of the weights of all arborescences, shape ``(batch,)``; -inf where there is none.

    Differentiable any number of times; the gradient is ``marginals``, from the same factorisation.

    Args:
        scores: shape ``(batch, n, n)``, packed.
        lengths: of each sentence, shape ``(batch,)``; the rest is padding.
        single_root: exactly one modifier hangs on the root; else at least one.

    Raises:
        ObservationError: for scores or lengths of another shape, or scores that are NaN or +inf.
    """
    return log_partition_and_marginals(scores, lengths, single_root)[0]


def marginals(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> Tensor:
    """The probability of each arc, shape ``(batch, n, n)``, packed as the scores; 0 in padding, and where no arborescence exists.

    Arguments and errors as for ``log_partition``.
    """
    return log_partition_and_marginals(scores, lengths, single_root)[1]


def log_partition_and_marginals(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> tuple[Tensor, Tensor]:
    """Both at once, from one factorisation; arguments and errors as for ``log_partition``."""
    exists = present(scores, lengths)
    kept = scores if scores.dtype == torch.float64 else scores.float()
    partition, arcs = _by_cases(kept, exists, single_root, [kept.dtype] if kept.dtype == torch.float64 else [torch.float32, torch.float64])
    return partition.to(scores.dtype), arcs.to(scores.dtype)


def present(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Which nodes exist, shape ``(batch, n)``, boolean, for scores that are as they should be.

    Raises:
        ObservationError: for scores or lengths of another shape, or scores that are NaN or +inf.
    """
    if not isinstance(scores, Tensor) or scores.ndim != 3 or scores.shape[1] != scores.shape[2] or not scores.is_floating_point():
        found = f"{tuple(scores.shape)} and {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ObservationError(f"trees: scores need shape (batch, n, n) and a floating dtype, got {found}.")
    batch, n = scores.shape[:2]
    if not torch.compiler.is_compiling() and bool((scores.isnan() | (scores == torch.inf)).any()):
        raise ObservationError("trees: scores have NaN or +inf entries; -inf forbids an arc, everything else must be finite.")
    if lengths is None:
        return torch.ones(batch, n, dtype=torch.bool, device=scores.device)
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ObservationError(f"trees: lengths need shape ({batch},) and whole numbers, got {tuple(lengths.shape)} and {lengths.dtype}.")
    return torch.arange(n, device=scores.device) < lengths.to(scores.device)[:, None]


def _by_cases(scores: Tensor, exists: Tensor, single_root: bool, dtypes: Sequence[torch.dtype]) -> tuple[Tensor, Tensor]:
    """The first of some factorisations for what it can be trusted with, the next for the rest, elimination for what is left."""
    if not dtypes:
        return _eliminated(scores.double(), exists, single_root)
    partition, arcs, cancelled = _factorised(scores.to(dtypes[0]), exists, single_root)
    trusted = cancelled <= _WORST[scores.dtype, dtypes[0]]
    if bool(trusted.all()):
        return partition, arcs
    good, bad = trusted.nonzero().squeeze(1), (~trusted).nonzero().squeeze(1)
    parts = [_by_cases(scores[bad], exists[bad], single_root, dtypes[1:])]
    if len(good):
        # computed again, so that no gradient passes through those that failed
        parts.insert(0, _factorised(scores[good].to(dtypes[0]), exists[good], single_root)[:2])
    place = torch.cat([good, bad]).argsort()
    return torch.cat([part[0].to(scores.dtype) for part in parts])[place], torch.cat([part[1].to(scores.dtype) for part in parts])[place]


def _factorised(scores: Tensor, exists: Tensor, single_root: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-partition, marginals and how far entries cancel: 1 if not at all, NaN or infinity if nothing is left."""
    both = exists[:, :, None] & exists[:, None, :]
    # every modifier has exactly one head, so that a shift of its scores shifts those of all trees
    shift = torch.where(both, scores, -torch.inf).detach().amax(1, keepdim=True)
    shift = torch.where(shift.isfinite(), shift, 0)
    weights = torch.where(both, scores - shift, -torch.inf).exp()
    roots = weights.diagonal(dim1=1, dim2=2)
    arcs = weights - torch.diag_embed(roots)
    diagonal = arcs.sum(1) + (~exists).to(weights.dtype)
    if not single_root:
        diagonal = diagonal + roots
    laplacian = torch.diag_embed(diagonal) - arcs
    if single_root:
        # one row of the Laplacian is redundant without roots; that of the first node gives the root its weights (Koo et al., 2007)
        laplacian = torch.cat([roots[:, None], laplacian[:, 1:]], 1)
    inverse, determinant = _inverse(laplacian)
    cancelled = _cancellation(laplacian.detach(), inverse.detach())
    own = inverse.diagonal(dim1=1, dim2=2)
    across = inverse.transpose(1, 2)
    if single_root:
        first = torch.zeros_like(own)
        first[:, 0] = 1
        found = arcs * ((1 - first) * own)[:, None] - arcs * across * (1 - first)[:, :, None] + torch.diag_embed(roots * inverse[:, :, 0])
    else:
        found = arcs * (own[:, None] - across) + torch.diag_embed(roots * own)
    partition = _Attached.apply(determinant + torch.where(exists, shift[:, 0], 0).sum(1), found, scores)
    return partition, found, torch.where(determinant.isfinite(), cancelled, torch.inf)


def _cancellation(matrix: Tensor, inverse: Tensor) -> Tensor:
    """Of what size the terms are whose sums are the entries of matrix times inverse, shape ``(batch,)``; infinity if that is not the identity.

    Rounding in the entries of the matrix, relative to them, moves the logarithm of the determinant by as much at most, to first order.
    """
    n = matrix.shape[-1]
    probe = 1 + (torch.arange(n, dtype=matrix.dtype, device=matrix.device) * 0.6180339887498949) % 1
    # of a matrix that is singular but for rounding, what is called its inverse is none (the check is Freivalds's)
    off = (matrix @ (inverse @ probe)[:, :, None] - probe[:, None]).abs().amax((1, 2))
    size = (matrix.abs() * inverse.abs().transpose(1, 2)).sum(2).amax(1)
    return torch.where(off < torch.finfo(matrix.dtype).eps ** 0.5, size, torch.inf)


def _inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse, differentiable, and the logarithm of the absolute determinant, not; singular matrices give what is not finite."""
    with torch.no_grad():
        factors, pivots, _ = torch.linalg.lu_factor_ex(matrix)
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
        inverse = torch.linalg.lu_solve(factors, pivots, identity)
        determinant = factors.diagonal(dim1=1, dim2=2).abs().log().sum(1)
    return _Inverted.apply(matrix, inverse), determinant


class _Inverted(torch.autograd.Function):
    """A known inverse with the derivative of inversion."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, inverse: Tensor) -> Tensor:
        out = inverse.clone()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (inverse,) = ctx.saved_tensors
        across = inverse.transpose(1, 2)
        return -across @ gradient @ across, None


class _Attached(torch.autograd.Function):
    """A known log-partition whose gradient is that of the marginals, which are differentiable themselves."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, arcs: Tensor, scores: Tensor) -> Tensor:
        ctx.save_for_backward(arcs)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        (arcs,) = ctx.saved_tensors
        return None, None, gradient[:, None, None] * arcs


def _eliminated(scores: Tensor, exists: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals without subtraction, for any scores."""
    again = torch.is_grad_enabled() and scores.requires_grad
    with torch.enable_grad():
        leaf = scores if again else scores.detach().requires_grad_()
        partition = _eliminate(leaf, exists, single_root)
        possible = partition.detach() > _NEVER / 2
        (arcs,) = torch.autograd.grad(partition[possible].sum(), leaf, create_graph=again)
    partition = torch.where(possible, partition, -torch.inf)
    arcs = torch.where(possible[:, None, None], arcs, 0)
    return (partition, arcs) if again else (partition.detach(), arcs)


def _eliminate(scores: Tensor, exists: Tensor, single_root: bool) -> Tensor:
    """Remove one node after another: its head's arcs take over its modifiers, in proportion to the probability of each head.

    The node removed next is the one with the heaviest heads among those that remain, so that a forbidden arc is met only where all are.
    """
    batch, n = scores.shape[:2]
    both = exists[:, :, None] & exists[:, None, :]
    arcs = torch.where(both & (scores != -torch.inf), scores, _NEVER)
    roots = arcs.diagonal(dim1=1, dim2=2)
    diagonal = torch.eye(n, dtype=torch.bool, device=scores.device)
    arcs = arcs.masked_fill(diagonal, _NEVER)
    left = exists
    total = scores.new_zeros(batch)
    rows = torch.arange(batch, device=scores.device)
    for _ in range(n - 1):
        inner = left[:, :, None] & left[:, None, :]
        heads = torch.where(inner, arcs, _NEVER)
        weight = torch.logsumexp(heads, 1) if single_root else torch.logsumexp(torch.cat([heads, roots[:, None]], 1), 1)
        several = left.sum(1) > 1
        node = torch.where(left, weight.detach(), -torch.inf).argmax(1)
        own, column, row = weight[rows, node], heads[rows, :, node], heads[rows, node]
        total = total + torch.where(several, own, 0)
        share = torch.maximum(column - own[:, None], column.new_tensor(_NEVER))
        # a path that comes back to where it began is a cycle, and in no tree
        taken = (share[:, :, None] + row[:, None]).masked_fill(diagonal, _NEVER)
        arcs = torch.where(several[:, None, None], _added(arcs, taken), arcs)
        root_share = torch.maximum(roots[rows, node] - own, own.new_tensor(_NEVER))
        roots = torch.where(several[:, None], _added(roots, root_share[:, None] + row), roots)
        left = left & ~(torch.nn.functional.one_hot(node, n).bool() & several[:, None])
    last = torch.where(left, roots, _NEVER).amax(1)
    return total + torch.where(left.any(1), last, 0)


def _added(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b); the second derivative of ``torch.logaddexp`` is NaN where the two are far apart."""
    return torch.logsumexp(torch.stack([a, b]), 0)
