"""Exact queries of graphs with structured variables: trees, label sequences, subsets of fixed size.

The entries of a structured variable (regularizer ``LogPartition``) are binary nodes whose joint values are
the structures. Where they meet nowhere else, the rest of the graph is a weight for each value of each entry,
and the sum over structures is the conjugate of the regularizer at the log-odds of these weights: the
matrix-tree theorem or a recursion is a factor of a tree (undirected-network paper, eq. 17 to 20).

Each query here is that of ``inference`` where the graph has no structured variable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..descent.checks import check_generator
from ..errors import InferenceError, ObservationError
from ..plain import without_compilation
from ..regularizers import LogPartition, Regularizer
from . import inference
from .inference import (
    Marginals,
    Semiring,
    check_semiring,
    entropy_terms,
    impossible_row,
    possible_weights,
)
from .nodes import Nodes
from .options import ExactOptions
from .tables import Family, TableEvidence, TableModel, rows_of

Query = tuple[Nodes, TableModel, TableEvidence]


@dataclass(frozen=True, eq=False)
class _Structure:
    """The structures of one variable given the rest of the graph.

    Attributes:
        regularizer: that of the variable.
        groups: numbers of rows of evidence, and the regularizer restricted to the entries that are
            certain; only rows with a structure, and with more than one.
        certain: entries that are 1 for certain, shape ``(batch, *axes)``.
        scores: log-odds of the other entries, 0 where certain, shape ``(batch, *axes)``.
        log_partition: logarithm of the sum of ``exp(scores)`` over the structures, shape ``(batch,)``.
    """

    regularizer: LogPartition
    groups: tuple[tuple[Tensor, LogPartition], ...]
    certain: Tensor
    scores: Tensor
    log_partition: Tensor

    def each(self, answer: Callable[[LogPartition, Tensor], Tensor]) -> Tensor:
        """Something of the shape of the entries, such as means, shape ``(batch, entries)``."""
        result = self.certain.double()
        for rows, regularizer in self.groups:
            result = result.index_put((rows,), answer(regularizer, self.scores[rows]))
        return result.flatten(1)

    def means(self) -> Tensor:
        """Probabilities that the entries are 1, shape ``(batch, entries)``."""
        return self.each(lambda regularizer, scores: regularizer.mirror(scores)).clamp(0, 1)

    def draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Structures drawn from their distribution, shape ``(batch, count, entries)``."""
        result = self.certain.double().repeat_interleave(count, 0)
        for rows, regularizer in self.groups:
            scores = self.scores[rows].repeat_interleave(count, 0)
            own: Regularizer | None = regularizer
            if regularizer is not self.regularizer:
                certain = self.certain[rows].repeat_interleave(count, 0)
                own = self.regularizer.restricted(certain.double(), certain)
            assert own is not None
            places = (rows[:, None] * count + torch.arange(count)).flatten()
            result[places] = own.sample(scores, None, generator)
        return result.view(len(self.certain), count, -1)

    def entropy(self) -> Tensor:
        """Entropy of the structures in nats, shape ``(batch,)``."""
        total = torch.zeros_like(self.log_partition)
        for rows, regularizer in self.groups:
            scores = self.scores[rows]
            # rounding may leave an excluded entry a probability of 1e-17
            means = torch.where(scores > -torch.inf, regularizer.mirror(scores), 0)
            total = total.index_put((rows,), -regularizer.value_at_mirror(means, scores))
        return total


@dataclass(frozen=True, eq=False)
class _Rest:
    """The rest of a graph, in which the entries of structures are independent binary nodes.

    Attributes:
        model: all tables but those of single entries.
        entries: numbers of the entries of all structured variables.
        log_partition: shape ``(batch,)``, -inf for impossible evidence.
        logs: logarithms of the probabilities of the values 0 and 1 of each entry in this model, shape
            ``(batch, entries, 2)``.
        own: logarithms of the tables of single entries, same shape or a batch of 1.
    """

    model: TableModel
    entries: Tensor
    log_partition: Tensor
    logs: Tensor
    own: Tensor

    def with_means(self, means: Tensor) -> TableModel:
        """The rest with other probabilities of the entries.

        Args:
            means: probabilities of the value 1, shape ``(batch, entries)``.
        """
        p = torch.stack([1 - means, means], -1)
        # rounding may leave a certain entry a probability of 1e-17
        there = (p > 0) & (self.logs > -torch.inf)
        ratio = torch.where(there, p, 1).log() - torch.where(there, self.logs, 0)
        logs = torch.where(there, ratio, -torch.inf)
        family = Family(self.entries[:, None], logs.transpose(0, 1))
        return replace(self.model, families=(*self.model.families, family))


