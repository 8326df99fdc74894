"""Entropy over subsets of k entries; the activation is the inclusion probabilities."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor

from unn.errors import DeclarationError, ObservationError, is_whole
from unn.graph.sizes import LetterSizes, SizeRule
from unn.ops.semirings import NEVER, Total, draw, gradient, log_sum, possible, require_scores
from unn.regularizers import AlongAxis, LogPartition
from unn.regularizers.base import tolerance

from .counts import count_polynomial

_CLOSED = 1e-14
"""Distance from 0 or 1 below which probabilities are treated as 0 or 1 in ``scores_of``."""


class Budget(AlongAxis, LogPartition):
    """Psi(x) = -H(x) over subsets of exactly k of the entries along an axis: its activation is the inclusion
    probabilities.

    The domain is 0 <= x <= 1 with sum k. The log-partition is the logarithm of an elementary symmetric
    polynomial of exp(t), computed by a tree of polynomial products in the logarithmic domain, in float64
    (Chen, Dempster and Liu, 1994; Ahmed, Zeng, Niepert and Van den Broeck, SIMPLE, 2023). For k = 1 it is
    ``Entropy``. Rows without entries are all 0.

    Args:
        k: size of the subsets, at least 1.
        over: axis along which entries are chosen; the last by default.

    Raises:
        DeclarationError: for a k that is not a whole number >= 1.
        ObservationError: from all methods except ``contains``, if a nonempty row has fewer than k entries.

    Example:
        >>> Z = g.variable("Z", "sentence", Budget(3))
    """

    formula = "-H(x) over subsets of k entries"
    activation = "inclusion probabilities"

    def __init__(self, k: int, over: str | None = None) -> None:
        super().__init__(over)
        if not is_whole(k, 1):
            hint = f" An axis is given by name: Budget(k, over={k!r})." if isinstance(k, str) else ""
            raise DeclarationError(f"Budget needs a whole number k >= 1, got {k!r}.{hint}")
        self.k = k
        self._required: Tensor | None = None

    def size_rules(self, axes: tuple[str, ...]) -> Sequence[SizeRule]:
        axis = axes[self.dim]
        return (SizeRule((axis,), partial(_enough, axis, self.k)),)

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-partition, summed over rows; -inf where fewer than k entries are finite, NaN where a score
        is NaN or +inf."""
        t = self._expand(t)
        scores, empty = self._rows(t, mask)
        each = self._each(scores, log_sum)
        each = torch.where(possible(each), each, -torch.inf)
        return torch.where(empty, 0, each).view(len(t), -1).sum(1).to(t.dtype)

    def argmax(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """Indicator of the k entries with the largest scores of each row, shape of ``t``.

        Raises:
            ObservationError: where fewer than k entries are finite, or scores are NaN or +inf.
        """
        t = self._expand(t)
        scores, empty = self._possible(t, mask)
        required = self._required_rows()
        if required is not None:
            scores = scores.masked_fill(required, torch.inf)
        chosen = torch.zeros_like(scores).scatter(1, scores.topk(self.k, 1).indices, 1.0)
        return self._back(torch.where(empty[:, None], 0, chosen), t)

    def sample(
        self, t: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """An exact sample of each row's subset, entries 0 and 1, shape of ``t``.

        Raises:
            ObservationError: where fewer than k entries are finite, or scores are NaN or +inf.
        """
        t = self._expand(t)
        scores, empty = self._possible(t, mask)
        chosen = gradient(lambda s: self._each(s, draw(generator)), scores)
        return self._back(torch.where(empty[:, None], 0, chosen), t)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Check that entries are in [0, 1] and rows sum to k, to a tolerance."""
        x = self._expand(x)
        slack = tolerance(x.dtype)
        entries = x.detach().double() if mask is None else torch.where(mask, x.detach().double(), 0)
        # comparisons are such that NaN fails
        full = (entries.sum(self.dim) - self.k).abs() <= slack * max(1.0, math.sqrt(x.shape[self.dim]) / 8)
        if mask is not None:
            full = full | ~mask.expand(x.shape).any(self.dim)
        inside = (entries >= -slack) & (entries <= 1 + slack)
        if self._allowed is not None and self._required is not None:
            inside = (
                inside & (self._allowed | (entries <= slack)) & (~self._required | (entries >= 1 - slack))
            )
        return full.view(len(inside), -1).all(1) & inside.flatten(1).all(1)

    def restricted(self, value: Tensor, where: Tensor) -> Budget:
        """The entropy over subsets with given and excluded entries.

        Raises:
            ObservationError: for entries other than 0 and 1, or a row of which more than k entries are given
                or fewer than k are left.
        """
        given, excluded = where & (value == 1), where & (value == 0)
        own = copy.copy(self)
        own._allowed, own._required = ~excluded, given
        if torch.compiler.is_compiling():
            return own
        if not bool((given | excluded | ~where).all()):
            raise ObservationError(
                f"{self!r}: some entries that are observed in part are neither 0 nor 1; an observed entry is "
                "given (1) or excluded (0)."
            )
        few = (~excluded).sum(self.dim) < self.k if value.shape[self.dim] else torch.zeros(1, 1).bool()
        for wrong, reason in (
            (given.sum(self.dim) > self.k, f"more than {self.k} given entries"),
            (few, f"fewer than {self.k} entries that are not excluded"),
        ):
            if bool(wrong.any()):
                raise ObservationError(
                    f"{self!r}: a row of batch element {int(wrong.nonzero()[0, 0])} has {reason}."
                )
        return own

    @torch.no_grad()
    def scores_of(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores whose marginals approximate x, and these marginals; shape of x each, float64.

        Log-odds are corrected by half their error until marginals agree. Entries of a subset of fixed size
        are negatively correlated, and the influence of each error on the others sums to itself, so the
        iteration contracts (compare Chen, Dempster and Liu, 1994, Theorem 2).
        """
        x = self._expand(x)
        rows, empty = self._rows(torch.nan_to_num(x.detach().double()), mask)
        there = rows > NEVER / 2
        goal = torch.where(there, rows, 0).clamp(0, 1)
        # restore the sum k, up to rounding, by entries that are neither 0 nor 1
        loose = goal * (1 - goal)
        goal = goal + (self.k - goal.sum(1, keepdim=True)) * loose / loose.sum(1, keepdim=True).clamp(
            min=_CLOSED
        )
        goal = goal.clamp(_CLOSED, 1 - _CLOSED)
        scores = torch.where(there, torch.logit(goal), NEVER)
        scores = torch.where(empty[:, None], NEVER, scores)
        for _ in range(500):
            reached = gradient(lambda s: self._each(s, log_sum), scores)
            off = torch.where(there, torch.logit(goal) - torch.logit(reached.clamp(_CLOSED, 1 - _CLOSED)), 0)
            if not bool((torch.where(there, reached - goal, 0).abs() > 1e-13).any()):
                break
            scores = scores + 0.5 * off.clamp(-8, 8)
        reached = torch.where(empty[:, None], 0, reached)
        return self._back(torch.where(there & ~empty[:, None], scores, 0), x.double()), self._back(
            reached, x.double()
        )

    def _rows(self, t: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows ``(rows, n)`` in float64, ``NEVER`` where forbidden or padded, and mask of empty rows."""
        size = t.shape[self.dim]
        if 0 < size < self.k:
            raise ObservationError(
                f"{self!r}: axis {self.dim} has {size} entries, too few to choose {self.k}."
            )
        scores = t.double()
        scores = torch.where(scores == -torch.inf, NEVER, scores)
        if self._allowed is not None:
            scores = torch.where(self._allowed, scores, NEVER)
        rows = scores.movedim(self.dim, -1).reshape(-1, size)
        if mask is None:
            return rows, torch.full((len(rows),), size == 0, dtype=torch.bool, device=t.device)
        exists = mask.expand(t.shape).movedim(self.dim, -1).reshape(-1, size)
        count = exists.sum(1)
        few = (count > 0) & (count < self.k)
        if not torch.compiler.is_compiling() and bool(few.any()):
            row = int(few.nonzero()[0])
            raise ObservationError(
                f"{self!r}: a row of batch element {row * len(t) // len(rows)} has {int(count[row])} "
                f"entries, too few to choose {self.k}; drop it, or choose fewer."
            )
        return torch.where(exists, rows, NEVER), count == 0

    def _possible(self, t: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """As ``_rows``; raises if fewer than k entries are allowed, or scores are NaN or +inf."""
        scores, empty = self._rows(t.detach(), mask)
        require_scores(scores, self)
        few = ~empty & ((scores > NEVER / 2).sum(1) < self.k)
        if bool(few.any()):
            row = int(few.nonzero()[0])
            raise ObservationError(
                f"{self!r}: a row of batch element {row * len(t) // len(scores)} has fewer than {self.k} "
                "entries to choose from: too many are -inf."
            )
        return scores, empty

    def _each(self, scores: Tensor, total: Total) -> Tensor:
        """Total over all subsets, by row: a tree of products of generating polynomials by subset size."""
        if scores.shape[1] == 0:
            return scores.sum(1)
        return count_polynomial(scores, self.k, total, self._required_rows())[:, self.k]

    def _required_rows(self) -> Tensor | None:
        """Mask of the given entries, shape ``(rows, n)``; None without any."""
        if self._required is None:
            return None
        return self._required.movedim(self.dim, -1).flatten(0, -2)

    def _of_elements(self, elements: Tensor) -> Self:
        own = super()._of_elements(elements)
        if own is not self and self._required is not None:
            own._required = self._required[elements.to(self._required.device)]
        return own

    def _back(self, rows: Tensor, like: Tensor) -> Tensor:
        """Restore the shape and dtype of ``like``."""
        shape = like.movedim(self.dim, -1).shape
        return rows.view(shape).movedim(-1, self.dim).to(like.dtype)

    def _options(self) -> list[str]:
        return [str(self.k), *super()._options()]


def _enough(axis: str, k: int, known: LetterSizes) -> LetterSizes:
    if known.get(axis, k) < k:
        raise DeclarationError(f"axis {axis!r} has size {known[axis]}, too small for a budget of {k}")
    return {}
