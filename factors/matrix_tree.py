"""Log-partition and marginals of arborescences, by the matrix-tree theorem, exact at any scale of the scores.

Scores are packed: ``scores[b, h, m]`` is that of the arc from head h to modifier m, ``scores[b, m, m]`` that of m being a root; -inf forbids.
The weight of a tree is the exponential of the sum of its arcs' scores (undirected-network paper, Section 5; Koo et al., 2007).

With one root, the weights of the roots take the place of one row of the Laplacian (Koo et al., 2007); its determinant is then the weight of all
trees, and everything else follows from its inverse. Factors with pivots of that matrix are not safe, though: where the root is the best head of
several words, its row drowns the arcs that decide between them. Here the inverse comes from that of the Laplacian without the heaviest root.

The Laplacian's diagonal is a sum of what its other entries subtract again, so that cycles of strong arcs leave nothing but rounding behind:
no shift of the scores cures it. The fast path inverts it all the same, and measures how far its entries cancel. What does not pass is inverted
without any subtraction in float64, and what does not pass then is eliminated without any subtraction in the logarithmic domain (Grassmann, Taksar
and Heyman, 1985).
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
    """The inverse of the Laplacian, and what follows from it.

    Attributes:
        partition: shape ``(batch,)``.
        found: marginals, shape ``(batch, n, n)``.
        cancelled: of what size the terms are whose sums are one, shape ``(batch,)``: 1 if nothing cancels, NaN or infinity if nothing is left.
        arcs: weights relative to the heaviest head, 0 on the diagonal, shape ``(batch, n, n)``.
        roots: their weights, shape ``(batch, n)``.
        inverse: of the Laplacian; with one root, of that with the roots in the place of a row; shape ``(batch, n, n)``.
        node: whose row that is, shape ``(batch,)``; None where several roots are allowed.
    """

    partition: Tensor
    found: Tensor
    cancelled: Tensor
    arcs: Tensor
    roots: Tensor
    inverse: Tensor
    node: Tensor | None

    def rows(self, chosen: Tensor) -> _Solved:
        """Those of some batch elements."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: part[chosen] for name, part in held.items() if part is not None})


@dataclass(frozen=True)
class _Row:
    """The row of each matrix in which the roots are.

    Attributes:
        matrices: their numbers, shape ``(batch,)``.
        node: shape ``(batch,)``.
    """

    matrices: Tensor
    node: Tensor

    @staticmethod
    def of(node: Tensor) -> _Row:
        return _Row(torch.arange(len(node), device=node.device), node)

    @property
    def row(self) -> tuple[Any, ...]:
        """Index of the rows, or of the entries of vectors."""
        return self.matrices, self.node

    @property
    def column(self) -> tuple[Any, ...]:
        """Index of the columns."""
        return self.matrices, slice(None), self.node