@without_compilation
def log_partition(query: Query, options: ExactOptions | None, semiring: Semiring = "sum") -> Tensor:
    """See ``inference.log_partition``.

    Raises:
        ArgumentError: for an unknown semiring.
        InferenceError: for entries of structures that the rest of the graph couples; names two.
    """
    nodes, model, evidence = query
    if not nodes.structured:
        return inference.log_partition(model, evidence, options, semiring=semiring)
    check_semiring(semiring)
    if semiring == "max":
        states, weight = best_values(query, options)
        # the derivative is that of the weight of the best values
        known = TableEvidence(states, evidence.scores)
        total = inference.log_partition(model, known, options)
        return torch.where(weight > -torch.inf, total, -torch.inf)
    if semiring == "count":
        model, evidence = possible_weights(model, evidence)
        with torch.no_grad():
            return _solve((nodes, model, evidence), options)[2]
    return _solve(query, options)[2]


@without_compilation
def marginals(query: Query, options: ExactOptions | None) -> Marginals:
    """See ``inference.marginals``; errors as for ``log_partition``."""
    nodes, model, evidence = query
    if not nodes.structured:
        return inference.marginals(model, evidence, options)
    rest, structures, total = _solve(query, options)
    means = torch.cat([structure.means() for structure in structures], 1)
    answer = inference.marginals(rest.with_means(means), evidence, options)
    possible = (total > -torch.inf)[:, None, None]
    return Marginals(total, torch.where(possible, answer.probabilities, 0))


@without_compilation
def best_values(query: Query, options: ExactOptions | None) -> tuple[Tensor, Tensor]:
    """See ``inference.best_values``; errors as for ``log_partition``."""
    nodes, model, evidence = query
    if not nodes.structured:
        return inference.best_values(model, evidence, options)
    with torch.no_grad():
        rest, _, total = _solve(query, options)
        weights = _best_weights(rest, evidence, options) + rest.own
        best = torch.cat(
            [
                structure.each(lambda regularizer, scores: regularizer.argmax(scores))
                for structure in _structures(nodes, weights, total > -torch.inf)
            ],
            1,
        )
        known = _with_entries(evidence, rest.entries, best)
        states, weight = inference.best_values(model, known, options)
    return states, torch.where(total > -torch.inf, weight, -torch.inf)


@without_compilation
def k_best(query: Query, k: int, options: ExactOptions | None) -> tuple[Tensor, Tensor]:
    """See ``inference.k_best``, over the nodes of the graph; errors as for ``log_partition``.

    Raises:
        InferenceError: for structures that are not given, and of which single entries cannot be fixed, as
            answers are found by fixing them.
    """
    nodes, model, evidence = query
    for name in nodes.structured:
        own, regularizer = nodes.ranges[name], nodes.graph.variables[name].regularizer
        nothing = torch.zeros(1, *nodes.shapes[name], dtype=torch.float64)
        is_open = bool((evidence.values[:, own.first : own.first + own.nodes] < 0).any())
        if k != 1 and is_open and regularizer.restricted(nothing, nothing.bool()) is None:
            raise InferenceError(
                f"variable {name!r}: the k best values are not known for {regularizer!r}, of which single "
                "entries cannot be fixed; ask for the best values, or for samples."
            )

    def best(part: TableModel, rows: TableEvidence) -> tuple[Tensor, Tensor]:
        return best_values((nodes, part, rows), options)

    return inference.k_best(model, k, evidence, options, over=nodes.count, best=best)


@without_compilation
def entropy(query: Query, options: ExactOptions | None) -> Tensor:
    """See ``inference.entropy``; errors as for ``log_partition``."""
    nodes, model, evidence = query
    if not nodes.structured:
        return inference.entropy(model, evidence, options)
    rest, structures, total = _solve(query, options)
    means = torch.cat([structure.means() for structure in structures], 1)
    # the parts of the rest are independent given the structures, each of which an entry joins
    others = inference.entropy(rest.with_means(means), evidence, options)
    entries = (entropy_terms(means) + entropy_terms(1 - means)).sum(1)
    result = torch.stack([structure.entropy() for structure in structures]).sum(0) + others - entries
    return torch.where(total > -torch.inf, result.clamp(min=0), 0)


