"""torch-struct distributions as regularizers: chains, segmentations, alignments and trees.

Measured for torch-struct 0.5 with torch 2.13, against enumeration in float64, at scores of scale 1 to 1000:

==========================  ==============================================================================
distribution                torch-struct's own result
==========================  ==============================================================================
LinearChainCRF              correct; fails for sequences of one word, batches without a full sequence and
                            in float16
SemiMarkovCRF               correct if all lengths are equal; else log-partitions of the longer sequences
                            are wrong (by 0.24 at scale 1)
DependencyCRF               correct; fails for scores that need no gradient; ``multiroot`` is one setting
                            for the whole process; NaN marginals where arcs are forbidden
TreeCRF                     correct; NaN marginals where spans are forbidden
AlignmentCRF                fails: needs the package genbmm, which is not published
NonProjectiveDependencyCRF  wrong: adds 1e-5 to every exp(score): marginals are off by up to 0.6 at scale
                            30, and NaN at scale 1000
==========================  ==============================================================================

``Structured`` is exact for the first five; see ``factors.structured.recursions``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unn.errors import DeclarationError, ObservationError
from unn.graph.sizes import LetterSizes, SizeRule, offset_rule
from unn.ops.semirings import NEVER, Total, best, draw, gradient, log_sum, possible, require_scores
from unn.regularizers import LogPartition, Regularizer
from unn.regularizers.base import batch_all, tolerance

from ..trees.entropy import normalize_heads
from .recursions import Alignments, Chain, Paths, Projective, Recursion, Segments, Spans

_KNOWN = "LinearChainCRF, SemiMarkovCRF, DependencyCRF, AlignmentCRF or TreeCRF"


class Structured(LogPartition):
    """Psi(X) = -H(X) on the convex hull of the structures of a torch-struct distribution.

    The activation is the marginals of the distribution. The last axes of a variable are the event, as in
    torch-struct; earlier axes index independent structures. Everything is computed in float64.

    ==============  =================  ========================================  ============================
    distribution    event              entries                                   lengths
    ==============  =================  ========================================  ============================
    LinearChainCRF  (n - 1, c, c)      position, label after, label before       number of transitions, n - 1
    SemiMarkovCRF   (n, k, c, c)       where a segment begins, its width (below  number of positions, n
                                       k), its label, label before
    DependencyCRF   (n, n)             head, modifier; arcs from the root on     number of words
                                       the diagonal; projective
    AlignmentCRF    (n, m, 3)          cell, entered from 0: the left, 1: both,  both, each by itself
                                       2: above; the first by 1
    TreeCRF         (n, n, labels)     first and last word of a span, its        number of words
                                       label; binary trees
    ==============  =================  ========================================  ============================

    The entropy of chains, segmentations and alignments has a closed form, with derivatives of any order; that
    of trees is the dual of the log-partition, differentiable once. ``contains`` is exact for the former and
    solves for scores for the latter. Source: Rush, Torch-Struct (2020).

    Label sequences can be partially observed by ``unn.Partial``: an observed entry 1 is a given transition,
    an observed 0 a forbidden one. To observe the label a of word i + 1, set all entries (i, after, before)
    with another label ``after`` to 0.

    Args:
        distribution: class such as ``torch_struct.LinearChainCRF``, or a subclass.
        multiroot: for ``DependencyCRF``: at least one word is attached to the root; otherwise exactly one.

    Raises:
        DeclarationError: for a distribution that is not one of these.

    Example:
        >>> Y = g.variable("Y", "step after before", Structured(torch_struct.LinearChainCRF))
    """

    formula = "-H(X) on the convex hull of structures"

    def __init__(self, distribution: type[Any], multiroot: bool = True) -> None:
        self.distribution = distribution
        self.multiroot = bool(multiroot)
        self._recursion = _recursion(distribution, self.multiroot)

    def over_axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return axes[-self._recursion.event :]

    def bind(self, axes: tuple[str, ...], name: str) -> Regularizer:
        if len(axes) < self._recursion.event:
            raise DeclarationError(
                f"variable {name!r} has the axes {' '.join(axes) or 'none'}, but {self!r} needs "
                f"{self._recursion.event} for its event; see its table."
            )
        return self

    def size_rules(self, axes: tuple[str, ...]) -> Sequence[SizeRule]:
        own = self.over_axes(axes)
        rules = []
        if self._recursion.square is not None:
            pair = (own[self._recursion.square[0]], own[self._recursion.square[1]])
            rules.append(offset_rule(*pair))
        if isinstance(self._recursion, Alignments):
            rules.append(SizeRule(own[-1:], partial(_three, own[-1])))
        return rules

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-partition, summed over axes before the event; -inf where no structure is possible, NaN where a
        score is NaN or +inf."""
        t = self._possible_scores(t)
        scores, sizes = self._flat(t, mask)
        each = self._each(scores, sizes, log_sum)
        return torch.where(possible(each), each, -torch.inf).view(len(t), -1).sum(1).to(t.dtype)

    def argmax(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The best structure, entries 0 and 1, shape of ``t``.

        Raises:
            ObservationError: where no structure is possible, or scores are NaN or +inf.
        """
        return self._select(t, mask, best)

    def sample(
        self, t: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """An exact sample, entries 0 and 1, shape of ``t``.

        Raises:
            ObservationError: where no structure is possible, or scores are NaN or +inf.
        """
        return self._select(t, mask, draw(generator))

    def value_at_mirror(self, x: Tensor, t: Tensor, mask: Tensor | None = None) -> Tensor:
        # the closed form does not subtract large numbers
        return (
            self.value(x, mask) if isinstance(self._recursion, Paths) else super().value_at_mirror(x, t, mask)
        )

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Psi(x), shape ``(batch,)``; +inf outside the convex hull, 0 with the derivative 0 at structures."""
        if not isinstance(self._recursion, Paths):
            return super().value(x, mask)
        flat, sizes = self._flat(x, mask, absent=0.0)
        _, out, _ = self._recursion.nodes(flat, sizes.clamp(min=1))
        negative = _x_log_x(flat).flatten(1).sum(1) - _x_log_x(out).flatten(1).sum(1)
        negative = torch.where(sizes.amin(1) > 0, negative, 0).view(len(x), -1).sum(1)
        return torch.where(self.contains(x, mask), negative, torch.inf).to(x.dtype)

    def _supremum(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        corner = self._structures(x, mask)
        psi, dual = x.new_zeros(len(x)), torch.zeros_like(x)
        if not bool(corner.all()):
            own = None if mask is None else mask.expand(x.shape)[~corner]
            psi[~corner], dual[~corner] = super()._supremum(x[~corner], own)
        return psi, dual

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Check that x is a mean of structures, to a tolerance."""
        if not isinstance(self._recursion, Paths):
            x = x.detach()
            good = self._structures(x, mask)
            entries = x if mask is None else torch.where(mask, x, 0)
            # a point with entries 0 and 1 is a mean only if it is a structure itself
            between = ~((entries == 0) | (entries == 1)).flatten(1).all(1)
            if bool(between.any()):
                good[between] = super().contains(
                    x[between], None if mask is None else mask.expand(x.shape)[between]
                )
            return good
        flat, sizes = self._flat(x.detach(), mask, absent=0.0)
        nonempty = sizes.clamp(min=1)
        into, out, ends = self._recursion.nodes(flat, nonempty)
        slack = tolerance(x.dtype)
        # the tolerance grows with the number of summed entries; comparisons are such that NaN fails
        loose = slack * max(1.0, flat[0].numel() ** 0.5 / 8) if len(flat) else slack
        good = ((into - out).abs() <= loose).flatten(1).all(1) & ((ends - 1).abs() <= loose)
        good &= (
            ((flat >= -slack) & ((flat <= slack) | self._recursion.edges(flat, nonempty))).flatten(1).all(1)
        )
        inside = (good | (sizes.amin(1) == 0)).view(len(x), -1).all(1)
        if self._allowed is None:
            return inside
        forbidden = ~self._allowed if mask is None else mask & ~self._allowed
        return inside & batch_all(torch.where(forbidden, x.detach(), 0).abs() <= slack)

    def restricted(self, value: Tensor, where: Tensor) -> Structured | None:
        """Restrict the entropy to label sequences with given and forbidden transitions; None for other
        structures.

        Raises:
            ObservationError: for entries other than 0 and 1, a position with two given transitions, or
                entries that no sequence agrees with.
        """
        if not isinstance(self._recursion, Chain):
            return None
        given = where & (value == 1)
        own = copy.copy(self)
        own._allowed = torch.where(given.any((-2, -1), keepdim=True), given, ~where)
        if torch.compiler.is_compiling():
            return own
        if not bool(((value == 0) | (value == 1) | ~where).all()):
            raise ObservationError(
                f"{self!r}: some partially observed transitions are neither 0 nor 1; an observed transition "
                "is given (1) or forbidden (0)."
            )
        twice = given.sum((-2, -1)) > 1
        if bool(twice.any()):
            batch, *_, position = twice.nonzero()[0].tolist()
            raise ObservationError(
                f"{self!r}: position {position} of batch element {batch} has two given transitions; each "
                "has exactly one."
            )
        best_score = own._each(*own._flat(own._possible_scores(torch.zeros_like(value)), None), best)
        impossible = ~possible(best_score).view(len(value), -1).all(1)
        if bool(impossible.any()):
            raise ObservationError(
                f"{self!r}: no label sequence has the transitions observed in batch element "
                f"{int(impossible.nonzero()[0])}; "
                "two neighbouring ones contradict each other, or all of a position are forbidden."
            )
        return own

    def _possible_scores(self, t: Tensor) -> Tensor:
        """Scores with -inf where the evidence forbids an entry."""
        return t if self._allowed is None else torch.where(self._allowed, self._expand(t), -torch.inf)

    @torch.no_grad()
    def scores_of(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As in ``LogPartition``, after restoring the sums that all structures share, up to rounding."""
        if torch.compiler.is_compiling():
            # tracing into scipy would change the results
            eager: tuple[Tensor, Tensor] = torch.compiler.disable(type(self).scores_of)(self, x, mask)
            return eager
        if isinstance(self._recursion, Paths):
            return super().scores_of(x, mask)
        flat, sizes = self._flat(x.detach(), mask, absent=0.0)
        tidy = (
            _normalize_spans(flat, sizes)
            if isinstance(self._recursion, Spans)
            else normalize_heads(flat, self.multiroot)
        )
        return super().scores_of(tidy.view(x.shape), mask)

    def _structures(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mask of batch elements that are structures with entries 0 and 1, shape ``(batch,)``."""
        x = x if mask is None else torch.where(mask, x, 0)
        corner = ((x == 0) | (x == 1)).flatten(1).all(1)
        # a structure maximises the scores that are 1 at its entries and -1 elsewhere
        best_one = self.argmax(2 * torch.where(corner.view(-1, *[1] * (x.ndim - 1)), x, 0) - 1, mask)
        return corner & (best_one == x).flatten(1).all(1)

    def _flat(self, t: Tensor, mask: Tensor | None, absent: float = NEVER) -> tuple[Tensor, Tensor]:
        """Flatten to structures ``(structures, *event)`` in float64, and their sizes ``(structures,
        lengths)``.

        Forbidden entries and padding are ``absent``.
        """
        event = t.shape[-self._recursion.event :]
        wide = t.double().reshape(-1, *event)
        if isinstance(self._recursion, Segments) and event[1] < 2:
            raise ObservationError(
                f"{self!r}: the second axis of the event, of widths, has size {event[1]}; widths go from 1 "
                "to that size less 1."
            )
        if absent == NEVER:
            wide = torch.where(wide == -torch.inf, NEVER, wide)
        full = torch.tensor([[event[axes[0]] for axes in self._recursion.ragged]], device=t.device).expand(
            len(wide), -1
        )
        if mask is None:
            return wide, full
        exists = mask.expand(t.shape).reshape(-1, *event)
        sizes = torch.stack([_size(exists, axes) for axes in self._recursion.ragged], 1)
        return torch.where(exists, wide, absent), torch.where(sizes.amin(1, keepdim=True) > 0, sizes, 0)

    def _each(self, scores: Tensor, sizes: Tensor, total: Total) -> Tensor:
        """Total of the scores of each structure; 0 for size 0."""
        there = sizes.amin(1) > 0
        if not bool(there.any()):
            return scores.flatten(1).sum(1) * 0
        whole = bool(there.all())
        totals = self._recursion.partition(
            scores if whole else scores[there], sizes if whole else sizes[there], total
        )
        return totals if whole else scores.new_zeros(len(scores)).masked_scatter(there, totals)

    @torch.no_grad()
    def _select(self, t: Tensor, mask: Tensor | None, total: Total) -> Tensor:
        t = self._possible_scores(t)
        scores, sizes = self._flat(t.detach(), mask)
        require_scores(scores, self)
        impossible = ~possible(self._each(scores, sizes, best)).view(len(t), -1).all(1)
        if bool(impossible.any()):
            raise ObservationError(
                f"{self!r}: batch element {int(impossible.nonzero()[0])} has no possible structure: too many "
                "entries are -inf."
            )
        return gradient(lambda s: self._each(s, sizes, total), scores).reshape(t.shape).to(t.dtype)

    def __repr__(self) -> str:
        options = "" if self.multiroot else ", multiroot=False"
        return f"Structured({self.distribution.__name__}{options})"


def _recursion(distribution: object, multiroot: bool) -> Recursion:
    import torch_struct

    if not isinstance(distribution, type) or not issubclass(distribution, torch_struct.StructDistribution):
        what = (
            distribution.__name__
            if isinstance(distribution, type)
            else f"an object of {type(distribution).__name__}"
        )
        raise DeclarationError(
            f"Structured needs a class of torch_struct, such as torch_struct.LinearChainCRF, got {what}."
        )
    name = distribution.__name__
    if not multiroot and not issubclass(distribution, torch_struct.DependencyCRF):
        raise DeclarationError(f"Structured({name}): multiroot is an option of DependencyCRF only.")
    if issubclass(distribution, torch_struct.NonProjectiveDependencyCRF):
        raise DeclarationError(
            f"Structured({name}) is not supported: torch-struct adds 1e-5 to every exp(score), so marginals "
            "are wrong; use TreeEntropy."
        )
    if issubclass(distribution, torch_struct.SentCFG):
        raise DeclarationError(
            f"Structured({name}) is not supported: its scores are three tensors, a variable has one; use "
            "TreeCRF."
        )
    if issubclass(distribution, torch_struct.HMM):
        raise DeclarationError(
            f"Structured({name}) is not supported: its scores are four tensors, a variable has one; use "
            "LinearChainCRF."
        )
    if issubclass(distribution, torch_struct.DependencyCRF):
        return Projective(multiroot)
    for known, recursion in (
        (torch_struct.LinearChainCRF, Chain),
        (torch_struct.SemiMarkovCRF, Segments),
        (torch_struct.AlignmentCRF, Alignments),
        (torch_struct.TreeCRF, Spans),
    ):
        if issubclass(distribution, known):
            return recursion()
    raise DeclarationError(
        f"Structured({name}): this distribution is not supported; use {_KNOWN}, or write your own "
        "LogPartition."
    )


def _size(exists: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Number of existing entries, minimum over the axes; shape ``(structures,)``."""
    counts = []
    for axis in axes:
        others = [k + 1 for k in range(exists.ndim - 1) if k != axis]
        counts.append(exists.any(tuple(others)).sum(1) if others else exists.sum(1))
    return torch.stack(counts).amin(0)


def _x_log_x(x: Tensor) -> Tensor:
    """x log x; 0 with derivative 0, as along the domain, where x <= 0."""
    positive = x > 0
    return torch.where(positive, x * torch.where(positive, x, 1).log(), 0)


def _normalize_spans(x: Tensor, sizes: Tensor) -> Tensor:
    """Scale spans: one per word, one for the sentence, and as many others as in a binary tree."""
    n = x.shape[1]
    x = x.clamp(min=0)
    first, last = torch.arange(n, device=x.device)[:, None], torch.arange(n, device=x.device)
    top = ((first == 0) & (last == sizes[:, :, None] - 1) & (first != last))[..., None]
    words = (first == last)[..., None]
    between = (first < last)[..., None] & ~top
    inner = torch.where(between, x, 0).sum((1, 2, 3), keepdim=True)
    count = (sizes[:, 0] - 2).clamp(min=0).view(-1, 1, 1, 1)
    single = x / x.sum(3, keepdim=True).clamp(min=1e-30)
    return torch.where(words | top, single, torch.where(between, x * count / inner.clamp(min=1e-30), x))


def _three(axis: str, known: LetterSizes) -> LetterSizes:
    if known.get(axis, 3) != 3:
        raise DeclarationError(
            f"axis {axis!r} of size {known[axis]} is the step into a cell of an alignment, which has size 3"
        )
    return {axis: 3}
