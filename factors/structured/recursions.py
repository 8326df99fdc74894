"""Dynamic programs over structures: log-partitions by length, and the flow constraints of paths.

Scores have shape ``(structures, *event)``, float64, with ``NEVER`` where forbidden and anything finite in
padding; ``sizes`` are integers of shape ``(structures, lengths)``. The caller excludes structures of size 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from unn.errors import DerivativeError
from unn.ops.semirings import NEVER, Semiring, Total
from unn.regularizers.base import is_transformed


class Recursion(ABC):
    """Family of structures over an event."""

    event: ClassVar[int]
    """Number of axes of the event."""

    ragged: ClassVar[tuple[tuple[int, ...], ...]]
    """Axes of the event bounded by each length of a structure."""

    square: ClassVar[tuple[int, int] | None] = None
    """Two axes of equal size."""

    @abstractmethod
    def partition(self, scores: Tensor, sizes: Tensor, total: Total) -> Tensor:
        """``total`` of the scores of all structures, shape ``(structures,)``."""


class Paths(Recursion):
    """Structures that are paths through a graph, with the entries of the event as edges.

    The entropy has a closed form: the maximum-entropy distribution over paths is a Markov chain, so that
    H = sum of entr(edge) - sum of entr(node) over all nodes except those where paths begin and end.
    """

    @abstractmethod
    def nodes(self, x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Flow into and out of each inner node, 0 elsewhere, and total flow into ends; ``(structures,
        ...)``."""

    @abstractmethod
    def edges(self, x: Tensor, sizes: Tensor) -> Tensor:
        """Mask of entries that are edges of a path, shape of ``x``."""


