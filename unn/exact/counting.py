"""Tables of constraints: of 0 and 1 over all nodes of a group or of a combination, or a chain of counters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..graph.factor import Constraint
from ..graph.groups import AllowedCombinations
from .nodes import Nodes
from .tables import Family

_DIRECT = 4096
"""Largest number of entries of a table of one group; larger groups are chains of counters."""
_LISTED = 2**18
"""Largest number of entries of a table of allowed combinations; groups would exclude all others singly."""


def counted_tables(nodes: Nodes, factor: Constraint, states: list[int], names: list[str]) -> list[Family]:
    """Tables of 0 and 1 of the combinations or groups of a constraint; counters are added to the
    variables."""
    shapes = {name: nodes.shapes[name] for name in factor.variables}
    listed = factor.combinations(shapes)
    if listed and all(math.prod(x.shape[1] for x in own.entries) <= _LISTED for own in listed):
        return [_listed_family(nodes, own) for own in listed]
    families = []
    counted_groups = 0
    for part in factor.groups(shapes):
        node_parts, state_parts = [], []
        for name, entries in part.entries.items():
            own = nodes.ranges[name]
            entry = torch.from_numpy(np.ascontiguousarray(entries))
            if own.feature_shape:
                node_parts.append(own.first + entry // own.states)
                state_parts.append(entry % own.states)
            else:
                node_parts.append(own.first + entry)
                state_parts.append(torch.ones_like(entry))
        scopes, counted = torch.cat(node_parts, 1), torch.cat(state_parts, 1)
        if not scopes.numel():
            if len(scopes) and (part.lower > 0 or (part.upper is not None and part.upper < 0)):
                # of no entries none is 1
                families.append(Family(scopes[:1], torch.full((1, 1), -torch.inf, dtype=torch.float64)))
            continue
        upper = scopes.shape[1] if part.upper is None else part.upper
        for family, own_states in _distinct_groups(scopes, counted, states):
            families += _count_families(
                family, own_states, part.lower, upper, states, names, factor.name, counted_groups
            )
            counted_groups += len(family)
    return families


def _listed_family(nodes: Nodes, table: AllowedCombinations) -> Family:
    """One table for each assignment of nodes: 1 at the allowed combinations."""
    owners = [nodes.ranges[name] for name in table.names]
    scopes = [own.first + x[:, 0] // own.states for own, x in zip(owners, table.entries, strict=True)]
    logs = torch.full([own.states for own in owners], -torch.inf, dtype=torch.float64)
    logs[tuple(torch.from_numpy(table.allowed).T)] = 0
    scope = torch.from_numpy(np.stack(scopes, 1))
    return Family(scope, logs.expand(len(scope), 1, *logs.shape))


def _distinct_groups(scopes: Tensor, counted: Tensor, states: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Groups by their distinct nodes, and how often each state of these counts.

    Args:
        scopes: node of each member, shape ``(groups, members)``.
        counted: state of each member that counts, same shape.
        states: number of states of each node.

    Returns:
        Nodes, shape ``(groups, nodes)``, and counts, shape ``(groups, nodes, most states)``, by number
        of nodes.
    """
    most = max(states)
    by_shape: dict[tuple[int, ...], tuple[list[list[int]], list[Tensor]]] = {}
    for members, own in zip(scopes.tolist(), counted, strict=True):
        distinct = list(dict.fromkeys(members))
        counts = torch.zeros(len(distinct), most)
        places = torch.tensor([distinct.index(node) for node in members])
        counts.index_put_((places, own), torch.ones(len(members)), accumulate=True)
        key = tuple(states[node] for node in distinct)
        groups, weights = by_shape.setdefault(key, ([], []))
        groups.append(distinct)
        weights.append(counts)
    return [(torch.tensor(groups), torch.stack(weights)) for groups, weights in by_shape.values()]


def _count_families(
    scopes: Tensor,
    counts: Tensor,
    lower: int,
    upper: int,
    states: list[int],
    names: list[str],
    name: str,
    first: int,
) -> list[Family]:
    """Tables of groups: of all their nodes, or of a chain of counters."""
    sizes = [states[node] for node in scopes[0].tolist()]
    groups = len(scopes)
    if math.prod(sizes) <= _DIRECT:
        total = torch.zeros(groups, *[1] * len(sizes))
        for axis, size in enumerate(sizes):
            shape = [groups, *(size if k == axis else 1 for k in range(len(sizes)))]
            total = total + counts[:, axis, :size].reshape(shape)
        allowed = (total >= lower) & (total <= upper)
        return [Family(scopes, torch.where(allowed, 0.0, -torch.inf).double()[:, None])]
    # counters saturate beyond what the bounds tell apart
    cap = max(lower, upper + 1) if upper < counts.sum((1, 2)).max() else lower
    number = torch.arange(cap + 1)
    families = []
    before: Tensor | None = None
    for axis, size in enumerate(sizes):
        # reached[g, c, s]: the counter after this node
        start = number if before is not None else number[:1]
        reached = (start[None, :, None] + counts[:, axis, None, :size]).clamp(max=cap)
        last = axis == len(sizes) - 1
        if last:
            allowed = (reached >= lower) & (reached <= upper)
            logs, columns = torch.where(allowed, 0.0, -torch.inf).double(), []
        else:
            hit = reached[..., None] == number
            logs = torch.where(hit, 0.0, -torch.inf).double()
            columns = [torch.arange(len(states), len(states) + groups)]
            for group in range(groups):
                names.append(f"{name} counter {first + group}.{axis}")
                states.append(cap + 1)
        logs = logs if before is not None else logs[:, 0]
        own = [scopes[:, axis]] if before is None else [before, scopes[:, axis]]
        families.append(Family(torch.stack([*own, *columns], 1), logs[:, None]))
        before = columns[0] if columns else None
    return families
