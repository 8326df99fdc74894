"""Which values the counting constraints leave each node, given all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor

from ..graph.colouring import greedy_colours
from ..networks.tokens import Slot
from ..ops.sparse import sums
from ..solver.counts import Counts, counts_of, intersected
from ..solver.layout import Layout

_DENSE = 2**16
"""Entries up to which matrices are dense: products with small sparse ones cost more."""


@dataclass(frozen=True, eq=False)
class Exchangeable:
    """Nodes of one kind, of which pairs in a group exchange their values.

    Attributes:
        names: the variables, whose nodes are numbered one after another.
        nodes: nodes of each group, padded, shape ``(groups, most)``.
        sizes: how many nodes each group has, shape ``(groups,)``.
    """

    names: list[str]
    nodes: Tensor
    sizes: Tensor


class Limits:
    """The constraints of a layout as limits on the number of true candidates (node, value) in each group.

    The part of a group in a node is the set of its candidates of that node. Counts are float32, whatever the
    precision of the values.

    Args:
        layout: candidates and groups.
        device: of the values.

    Attributes:
        slots: layout of each discrete variable.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.slots = layout.frame.slots
        self._device = device
        self._counts = counts = intersected(counts_of(layout))
        node, nodes, candidates = layout.frame.node_of_number, layout.frame.nodes, layout.candidates
        keys, part = (counts.group * nodes + node[counts.candidate]).unique(return_inverse=True)
        pairs, weight = (part * candidates + counts.candidate).unique(return_counts=True)
        self._part_group, self._part_node = keys // nodes, keys % nodes
        pair_part, numbers = pairs // candidates, torch.arange(len(keys))

        def bounds(groups: Tensor) -> Counts:
            selected = counts.select(groups)
            lower, upper = selected.lower.float().to(device), selected.upper.float().to(device)
            return Counts(selected.candidate, selected.group, lower, upper)

        self._of_groups = bounds(torch.arange(len(counts.lower)))
        self._of_parts, self._of_pairs = bounds(self._part_group), bounds(self._part_group[pair_part])
        self._group, self._node = self._part_group.to(device), node.to(device)
        self._pair_part, self._pair_weight = pair_part.to(device), weight.float().to(device)[:, None]
        self._to_parts = self._matrix(part, counts.candidate, len(keys), candidates)
        self._to_groups = self._matrix(self._part_group, numbers, len(counts.lower), len(keys))
        self._to_nodes = self._matrix(self._part_node, numbers, nodes, len(keys))
        self._to_candidates = self._matrix(
            pairs % candidates, torch.arange(len(pairs)), candidates, len(pairs)
        )
        self._never = layout.never.float().to(device)[:, None]
        self._classes: dict[str, list[Tensor]] = {}

    def _matrix(self, sets: Tensor, members: Tensor, rows: int, columns: int) -> Tensor:
        """Sums over the members of sets, dense where it is small, shape ``(rows, columns)``."""
        x = sums(sets, members, (rows, columns))
        return (x.to_dense() if rows * columns <= _DENSE else x).float().to(self._device)

    def candidates(self, values: Mapping[str, Tensor], batch: int) -> Tensor:
        """Which candidates are true, shape ``(candidates, batch)``.

        Args:
            values: values of all variables, shape ``(batch or 1, *axes)``.
            batch: batch size.
        """
        parts = []
        for name, slot in self.slots.items():
            x = values[name].expand(batch, *slot.shape).reshape(batch, -1).float()
            parts.append(torch.stack([1 - x, x], 2).flatten(1) if slot.kind == "binary" else x)
        return torch.cat(parts, 1).T.contiguous()

    def excess(self, z: Tensor) -> Tensor:
        """By how much the groups of its node would miss their limits if the node had each value, the others
        as they are, shape ``(candidates, batch)``.

        Args:
            z: which candidates are true, of the same shape.
        """
        own = self._to_parts @ z
        rest = (self._to_groups @ own)[self._group] - own
        without = self._of_parts.cost(rest)
        chosen = self._of_pairs.cost(rest[self._pair_part] + self._pair_weight)
        change = self._to_candidates @ (chosen - without[self._pair_part])
        return (self._to_nodes @ without)[self._node] + change + self._never

    def satisfied(self, z: Tensor) -> Tensor:
        """Mask of the batch elements that miss no limit, shape ``(batch,)``.

        Args:
            z: which candidates are true, shape ``(candidates, batch)``.
        """
        missed = self._of_groups.cost(self._to_groups @ (self._to_parts @ z)).sum(0)
        return missed + (self._never * z).sum(0) == 0

    def classes(self, name: str) -> list[Tensor]:
        """Nodes of a variable in classes without common groups, boolean, shape ``(1, *nodes, 1, ...)``."""
        if name not in self._classes:
            slot = self.slots[name]
            own = (self._part_node >= slot.nodes.start) & (self._part_node < slot.nodes.stop)
            groups, nodes = self._part_group[own].numpy(), (self._part_node[own] - slot.nodes.start).numpy()
            shape = (len(self._counts.lower), _count(slot))
            incidence = coo_array((np.ones(len(nodes)), (groups, nodes)), shape=shape).tocsr()
            features = [1] * (len(slot.shape) - len(slot.node_shape))
            colours = torch.from_numpy(greedy_colours(incidence.T @ incidence))
            colours = colours.view(1, *slot.node_shape, *features).to(self._device)
            self._classes[name] = [colours == colour for colour in range(int(colours.max()) + 1)]
        return self._classes[name]

    def exchangeable(self) -> list[Exchangeable]:
        """The groups with a fixed number of ones, for each kind of nodes that can exchange their values."""
        families: dict[tuple[str, int], list[str]] = {}
        for name, slot in self.slots.items():
            families.setdefault((slot.kind, slot.channels), []).append(name)
        counts = self._counts
        fixed = (counts.lower == counts.upper)[:, 0].tolist()
        lengths = torch.bincount(counts.group, minlength=len(fixed)).tolist()
        node = self._node.cpu()
        parts = node[counts.candidate].split(lengths) if lengths else ()
        groups = [x.unique() for x, is_fixed in zip(parts, fixed, strict=True) if is_fixed]
        result = []
        for names in families.values():
            place = torch.full((int(node.max()) + 1,), -1)
            first = 0
            for slot in (self.slots[name] for name in names):
                place[slot.nodes] = torch.arange(first, first + _count(slot))
                first += _count(slot)
            own = [place[x] for x in groups if len(x) > 1 and bool((place[x] >= 0).all())]
            if own:
                rows = torch.nn.utils.rnn.pad_sequence(own, batch_first=True)
                result.append(Exchangeable(names, rows, torch.tensor([len(x) for x in own])))
        return result

    def rows(self, values: Mapping[str, Tensor], names: list[str], batch: int) -> Tensor:
        """Values of the nodes of some variables, shape ``(batch, nodes, channels)``; the inverse of
        ``values_of``."""
        slots = [self.slots[name] for name in names]
        parts = [values[s.name].expand(batch, *s.shape).reshape(batch, _count(s), -1) for s in slots]
        return torch.cat(parts, 1)

    def values_of(self, rows: Tensor, names: list[str]) -> dict[str, Tensor]:
        """Values by variable, shape ``(batch, *axes)``, of rows of their nodes."""
        slots = [self.slots[name] for name in names]
        parts = rows.split([_count(slot) for slot in slots], 1)
        return {s.name: part.reshape(len(rows), *s.shape) for s, part in zip(slots, parts, strict=True)}


def _count(slot: Slot) -> int:
    """Number of nodes of a variable."""
    return int(slot.nodes.stop) - int(slot.nodes.start)
