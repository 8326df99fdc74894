"""Matrix balancing: the doubly stochastic matrix exp(scores + f + g), by Newton's method on the dual.

Sinkhorn's alternation needs about exp(gap) iterations where scores leave rows and columns to share what is worth exp(-gap). Newton's method on the
columns' duals, with rows balanced in closed form, needs a few, if its steps are damped as for generalised self-concordant functions (Sun and
Tran-Dinh, 2019), and scores are raised to their scale by stages.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = -1e300
"""Stands for -inf, so that differences stay numbers; no score of float32 over a temperature comes near it."""

_RIDGE = 1e-14
_STAGE = 4.0
_EXACT = 1e-13
_ROUNDS = 400
_FAR = 1e8
"""Entries this far below the largest of their row and column have no share, if there is a permutation without them."""
_COARSE = 1e11
"""Above this, rounding of the scores leaves nothing to be shared: what is balanced is the best permutation."""


@torch.no_grad()
def balanced(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The balanced matrices, shape of ``scores``, and -sum(f) - sum(g), which is the maximum of <X, scores> - sum X log X, shape ``(batch,)``.

    Matrices without any permutation, because of entries ``NEVER``, are 0, and their maximum is -inf.

    Args:
        scores: shape ``(batch, n, n)``, float64, finite.
    """
    possible = scores > NEVER / 2
    # sums of rows and columns do not care, and what is left has as few digits before the point as there can be
    scores, shift = _centred(scores, possible)
    possible = _without_far(scores, possible)
    scores = torch.where(possible, scores, NEVER)
    top = torch.where(possible, scores, -torch.inf).flatten(1).amax(1) if scores.numel() else scores.new_zeros(len(scores))
    low = torch.where(possible, scores, torch.inf).flatten(1).amin(1) if scores.numel() else top
    span = (top - low).nan_to_num(0.0, 0.0, 0.0).clamp(min=1.0)
    exact = (torch.finfo(scores.dtype).eps * span).clamp(min=_EXACT)
    stage = (_STAGE / span).clamp(max=1.0)
    g = scores.new_zeros(len(scores), scores.shape[2])
    coarse = span > _COARSE
    left = ~coarse
    for _ in range(_ROUNDS):
        rows = left.nonzero().squeeze(1)
        if not len(rows):
            break
        heat = stage[rows]
        own = torch.where(possible[rows], scores[rows] * heat[:, None, None], NEVER)
        x = torch.softmax(own + g[rows, None], 2)
        excess = x.sum(1) - 1
        off = excess.abs().amax(1)
        final = heat >= 1
        # nothing is more exact than the rounding of its scores; written so that NaN ends
        left[rows] = ~final | (off > exact[rows])
        step = torch.linalg.solve(curvature(x), -excess[:, :, None])[:, :, 0]
        width = (step.amax(1) - step.amin(1)).clamp(min=1e-300)
        g[rows] += step * (torch.log1p(width) / width)[:, None]
        ready = ~final & (off <= 0.1)
        raised = torch.where(ready, (heat * _STAGE).clamp(max=1.0), heat)
        g[rows] *= (raised / heat)[:, None]
        stage[rows] = raised
    f = -torch.logsumexp(scores + g[:, None], 2)
    x = torch.softmax(scores + g[:, None], 2)
    x, value = _checked(x, f.sum(1) + g.sum(1), possible, left)
    for b in (coarse & (value > -torch.inf)).nonzero().squeeze(1).tolist():
        x[b] = _best_permutation(scores[b])
        value[b] = (x[b] * scores[b]).sum()
    return x, value + shift


def _centred(scores: Tensor, possible: Tensor) -> tuple[Tensor, Tensor]:
    """Scores less the largest of their row, then of their column, and the sum of all these."""
    total = scores.new_zeros(len(scores))
    for axis in (2, 1):
        largest = torch.where(possible, scores, -torch.inf).amax(axis, keepdim=True) if scores.numel() else scores.sum(axis, keepdim=True)
        largest = torch.where(largest == -torch.inf, 0, largest)
        scores = torch.where(possible, scores - largest, NEVER)
        total = total + largest.sum((1, 2))
    return scores, total


def _without_far(scores: Tensor, possible: Tensor) -> Tensor:
    """Which entries are possible and near enough to the largest of their row and column to have a share."""
    near = possible & (scores > -_FAR)
    for b in (possible & ~near).flatten(1).any(1).nonzero().squeeze(1).tolist():
        if not _has_permutation(near[b]):
            near[b] = possible[b]
    return near


def _best_permutation(scores: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(scores.cpu().numpy(), maximize=True)
    found = torch.zeros_like(scores)
    found[rows, columns] = 1
    return found


def curvature(x: Tensor) -> Tensor:
    """The Hessian diag(1) - X'X of the columns' duals, with its null vector filled in; shape of ``x``.

    It is a Laplacian, whose diagonal is summed from its other entries, since subtracting would lose weak couplings.
    """
    n = x.shape[-1]
    shared = x.transpose(1, 2) @ x
    shared = shared - torch.diag_embed(shared.diagonal(dim1=1, dim2=2))
    filled = torch.full((n, n), 1 / max(n, 1), dtype=x.dtype, device=x.device) + _RIDGE * torch.eye(n, dtype=x.dtype, device=x.device)
    return torch.diag_embed(shared.sum(2)) - shared + filled


def _checked(x: Tensor, duals: Tensor, possible: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """What is balanced as it is; what has no permutation at all, 0."""
    value = -duals
    doubtful = left | (torch.where(possible, 0, x).flatten(1).sum(1) > 0)
    for b in doubtful.nonzero().squeeze(1).tolist():
        if not _has_permutation(possible[b]):
            x[b], value[b] = 0, -torch.inf
    return x, value


def _has_permutation(possible: Tensor) -> bool:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return bool((maximum_bipartite_matching(csr_array(possible.cpu().numpy())) >= 0).all())