@torch.no_grad()
def _solve(scores: Tensor, exists: Tensor | None, single_root: bool, invert: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> _Solved:
    """Invert a diagonally dominant M-matrix: arcs with the opposite sign, and on the diagonal what enters a node.

    With one root, the Laplacian first loses the row and the column of the node with the heaviest root: its determinant is then the weight of the
    trees that hang on that node, to which those of all other roots are added as a sum without signs. What enters a node comes from other nodes
    and, as a surplus, from the root or the deleted node.
    """
    shift, arcs, roots = _weights(scores)
    at = None
    kept, surplus = arcs, roots
    if single_root:
        at = _Row.of(roots.argmax(1))
        surplus = arcs[at.row]
        surplus[at.row] = 1
        kept = arcs.clone()
        kept[at.row] = 0
        kept[at.column] = 0
    if exists is not None:
        shift = torch.where(exists, shift, 0)
        surplus = torch.where(exists, surplus, 1)
    inverse, partition = invert(kept, surplus)
    # large shifts may cancel against a large logarithm
    partition = partition.double() + shift.sum(1, dtype=torch.float64)
    largest = inverse.flatten(1).amax(1)
    degree = kept.sum(1) + surplus
    visits = degree * inverse.diagonal(dim1=1, dim2=2)
    if at is None:
        cancelled = visits.amax(1)
    else:
        inverse[(*at.row, at.node)] = 0
        reached = (inverse * arcs[at.column][:, None]).sum(2)
        elsewhere = roots.clone()
        elsewhere[at.row] = 0
        total = (roots[at.row] + (elsewhere * reached).sum(1))[:, None]
        rooted = (inverse * elsewhere[:, :, None]).sum(1) / total
        cancelled = torch.maximum(visits, degree * reached * rooted).amax(1)
        partition += total[:, 0].log().double()
        reached[at.row] = 1
        inverse = torch.addcmul(inverse, reached[:, :, None], rooted[:, None], value=-1)
        inverse[at.column] = reached / total
    found = _marginals(arcs, roots, inverse, at)
    # of a matrix that is singular but for rounding, what is called its inverse is none. Each column of marginals sums to one if the diagonal of
    # inverse times Laplacian is that of the identity, and a walk against the arcs visits a node where it starts at least once
    slack = torch.finfo(arcs.dtype).eps ** 0.5
    off = (found.sum(1) - (1 if exists is None else exists.to(arcs.dtype))).abs_().amax(1)
    # beyond this, products of four entries overflow
    within = largest < torch.finfo(arcs.dtype).max ** 0.25
    sound = (off < slack) & (visits.amin(1) > 1 - slack) & within & partition.isfinite()
    return _Solved(partition, found, torch.where(sound, 2 * cancelled - 1, torch.inf), arcs, roots, inverse, None if at is None else at.node)


def _weights(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By how much the scores of each modifier are shifted, and the weights of arcs, 0 on the diagonal, and of roots after that."""
    # every modifier has exactly one head, so that a shift of its scores shifts those of all trees; the floor is for nodes without any
    shift = scores.amax(1, keepdim=True).clamp_min_(NEVER)
    arcs = (scores - shift).exp_()
    diagonal = arcs.diagonal(dim1=1, dim2=2)
    roots = diagonal.clone()
    diagonal.zero_()
    return shift[:, 0], arcs, roots


def _marginals(arcs: Tensor, roots: Tensor, inverse: Tensor, at: _Row | None) -> Tensor:
    """The derivative of the log-determinant by the scores, shape ``(batch, n, n)``."""
    own = inverse.diagonal(dim1=1, dim2=2)
    if at is None:
        chance = roots * own
        paths = own[:, :, None] - inverse
    else:
        chance = roots * inverse[at.column]
        own = own.clone()
        own[at.row] = 0
        paths = own[:, :, None] - inverse
        paths[at.column] = own
    found = paths.mT * arcs
    found.diagonal(dim1=1, dim2=2).copy_(chance)
    return found


@torch.no_grad()
def _directional(solved: _Solved, direction: Tensor) -> Tensor:
    """The derivative of the marginals in a direction of the scores: the Hessian of the log-partition, which is symmetric, times the direction."""
    at = None if solved.node is None else _Row.of(solved.node)
    arcs, roots = solved.arcs * direction, solved.roots * direction.diagonal(dim1=1, dim2=2)
    step = arcs.clone()
    step.diagonal(dim1=1, dim2=2).copy_(-(arcs.sum(1) + roots) if at is None else -arcs.sum(1))
    if at is not None:
        step[at.row] = -roots
    moved = solved.inverse @ step @ solved.inverse
    return _marginals(arcs, roots, solved.inverse, at).add_(_marginals(solved.arcs, solved.roots, moved, at))


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
    """The marginals in operations that can be differentiated any number of times, from the inverse that is known."""
    weights = (scores - scores.detach().amax(1, keepdim=True).clamp_min(NEVER)).exp()
    n = scores.shape[1]
    identity = torch.eye(n, dtype=weights.dtype, device=weights.device)
    roots, arcs = weights.diagonal(dim1=1, dim2=2), weights * (1 - identity)
    if solved.node is None:
        matrix = torch.diag_embed(arcs.sum(1) + roots) - arcs
        inverse = Inverted.apply(matrix, solved.inverse)
        own = inverse.diagonal(dim1=1, dim2=2)
        several: Tensor = arcs * (own[:, :, None] - inverse).mT + torch.diag_embed(roots * own)
        return several
    first = identity[solved.node].expand(len(scores), n)
    others = 1 - first
    matrix = (torch.diag_embed(arcs.sum(1)) - arcs) * others[:, :, None] + first[:, :, None] * roots[:, None]
    inverse = Inverted.apply(matrix, solved.inverse)
    own = inverse.diagonal(dim1=1, dim2=2) * others
    reached = (inverse * first[:, None]).sum(2)
    found: Tensor = arcs * (own[:, :, None] - inverse * others[:, None]).mT + torch.diag_embed(roots * reached)
    return found


_WAYS = {
    torch.float64: (_Way(invert_fast, torch.float64, 30.0), _Way(invert_exactly, torch.float64, 300.0)),
    torch.float32: (_Way(invert_fast, torch.float32, 10.0), _Way(invert_exactly, torch.float64, 1e7)),
}
"""What is tried for results of a dtype before elimination in the logarithmic domain."""