@without_compilation
def sample(
    query: Query, count: int, options: ExactOptions | None, generator: torch.Generator | None
) -> Tensor:
    """See ``inference.sample``; errors as for ``log_partition``."""
    nodes, model, evidence = query
    if not nodes.structured:
        return inference.sample(model, count, evidence, options, generator)
    check_generator(generator)
    with torch.no_grad():
        rest, structures, total = _solve(query, options)
        impossible = (total == -torch.inf).nonzero()[:, 0]
        if len(impossible):
            raise impossible_row(model.name, int(impossible[0]))
        drawn = torch.cat([structure.draw(count, generator) for structure in structures], 2)
        rows = torch.arange(len(total)).repeat_interleave(count)
        entries = drawn.flatten(0, 1)
        known = _with_entries(evidence.rows(rows), rest.entries, entries)
        states = inference.sample(rows_of(model, rows), 1, known, options, generator)
    return states.view(len(total), count, -1)


def _solve(query: Query, options: ExactOptions | None) -> tuple[_Rest, list[_Structure], Tensor]:
    """The rest of a graph, its structures given the rest, and the log-partition of both."""
    nodes, model, evidence = query
    rest = _rest(nodes, model, evidence, options)
    weights = rest.logs + rest.own
    possible = (rest.log_partition > -torch.inf) & (weights > -torch.inf).any(2).all(1)
    structures = _structures(nodes, weights, possible)
    # an entry that is certain counts by the weight of the value 1, the others relative to that of 0
    certain = torch.cat([structure.certain.flatten(1) for structure in structures], 1)
    constant = torch.where(certain, weights[..., 1], weights[..., 0]).sum(1)
    total = rest.log_partition + constant
    for structure in structures:
        total = total + structure.log_partition
    return rest, structures, torch.where(possible, total, -torch.inf)


def _rest(nodes: Nodes, model: TableModel, evidence: TableEvidence, options: ExactOptions | None) -> _Rest:
    entries = torch.cat([nodes.ranges[name].numbers().flatten() for name in nodes.structured])
    place = torch.full((len(model.states),), -1)
    place[entries] = torch.arange(len(entries))
    families = []
    batch = max(model.batch, len(evidence.values), *map(len, evidence.scores.values()), 1)
    own = torch.zeros(1, len(entries), 2, dtype=torch.float64)
    for family in model.families:
        if len(family.states) > 1 or not bool((place[family.scopes] >= 0).any()):
            families.append(family)
            continue
        single = place[family.scopes[:, 0]] >= 0
        logs = family.logs[single].double().transpose(0, 1)
        own = own.expand(max(len(own), len(logs)), -1, -1)
        own = own.index_add(1, place[family.scopes[single, 0]], logs.expand(len(own), -1, -1))
        if not bool(single.all()):
            families.append(Family(family.scopes[~single], family.logs[~single]))
    rest = replace(model, families=tuple(families))
    _check_independent(rest, evidence, entries, nodes.count)
    differentiable = torch.is_grad_enabled()
    # inference mode records no graph, so that every marginal would be zero
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.zeros(len(entries), batch, 2, dtype=torch.float64, requires_grad=True)
        whole = replace(rest, families=(*rest.families, Family(entries[:, None], leaf)))
        total = inference.log_partition(whole, evidence, options)
        total = total.expand(batch)
        p = torch.zeros_like(leaf)
        possible = total[total > -torch.inf].sum()
        if possible.requires_grad and len(entries):
            (p,) = torch.autograd.grad(possible, leaf, create_graph=differentiable)
    if not differentiable:
        total, p = total.detach(), p.detach()
    p = p.transpose(0, 1)
    logs = torch.where(p > 0, torch.where(p > 0, p, 1).log(), -torch.inf)
    logs = _with_underflow(rest, evidence, entries, logs, total, options)
    return _Rest(rest, entries, total, logs, own)


