"""Best values from max-marginals, also where several are equally good."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..exact.tables import Family
from .propagation import Beliefs

_TIE = 1e-6
"""Difference of the logarithms of two max-marginals up to which they count as equal."""


def best_states(families: Sequence[Family], beliefs: Beliefs) -> Tensor:
    """States of the largest max-marginals, shape ``(variables, batch)``.

    In rows in which two states of a variable are equally good, the variables are assigned one after another,
    each given those before it in the tables that it shares with them: the states of largest max-marginals
    need not be those of one best assignment. On trees this one is.

    Args:
        families: tables.
        beliefs: result of belief propagation by maxima.
    """
    best = beliefs.variables.argmax(2)
    if beliefs.variables.shape[2] < 2:
        return best
    first, second = beliefs.variables.topk(2, dim=2).values.unbind(2)
    tied = (first - second <= _TIE).any(0)
    return torch.where(tied, _assigned(families, beliefs), best) if bool(tied.any()) else best


def _assigned(families: Sequence[Family], beliefs: Beliefs) -> Tensor:
    """States of the variables, assigned one after another, shape ``(variables, batch)``."""
    count, batch, _ = beliefs.variables.shape
    tables: list[list[tuple[int, int, list[int]]]] = [[] for _ in range(count)]
    for number, family in enumerate(families):
        for table, scope in enumerate(family.scopes.tolist()):
            for variable in scope:
                tables[variable].append((number, table, scope))
    states = torch.full((count, batch), -1)
    rows, is_assigned = torch.arange(batch), [False] * count
    for variable in _connected_order(tables):
        own = beliefs.variables[variable]
        score = own
        for number, table, scope in tables[variable]:
            if not any(is_assigned[other] for other in scope):
                continue
            shared = beliefs.tables[number][table].log()
            for axis in reversed(range(len(scope))):
                if is_assigned[scope[axis]]:
                    shared = shared.movedim(1 + axis, 1)[rows, states[scope[axis]]]
                elif scope[axis] != variable:
                    shared = shared.amax(1 + axis)
            gain = torch.full_like(own, -torch.inf)
            gain[:, : shared.shape[1]] = shared
            score = score + torch.where(own > -torch.inf, gain - own, -torch.inf)
        is_possible = (score > -torch.inf).any(1, keepdim=True)
        states[variable] = torch.where(is_possible, score, own).argmax(1)
        is_assigned[variable] = True
    return states


def _connected_order(tables: Sequence[Sequence[tuple[int, int, list[int]]]]) -> list[int]:
    """All variables, each but the first of a component after one with which it shares a table."""
    order: list[int] = []
    is_reached = [False] * len(tables)
    for start in range(len(tables)):
        if is_reached[start]:
            continue
        is_reached[start] = True
        component = [start]
        for variable in component:
            for _, _, scope in tables[variable]:
                for other in scope:
                    if not is_reached[other]:
                        is_reached[other] = True
                        component.append(other)
        order += component
    return order
