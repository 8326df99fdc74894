"""Depth-first search with propagation by counting: it ends with an answer or with a proof of none, and goes
on to further answers or to the proof that there are no others."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from ..engine import Attempt
from ..solver.layout import Layout
from ..solver.propagation import Known, branch, propagate

_NODES = 10
"""Nodes of the tree between two answers."""


class DepthFirst(Attempt):
    """Search trees with random branches for each instance, all side by side; the first that ends decides.

    A node supposes a random candidate of a group of exactly one with the fewest open candidates, and
    propagates; at a contradiction, or after an answer, the candidate is excluded instead, under the
    suppositions before it. A tree waits at an answer until ``advance`` has returned it.

    Args:
        layout: candidates and groups.
        known: what is known of them, propagated.
        nodes: largest number of nodes of each tree.
        trees: number of trees of each instance.
        generator: random number generator.
    """

    def __init__(
        self, layout: Layout, known: Known, nodes: int, trees: int, generator: torch.Generator
    ) -> None:
        self.layout, self.nodes, self.trees, self.generator = layout, nodes, trees, generator
        # the trees of an instance are adjacent rows
        self.known = known.select(torch.arange(len(known.true)).repeat_interleave(trees))
        rows = len(self.known.true)
        self.fails = torch.zeros(rows, dtype=torch.bool)
        self.is_refuted = torch.zeros(rows, dtype=torch.bool)
        # trees that stand at an answer which was returned
        self.is_returned = torch.zeros(rows, dtype=torch.bool)
        # what is known at each level below the root if its supposition is wrong
        self.others: list[Known] = []
        self.level = torch.zeros(rows, dtype=torch.long)

    @torch.no_grad()
    def advance(self) -> dict[str, Tensor] | None:
        if self.nodes <= 0 or bool(self.is_refuted.all()):
            return None
        for _ in range(_NODES):
            self._visit()
            self.nodes -= 1
            if self.nodes <= 0 or bool((self._waits() | self.is_refuted).any()):
                break
            if time.perf_counter() >= self.ends:
                break
        waits = self._waits()
        best = waits.view(-1, self.trees).int().argmax(1) + torch.arange(0, len(waits), self.trees)
        self.is_returned[best] |= waits[best]
        return self.layout.frame.unflatten(self._answer(self.known.select(best)))

    @property
    def is_complete(self) -> Tensor:
        """Mask of the instances of which a tree stands at an answer, as far as counting shows, shape
        ``(instances,)``."""
        return self._is_at_answer().view(-1, self.trees).any(1)

    def keep(self, rows: Tensor) -> None:
        rows = (rows[:, None] * self.trees + torch.arange(self.trees)).flatten()
        self.known, self.level = self.known.select(rows), self.level[rows]
        self.fails, self.is_refuted = self.fails[rows], self.is_refuted[rows]
        self.is_returned = self.is_returned[rows]
        self.others = [known.select(rows) for known in self.others]

    def refuted(self) -> Tensor:
        return self.is_refuted.view(-1, self.trees).any(1)

    def _is_at_answer(self) -> Tensor:
        return ~self.known.open.any(1) & ~self.fails

    def _waits(self) -> Tensor:
        """Mask of the trees that stand at an answer which was not returned yet."""
        return self._is_at_answer() & ~self.is_returned

    def _visit(self) -> None:
        """Go to the next node of every tree that does not wait, in place."""
        back = self.fails | self.is_returned
        self.is_refuted |= back & (self.level == 0)
        stays = self.is_refuted | self._waits()
        returns, descends = back & ~stays, ~back & ~stays
        if bool(stays.all()):
            return
        rows = descends.nonzero()[:, 0]
        here = self.known.select(rows)
        chosen = branch(self.layout, here, self.generator)
        for level in self.level[rows].unique().tolist():
            at = self.level[rows] == level
            if level == len(self.others):
                self.others.append(Known(self.known.true.clone(), self.known.false.clone()))
            self.others[level].true[rows[at]] = here.true[at]
            self.others[level].false[rows[at]] = here.false[at] | chosen[at]
        self.level += descends.long() - returns.long()
        true, false = self.known.true.clone(), self.known.false.clone()
        true[rows] |= chosen
        for level in self.level[returns].unique().tolist():
            at = returns & (self.level == level)
            true[at], false[at] = self.others[level].true[at], self.others[level].false[at]
        moved = descends | returns
        self.is_returned = self.is_returned & ~moved
        known, impossible = propagate(self.layout, Known(true[moved], false[moved]))
        self.fails = self.fails.clone()
        self.fails[moved] = impossible >= 0
        true[moved], false[moved] = known.true, known.false
        self.known = Known(true, false)

    def _answer(self, known: Known) -> Tensor:
        """True candidates, and the first possible value of each open node."""
        frame = self.layout.frame
        possible = known.true.float() * 2 - known.false.float()
        parts = []
        for slot in frame.slots.values():
            own = possible[:, slot.numbers].unflatten(1, (-1, slot.channels))
            parts.append(torch.zeros_like(own).scatter_(2, own.argmax(2, keepdim=True), 1).flatten(1))
        return torch.cat(parts, 1)
