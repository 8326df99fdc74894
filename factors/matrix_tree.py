"""Log-partition and marginals of arborescences, by the matrix-tree theorem, exact at any scale of the scores.

Scores are packed: ``scores[b, h, m]`` is that of the arc from head h to modifier m, ``scores[b, m, m]`` that of m being a root; -inf forbids.
The weight of a tree is the exponential of the sum of its arcs' scores (undirected-network paper, Section 5; Koo et al., 2007).

The Laplacian's diagonal is a sum of what its other entries subtract again, so that cycles of strong arcs leave nothing but rounding behind:
no shift of the scores cures it. The fast path inverts the Laplacian and measures how far its entries cancel. What does not pass is inverted without
any subtraction in float64, and what does not pass then is eliminated without any subtraction in the logarithmic domain (Grassmann, Taksar and
Heyman, 1985).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from unn.errors import ObservationError

from .elimination import NEVER, eliminated
from .laplacian import Inverted, invert_exactly, invert_fast


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
    check_scores(scores)
    return unchecked(scores, None if lengths is None else present(scores, lengths), single_root)


def unchecked(scores: Tensor, exists: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals of scores that are known to be as they should be; ``exists`` has shape ``(batch, n)``, None for no padding."""
    if torch.compiler.is_compiling():
        # which way is taken depends on the values, so that this part runs as it is between two compiled ones
        eager: tuple[Tensor, Tensor] = torch.compiler.disable(unchecked)(scores, exists, single_root)
        return eager
    kept = scores if scores.dtype == torch.float64 else scores.float()
    if exists is not None:
        kept = kept.masked_fill(~(exists[:, :, None] & exists[:, None, :]), -torch.inf)
    partition, arcs = _by_cases(kept, exists, single_root, _WAYS[kept.dtype])
    return partition.to(scores.dtype), arcs.to(scores.dtype)


def check_scores(scores: Tensor) -> None:
    """Check scores of trees.

    Raises:
        ObservationError: for another shape than ``(batch, n, n)``, or entries that are NaN or +inf.
    """
    if not isinstance(scores, Tensor) or scores.ndim != 3 or scores.shape[1] != scores.shape[2] or not scores.is_floating_point():
        found = f"{tuple(scores.shape)} and {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ObservationError(f"trees: scores need shape (batch, n, n) and a floating dtype, got {found}.")
    # the largest of anything with NaN is NaN, which is not below infinity
    if scores.numel() and not torch.compiler.is_compiling() and not bool(scores.detach().amax() < torch.inf):
        raise ObservationError("trees: scores have NaN or +inf entries; -inf forbids an arc, everything else must be finite.")


