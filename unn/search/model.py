"""Sampled block descent on the violations of the counting constraints of a declaration."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..cache import BoundedCache
from ..engine import Attempt, CanLearn, CanSolve, check_model
from ..graph.declaration import Declaration
from ..networks.tokens import Given
from ..ops.sparse import sums
from ..solver.counts import Counts, counts_of
from ..solver.layout import Layout, refusal
from ..solver.propagation import Known, evidence, propagate
from .blocks import NodeBlock, blocks_of
from .options import SearchOptions
from .tree import DepthFirst

_LAYOUTS = 64
"""Number of sizes of a graph whose layouts are kept."""

_SWEEPS = 10
"""Sweeps between two answers of a try."""


class Search(nn.Module, CanLearn, CanSolve):
    """Chains that update blocks of nodes by the number of violations of the constraints.

    Nodes in a block share no group, so their values given the others are independent, and a block is updated
    exactly: at temperature T a value has probability proportional to exp(-violations / T). Focused sweeps
    update only the nodes in violated groups (Seitz, Alava and Orponen, 2005), annealed ones all nodes.

    A chain of focused sweeps whose groups are all met begins anew once its values have been proposed as an
    answer, since constraints that do not count may have refused them.

    Args:
        graph: declaration with categorical or binary variables and counting constraints.
        options: mode, sweeps, chains and temperatures.

    Raises:
        DeclarationError: for a continuous variable, or no constraint that counts.
    """

    def __init__(self, graph: Declaration, options: SearchOptions) -> None:
        super().__init__()
        check_model("Search", options, SearchOptions, refusal(graph))
        self.graph, self.options = graph, options
        self._layouts: BoundedCache[tuple[tuple[str, int], ...], Layout] = BoundedCache(_LAYOUTS)
        self._blocks: BoundedCache[Layout, tuple[Counts, list[NodeBlock]]] = BoundedCache(_LAYOUTS)

    @property
    def enumerates(self) -> bool:
        """Whether the mode is depth-first, in which a tree visits all answers."""
        return self.options.mode == "depth-first"

    def __getstate__(self) -> dict[str, object]:
        # sparse matrices cannot be copied
        return {**self.__dict__, "_layouts": BoundedCache(_LAYOUTS), "_blocks": BoundedCache(_LAYOUTS)}

    def attempt(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        steps: int | None,
        generator: torch.Generator,
        number: int,
    ) -> Attempt:
        """Start from random values.

        Raises:
            ObservationError: for evidence that does not fit the graph.
        """
        layout = self._layouts.get_or_make(
            tuple(sorted(sizes.items())), lambda: Layout(self.graph, sizes, with_tables=self.enumerates)
        )
        rows, nodes = layout.frame.observation(given, count)
        known, _ = propagate(layout, evidence(layout, rows, nodes))
        if self.enumerates:
            trees = math.ceil(self.options.chains / count)
            return DepthFirst(layout, known, steps or self.options.solving_steps, trees, generator)
        counts, blocks = self._blocks.get_or_make(layout, lambda: _blocks(layout))
        return _Attempt(layout, counts, blocks, known, self.options, steps, generator)


def _blocks(layout: Layout) -> tuple[Counts, list[NodeBlock]]:
    counts = counts_of(layout)
    return counts, blocks_of(layout, counts)


class _Attempt(Attempt):
    def __init__(
        self,
        layout: Layout,
        counts: Counts,
        blocks: list[NodeBlock],
        known: Known,
        options: SearchOptions,
        steps: int | None,
        generator: torch.Generator,
    ) -> None:
        self.layout, self.counts, self.blocks = layout, counts, blocks
        self.options, self.generator = options, generator
        self.depth = steps or options.solving_steps
        self.sweep = 0
        # chains of an instance are adjacent columns
        self.false = known.false.repeat_interleave(options.chains, 0).T.contiguous()
        self.true = known.true.repeat_interleave(options.chains, 0).T.contiguous()
        self.totals: Tensor
        self.to_totals = sums(counts.group, counts.candidate, (len(counts.lower), layout.candidates))
        self.values = torch.zeros(self.false.shape)
        self._restart(torch.ones(self.columns, dtype=torch.bool))
        self.settled = torch.zeros(self.columns, dtype=torch.bool)

    @property
    def columns(self) -> int:
        return self.false.shape[1]

    @torch.no_grad()
    def advance(self) -> dict[str, Tensor] | None:
        if self.sweep >= self.depth:
            return None
        if self.options.mode == "focused":
            # all groups of these chains are met, so that no node of them would move again
            self._restart(self.settled)
        for _ in range(min(_SWEEPS, self.depth - self.sweep)):
            temperature = self._temperature()
            for block in self.blocks:
                if time.perf_counter() >= self.ends:
                    break
                self._update(block, temperature)
            self.sweep += 1
        cost = self.counts.cost(self.totals).sum(0)
        chains = self.options.chains
        best = cost.view(-1, chains).argmin(1) + torch.arange(0, self.columns, chains)
        self.settled = torch.zeros(self.columns, dtype=torch.bool)
        self.settled[best] = cost[best] == 0
        return self.layout.frame.unflatten(self.values[:, best].T)

    def keep(self, rows: Tensor) -> None:
        chains = self.options.chains
        columns = (rows[:, None] * chains + torch.arange(chains)).flatten()
        self.false, self.true = self.false[:, columns], self.true[:, columns]
        self.values, self.totals = self.values[:, columns], self.totals[:, columns]
        self.settled = self.settled[columns]

    def _restart(self, columns: Tensor) -> None:
        """Random values of the chains in a mask of the columns."""
        if not bool(columns.any()):
            return
        before = self.values.clone()
        for block in self.blocks:
            self._set(block, self._sample(block, torch.zeros(block.candidates.numel(), self.columns), 1.0))
        self.values = torch.where(columns, self.values, before)
        self.totals = self.to_totals @ self.values

    def _temperature(self) -> float:
        options = self.options
        if options.mode == "descent":
            return 0.0
        share = self.sweep / max(1, self.depth - 1)
        return float(options.hottest * (options.coldest / options.hottest) ** share)

    def _update(self, block: NodeBlock, temperature: float) -> None:
        """Sample the values of a block given all others, in place."""
        entries = block.candidates.flatten()
        old = self.values[entries]
        totals = self.totals[block.groups]
        without = totals - block.to_groups @ old
        new = self._sample(block, block.rise(without), temperature)
        if self.options.mode == "focused":
            focus = block.members_of((block.counts.cost(totals) > 0).to(old))
            new = torch.where(focus[:, None], new.view(*block.candidates.shape, -1), old.view_as(new))
        self._set(block, new)
        self.totals[block.groups] = without + block.to_groups @ self.values[entries]

    def _sample(self, block: NodeBlock, violations: Tensor, temperature: float) -> Tensor:
        """One-hot values of the nodes, shape ``(nodes, values, chains)``."""
        shape = (*block.candidates.shape, self.columns)
        noise = torch.rand(shape, generator=self.generator)
        if temperature:
            # the Gumbel-max trick
            scores = -violations.view(shape) / temperature - (-(noise + 1e-20).log() + 1e-20).log()
        else:
            # ties are broken at random
            scores = -violations.view(shape) + 0.5 * noise
        entries = block.candidates.flatten()
        scores = scores.masked_fill(self.false[entries].view(shape), -torch.inf)
        scores = scores.masked_fill(self.true[entries].view(shape), torch.inf)
        best = scores.argmax(1, keepdim=True)
        return torch.zeros(shape).scatter_(1, best, 1)

    def _set(self, block: NodeBlock, values: Tensor) -> None:
        self.values[block.candidates.flatten()] = values.flatten(0, 1)
