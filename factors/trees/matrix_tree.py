"""Log-partition and marginals of arborescences, by the matrix-tree theorem, exact at any scale of the scores.

Scores are packed: ``scores[b, h, m]`` is that of the arc from head h to modifier m, ``scores[b, m, m]`` that of m being a root; -inf forbids.
The weight of a tree is the exponential of the sum of its arcs' scores (undirected-network paper, Section 5; Koo et al., 2007).

Scores are shifted so that the weights of the arcs to a node sum to one: the columns of a matrix P. I - P is the Laplacian, and singular. With
one root, of weight r at each node, the determinant of I - P + u r' is the weight of all trees for any u that sums to one, since the columns of
I - P sum to zero, so that each row of its adjugate holds the weights of the trees by their root. The inverse is a generalized inverse of
I - P, known from Markov chains (Hunter, 1982); the weights of the roots in the place of a row of the Laplacian (Koo et al., 2007) come to u
with a single entry. Here u is r, scaled to sum to one as well: nothing drowns where one node is the likeliest root, and nothing needs to be
known about which.

The Laplacian's diagonal is a sum of what its other entries subtract again, so that cycles of strong arcs leave nothing but rounding behind:
no shift of the scores cures it. The fast path inverts the matrix all the same, and sees by the size of the inverse what is left. What does not
pass is inverted without any subtraction in float64, and what does not pass then is eliminated without any subtraction in the logarithmic domain
(Grassmann, Taksar and Heyman, 1985).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unn.errors import ObservationError

from .derivatives import Factorisation, differentiable
from .elimination import NEVER, eliminated, eliminated_derivative
from .laplacian import Inverted, invert, invert_exactly

_LEAST = 1e-20
"""The least sum of the weights of arcs, relative to that of the root, that they are divided by."""
_ROUNDED = {torch.float32: 8 / 64**2, torch.float64: 30 / 1e4**2}
"""By the square of what scores of roots are beyond those of other arcs, how far their rounding counts as cancellation."""


def log_partition(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> Tensor:
    """The logarithm of the sum of the weights of all arborescences, shape ``(batch,)``; -inf where there is none.

    Differentiable any number of times; the gradient is ``marginals``, from the same factorisation.

    Args:
        scores: shape ``(batch, n, n)``, packed.
        lengths: of each sentence, shape ``(batch,)``; the rest is padding.
        single_root: exactly one modifier hangs on the root; else at least one.

    Raises:
        ObservationError: for scores or lengths of another shape, lengths below 0 or above n, or scores of words that are NaN or +inf.
    """
    return log_partition_and_marginals(scores, lengths, single_root)[0]


def marginals(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> Tensor:
    """The probability of each arc, shape ``(batch, n, n)``, packed as the scores; 0 in padding, and where no arborescence exists.

    Arguments and errors as for ``log_partition``.
    """
    return log_partition_and_marginals(scores, lengths, single_root)[1]


def log_partition_and_marginals(scores: Tensor, lengths: Tensor | None = None, single_root: bool = True) -> tuple[Tensor, Tensor]:
    """Both at once, from one factorisation; arguments and errors as for ``log_partition``."""
    check_shape(scores)
    return _solve(scores, None if lengths is None else _existing(scores, lengths), single_root, _checked_and_eliminated)


def unchecked(scores: Tensor, exists: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals of scores that are known to be as they should be; ``exists`` has shape ``(batch, n)``, None for no padding."""
    return _solve(scores, exists, single_root, eliminated)


_Last = Callable[[Tensor, Tensor | None, bool], tuple[Tensor, Tensor]]


def _solve(scores: Tensor, exists: Tensor | None, single_root: bool, last: _Last) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():
        # which way is taken depends on the values, so that this part runs as it is between two compiled ones
        eager: tuple[Tensor, Tensor] = torch.compiler.disable(_solve)(scores, exists, single_root, last)
        return eager
    if not scores.shape[1]:
        # the only tree of no nodes
        return scores.sum((1, 2)), scores.clone()
    wide = scores if scores.dtype == torch.float64 else scores.float()
    if exists is not None:
        wide = wide.masked_fill(~(exists[:, :, None] & exists[:, None, :]), -torch.inf)
    factorise = partial(_by_cases, single_root=single_root, ways=_WAYS[wide.dtype], last=last)
    partition, arcs = differentiable(wide, exists, factorise)
    return partition.to(scores.dtype), arcs.to(scores.dtype)


