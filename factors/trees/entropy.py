"""Entropy over arborescences: the regularizer whose activation is the matrix-tree theorem."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unn.errors import DeclarationError, ObservationError
from unn.graph.sizes import SizeRule, offset_rule
from unn.regularizers import LogPartition, Regularizer
from unn.regularizers.base import tolerance

from .decoding import decode, is_forest, sample
from .k_best import k_best
from .matrix_tree import solve_unchecked

Layout = Literal["packed", "rooted"]


class TreeEntropy(LogPartition):
    """Psi(Y) = -H(Y) on the convex hull of the adjacency matrices of arborescences over n nodes: dependency
    trees of a sentence of n words.

    The activation is the probability of each arc, by the matrix-tree theorem (undirected-network paper,
    eq. 17 to 20). It acts on the last two axes, heads and modifiers; earlier axes index independent trees. In
    the layout "packed", shape ``(n, n)``, the diagonal holds the arcs from the root; in the layout "rooted",
    shape ``(n + 1, n)``, the first row does.

    Single arcs of Y can be observed with ``unn.Partial``: 1 for a given arc, 0 for a forbidden one.
    Inference is then exact among the trees that agree with them.

    Args:
        single_root: exactly one node is attached to the root, as in Universal Dependencies; otherwise at
            least one.
        layout: "packed" or "rooted".

    Raises:
        DeclarationError: for another layout.

    Example:
        >>> Y = g.variable("Y", "head word", TreeEntropy(layout="rooted"))
    """

    formula = "-H(Y) on the convex hull of arborescences"
    activation = "arc marginals"

    def __init__(self, single_root: bool = True, layout: Layout = "packed") -> None:
        if layout not in ("packed", "rooted"):
            raise DeclarationError(
                f"TreeEntropy: the layout is 'packed' (n x n) or 'rooted' ((n + 1) x n), got {layout!r}."
            )
        self.single_root = bool(single_root)
        self.layout = layout

    def over_axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return axes[-2:]

    def bind(self, axes: tuple[str, ...], name: str) -> Regularizer:
        if len(axes) < 2 or axes[-1] == axes[-2]:
            raise DeclarationError(
                f"variable {name!r} has the axes {' '.join(axes) or 'none'}, but {self!r} needs two: heads, "
                "then modifiers."
            )
        return self

    def size_rules(self, axes: tuple[str, ...]) -> Sequence[SizeRule]:
        return (offset_rule(axes[-2], axes[-1], int(self.layout == "rooted")),)

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-partition, summed over axes before the last two; -inf where no tree is possible."""
        t = self._expand(t)
        packed, exists = self._packed(t, mask)
        return solve_unchecked(packed, exists, self.single_root)[0].view(len(t), -1).sum(1)

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        t = self._expand(t)
        packed, exists = self._packed(t, mask)
        return self._unpacked(solve_unchecked(packed, exists, self.single_root)[1], t)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Check that x is a mean of trees.

        Exact: each modifier has one head, and a unit of flow from the root reaches it (Edmonds, 1967).
        """
        x = self._expand(x)
        slack = tolerance(x.dtype)
        packed, exists = self._packed(torch.nan_to_num(x.detach(), -1.0).double(), mask, absent=0.0)
        n = packed.shape[-1]
        here = torch.ones(packed.shape[:2], dtype=torch.bool, device=x.device) if exists is None else exists
        outside = x.detach().double() - self._unpacked(packed, x.double())
        good = ~(outside.abs() > slack).flatten(1).any(1).repeat_interleave(len(packed) // len(x)) & (
            packed >= -slack
        ).all(2).all(1)
        good &= ((packed.sum(1) - here.double()).abs() <= slack * max(1.0, n**0.5)).all(1)
        roots = packed.diagonal(dim1=1, dim2=2).sum(1)
        if self.single_root:
            good &= ((roots - 1).abs() <= slack * max(1.0, n**0.5)) | ~here.any(1)
        whole = ((packed == 0) | (packed == 1)).all(2).all(1)
        good &= ~whole | is_forest(packed.argmax(1), here)
        for b in (good & ~whole).nonzero().squeeze(1).tolist():
            size = int(here[b].sum())
            good[b] = _is_connected(packed[b, :size, :size].cpu().numpy(), slack)
        return good.view(len(x), -1).all(1)

    def _supremum(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        # at a single tree, the entropy is 0 and scores are infinite
        corner = ((x == 0) | (x == 1)).flatten(1).all(1)
        psi, dual = torch.where(self.contains(x, mask), 0.0, torch.inf).to(x.dtype), torch.zeros_like(x)
        if not bool(corner.all()):
            within = None if mask is None else mask.expand(x.shape)[~corner]
            own = self._of_elements(~corner)
            psi[~corner], dual[~corner] = LogPartition._supremum(own, x[~corner], within)
        return psi, dual

    @torch.no_grad()
    def scores_of(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # rounding may move a point off the affine hull of trees, where it has no scores
        packed, _ = self._packed(x.detach().double(), mask, absent=0.0)
        return super().scores_of(
            self._unpacked(normalize_heads(packed, not self.single_root), x.double()), mask
        )

    def argmax(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The best tree, entries 0 and 1, shape of ``t``."""
        t = self._expand(t)
        packed, exists = self._packed(t, mask)
        return self._unpacked(
            adjacency(decode(packed.detach(), _lengths(exists), self.single_root), t.dtype), t
        )

    def sample(
        self, t: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        t = self._expand(t)
        packed, exists = self._packed(t, mask)
        return self._unpacked(
            adjacency(sample(packed.detach(), _lengths(exists), self.single_root, generator), t.dtype), t
        )

    def k_best(self, t: Tensor, k: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The k best trees, entries 0 and 1, shape ``(k, *shape of t)``, and their scores, shape ``(k,
        batch)``; see ``factors.trees.k_best``.

        If there are fewer, the remaining trees are 0 and scores -inf.

        Raises:
            ObservationError: for scores with axes before the last two, whose trees have no common ranking.
        """
        t = self._expand(t)
        packed, exists = self._packed(t, mask)
        if len(packed) != len(t):
            raise ObservationError(
                f"trees: the best trees are ranked for scores of shape (batch, heads, modifiers), got "
                f"{tuple(t.shape)}."
            )
        heads, totals = k_best(packed.detach(), k, _lengths(exists), self.single_root)
        return torch.stack([self._unpacked(adjacency(own, t.dtype), t) for own in heads.unbind(1)]), totals.T

    def restricted(self, value: Tensor, where: Tensor) -> TreeEntropy:
        """The entropy of trees with given and forbidden arcs.

        Raises:
            ObservationError: for entries other than 0 and 1, a modifier with two given heads, or arcs that no
                tree agrees with.
        """
        if not torch.compiler.is_compiling() and not bool(((value == 0) | (value == 1) | ~where).all()):
            raise ObservationError(
                "trees: some entries of partially observed arcs are neither 0 nor 1; an observed arc is "
                "given (1) or forbidden (0)."
            )
        taken = where & (value == 1)
        decided = taken.any(-2, keepdim=True)
        own = copy.copy(self)
        own._allowed = torch.where(decided, taken, ~where)
        if torch.compiler.is_compiling():
            return own
        twice = taken.sum(-2) > 1
        if bool(twice.any()):
            b, *_, m = twice.nonzero()[0].tolist()
            raise ObservationError(
                f"trees: modifier {m} of batch element {b} has two given heads; each has exactly one."
            )
        # raises for batch elements without a tree
        decode(own._packed(torch.zeros_like(value), None)[0], None, self.single_root)
        return own

    def _packed(
        self, t: Tensor, mask: Tensor | None, absent: float = -torch.inf
    ) -> tuple[Tensor, Tensor | None]:
        """Packed scores ``(batch, n, n)`` and mask of existing nodes; ``absent`` at arcs not allowed."""
        if self._allowed is not None:
            t = torch.where(self._allowed, t, absent)
        exists = None if mask is None else mask.expand(t.shape)[..., 0, :].reshape(-1, t.shape[-1])
        t = t.reshape(-1, *t.shape[-2:])
        if self.layout == "rooted":
            t = torch.diagonal_scatter(t[:, 1:], t[:, 0], dim1=1, dim2=2)
        if exists is not None:
            t = torch.where(exists[:, :, None] & exists[:, None, :], t, absent)
        return t, exists

    def _unpacked(self, arcs: Tensor, like: Tensor) -> Tensor:
        """Packed arcs in the layout and shape of ``like``."""
        if self.layout == "rooted":
            roots = arcs.diagonal(dim1=1, dim2=2)
            arcs = torch.cat([roots[:, None], arcs - torch.diag_embed(roots)], 1)
        return arcs.reshape(like.shape)

    def __repr__(self) -> str:
        options = ([] if self.single_root else ["single_root=False"]) + (
            [] if self.layout == "packed" else [f"layout={self.layout!r}"]
        )
        return f"TreeEntropy({', '.join(options)})"


def normalize_heads(x: Tensor, multiroot: bool) -> Tensor:
    """Scale arcs so that each word has one head, and single-root trees one root."""
    x = x.clamp(min=0)
    if multiroot:
        return x / x.sum(1, keepdim=True).clamp(min=1e-30)
    roots = x.diagonal(dim1=1, dim2=2)
    others = x - torch.diag_embed(roots)
    roots = roots / roots.sum(1, keepdim=True).clamp(min=1e-30)
    return others * (1 - roots)[:, None].clamp(min=0) / others.sum(1, keepdim=True).clamp(
        min=1e-30
    ) + torch.diag_embed(roots)


def adjacency(heads: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert heads ``(batch, n)``, a root its own head and -1 in padding, to arcs ``(batch, n, n)``."""
    arcs = torch.nn.functional.one_hot(heads.clamp(min=0), heads.shape[1]).to(dtype)
    return torch.where((heads >= 0)[:, :, None], arcs, 0).transpose(1, 2)


def _lengths(exists: Tensor | None) -> Tensor | None:
    return None if exists is None else exists.sum(1)


def _is_connected(arcs: np.ndarray[tuple[int, int], np.dtype[np.float64]], slack: float) -> bool:
    """Check that a unit of flow from the root reaches each node, with arc probabilities as capacities."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n = len(arcs)
    network = np.zeros((n + 1, n + 1))
    network[1:, 1:] = arcs
    network[0, 1:] = arcs.diagonal()
    np.fill_diagonal(network, 0)
    network = np.clip(network, 0, 1)
    # integer capacities, small enough that the sum over the arcs out of a node fits into 32 bits
    unit = 2.0**31 / (n + 2)
    capacities = csr_array((network * unit).astype(np.int32))
    return all(
        maximum_flow(capacities, 0, m).flow_value >= unit * (1 - slack * max(1.0, n**0.5)) - n * n
        for m in range(1, n + 1)
    )