def present(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Which nodes exist, shape ``(batch, n)``, boolean.

    Raises:
        ObservationError: for lengths of another shape, or scores that are not as they should be.
    """
    check_scores(scores)
    batch, n = scores.shape[:2]
    if lengths is None:
        return torch.ones(batch, n, dtype=torch.bool, device=scores.device)
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ObservationError(f"trees: lengths need shape ({batch},) and whole numbers, got {tuple(lengths.shape)} and {lengths.dtype}.")
    return torch.arange(n, device=scores.device) < lengths.to(scores.device)[:, None]


@dataclass(frozen=True)
class _Way:
    """How to invert a Laplacian, in what arithmetic, and how far entries may cancel for the digits of the result to be still resolved."""

    invert: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    dtype: torch.dtype
    worst: float


def _by_cases(scores: Tensor, exists: Tensor | None, single_root: bool, ways: Sequence[_Way]) -> tuple[Tensor, Tensor]:
    """The first of some ways for what it can be trusted with, the next for the rest, elimination for what is left."""
    if not ways:
        return eliminated(scores.double(), exists, single_root)
    cast = scores.to(ways[0].dtype)
    solved = _solve(cast.detach(), exists, single_root, ways[0].invert)
    trusted = solved.cancelled <= ways[0].worst
    if bool(trusted.all()):
        return _attached(cast, solved)
    good, bad = trusted.nonzero().squeeze(1), (~trusted).nonzero().squeeze(1)
    parts = [_by_cases(scores[bad], None if exists is None else exists[bad], single_root, ways[1:])]
    if len(good):
        parts.insert(0, _attached(cast[good], solved.rows(good)))
    place = torch.cat([good, bad]).argsort()
    return torch.cat([part[0].to(scores.dtype) for part in parts])[place], torch.cat([part[1].to(scores.dtype) for part in parts])[place]


@dataclass(frozen=True)
class _Solved:
    """A factorisation of Laplacians, and what follows from it.

    Attributes:
        partition: shape ``(batch,)``.
        found: marginals, shape ``(batch, n, n)``.
        cancelled: of what size the terms are whose sums are one, shape ``(batch,)``: 1 if nothing cancels, NaN or infinity if nothing is left.
        arcs: weights relative to the heaviest head, 0 on the diagonal, shape ``(batch, n, n)``.
        roots: their weights, shape ``(batch, n)``.
        inverse: of the Laplacian, 0 at nodes that do not exist or are deleted, shape ``(batch, n, n)``.
        exists: shape ``(batch, n)``, or None.
        node: the deleted one, shape ``(batch,)``; None where several roots are allowed.
        reached: for each node, how much it is a root of trees that hang on it in the end, shape ``(batch, n)``; with one root only.
        rooted: the share of the weight of all trees in which a path from another root comes by, shape ``(batch, n)``; with one root only.
        total: the weight of all trees relative to those that hang on the deleted node, shape ``(batch, 1)``; with one root only.
    """

    partition: Tensor
    found: Tensor
    cancelled: Tensor
    arcs: Tensor
    roots: Tensor
    inverse: Tensor
    exists: Tensor | None
    node: Tensor | None
    reached: Tensor | None
    rooted: Tensor | None
    total: Tensor | None

    def rows(self, chosen: Tensor) -> _Solved:
        """Those of some batch elements."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: part[chosen] for name, part in held.items() if part is not None})


@torch.no_grad()
def _solve(scores: Tensor, exists: Tensor | None, single_root: bool, invert: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> _Solved:
    """Factorise once.

    With one root, the Laplacian loses the row and the column of the node with the heaviest root: its determinant is then the weight of the trees that
    hang on that node, to which those of all other roots are added as a sum without signs. Either way it is a diagonally dominant M-matrix: arcs
    with the opposite sign, and on the diagonal what enters a node, from other nodes and, as a surplus, from the root or the deleted node.
    """
    # every modifier has exactly one head, so that a shift of its scores shifts those of all trees; the floor is for nodes without any
    shift = scores.amax(1, keepdim=True).clamp_min_(NEVER)
    arcs = (scores - shift).exp_()
    diagonal = arcs.diagonal(dim1=1, dim2=2)
    roots = diagonal.clone()
    diagonal.zero_()
    shifted = shift[:, 0]
    rows = torch.arange(len(arcs), device=arcs.device)
    node = None
    kept, surplus = arcs, roots
    if single_root:
        node = roots.argmax(1)
        surplus = arcs[rows, node]
        surplus[rows, node] = 1
        kept = arcs.clone()
        kept[rows, node] = 0
        kept[rows, :, node] = 0
    if exists is not None:
        shifted = torch.where(exists, shifted, 0)
        surplus = torch.where(exists, surplus, 1)
    inverse, partition = invert(kept, surplus)
    # large shifts may cancel against a large logarithm
    partition = partition.double() + shifted.sum(1, dtype=torch.float64)
    own = inverse.diagonal(dim1=1, dim2=2)
    degree = kept.sum(1) + surplus
    visits = degree * own
    if exists is not None:
        own.mul_(exists)
    if node is None:
        cancelled = visits.amax(1)
        found = (own[:, :, None] - inverse).mT * arcs
        chance = roots * own
        reached = rooted = total = None
    else:
        own[rows, node] = 0
        reached = (inverse * arcs[rows, :, node][:, None]).sum(2)
        elsewhere = roots.clone()
        elsewhere[rows, node] = 0
        rooted = (inverse * elsewhere[:, :, None]).sum(1)
        hanging = own - reached * rooted.div_(total := (roots[rows, node] + (elsewhere * reached).sum(1))[:, None])
        cancelled = torch.maximum(visits, degree * reached * rooted).amax(1)
        partition += total[:, 0].log().double()
        reached[rows, node] = 1
        paths = torch.addcmul(hanging[:, :, None] - inverse, reached[:, :, None], rooted[:, None])
        found = paths.mT * arcs
        chance = roots * reached / total
    found.diagonal(dim1=1, dim2=2).copy_(chance)
    # of a matrix that is singular but for rounding, what is called its inverse is none. Each column of marginals sums to one if the diagonal of
    # inverse times Laplacian is that of the identity, and a walk against the arcs visits a node where it starts at least once
    slack = torch.finfo(arcs.dtype).eps ** 0.5
    off = (found.sum(1) - (1 if exists is None else exists.to(arcs.dtype))).abs_().amax(1)
    # beyond this, products of four entries overflow
    within = inverse.flatten(1).amax(1) < torch.finfo(arcs.dtype).max ** 0.25
    sound = (off < slack) & (visits.amin(1) > 1 - slack) & within & partition.isfinite()
    return _Solved(
        partition, found, torch.where(sound, 2 * cancelled - 1, torch.inf), arcs, roots, inverse, exists, node, reached, rooted, total
    )


@torch.no_grad()
def _directional(solved: _Solved, direction: Tensor) -> Tensor:
    """The derivative of the marginals in a direction of the scores: the Hessian of the log-partition, which is symmetric, times the direction."""
    changed = solved.arcs * direction
    changed_roots = solved.roots * direction.diagonal(dim1=1, dim2=2)
    inverse, own = solved.inverse, solved.inverse.diagonal(dim1=1, dim2=2)
    degree = changed.sum(1)
    if solved.node is None:
        degree += changed_roots
    step = changed.clone()
    step.diagonal(dim1=1, dim2=2).copy_(-degree)
    moved = inverse @ step @ inverse
    moved_own = moved.diagonal(dim1=1, dim2=2)
    if solved.node is None or solved.reached is None or solved.rooted is None or solved.total is None:
        paths, moved_paths = own[:, :, None] - inverse, moved_own[:, :, None] - moved
        chance = changed_roots * own + solved.roots * moved_own
    else:
        rows = torch.arange(len(inverse), device=inverse.device)
        node, reached, rooted, total = solved.node, solved.reached, solved.rooted, solved.total
        inner = reached.clone()
        inner[rows, node] = 0
        elsewhere, changed_elsewhere = solved.roots.clone(), changed_roots.clone()
        elsewhere[rows, node] = 0
        changed_elsewhere[rows, node] = 0
        moved_reached = (moved * solved.arcs[rows, :, node][:, None] + inverse * changed[rows, :, node][:, None]).sum(2)
        moved_total = (changed_roots * reached + solved.roots * moved_reached).sum(1, keepdim=True)
        moved_rooted = (moved * elsewhere[:, :, None] + inverse * changed_elsewhere[:, :, None]).sum(1)
        moved_rooted = (moved_rooted - rooted * moved_total) / total
        hanging, moved_hanging = own - inner * rooted, moved_own - moved_reached * rooted - inner * moved_rooted
        paths = torch.addcmul(hanging[:, :, None] - inverse, reached[:, :, None], rooted[:, None])
        moved_paths = torch.addcmul(moved_hanging[:, :, None] - moved, moved_reached[:, :, None], rooted[:, None])
        moved_paths = torch.addcmul(moved_paths, reached[:, :, None], moved_rooted[:, None])
        chance = (changed_roots * reached + solved.roots * (moved_reached - reached * moved_total / total)) / total
    result = paths.mT * changed
    result += moved_paths.mT * solved.arcs
    result.diagonal(dim1=1, dim2=2).copy_(chance)
    return result


def _attached(scores: Tensor, solved: _Solved) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals with their derivatives."""
    if not (torch.is_grad_enabled() and scores.requires_grad):
        return solved.partition, solved.found
    partition, found = _Attached.apply(scores, solved)
    return partition, found


class _Attached(torch.autograd.Function):
    """A factorisation with its first derivatives; those of higher order come from differentiable operations."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, solved: _Solved) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(scores)
        ctx.solved = solved
        ctx.set_materialize_grads(False)
        return solved.partition.clone(), solved.found.clone()

    @staticmethod
    def backward(ctx: Any, by_partition: Tensor | None, by_found: Tensor | None) -> tuple[Tensor | None, None]:
        (scores,) = ctx.saved_tensors
        solved: _Solved = ctx.solved
        again = torch.is_grad_enabled()
        found = _differentiable(scores, solved) if again else solved.found
        gradient = None if by_partition is None else by_partition[:, None, None] * found
        if by_found is not None:
            if again:
                (more,) = torch.autograd.grad(found, scores, by_found, create_graph=True)
            else:
                more = _directional(solved, by_found)
            gradient = more if gradient is None else gradient + more
        return gradient, None


def _differentiable(scores: Tensor, solved: _Solved) -> Tensor:
    """The marginals of ``_solve`` in operations that can be differentiated any number of times, from the inverse that is known."""
    weights = (scores - scores.detach().amax(1, keepdim=True).clamp_min(NEVER)).exp()
    n = scores.shape[1]
    roots = weights.diagonal(dim1=1, dim2=2)
    arcs = weights * (1 - torch.eye(n, dtype=weights.dtype, device=weights.device))
    diagonal = arcs.sum(1) if solved.node is not None else arcs.sum(1) + roots
    inverse = Inverted.apply(arcs, diagonal, solved.inverse)
    own = inverse.diagonal(dim1=1, dim2=2)
    if solved.node is None:
        several: Tensor = arcs * (own[:, :, None] - inverse).mT + torch.diag_embed(roots * own)
        return several
    first = torch.nn.functional.one_hot(solved.node, n).to(weights.dtype)
    inner = (inverse * (arcs * first[:, None]).sum(2)[:, None]).sum(2)
    reached = inner + first
    total = (roots * reached).sum(1, keepdim=True)
    rooted = (inverse * (roots * (1 - first))[:, :, None]).sum(1) / total
    paths = (own - inner * rooted)[:, :, None] - inverse + reached[:, :, None] * rooted[:, None]
    found: Tensor = arcs * paths.mT + torch.diag_embed(roots * reached / total)
    return found


_WAYS = {
    torch.float64: (_Way(invert_fast, torch.float64, 30.0), _Way(invert_exactly, torch.float64, 300.0)),
    torch.float32: (_Way(invert_fast, torch.float32, 10.0), _Way(invert_exactly, torch.float64, 1e7)),
}
"""What is tried for results of a dtype before elimination in the logarithmic domain."""
