"""Products of tables over the same variables, which messages would otherwise pass around as loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..exact.tables import Family, grouped

Place = tuple[int, int]
"""Number of a family and of a table in it."""


def merged(families: Sequence[Family]) -> list[Family]:
    """Tables whose variables are not all in another table; the others multiply into one that has theirs.

    No table grows. Two tables over the same two variables are a loop for belief propagation, which is exact
    on trees, and their product is none. Tables of one variable are left as they are: they close no loop.

    Args:
        families: tables; the order of the variables in a scope does not matter.
    """
    if not _may_merge(families):
        return list(families)
    hosts = _hosts(families)
    guests: dict[tuple[int, int, tuple[int, ...]], list[tuple[int, int]]] = {}
    for (number, table), (host, place) in hosts.items():
        if (number, table) != (host, place):
            own, others = (families[n].scopes[t].tolist() for n, t in ((number, table), (host, place)))
            axes = tuple(others.index(variable) for variable in own)
            guests.setdefault((number, host, axes), []).append((table, place))
    logs = [family.logs for family in families]
    partial = [family.is_partial for family in families]
    for (number, host, axes), pairs in guests.items():
        tables, places = (torch.tensor(x) for x in zip(*pairs, strict=True))
        part = _spread(families[number].logs[tables], axes, families[host].states)
        whole = logs[host]
        batch = max(whole.shape[1], part.shape[1])
        dtype = torch.promote_types(whole.dtype, part.dtype)
        whole, part = (x.to(dtype).expand(-1, batch, *families[host].states) for x in (whole, part))
        logs[host] = whole.index_add(0, places, part)
        partial[host] = partial[host] and families[number].is_partial
    result = []
    for number, family in enumerate(families):
        left = torch.tensor([t for t in range(len(family.scopes)) if hosts[number, t] == (number, t)])
        if len(left):
            result.append(Family(family.scopes[left], logs[number][left], partial[number]))
    return grouped(result)


def _may_merge(families: Sequence[Family]) -> bool:
    """Whether two tables of several variables may share all those of one, told without a loop over
    tables."""
    wide = [family.scopes for family in families if family.scopes.shape[1] > 1]
    if len({scopes.shape[1] for scopes in wide}) > 1:
        return True
    scopes = torch.cat(wide).sort(1).values if wide else torch.zeros(0, 2)
    return len(scopes.unique(dim=0)) < len(scopes)


def _hosts(families: Sequence[Family]) -> dict[Place, Place]:
    """The table into which each one multiplies, itself if no other has all its variables."""
    hosts: dict[Place, Place] = {}
    having: dict[int, list[tuple[frozenset[int], Place]]] = {}
    for number in sorted(range(len(families)), key=lambda k: -families[k].scopes.shape[1]):
        for table, scope in enumerate(families[number].scopes.tolist()):
            place, own = (number, table), frozenset(scope)
            hosts[place] = place
            if len(own) < 2:
                continue
            rarest = min(own, key=lambda variable: len(having.get(variable, ())))
            for variables, other in having.get(rarest, ()):
                if own <= variables:
                    hosts[place] = other
                    break
            else:
                for variable in own:
                    having.setdefault(variable, []).append((own, place))
    return hosts


def _spread(logs: Tensor, axes: tuple[int, ...], states: tuple[int, ...]) -> Tensor:
    """Tables as ones over more variables, constant along those that they lack, ``(tables, batch, *states)``.

    Args:
        logs: tables, shape ``(tables, batch, *own states)``.
        axes: place of each own variable among all.
        states: number of states of all variables.
    """
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    logs = logs.permute(0, 1, *(2 + k for k in order))
    shape = [size if k in axes else 1 for k, size in enumerate(states)]
    return logs.reshape(*logs.shape[:2], *shape).expand(*logs.shape[:2], *states)
