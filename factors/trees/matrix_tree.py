"""Log-partition and marginals of arborescences, by the matrix-tree theorem, exact at any scale of the scores.

Scores are packed: ``scores[b, h, m]`` is that of the arc from head h to modifier m, ``scores[b, m, m]`` that
of m being a root; -inf forbids. The weight of a tree is the exponential of the sum of its arcs' scores
(undirected-network paper, Section 5; Koo et al., 2007).

Scores are shifted so that the weights of the arcs to a node sum to one: the columns of a matrix P. I - P is
the Laplacian, and singular. With one root, of weight r at each node, the determinant of I - P + u r' is the
weight of all trees for any u that sums to one, since the columns of I - P sum to zero, so that each row of
its adjugate holds the weights of the trees by their root. The inverse is a generalized inverse of I - P, as
for Markov chains (Hunter, 1982); replacing a row of the Laplacian by the root weights (Koo et al., 2007)
corresponds to a u with a single nonzero entry. Here u is r, also scaled to sum to one, which loses no
precision whichever node is the likeliest root.

The Laplacian's diagonal is a sum that the other entries cancel, so cycles of strong arcs leave only
rounding errors, whatever the shift of the scores. The fast method inverts the matrix anyway and
estimates the accuracy from the size of the inverse. Matrices that fail this test are inverted in float64
without any subtraction, and those that still fail are solve_by_elimination in the logarithmic domain, also
without subtraction (Grassmann, Taksar and Heyman, 1985).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unn.errors import ObservationError

from .derivatives import Factorisation, differentiable
from .elimination import NEVER, derivative_by_elimination, solve_by_elimination
from .laplacian import KnownInverse, invert, invert_exactly

_LEAST = 1e-20
"""Lower bound of the divisor: the sum of arc weights into a node, relative to the root weight."""
_ROUNDED = {torch.float32: 8 / 64**2, torch.float64: 30 / 1e4**2}
"""Cancellation attributed to rounded root scores, per squared excess over the scores of other arcs."""


def log_partition(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> Tensor:
    """Log-sum of the weights of all arborescences, shape ``(batch,)``; -inf where there is none.

    Differentiable any number of times; the gradient is ``marginals``, from the same factorisation.

    Args:
        scores: shape ``(batch, n, n)``, packed.
        lengths: number of words of each sentence, shape ``(batch,)``; the rest is padding.
        single_root: exactly one modifier is attached to the root; otherwise at least one.

    Raises:
        ObservationError: for scores or lengths of another shape, lengths below 0 or above n, or scores
            of words that are NaN or +inf.
    """
    return log_partition_and_marginals(scores, lengths, single_root)[0]


def marginals(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> Tensor:
    """Marginal probability of each arc, packed, ``(batch, n, n)``; 0 in padding and without arborescences.

    Arguments and errors as for ``log_partition``.
    """
    return log_partition_and_marginals(scores, lengths, single_root)[1]


def log_partition_and_marginals(
    scores: Tensor, lengths: Tensor | None = None, single_root: bool = True
) -> tuple[Tensor, Tensor]:
    """Both from one factorisation; arguments and errors as for ``log_partition``."""
    check_shape(scores)
    exists = None if lengths is None else _existing_nodes(scores, lengths)
    return _solve(scores, exists, single_root, _check_and_eliminate)


def solve_unchecked(scores: Tensor, exists: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals without validation of the scores.

    ``exists`` has shape ``(batch, n)``; None for no padding.
    """
    return _solve(scores, exists, single_root, solve_by_elimination)


_Fallback = Callable[[Tensor, Tensor | None, bool], tuple[Tensor, Tensor]]


def _solve(
    scores: Tensor, exists: Tensor | None, single_root: bool, fallback: _Fallback
) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():
        # the choice of method depends on the values, so this part runs eagerly, outside the compiled graph
        eager: tuple[Tensor, Tensor] = torch.compiler.disable(_solve)(scores, exists, single_root, fallback)
        return eager
    if not scores.shape[1]:
        # the only tree of no nodes
        return scores.sum((1, 2)), scores.clone()
    wide = scores if scores.dtype == torch.float64 else scores.float()
    if exists is not None:
        wide = wide.masked_fill(~(exists[:, :, None] & exists[:, None, :]), -torch.inf)
    factorise = partial(
        _solve_with_fallback, single_root=single_root, methods=_METHODS[wide.dtype], fallback=fallback
    )
    partition, arcs = differentiable(wide, exists, factorise)
    return partition.to(scores.dtype), arcs.to(scores.dtype)


