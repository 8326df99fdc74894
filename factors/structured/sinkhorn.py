"""Matrix balancing: the doubly stochastic matrix exp(scores + f + g), by Newton's method on the dual.

Sinkhorn's alternation needs about exp(gap) iterations if rows and columns are coupled only by entries of
relative weight exp(-gap). Newton's method on the columns' duals, with rows balanced in closed form, needs few
iterations, with steps damped as for generalised self-concordant functions (Sun and Tran-Dinh, 2019) and
scores scaled up in stages.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = -1e300
"""Finite stand-in for -inf, so that differences are not NaN; far below any float32 score over temperature."""

_RIDGE = 1e-14
_STAGE = 4.0
_EXACT = 1e-13
_ROUNDS = 400
_FAR = 1e8
"""Entries this far below the maximum of their row and column are ignored, if a permutation exists without
them."""
_COARSE = 1e11
"""Range of scores above which only the best permutation is resolved, because of their rounding."""


@torch.no_grad()
def balance(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Balance matrices: exp(scores + f + g), shape of ``scores``, and -sum(f) - sum(g), shape ``(batch,)``.

    The latter is the maximum of <X, scores> - sum X log X. Where entries ``NEVER`` leave no permutation, the
    matrix is 0 and the maximum -inf; where a score is NaN or +inf, both are NaN.

    Args:
        scores: shape ``(batch, n, n)``, float64.
    """
    # negated, so that NaN counts
    invalid = ~(scores < torch.inf).flatten(1).all(1)
    scores = scores.masked_fill(invalid[:, None, None], 0)
    possible = scores > NEVER / 2
    # balancing is invariant to shifts of rows and columns; centring minimises the rounding error
    scores, shift = _centre(scores, possible)
    possible = _near_entries(scores, possible)
    scores = torch.where(possible, scores, NEVER)
    top = (
        torch.where(possible, scores, -torch.inf).flatten(1).amax(1)
        if scores.numel()
        else scores.new_zeros(len(scores))
    )
    low = torch.where(possible, scores, torch.inf).flatten(1).amin(1) if scores.numel() else top
    span = (top - low).nan_to_num(0.0, 0.0, 0.0).clamp(min=1.0)
    exact = (torch.finfo(scores.dtype).eps * span).clamp(min=_EXACT)
    stage = (_STAGE / span).clamp(max=1.0)
    g = scores.new_zeros(len(scores), scores.shape[2])
    coarse = span > _COARSE
    unfinished = ~coarse
    for _ in range(_ROUNDS):
        rows = unfinished.nonzero().squeeze(1)
        if not len(rows):
            break
        scale = stage[rows]
        own = torch.where(possible[rows], scores[rows] * scale[:, None, None], NEVER)
        x = torch.softmax(own + g[rows, None], 2)
        excess = x.sum(1) - 1
        error = excess.abs().amax(1)
        final = scale >= 1
        # the tolerance is bounded by the rounding of the scores; negated, so that NaN terminates
        unfinished[rows] = ~final | (error > exact[rows])
        step = torch.linalg.solve(curvature(x), -excess[:, :, None])[:, :, 0]
        width = (step.amax(1) - step.amin(1)).clamp(min=1e-300)
        g[rows] += step * (torch.log1p(width) / width)[:, None]
        ready = ~final & (error <= 0.1)
        raised = torch.where(ready, (scale * _STAGE).clamp(max=1.0), scale)
        g[rows] *= (raised / scale)[:, None]
        stage[rows] = raised
    f = -torch.logsumexp(scores + g[:, None], 2)
    x = torch.softmax(scores + g[:, None], 2)
    x, value = _zero_infeasible(x, f.sum(1) + g.sum(1), possible, unfinished)
    for b in (coarse & (value > -torch.inf)).nonzero().squeeze(1).tolist():
        x[b] = _best_permutation(scores[b])
        value[b] = (x[b] * scores[b]).sum()
    return x.masked_fill(invalid[:, None, None], torch.nan), (value + shift).masked_fill(invalid, torch.nan)


def _centre(scores: Tensor, possible: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract the maxima of rows, then of columns; returns the scores and the sum of the maxima."""
    total = scores.new_zeros(len(scores))
    for axis in (2, 1):
        largest = (
            torch.where(possible, scores, -torch.inf).amax(axis, keepdim=True)
            if scores.numel()
            else scores.sum(axis, keepdim=True)
        )
        largest = torch.where(largest == -torch.inf, 0, largest)
        scores = torch.where(possible, scores - largest, NEVER)
        total = total + largest.sum((1, 2))
    return scores, total


def _near_entries(scores: Tensor, possible: Tensor) -> Tensor:
    """Mask of possible entries that are close enough to the maximum of their row and column."""
    near = possible & (scores > -_FAR)
    for b in (possible & ~near).flatten(1).any(1).nonzero().squeeze(1).tolist():
        if not _has_permutation(near[b]):
            near[b] = possible[b]
    return near


def _best_permutation(scores: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(scores.cpu().numpy(), maximize=True)
    permutation = torch.zeros_like(scores)
    permutation[rows, columns] = 1
    return permutation


def curvature(x: Tensor) -> Tensor:
    """Hessian diag(1) - X'X of the columns' duals, plus a rank-one term on its null vector; shape of ``x``.

    It is a Laplacian, whose diagonal is summed from its other entries, since subtraction would lose weak
    couplings.
    """
    n = x.shape[-1]
    shared = x.transpose(1, 2) @ x
    shared = shared - torch.diag_embed(shared.diagonal(dim1=1, dim2=2))
    filled = torch.full((n, n), 1 / max(n, 1), dtype=x.dtype, device=x.device) + _RIDGE * torch.eye(
        n, dtype=x.dtype, device=x.device
    )
    return torch.diag_embed(shared.sum(2)) - shared + filled


def _zero_infeasible(x: Tensor, duals: Tensor, possible: Tensor, unfinished: Tensor) -> tuple[Tensor, Tensor]:
    """Zero the matrices without a feasible permutation."""
    value = -duals
    doubtful = unfinished | (torch.where(possible, 0, x).flatten(1).sum(1) > 0)
    for b in doubtful.nonzero().squeeze(1).tolist():
        if not _has_permutation(possible[b]):
            x[b], value[b] = 0, -torch.inf
    return x, value


def _has_permutation(possible: Tensor) -> bool:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return bool((maximum_bipartite_matching(csr_array(possible.cpu().numpy())) >= 0).all())