def _structures(nodes: Nodes, weights: Tensor, possible: Tensor) -> list[_Structure]:
    """The structures of each variable, given the logarithms of the weights of its entries.

    Args:
        nodes: nodes of the graph.
        weights: logarithms for the values 0 and 1, shape ``(batch, entries, 2)``.
        possible: mask of the rows that are of interest, shape ``(batch,)``.
    """
    structures = []
    start = 0
    for name in nodes.structured:
        own = nodes.ranges[name]
        zero, one = weights[:, start : start + own.nodes].unbind(2)
        start += own.nodes
        shape = len(weights), *own.node_shape
        certain, never = zero == -torch.inf, one == -torch.inf
        either = certain | never
        odds = torch.where(either, 0, torch.where(either, 0, one) - torch.where(either, 0, zero))
        scores = torch.where(never, -torch.inf, odds).view(shape)
        regularizer = nodes.graph.variables[name].regularizer
        assert isinstance(regularizer, LogPartition)
        structures.append(_structure(name, regularizer, certain.view(shape), scores, either.all(1), possible))
    return structures


def _structure(
    name: str,
    regularizer: LogPartition,
    certain: Tensor,
    scores: Tensor,
    decided: Tensor,
    possible: Tensor,
) -> _Structure:
    """The structures of a variable; ``decided`` marks the rows of which all entries are certain."""
    total = torch.full((len(scores),), -torch.inf, dtype=torch.float64)
    whole = (possible & decided).nonzero()[:, 0]
    if len(whole):
        structure = regularizer.contains(certain[whole].double())
        total[whole[structure]] = 0.0
    groups: list[tuple[Tensor, LogPartition]] = []
    any_certain = certain.flatten(1).any(1)
    free = (possible & ~decided & ~any_certain).nonzero()[:, 0]
    if len(free):
        groups.append((free, regularizer))
    fixed = (possible & ~decided & any_certain).nonzero()[:, 0]
    if len(fixed):
        groups += _restricted(name, regularizer, certain, fixed)
    possible_groups = []
    for rows, own in groups:
        logs = own.conjugate(scores[rows])
        total = total.index_put((rows,), logs)
        there = logs > -torch.inf
        if bool(there.all()):
            possible_groups.append((rows, own))
        elif not bool(there.any()):
            continue
        elif own is regularizer:
            possible_groups.append((rows[there], own))
        else:
            possible_groups += _restricted(name, regularizer, certain, rows[there])
    return _Structure(regularizer, tuple(possible_groups), certain, scores, total)


def _restricted(
    name: str, regularizer: LogPartition, certain: Tensor, rows: Tensor
) -> list[tuple[Tensor, LogPartition]]:
    """The regularizer restricted to the certain entries of some rows, less rows where no structure has
    these."""
    if not len(rows):
        return []
    try:
        own = regularizer.restricted(certain[rows].double(), certain[rows])
    except ObservationError:
        if len(rows) == 1:
            return []
        return [group for row in rows.split(1) for group in _restricted(name, regularizer, certain, row)]
    if own is None:
        raise InferenceError(
            f"variable {name!r}: single entries of {regularizer!r} cannot be fixed to 1; give all of its "
            "values or none."
        )
    assert isinstance(own, LogPartition)
    return [(rows, own)]


def _check_independent(rest: TableModel, evidence: TableEvidence, entries: Tensor, nodes: int) -> None:
    """Check that no two entries meet in the rest of a graph, given the evidence of any row.

    Args:
        rest: the rest, without tables of single entries.
        evidence: observed states.
        entries: numbers of the entries.
        nodes: number of nodes; further variables of the tables count.

    Raises:
        InferenceError: names two that do, and the nodes between them.
    """
    free = evidence.values < 0
    if _meeting(rest, free.any(0), entries) is None:
        return
    for own in free.unique(dim=0):
        meeting = _meeting(rest, own, entries)
        if meeting is not None:
            first, second, inside = meeting
            between = [rest.names[v] for v in inside.tolist() if v < nodes][:3]
            remedy = f"give {', '.join(between)}" if between else "give all of the structure"
            raise InferenceError(
                f"graph {rest.name!r}: {rest.names[first]} and {rest.names[second]} are entries of "
                "structures that other factors couple, so that the sum over structures has no closed form; "
                f"{remedy}, or use an engine that samples."
            )