def _check_and_eliminate(scores: Tensor, exists: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    # NaN and +inf scores fail the accuracy test of every other method and end here
    check_scores(scores)
    return solve_by_elimination(scores, exists, single_root)


def check_shape(scores: Tensor) -> None:
    """Check shape and dtype of scores.

    Raises:
        ObservationError: for a shape other than ``(batch, n, n)``, or a dtype that is not floating.
    """
    if (
        not isinstance(scores, Tensor)
        or scores.ndim != 3
        or scores.shape[1] != scores.shape[2]
        or not scores.is_floating_point()
    ):
        actual = (
            f"{tuple(scores.shape)} and {scores.dtype}"
            if isinstance(scores, Tensor)
            else type(scores).__name__
        )
        raise ObservationError(f"trees: scores need shape (batch, n, n) and a floating dtype, got {actual}.")


def check_scores(scores: Tensor) -> None:
    """Check shape, dtype and values of scores.

    Raises:
        ObservationError: for a shape other than ``(batch, n, n)``, or entries that are NaN or +inf.
    """
    check_shape(scores)
    # the maximum propagates NaN, which does not compare below infinity
    if scores.numel() and not torch.compiler.is_compiling() and not bool(scores.detach().amax() < torch.inf):
        raise ObservationError(
            "trees: scores have NaN or +inf entries; -inf forbids an arc, everything else must be finite."
        )


def existing_nodes(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Mask of existing nodes, shape ``(batch, n)``, boolean.

    Raises:
        ObservationError: for lengths of another shape, below 0 or above n, or invalid scores outside padding.
    """
    if lengths is None:
        check_scores(scores)
        return torch.ones(scores.shape[:2], dtype=torch.bool, device=scores.device)
    check_shape(scores)
    exists = _existing_nodes(scores, lengths)
    check_scores(scores.detach().masked_fill(~(exists[:, :, None] & exists[:, None]), 0))
    return exists


def _existing_nodes(scores: Tensor, lengths: Tensor) -> Tensor:
    batch, n = scores.shape[:2]
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ObservationError(
            f"trees: lengths need shape ({batch},) and whole numbers, got {tuple(lengths.shape)} and "
            f"{lengths.dtype}."
        )
    outside = (lengths < 0) | (lengths > n)
    if not torch.compiler.is_compiling() and bool(outside.any()):
        b = int(outside.nonzero()[0])
        raise ObservationError(
            f"trees: lengths go from 0 to {n}, the size of the scores, but that of batch element {b} is "
            f"{int(lengths[b])}."
        )
    return torch.arange(n, device=scores.device) < lengths.to(scores.device)[:, None]


@dataclass(frozen=True)
class _Method:
    """A method of inversion.

    Attributes:
        solve: function that inverts.
        dtype: dtype of the computation.
        max_cancellation: largest cancellation at which the result is accurate enough.
    """

    solve: Callable[[Tensor, Tensor | None, bool], _Solved]
    dtype: torch.dtype
    max_cancellation: float


def _solve_with_fallback(
    scores: Tensor,
    exists: Tensor | None,
    single_root: bool,
    methods: Sequence[_Method],
    fallback: _Fallback = solve_by_elimination,
) -> tuple[Tensor, Tensor, Factorisation]:  # fmt: skip
    """Apply the first method, the next ones where it is not accurate enough, and the fallback last."""
    if not methods:
        wide = scores.double()
        partition, arcs = fallback(wide, exists, single_root)
        return partition.to(scores.dtype), arcs.to(scores.dtype), _Eliminated(wide, exists, single_root)
    solved = methods[0].solve(scores.to(methods[0].dtype), exists, single_root)
    # the maximum propagates NaN
    if not len(scores) or float(solved.cancelled.amax()) <= methods[0].max_cancellation:
        return solved.partition.to(scores.dtype), solved.marginals.to(scores.dtype), solved.inverse
    trusted = solved.cancelled <= methods[0].max_cancellation
    good, bad = trusted.nonzero().squeeze(1), (~trusted).nonzero().squeeze(1)
    bad_exists = None if exists is None else exists[bad]
    partition, arcs, rest = _solve_with_fallback(scores[bad], bad_exists, single_root, methods[1:], fallback)
    if not len(good):
        return partition, arcs, rest
    place = torch.cat([good, bad]).argsort()
    return (
        torch.cat([solved.partition[good].to(scores.dtype), partition])[place],
        torch.cat([solved.marginals[good].to(scores.dtype), arcs])[place],
        _Mixed([(good, solved.inverse.rows(good)), (bad, rest)]),
    )


@dataclass(frozen=True)
class _Mixed:
    """Factorisations of several subsets of a batch."""

    parts: Sequence[tuple[Tensor, Factorisation]]

    def derivative(self, directions: Sequence[Tensor]) -> Tensor:
        result = torch.empty_like(directions[0])
        for rows, part in self.parts:
            result[rows] = part.derivative([direction[rows] for direction in directions])
        return result


@dataclass(frozen=True)
class _Eliminated:
    """Scores that are differentiated by elimination, without a factorisation."""

    scores: Tensor
    exists: Tensor | None
    single_root: bool

    def derivative(self, directions: Sequence[Tensor]) -> Tensor:
        along = [direction.double() for direction in directions]
        return derivative_by_elimination(self.scores, self.exists, self.single_root, along).to(
            directions[0].dtype
        )


@dataclass(frozen=True)
class _Inverse:
    """The inverse of the matrix whose determinant is the weight of all trees.

    Attributes:
        arcs: weights of the shifted arc scores, 0 on the diagonal, shape ``(batch, n, n)``.
        roots: weights of the shifted root scores, shape ``(batch, n)``.
        root_weights: vector u above, shape ``(batch, n)``; None where several roots are allowed.
        inverse: inverse of the Laplacian of ``arcs`` plus the outer product of ``root_weights`` and
            ``roots``, or plus ``roots`` on the diagonal; shape ``(batch, n, n)``.
        per_root: probability of each root divided by its weight, shape ``(batch, n)``.
    """

    arcs: Tensor
    roots: Tensor
    root_weights: Tensor | None
    inverse: Tensor
    per_root: Tensor

    def rows(self, chosen: Tensor) -> _Inverse:
        """Select batch elements."""
        root_weights = None if self.root_weights is None else self.root_weights[chosen]
        return _Inverse(
            self.arcs[chosen], self.roots[chosen], root_weights, self.inverse[chosen], self.per_root[chosen]
        )

    def derivative(self, directions: Sequence[Tensor]) -> Tensor:
        along = [direction.to(self.arcs.dtype) for direction in directions]
        if len(along) == 1:
            return _directional(self, along[0]).to(directions[0].dtype)
        with torch.enable_grad():
            change = torch.zeros_like(self.arcs, requires_grad=True)
            gradient = _differentiable(change, self)
            for direction in along:
                (gradient,) = torch.autograd.grad((gradient * direction).sum(), change, create_graph=True)
        return gradient.detach().to(directions[0].dtype)


@dataclass(frozen=True)
class _Solved:
    """Log-partition and marginals computed from an inverse.

    Attributes:
        partition: log-partition, shape ``(batch,)``.
        marginals: arc marginals, shape ``(batch, n, n)``.
        cancelled: size of the terms that sum to one, shape ``(batch,)``; NaN or infinity if no digit is left.
        inverse: the inverse.
    """

    partition: Tensor
    marginals: Tensor
    cancelled: Tensor
    inverse: _Inverse


def _solve_fast(scores: Tensor, exists: Tensor | None, single_root: bool) -> _Solved:
    """Invert the matrix directly."""
    # a maximum over the first axis is several times faster than over the second
    arcs = scores.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    diagonal = arcs.diagonal(dim1=0, dim2=2)
    roots = diagonal.clone(memory_format=torch.contiguous_format)
    largest = arcs.amax(0)
    if exists is not None:
        largest = torch.where(exists, largest, 0)
    arcs.sub_(largest).exp_()
    if single_root:
        diagonal.zero_()
    total = arcs.sum(0)
    # a node whose arc weights all vanish can only be the root
    bounded = total.clamp_min(_LEAST)
    degree = total.div_(bounded)
    arcs = arcs.div_(bounded).transpose(0, 1)
    own_shift = bounded.log_()
    if exists is not None:
        degree, own_shift = torch.where(exists, degree, 1), torch.where(exists, own_shift, 0)
    partition = largest.sum(1, dtype=torch.float64).add_(own_shift.sum(1))
    if single_root:
        # subtracted separately: their sum would lose the smaller one
        roots.sub_(largest).sub_(own_shift)
        top = roots.amax(1, keepdim=True)
        weight = roots.sub_(top).exp_().sum(1, keepdim=True)
        root_weights = roots = roots.div_(weight)
        root_shift = weight.log_().add_(top)[:, 0]
        if exists is not None:
            root_shift = torch.where(exists[:, 0], root_shift, 0)
            root_weights = roots = torch.where(exists, roots, 0)
        partition += root_shift
        matrix = torch.mul(root_weights[:, :, None], roots[:, None]).sub_(arcs)
    else:
        roots = diagonal.clone()
        diagonal.zero_()
        root_shift, root_weights = None, None
        matrix = arcs.neg()
    matrix.diagonal(dim1=1, dim2=2).add_(degree)
    inverse, determinant, cancelled = invert(matrix)
    partition += determinant
    if root_shift is not None:
        # the rounding error of root scores is proportional to their size
        cancelled = torch.addcmul(cancelled, root_shift, root_shift, value=_ROUNDED[scores.dtype])
    per_root = _per_root(inverse, root_weights)
    marginals = _marginals(arcs, roots, inverse, per_root)
    return _Solved(partition, marginals, cancelled, _Inverse(arcs, roots, root_weights, inverse, per_root))


def _solve_exactly(scores: Tensor, exists: Tensor | None, single_root: bool) -> _Solved:
    """Invert the Laplacian without any subtraction.

    With one root, the row and the column of the node with the heaviest root are deleted first. The
    determinant is then the weight of the trees rooted there, to which those of all other roots are added
    as a sum of nonnegative terms. The surplus of a node is the weight of its arcs from the root or from
    the deleted node.
    """
    # every modifier has exactly one head, so a shift of its scores shifts those of all trees equally;
    # the floor is for nodes without any head
    shift = scores.amax(1).clamp_min_(NEVER)
    if exists is not None:
        shift = torch.where(exists, shift, 0)
    arcs = (scores - shift[:, None]).exp_()
    diagonal = arcs.diagonal(dim1=1, dim2=2)
    roots = diagonal.clone()
    diagonal.zero_()
    if single_root:
        return _solve_by_heaviest_root(arcs, roots, shift, exists)
    surplus = roots if exists is None else torch.where(exists, roots, 1)
    inverse, determinant = invert_exactly(arcs, surplus)
    per_root = inverse.diagonal(dim1=1, dim2=2)
    visits = (arcs.sum(1) + surplus) * per_root
    marginals = _marginals(arcs, roots, inverse, per_root)
    cancelled = torch.where(
        _is_inverse(marginals, inverse, visits, exists), 2 * visits.amax(1) - 1, torch.inf
    )
    return _Solved(
        determinant + shift.sum(1), marginals, cancelled, _Inverse(arcs, roots, None, inverse, per_root)
    )


def _solve_by_heaviest_root(arcs: Tensor, roots: Tensor, shift: Tensor, exists: Tensor | None) -> _Solved:
    """Solve by the inverse without the row and column of the node with the heaviest root."""
    root_weights = torch.nn.functional.one_hot(roots.argmax(1), roots.shape[1]).to(roots.dtype)
    others = 1 - root_weights
    elsewhere = roots * others
    surplus = torch.where(root_weights.bool(), 1, (arcs * root_weights[:, :, None]).sum(1))
    if exists is not None:
        surplus = torch.where(exists, surplus, 1)
    reduced = arcs * others[:, :, None] * others[:, None]
    inverse, determinant = invert_exactly(reduced, surplus)
    degree = reduced.sum(1) + surplus
    visits = degree * inverse.diagonal(dim1=1, dim2=2)
    inverse = inverse * others[:, :, None] * others[:, None]
    reached = (inverse @ (arcs @ root_weights[:, :, None]))[:, :, 0]
    total = (roots * root_weights).sum(1) + (elsewhere * reached).sum(1)
    rooted = (elsewhere[:, None] @ inverse)[:, 0] / total[:, None]
    cancelled = torch.maximum(visits, degree * reached * rooted).amax(1)
    reached = reached + root_weights
    per_root = reached / total[:, None]
    inverse = torch.baddbmm(inverse, reached[:, :, None], rooted[:, None], alpha=-1)
    marginals = _marginals(arcs, roots, inverse, per_root)
    cancelled = torch.where(_is_inverse(marginals, inverse, visits, exists), 2 * cancelled - 1, torch.inf)
    # rescaling the roots adds a multiple of ``per_root`` to each column of the inverse; with this scale
    # the multiple does not absorb the inverse
    scale = per_root.amax(1, keepdim=True)
    partition = determinant + shift.sum(1) + total.log()
    per_root = per_root / scale
    moved = _Inverse(arcs, roots * scale, root_weights, inverse + per_root[:, :, None], per_root)
    return _Solved(partition, marginals, cancelled, moved)


def _is_inverse(marginals: Tensor, inverse: Tensor, visits: Tensor, exists: Tensor | None) -> Tensor:
    """Check an inverse; boolean, shape ``(batch,)``.

    Marginals of each node sum to one, and a walk against the arcs visits at least its first node once.
    """
    slack = torch.finfo(marginals.dtype).eps ** 0.5
    off = (marginals.sum(1) - (1 if exists is None else exists.to(marginals.dtype))).abs().amax(1)
    # products of four larger entries would overflow
    within = inverse.flatten(1).abs().amax(1) < torch.finfo(marginals.dtype).max ** 0.25
    sound: Tensor = (off < slack) & (visits.amin(1) > 1 - slack) & within
    return sound


def _per_root(inverse: Tensor, root_weights: Tensor | None) -> Tensor:
    if root_weights is None:
        return inverse.diagonal(dim1=1, dim2=2)
    return (inverse.mT * root_weights[:, :, None]).sum(1)


def _marginals(arcs: Tensor, roots: Tensor, inverse: Tensor, per_root: Tensor) -> Tensor:
    """Gradient of the log-determinant by the scores, shape ``(batch, n, n)``."""
    gradient = (inverse.diagonal(dim1=1, dim2=2)[:, None] - inverse.mT).mul_(arcs)
    torch.mul(roots, per_root, out=gradient.diagonal(dim1=1, dim2=2))
    return gradient


def _directional(solved: _Inverse, direction: Tensor) -> Tensor:
    """Derivative of the marginals in a direction of the scores: Hessian-vector product of the
    log-partition."""
    arcs, roots = solved.arcs * direction, solved.roots * direction.diagonal(dim1=1, dim2=2)
    step = arcs.clone()
    loss = arcs.sum(1)
    if solved.root_weights is None:
        loss += roots
    else:
        step.addcmul_(solved.root_weights[:, :, None], roots[:, None], value=-1)
    step.diagonal(dim1=1, dim2=2).sub_(loss)
    moved = solved.inverse @ step @ solved.inverse
    moved_roots = _marginals(solved.arcs, solved.roots, moved, _per_root(moved, solved.root_weights))
    return _marginals(arcs, roots, solved.inverse, solved.per_root).add_(moved_roots)


def _differentiable(change: Tensor, solved: _Inverse) -> Tensor:
    """Marginals as a function of a zero change of the scores, differentiable by it any number of times."""
    arcs, roots = solved.arcs * change.exp(), solved.roots * change.diagonal(dim1=1, dim2=2).exp()
    if solved.root_weights is None:
        matrix = torch.diag_embed(arcs.sum(1) + roots) - arcs
    else:
        matrix = torch.diag_embed(arcs.sum(1)) - arcs + solved.root_weights[:, :, None] * roots[:, None]
    inverse = KnownInverse.apply(matrix, solved.inverse)
    own = inverse.diagonal(dim1=1, dim2=2)
    marginals: Tensor = arcs * (own[:, None] - inverse.mT) + torch.diag_embed(
        roots * _per_root(inverse, solved.root_weights)
    )
    return marginals


_METHODS = {
    torch.float64: (
        _Method(_solve_fast, torch.float64, 30.0),
        _Method(_solve_exactly, torch.float64, 300.0),
    ),
    torch.float32: (
        _Method(_solve_fast, torch.float32, 8.0),
        _Method(_solve_fast, torch.float64, 1e4),
        _Method(_solve_exactly, torch.float64, 1e7),
    ),
}
"""Methods by dtype of the result, tried in order before elimination in the logarithmic domain."""
