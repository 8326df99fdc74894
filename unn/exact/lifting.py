"""Lifting: exchangeable variables as one variable that counts how many of them have each state.

Where many variables have the same tables with one another, a graph may be as dense as can be and still have
an exact answer: the weight of all values depends on counts alone. Variables are classed by colour refinement;
where each two classes are connected completely by equal tables, or not at all, each class becomes one
variable whose states are its histograms, weighted by their multinomial coefficients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .sweeps import log_sum
from .tables import Family, TableModel

_MOST_HISTOGRAMS = 20_000
"""Largest number of histograms of one class."""

_DENSE = 8
"""Number of tables for each shared variable, and for each different table, from which lifting is tried."""

_MOST_ENTRIES = 2**26
"""Largest number of entries of a table of two classes."""

Pair = tuple[int, int]
Logs = NDArray[np.float64]


@dataclass(eq=False)
class _Private:
    """A table whose private variables, which occur in no other, were summed out.

    Attributes:
        rest: the other variables, one or two.
        private: the private variables.
        logs: the table with the scores of the private variables, axes of the rest first.
    """

    rest: tuple[int, ...]
    private: tuple[int, ...]
    logs: Logs


@dataclass(eq=False)
class Lifted:
    """A model of histograms.

    Attributes:
        model: a variable for each class; their tables.
        classes: variables of each class.
        histograms: count of each state, by class, shape ``(histograms, states)``.
    """

    model: TableModel
    classes: list[list[int]]
    histograms: list[Tensor]
    _class_of: dict[int, int] = field(default_factory=dict)
    _pairs: dict[Pair, int] = field(default_factory=dict)
    _private: list[_Private] = field(default_factory=list)

    def probabilities(self, single: Tensor, pairs: Sequence[Tensor]) -> dict[int, Tensor]:
        """Probabilities of the states of all variables, each of shape ``(states,)``.

        Args:
            single: marginals of the variables of ``model``, shape ``(classes, most histograms)``.
            pairs: marginals of its tables of two classes, each of shape ``(histograms, histograms)``.
        """
        result: dict[int, Tensor] = {}
        for members, counts, own in zip(self.classes, self.histograms, single, strict=True):
            p = own[: len(counts)] @ counts / len(members)
            result |= dict.fromkeys(members, p)
        joint: dict[tuple[int, int], Tensor] = {}
        for table in self._private:
            rest = self._joint(table.rest, single, pairs, joint, result)
            logs = torch.from_numpy(table.logs)
            inner = logs.flatten(len(table.rest))
            conditional = torch.softmax(torch.where(rest[..., None] > 0, inner, 0.0), -1)
            p = (rest[..., None] * conditional).reshape(logs.shape).flatten(0, len(table.rest) - 1).sum(0)
            for axis, variable in enumerate(table.private):
                others = [k for k in range(p.ndim) if k != axis]
                result[variable] = p.sum(others) if others else p
        return result

    def _joint(
        self,
        variables: tuple[int, ...],
        single: Tensor,
        pairs: Sequence[Tensor],
        cached: dict[tuple[int, int], Tensor],
        known: dict[int, Tensor],
    ) -> Tensor:
        """Joint probabilities of one or two variables."""
        if len(variables) == 1:
            return known[variables[0]]
        a, b = (self._class_of[v] for v in variables)
        if (a, b) not in cached:
            left, right = self.histograms[a], self.histograms[b]
            if a == b:
                own = single[a, : len(left)]
                both = torch.einsum("h,hs,ht->st", own, left, left) - torch.diag(own @ left)
                cached[a, b] = both / (len(self.classes[a]) * (len(self.classes[a]) - 1))
            else:
                table = pairs[self._pairs[min(a, b), max(a, b)]]
                table = table if a < b else table.T
                both = left.T @ table @ right
                cached[a, b] = both / (len(self.classes[a]) * len(self.classes[b]))
        return cached[a, b]


def is_worth_lifting(model: TableModel) -> bool:
    """Whether a model is so dense, and its tables so similar, that its variables may be exchangeable."""
    wide = [family for family in model.families if family.scopes.shape[1] > 1]
    if not wide or any(family.logs.requires_grad or family.logs.shape[1] > 1 for family in model.families):
        return False
    degree = torch.bincount(torch.cat([family.scopes.flatten() for family in wide]))
    shared, tables = int((degree > 1).sum()), sum(len(family.scopes) for family in wide)
    if tables < _DENSE * shared:
        return False
    different = sum(len(family.logs[:, 0].flatten(1).unique(dim=0)) for family in wide)
    return different * _DENSE <= tables


def lift(families: Sequence[Family], states: Sequence[int], name: str) -> Lifted | None:
    """The model of histograms of a model without a batch; None where its variables are not exchangeable.

    Args:
        families: tables.
        states: number of states of each variable.
        name: name of the model.
    """
    if any(family.logs.shape[1] > 1 or family.logs.requires_grad for family in families):
        return None
    scores = [np.zeros(size) for size in states]
    wide: list[tuple[tuple[int, ...], Logs]] = []
    for family in families:
        for scope, logs in zip(family.scopes.tolist(), family.logs[:, 0].double().cpu().numpy(), strict=True):
            if len(scope) == 1:
                scores[scope[0]] = scores[scope[0]] + logs
            else:
                wide.append((tuple(scope), logs))
    private = _sum_out_private(wide, scores)
    if private is None:
        return None
    hidden = {variable for table in private for variable in table.private}
    edges: dict[Pair, Logs] = {}
    eliminated = [(table.rest, _log_total(table)) for table in private]
    for scope, logs in [*(table for table in wide if not hidden & set(table[0])), *eliminated]:
        if len(scope) == 1:
            scores[scope[0]] = scores[scope[0]] + logs
            continue
        pair, own = ((scope[0], scope[1]), logs) if scope[0] < scope[1] else ((scope[1], scope[0]), logs.T)
        edges[pair] = edges[pair] + own if pair in edges else own
    remaining = [v for v in range(len(states)) if v not in hidden]
    classes = _classes(remaining, scores, edges)
    if len(classes) == len(remaining):
        return None
    return _model_of(classes, scores, edges, private, name)


def _sum_out_private(
    wide: Sequence[tuple[tuple[int, ...], Logs]], scores: Sequence[Logs]
) -> list[_Private] | None:
    """Tables of which some variables occur in no other, unless more than two others remain in one."""
    degree = np.zeros(len(scores), dtype=int)
    for scope, _ in wide:
        degree[list(scope)] += 1
    result = []
    for scope, logs in wide:
        rest = [v for v in scope if degree[v] > 1] or [scope[0]]
        own = [v for v in scope if v not in rest]
        if len(rest) > 2:
            return None
        if own:
            table = np.transpose(logs, [scope.index(v) for v in (*rest, *own)])
            for axis, v in enumerate(own, len(rest)):
                shape = [1] * table.ndim
                shape[axis] = -1
                table = table + scores[v].reshape(shape)
            result.append(_Private(tuple(rest), tuple(own), table))
    return result


def _log_total(table: _Private) -> Logs:
    """The table of the rest: the private variables are summed out."""
    total: Logs = log_sum(torch.from_numpy(table.logs).flatten(len(table.rest))).numpy()
    return total


def _classes(variables: Sequence[int], scores: Sequence[Logs], edges: dict[Pair, Logs]) -> list[list[int]]:
    """Classes of variables that colour refinement cannot tell apart."""
    colour = _numbered({v: scores[v].tobytes() for v in variables})
    near: dict[int, list[tuple[int, bytes]]] = {v: [] for v in variables}
    for (u, v), logs in edges.items():
        near[u].append((v, np.ascontiguousarray(logs).tobytes()))
        near[v].append((u, np.ascontiguousarray(logs.T).tobytes()))
    number = {text: k for k, text in enumerate({text for own in near.values() for _, text in own})}
    numbered = {v: [(u, number[text]) for u, text in own] for v, own in near.items()}
    while True:
        signatures = {
            v: (colour[v], tuple(sorted((colour[u], k) for u, k in own))) for v, own in numbered.items()
        }
        refined = _numbered(signatures)
        if len(set(refined.values())) == len(set(colour.values())):
            break
        colour = refined
    classes: dict[int, list[int]] = {}
    for v in variables:
        classes.setdefault(colour[v], []).append(v)
    return list(classes.values())


def _numbered(values: Mapping[int, object]) -> dict[int, int]:
    """Numbers of equal values, by key."""
    numbers: dict[object, int] = {}
    return {key: numbers.setdefault(value, len(numbers)) for key, value in values.items()}


def _model_of(
    classes: list[list[int]],
    scores: Sequence[Logs],
    edges: dict[Pair, Logs],
    private: list[_Private],
    name: str,
) -> Lifted | None:
    """The tables of histograms; None where two classes are connected in part, or there are too many."""
    class_of = {v: k for k, members in enumerate(classes) for v in members}
    groups: dict[Pair, list[Logs]] = {}
    for (u, v), logs in edges.items():
        a, b = class_of[u], class_of[v]
        groups.setdefault((min(a, b), max(a, b)), []).append(logs if a <= b else logs.T)
    sizes = [len(members) for members in classes]
    for (a, b), tables in groups.items():
        complete = sizes[a] * (sizes[a] - 1) // 2 if a == b else sizes[a] * sizes[b]
        same = all(np.array_equal(tables[0], table) for table in tables)
        if len(tables) != complete or not same or (a == b and not np.array_equal(tables[0], tables[0].T)):
            return None
    counts = [
        _histograms(size, len(scores[members[0]])) for size, members in zip(sizes, classes, strict=True)
    ]
    if any(count is None for count in counts):
        return None
    histograms = [count for count in counts if count is not None]
    families = []
    for k, (members, own) in enumerate(zip(classes, histograms, strict=True)):
        weights = _multinomial(own) + _weighted(own, torch.from_numpy(scores[members[0]])[:, None])[:, 0]
        if (k, k) in groups:
            within = torch.from_numpy(np.ascontiguousarray(groups[k, k][0]))
            weights = weights + _weighted(own, within, own, within=True)
        families.append(Family(torch.tensor([[k]]), weights[None, None]))
    pairs: dict[Pair, int] = {}
    for (a, b), tables in groups.items():
        if a == b:
            continue
        if len(histograms[a]) * len(histograms[b]) > _MOST_ENTRIES:
            return None
        between = torch.from_numpy(np.ascontiguousarray(tables[0]))
        pairs[a, b] = len(pairs)
        families.append(
            Family(torch.tensor([[a, b]]), _weighted(histograms[a], between, histograms[b])[None, None])
        )
    model = TableModel(
        tuple(map(len, histograms)),
        tuple(families),
        tuple(f"class {k}" for k in range(len(classes))),
        f"{name}, lifted",
    )
    return Lifted(model, classes, histograms, class_of, pairs, private)


def _histograms(size: int, states: int) -> Tensor | None:
    """All ways to distribute a number of variables over states, shape ``(histograms, states)``."""
    if math.comb(size + states - 1, states - 1) > _MOST_HISTOGRAMS:
        return None
    bars = itertools.combinations(range(size + states - 1), states - 1)
    rows = [
        [after - before - 1 for before, after in itertools.pairwise((-1, *own, size + states - 1))]
        for own in bars
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _multinomial(counts: Tensor) -> Tensor:
    """Logarithm of the number of ways to have a histogram, shape ``(histograms,)``."""
    return torch.lgamma(counts.sum(1) + 1) - torch.lgamma(counts + 1).sum(1)


def _weighted(left: Tensor, table: Tensor, right: Tensor | None = None, within: bool = False) -> Tensor:
    """Sums of logarithms over all pairs of variables, by histograms; -inf where an impossible pair occurs.

    Args:
        left: histograms of the first class.
        table: logarithms, shape ``(states, states)``, or ``(states, 1)`` for scores of single variables.
        right: histograms of the second class, or of the same if ``within``; None for single variables.
        within: sum over the unordered pairs of one class instead.
    """
    finite = torch.where(table > -torch.inf, table, 0.0)
    never = (table == -torch.inf).double()
    if within:
        diagonal = left * (left - 1) / 2
        upper = torch.triu(finite, 1), torch.triu(never, 1)
        total, broken = (
            torch.einsum("hs,st,ht->h", left, x, left) + diagonal @ own.diagonal()
            for x, own in zip(upper, (finite, never), strict=True)
        )
    elif right is None:
        total, broken = left @ finite, left @ never
    else:
        total, broken = left @ finite @ right.T, left @ never @ right.T
    return torch.where(broken > 0, -torch.inf, total)