def _checked_and_eliminated(scores: Tensor, exists: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    # scores that are no numbers come here, as no other way can be trusted with them
    check_scores(scores)
    return eliminated(scores, exists, single_root)


def check_shape(scores: Tensor) -> None:
    """Check that scores are of trees.

    Raises:
        ObservationError: for another shape than ``(batch, n, n)``, or another dtype than a floating one.
    """
    if not isinstance(scores, Tensor) or scores.ndim != 3 or scores.shape[1] != scores.shape[2] or not scores.is_floating_point():
        found = f"{tuple(scores.shape)} and {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ObservationError(f"trees: scores need shape (batch, n, n) and a floating dtype, got {found}.")


def check_scores(scores: Tensor) -> None:
    """Check scores of trees.

    Raises:
        ObservationError: for another shape than ``(batch, n, n)``, or entries that are NaN or +inf.
    """
    check_shape(scores)
    # the largest of anything with NaN is NaN, which is not below infinity
    if scores.numel() and not torch.compiler.is_compiling() and not bool(scores.detach().amax() < torch.inf):
        raise ObservationError("trees: scores have NaN or +inf entries; -inf forbids an arc, everything else must be finite.")


def present(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Which nodes exist, shape ``(batch, n)``, boolean.

    Raises:
        ObservationError: for lengths of another shape, below 0 or above n, or scores that are not as they should be, but for those in padding.
    """
    if lengths is None:
        check_scores(scores)
        return torch.ones(scores.shape[:2], dtype=torch.bool, device=scores.device)
    check_shape(scores)
    exists = _existing(scores, lengths)
    check_scores(scores.detach().masked_fill(~(exists[:, :, None] & exists[:, None]), 0))
    return exists


def _existing(scores: Tensor, lengths: Tensor) -> Tensor:
    batch, n = scores.shape[:2]
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ObservationError(f"trees: lengths need shape ({batch},) and whole numbers, got {tuple(lengths.shape)} and {lengths.dtype}.")
    outside = (lengths < 0) | (lengths > n)
    if not torch.compiler.is_compiling() and bool(outside.any()):
        b = int(outside.nonzero()[0])
        raise ObservationError(f"trees: lengths go from 0 to {n}, the size of the scores, but that of batch element {b} is {int(lengths[b])}.")
    return torch.arange(n, device=scores.device) < lengths.to(scores.device)[:, None]


@dataclass(frozen=True)
class _Way:
    """How to find the inverse, in what arithmetic, and how far entries may cancel for the digits of the result to be still resolved."""

    solve: Callable[[Tensor, Tensor | None, bool], _Solved]
    dtype: torch.dtype
    worst: float


def _by_cases(
    scores: Tensor, exists: Tensor | None, single_root: bool, ways: Sequence[_Way], last: _Last = eliminated
) -> tuple[Tensor, Tensor, Factorisation]:  # fmt: skip
    """The first of some ways for what it can be trusted with, the next for the rest, elimination for what is left."""
    if not ways:
        wide = scores.double()
        partition, arcs = last(wide, exists, single_root)
        return partition.to(scores.dtype), arcs.to(scores.dtype), _Eliminated(wide, exists, single_root)
    solved = ways[0].solve(scores.to(ways[0].dtype), exists, single_root)
    # the largest of anything with NaN is NaN
    if not len(scores) or float(solved.cancelled.amax()) <= ways[0].worst:
        return solved.partition.to(scores.dtype), solved.marginals.to(scores.dtype), solved.inverse
    trusted = solved.cancelled <= ways[0].worst
    good, bad = trusted.nonzero().squeeze(1), (~trusted).nonzero().squeeze(1)
    partition, arcs, rest = _by_cases(scores[bad], None if exists is None else exists[bad], single_root, ways[1:], last)
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
    """Factorisations of some batch elements each."""

    parts: Sequence[tuple[Tensor, Factorisation]]

    def derivative(self, directions: Sequence[Tensor]) -> Tensor:
        result = torch.empty_like(directions[0])
        for rows, part in self.parts:
            result[rows] = part.derivative([direction[rows] for direction in directions])
        return result


@dataclass(frozen=True)
class _Eliminated:
    """Scores without any factorisation that could be trusted."""

    scores: Tensor
    exists: Tensor | None
    single_root: bool

    def derivative(self, directions: Sequence[Tensor]) -> Tensor:
        along = [direction.double() for direction in directions]
        return eliminated_derivative(self.scores, self.exists, self.single_root, along).to(directions[0].dtype)


@dataclass(frozen=True)
class _Inverse:
    """The inverse of the matrix whose determinant is the weight of all trees.

    Attributes:
        arcs: weights of the shifted scores, 0 on the diagonal, shape ``(batch, n, n)``.
        roots: likewise, shape ``(batch, n)``.
        guess: how likely each node is the root, u above, shape ``(batch, n)``; None where several roots are allowed.
        inverse: of the Laplacian of ``arcs``, with ``guess`` times ``roots`` or else ``roots`` on the diagonal added; shape ``(batch, n, n)``.
        per_root: the probability of each root, by its weight, shape ``(batch, n)``.
    """

    arcs: Tensor
    roots: Tensor
    guess: Tensor | None
    inverse: Tensor
    per_root: Tensor

    def rows(self, chosen: Tensor) -> _Inverse:
        """That of some batch elements."""
        guess = None if self.guess is None else self.guess[chosen]
        return _Inverse(self.arcs[chosen], self.roots[chosen], guess, self.inverse[chosen], self.per_root[chosen])

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
    """What follows from an inverse.

    Attributes:
        partition: shape ``(batch,)``.
        marginals: shape ``(batch, n, n)``.
        cancelled: of what size the terms are whose sums are one, shape ``(batch,)``; NaN or infinity if nothing is left.
        inverse: as it was found.
    """

    partition: Tensor
    marginals: Tensor
    cancelled: Tensor
    inverse: _Inverse


def _solve_fast(scores: Tensor, exists: Tensor | None, single_root: bool) -> _Solved:
    """Invert the matrix as it is."""
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
    # a node with hardly any other head can only be the root, whatever its arcs weigh
    bounded = total.clamp_min(_LEAST)
    degree = total.div_(bounded)
    arcs = arcs.div_(bounded).transpose(0, 1)
    own_shift = bounded.log_()
    if exists is not None:
        degree, own_shift = torch.where(exists, degree, 1), torch.where(exists, own_shift, 0)
    partition = largest.sum(1, dtype=torch.float64).add_(own_shift.sum(1))
    if single_root:
        # not less the sum of both, in which the smaller one would drown
        roots.sub_(largest).sub_(own_shift)
        top = roots.amax(1, keepdim=True)
        weight = roots.sub_(top).exp_().sum(1, keepdim=True)
        guess = roots = roots.div_(weight)
        root_shift = weight.log_().add_(top)[:, 0]
        if exists is not None:
            root_shift = torch.where(exists[:, 0], root_shift, 0)
            guess = roots = torch.where(exists, roots, 0)
        partition += root_shift
        matrix = torch.mul(guess[:, :, None], roots[:, None]).sub_(arcs)
    else:
        roots = diagonal.clone()
        diagonal.zero_()
        root_shift, guess = None, None
        matrix = arcs.neg()
    matrix.diagonal(dim1=1, dim2=2).add_(degree)
    inverse, determinant, cancelled = invert(matrix)
    partition += determinant
    if root_shift is not None:
        # scores of roots are rounded in proportion to their size
        cancelled = torch.addcmul(cancelled, root_shift, root_shift, value=_ROUNDED[scores.dtype])
    per_root = _per_root(inverse, guess)
    marginals = _marginals(arcs, roots, inverse, per_root)
    return _Solved(partition, marginals, cancelled, _Inverse(arcs, roots, guess, inverse, per_root))


def _solve_exactly(scores: Tensor, exists: Tensor | None, single_root: bool) -> _Solved:
    """Without a subtraction until the inverse of the Laplacian is known.

    With one root, the Laplacian first loses the row and the column of the node with the heaviest root: its determinant is then the weight of the
    trees that hang on that node, to which those of all other roots are added as a sum without signs. What enters a node comes from other nodes
    and, as a surplus, from the root or the deleted node.
    """
    # every modifier has exactly one head, so that a shift of its scores shifts those of all trees; the floor is for nodes without any
    shift = scores.amax(1).clamp_min_(NEVER)
    if exists is not None:
        shift = torch.where(exists, shift, 0)
    arcs = (scores - shift[:, None]).exp_()
    diagonal = arcs.diagonal(dim1=1, dim2=2)
    roots = diagonal.clone()
    diagonal.zero_()
    if single_root:
        return _hung_on_heaviest(arcs, roots, shift, exists)
    surplus = roots if exists is None else torch.where(exists, roots, 1)
    inverse, determinant = invert_exactly(arcs, surplus)
    per_root = inverse.diagonal(dim1=1, dim2=2)
    visits = (arcs.sum(1) + surplus) * per_root
    found = _marginals(arcs, roots, inverse, per_root)
    cancelled = torch.where(_sound(found, inverse, visits, exists), 2 * visits.amax(1) - 1, torch.inf)
    return _Solved(determinant + shift.sum(1), found, cancelled, _Inverse(arcs, roots, None, inverse, per_root))


def _hung_on_heaviest(arcs: Tensor, roots: Tensor, shift: Tensor, exists: Tensor | None) -> _Solved:
    """What follows from the inverse without the row and the column of the node with the heaviest root."""
    guess = torch.nn.functional.one_hot(roots.argmax(1), roots.shape[1]).to(roots.dtype)
    others = 1 - guess
    elsewhere = roots * others
    surplus = torch.where(guess.bool(), 1, (arcs * guess[:, :, None]).sum(1))
    if exists is not None:
        surplus = torch.where(exists, surplus, 1)
    kept = arcs * others[:, :, None] * others[:, None]
    inverse, determinant = invert_exactly(kept, surplus)
    degree = kept.sum(1) + surplus
    visits = degree * inverse.diagonal(dim1=1, dim2=2)
    inverse = inverse * others[:, :, None] * others[:, None]
    reached = (inverse @ (arcs @ guess[:, :, None]))[:, :, 0]
    total = (roots * guess).sum(1) + (elsewhere * reached).sum(1)
    rooted = (elsewhere[:, None] @ inverse)[:, 0] / total[:, None]
    cancelled = torch.maximum(visits, degree * reached * rooted).amax(1)
    reached = reached + guess
    per_root = reached / total[:, None]
    inverse = torch.baddbmm(inverse, reached[:, :, None], rooted[:, None], alpha=-1)
    found = _marginals(arcs, roots, inverse, per_root)
    cancelled = torch.where(_sound(found, inverse, visits, exists), 2 * cancelled - 1, torch.inf)
    # roots of another scale move the inverse by a multiple of ``per_root`` in each column: one that does not drown it
    scale = per_root.amax(1, keepdim=True)
    partition = determinant + shift.sum(1) + total.log()
    per_root = per_root / scale
    moved = _Inverse(arcs, roots * scale, guess, inverse + per_root[:, :, None], per_root)
    return _Solved(partition, found, cancelled, moved)


def _sound(found: Tensor, inverse: Tensor, visits: Tensor, exists: Tensor | None) -> Tensor:
    """Whether an inverse is one, shape ``(batch,)``: marginals of a node sum to one, and a walk against the arcs visits a node where it starts."""
    slack = torch.finfo(found.dtype).eps ** 0.5
    off = (found.sum(1) - (1 if exists is None else exists.to(found.dtype))).abs().amax(1)
    # beyond this, products of four entries overflow
    within = inverse.flatten(1).abs().amax(1) < torch.finfo(found.dtype).max ** 0.25
    sound: Tensor = (off < slack) & (visits.amin(1) > 1 - slack) & within
    return sound


def _per_root(inverse: Tensor, guess: Tensor | None) -> Tensor:
    found: Tensor = inverse.diagonal(dim1=1, dim2=2) if guess is None else (inverse.mT * guess[:, :, None]).sum(1)
    return found


def _marginals(arcs: Tensor, roots: Tensor, inverse: Tensor, per_root: Tensor) -> Tensor:
    """The derivative of the log-determinant by the scores, shape ``(batch, n, n)``."""
    found = (inverse.diagonal(dim1=1, dim2=2)[:, None] - inverse.mT).mul_(arcs)
    torch.mul(roots, per_root, out=found.diagonal(dim1=1, dim2=2))
    return found


def _directional(solved: _Inverse, direction: Tensor) -> Tensor:
    """The derivative of the marginals in a direction of the scores: the Hessian of the log-partition, which is symmetric, times the direction."""
    arcs, roots = solved.arcs * direction, solved.roots * direction.diagonal(dim1=1, dim2=2)
    step = arcs.clone()
    loss = arcs.sum(1)
    if solved.guess is None:
        loss += roots
    else:
        step.addcmul_(solved.guess[:, :, None], roots[:, None], value=-1)
    step.diagonal(dim1=1, dim2=2).sub_(loss)
    moved = solved.inverse @ step @ solved.inverse
    moved_roots = _marginals(solved.arcs, solved.roots, moved, _per_root(moved, solved.guess))
    return _marginals(arcs, roots, solved.inverse, solved.per_root).add_(moved_roots)


def _differentiable(change: Tensor, solved: _Inverse) -> Tensor:
    """The marginals after a change of the scores, which is 0, in operations that can be differentiated by it any number of times."""
    arcs, roots = solved.arcs * change.exp(), solved.roots * change.diagonal(dim1=1, dim2=2).exp()
    if solved.guess is None:
        matrix = torch.diag_embed(arcs.sum(1) + roots) - arcs
    else:
        matrix = torch.diag_embed(arcs.sum(1)) - arcs + solved.guess[:, :, None] * roots[:, None]
    inverse = Inverted.apply(matrix, solved.inverse)
    own = inverse.diagonal(dim1=1, dim2=2)
    marginals: Tensor = arcs * (own[:, None] - inverse.mT) + torch.diag_embed(roots * _per_root(inverse, solved.guess))
    return marginals


_WAYS = {
    torch.float64: (_Way(_solve_fast, torch.float64, 30.0), _Way(_solve_exactly, torch.float64, 300.0)),
    torch.float32: (_Way(_solve_fast, torch.float32, 8.0), _Way(_solve_fast, torch.float64, 1e4), _Way(_solve_exactly, torch.float64, 1e7)),
}
"""What is tried for results of a dtype before elimination in the logarithmic domain."""