def _meeting(rest: TableModel, free: Tensor, entries: Tensor) -> tuple[int, int, Tensor] | None:
    """Two entries that unobserved variables join, and the numbers of the other variables of their part; None
    if there are none."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(rest.states)
    variables, tables = [], []
    start = count
    for family in rest.families:
        scopes = family.scopes
        variables.append(scopes.flatten())
        tables.append(torch.arange(start, start + len(scopes)).repeat_interleave(scopes.shape[1]))
        start += len(scopes)
    pairs = [torch.cat(x).numpy() if x else np.zeros(0, dtype=np.int64) for x in (variables, tables)]
    unobserved = free.numpy()[pairs[0]]
    rows, columns = (side[unobserved] for side in pairs)
    links = coo_array((np.ones(len(rows)), (rows, columns)), shape=(start, start))
    parts = torch.from_numpy(connected_components(links, directed=False)[1]).long()
    unknown = entries[free[entries]]
    own = parts[unknown]
    if len(own.unique()) == len(own):
        return None
    order = own.argsort(stable=True)
    k = int((own[order][1:] == own[order][:-1]).nonzero()[0])
    first, second = unknown[order[k]], unknown[order[k + 1]]
    inside = (parts[:count] == parts[first]) & free
    inside[entries] = False
    return int(first), int(second), inside.nonzero()[:, 0]


def _with_underflow(
    rest: TableModel,
    evidence: TableEvidence,
    entries: Tensor,
    logs: Tensor,
    total: Tensor,
    options: ExactOptions | None,
) -> Tensor:
    """Logarithms of probabilities, where those of probability 0 that may have underflowed are computed by
    fixing the entry."""
    observed = evidence.values[:, entries].expand(len(logs), -1)
    coupled = torch.zeros(len(rest.states), dtype=torch.bool)
    for family in rest.families:
        coupled[family.scopes.flatten()] = True
    coupled[list(evidence.scores)] = True
    doubtful = (logs == -torch.inf) & (observed < 0)[..., None] & coupled[entries][None, :, None]
    doubtful &= (total > -torch.inf)[:, None, None]
    if not bool(doubtful.any()):
        return logs
    rows, places, states = doubtful.nonzero().unbind(1)
    known = _fixed(evidence, rows, entries[places], states)
    exact = inference.log_partition(rows_of(rest, rows), known, options)
    # all other entries count with both of their values, as they do in the total
    return logs.index_put((rows, places, states), exact - total[rows])


def _best_weights(rest: _Rest, evidence: TableEvidence, options: ExactOptions | None) -> Tensor:
    """Logarithm of the largest weight of the rest for the values 0 and 1 of each entry, up to a constant for
    each entry, shape ``(batch, entries, 2)``."""
    batch, count, _ = rest.logs.shape
    # one value of each entry that is possible, and the other one of one entry at a time
    start = (rest.logs[..., 0] == -torch.inf).long()
    other = rest.logs.gather(2, (1 - start)[..., None])[..., 0]
    base = _with_entries(evidence, rest.entries, start)
    best = inference.log_partition(rest.model, base, options, semiring="max").expand(batch)
    rows, places = ((other > -torch.inf) & (best > -torch.inf)[:, None]).nonzero().unbind(1)
    change = torch.full((batch, count), -torch.inf, dtype=torch.float64)
    if len(rows):
        states = 1 - start[rows, places]
        known = _fixed(base, rows, rest.entries[places], states)
        totals = inference.log_partition(rows_of(rest.model, rows), known, options, semiring="max")
        change[rows, places] = totals - best[rows]
    weights = torch.zeros(batch, count, 2, dtype=torch.float64)
    return weights.scatter(2, (1 - start)[..., None], change[..., None])


def _fixed(evidence: TableEvidence, rows: Tensor, variables: Tensor, states: Tensor) -> TableEvidence:
    """Rows of evidence with one more observed variable each."""
    own = evidence.rows(rows)
    values = own.values.expand(len(rows), -1).clone()
    values[torch.arange(len(rows)), variables] = states
    return TableEvidence(values, own.scores)


def _with_entries(evidence: TableEvidence, entries: Tensor, values: Tensor) -> TableEvidence:
    """Evidence with the values of all entries, shape ``(batch, entries)``."""
    known = evidence.values.expand(len(values), -1).clone()
    known[:, entries] = values.long()
    return TableEvidence(known, evidence.scores)