class Chain(Paths):
    """Label sequences: event (n-1, c, c): position, label after, label before; torch-struct's scan."""

    event = 3
    ragged = ((0,),)
    square = (1, 2)

    def partition(self, scores: Tensor, sizes: Tensor, total: Total) -> Tensor:
        from torch_struct import LinearChain

        _refuse_transforms("LinearChainCRF")
        # torch-struct requires that the longest sequence fills the axis, and lengths count nodes
        longest = int(sizes.max())
        value: Tensor = LinearChain(Semiring(total)).logpartition(scores[:, :longest] + 0.0, sizes[:, 0] + 1)[
            0
        ][0]
        return value

    def nodes(self, x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inner = _positions(x.shape[1] - 1, x) < sizes - 1
        into, out = x[:, :-1].sum(3), x[:, 1:].sum(2)
        ends = x.sum((2, 3)).gather(1, sizes - 1)[:, 0]
        return torch.where(inner[:, :, None], into, 0), torch.where(inner[:, :, None], out, 0), ends

    def edges(self, x: Tensor, sizes: Tensor) -> Tensor:
        return (_positions(x.shape[1], x) < sizes)[:, :, None, None].expand(x.shape)


class Segments(Paths):
    """Segmentations into labelled spans: event (n, k, c, c), where a span begins, its width below k, its
    label, the label before.

    torch-struct's own recursion omits spans of the longer sequences of a ragged batch.
    """

    event = 4
    ragged = ((0,),)
    square = (2, 3)

    def partition(self, scores: Tensor, sizes: Tensor, total: Total) -> Tensor:
        arriving = self._by_end(scores)
        count, n, widths, labels = arriving.shape[:4]
        never = scores.new_full((count, labels), NEVER)
        before = [never] * (widths - 1) + [scores.new_zeros(count, labels)]
        reached = []
        for position in range(n):
            # ordered by width: the last entry is one step back
            prior = torch.stack(before[::-1], 1)
            reached.append(total((arriving[:, position] + prior[:, :, None]).transpose(1, 2).flatten(2), -1))
            before = [*before[1:], reached[-1]]
        rows = torch.arange(count, device=scores.device)
        return total(torch.stack(reached, 1)[rows, sizes[:, 0] - 1], -1)

    def _by_end(self, x: Tensor) -> Tensor:
        """Entries by end and width of spans, ``(structures, n, k - 1, c, c)``; NEVER for starts below 0."""
        n, k = x.shape[1:3]
        end, width = torch.arange(n, device=x.device)[:, None], torch.arange(1, k, device=x.device)
        begin = end + 1 - width
        entries = x[:, begin.clamp(min=0), width]
        return torch.where((begin >= 0)[:, :, None, None], entries, NEVER)

    def nodes(self, x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        arriving = self._by_end(x)
        into = torch.where(arriving > NEVER / 2, arriving, 0).sum((2, 4))
        inner = (_positions(x.shape[1] - 1, x) < sizes - 1)[:, :, None]
        ends = into.sum(2).gather(1, sizes - 1)[:, 0]
        return torch.where(inner, into[:, :-1], 0), torch.where(inner, x[:, 1:].sum((2, 3)), 0), ends

    def edges(self, x: Tensor, sizes: Tensor) -> Tensor:
        n, k = x.shape[1:3]
        width = torch.arange(k, device=x.device)
        fits = (torch.arange(n, device=x.device)[:, None] + width)[None] <= sizes[:, :, None]
        return (fits & (width > 0))[:, :, :, None, None].expand(x.shape)


class Alignments(Paths):
    """Monotone alignments: event (n, m, 3), paths from cell (0, 0) to the last, by the step into each cell.

    0 is a step along the second axis, 1 along both, 2 along the first; the first cell is entered by 1.
    torch-struct's own recursion needs the unpublished package genbmm, at least as many columns as rows, and
    no padding of columns.
    """

    event = 3
    ragged = ((0,), (1,))

    def partition(self, scores: Tensor, sizes: Tensor, total: Total) -> Tensor:
        count, n, m = scores.shape[:3]
        cell = torch.arange(n, device=scores.device)
        other = torch.arange(n + m - 1, device=scores.device)[:, None] - cell
        inside = (other >= 0) & (other < m)
        # anti-diagonals, each indexed by its rows
        skewed = torch.where(inside[None, :, :, None], scores[:, cell, other.clamp(0, m - 1)], NEVER)
        never = scores.new_full((count, 1), NEVER)
        start = torch.cat([skewed[:, 0, :1, 1], never.expand(count, n - 1)], 1)
        reached = [never.expand(count, n), start]
        for k in range(1, n + m - 1):
            across, both = reached[-1], torch.cat([never, reached[-2][:, :-1]], 1)
            down = torch.cat([never, reached[-1][:, :-1]], 1)
            reached.append(total(torch.stack([across, both, down], -1) + skewed[:, k], -1))
        rows = torch.arange(count, device=scores.device)
        return torch.stack(reached[1:], 1)[rows, sizes.sum(1) - 2, sizes[:, 0] - 1]

    def nodes(self, x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        here = self._cells(x, sizes)
        rows = torch.arange(len(x), device=x.device)
        last = torch.zeros_like(here)
        last[rows, sizes[:, 0] - 1, sizes[:, 1] - 1] = True
        into = x.sum(3)
        wide = torch.nn.functional.pad(x, (0, 0, 0, 1, 0, 1))
        out = wide[:, :-1, 1:, 0] + wide[:, 1:, 1:, 1] + wide[:, 1:, :-1, 2]
        inner = here & ~last
        return torch.where(inner, into, 0), torch.where(inner, out, 0), into[last]

    def edges(self, x: Tensor, sizes: Tensor) -> Tensor:
        allowed = self._cells(x, sizes)[..., None].expand(x.shape).clone()
        allowed[:, 0, :, 1:] = False
        allowed[:, :, 0, :2] = False
        allowed[:, 0, 0] = torch.tensor([False, True, False], device=x.device)
        return allowed

    @staticmethod
    def _cells(x: Tensor, sizes: Tensor) -> Tensor:
        rows, columns = _positions(x.shape[1], x) < sizes[:, :1], _positions(x.shape[2], x) < sizes[:, 1:]
        return rows[:, :, None] & columns[:, None]


class Spans(Recursion):
    """Binary trees with labelled spans: event (n, n, labels), first and last word of a span; torch-struct's
    recursion."""

    event = 3
    ragged = ((0, 1),)
    square = (0, 1)

    def partition(self, scores: Tensor, sizes: Tensor, total: Total) -> Tensor:
        from torch_struct import CKY_CRF

        _refuse_transforms("TreeCRF")
        value: Tensor = CKY_CRF(Semiring(total)).logpartition(scores + 0.0, sizes[:, 0])[0][0]
        return value


def _refuse_transforms(name: str) -> None:
    if is_transformed():
        raise DerivativeError(
            f"Structured({name}) is computed by torch-struct, which does not support torch.func (vmap, grad, "
            "jvp, jacrev) or the forward mode of its mirror: differentiate it by torch.autograd.grad or "
            "torch.autograd.functional, and give it a batch for vmap."
        )


class Projective(Recursion):
    """Projective dependency trees (Eisner, 2000): event (n, n), head and modifier, root arcs on the diagonal.

    torch-struct's own recursion fails for scores without a gradient, has one global setting of ``multiroot``,
    and returns NaN marginals if arcs are forbidden.

    Args:
        multiroot: at least one word is attached to the root; otherwise exactly one.
    """

    event = 2
    ragged = ((0, 1),)
    square = (0, 1)

    def __init__(self, multiroot: bool) -> None:
        self.multiroot = multiroot

    def partition(self, scores: Tensor, sizes: Tensor, total: Total) -> Tensor:
        count, n = scores.shape[:2]
        rows = torch.arange(count, device=scores.device)
        roots = scores.diagonal(dim1=1, dim2=2)
        if self.multiroot:
            # the root is an additional first node without a head
            rooted = torch.cat([roots[:, None], scores], 1)
            right, _ = _eisner(torch.cat([rooted.new_full((count, n + 1, 1), NEVER), rooted], 2), total)
            return right[rows, 0, sizes[:, 0]]
        right, left = _eisner(scores, total)
        word = torch.arange(n, device=scores.device)
        rest = sizes - 1 - word
        after = right[rows[:, None], word, rest.clamp(min=0)]
        return total(torch.where(rest >= 0, left[:, 0] + roots + after, NEVER), -1)


def _eisner(arcs: Tensor, total: Total) -> tuple[Tensor, Tensor]:
    """Eisner's algorithm: totals of spans headed by their first, and by their last, word.

    Results are indexed by first word and width, ``(structures, n, n)``. Charts are indexed by the first and
    by the last word, so that adjacent spans are slices; widths are along the last axis.
    """
    count, n = arcs.shape[:2]
    right_by_first = right_by_last = left_by_first = left_by_last = arcs.new_zeros(count, n, 1)
    right_open = left_open = arcs.new_zeros(count, n, 0)
    rights, lefts = [right_by_first[:, :, 0]], [left_by_first[:, :, 0]]
    for width in range(1, n):
        starts = n - width
        joined = total(right_by_first[:, :starts] + left_by_last[:, 1:].flip(-1), -1)
        right_arc = joined + arcs.diagonal(width, 1, 2)
        left_arc = joined + arcs.diagonal(-width, 1, 2)
        right_open = torch.cat([right_open[:, :starts], right_arc[:, :, None]], 2)
        left_open = torch.cat([left_open[:, 1:], left_arc[:, :, None]], 2)
        rights.append(total(right_open + right_by_last[:, 1:].flip(-1), -1))
        lefts.append(total(left_by_first[:, :starts] + left_open.flip(-1), -1))
        right_by_first = torch.cat([right_by_first[:, :starts], rights[-1][:, :, None]], 2)
        right_by_last = torch.cat([right_by_last[:, 1:], rights[-1][:, :, None]], 2)
        left_by_first = torch.cat([left_by_first[:, :starts], lefts[-1][:, :, None]], 2)
        left_by_last = torch.cat([left_by_last[:, 1:], lefts[-1][:, :, None]], 2)
    return _by_width(rights), _by_width(lefts)


def _by_width(chart: list[Tensor]) -> Tensor:
    """Stack spans of all widths, padding the first words that do not exist."""
    n = len(chart)
    return torch.stack(
        [torch.nn.functional.pad(spans, (0, n - spans.shape[1]), value=NEVER) for spans in chart], 2
    )


def _positions(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, device=like.device)[None]
