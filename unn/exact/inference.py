"""Exact queries of table models: log-partition, marginals, most probable values, samples."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from ..descent.checks import check_generator
from ..errors import ArgumentError, InferenceError, is_whole, suggest, whole_number
from ..plain import without_compilation
from .backtrack import assign, choices, drawn, most_probable
from .beliefs import beliefs_of, contract_logs, contract_tables, leaf_readings
from .conditioning import Condition, Cost, chunks_of, conditions_of, cost_of, prepare_query
from .lifting import is_worth_lifting, lift
from .options import ExactOptions
from .reduction import Reduced, place_probabilities, place_states, reduce, remaining_tables
from .sweeps import log_sum, maximum, rows_of_stack, upward, upward_log
from .tables import TableEvidence, TableModel, rows_of

Best = Callable[[TableModel, TableEvidence], tuple[Tensor, Tensor]]
"""The most probable states of a model given evidence, and the logarithms of their weights."""

Semiring = Literal["sum", "log", "max", "count"]
"""How the weights of values are added; see ``log_partition``."""

_MOST_BEST = 10**6
"""Largest number of most probable values."""

SEMIRINGS: tuple[Semiring, ...] = get_args(Semiring)


@dataclass(frozen=True, eq=False)
class Marginals:
    """Answers about a batch of evidence.

    Attributes:
        log_partition: logarithm of the sum of all weights that agree with the evidence, shape
            ``(batch,)``; -inf where there are none.
        probabilities: probability of each state of each variable, shape ``(batch, variables, most
            states)``, not contiguous in memory; 0 beyond the states of a variable, and everywhere where the
            log-partition is -inf.
    """

    log_partition: Tensor
    probabilities: Tensor


@without_compilation
def log_partition(
    model: TableModel,
    evidence: TableEvidence | None = None,
    options: ExactOptions | None = None,
    *,
    semiring: Semiring = "sum",
) -> Tensor:
    """Logarithm of the sum of the weights of all values that agree with the evidence, shape ``(batch,)``.

    Differentiable any number of times by the logarithms of the tables; the first derivatives are the
    marginals of the tables.

    Args:
        model: tables.
        evidence: observed states and soft evidence; none by default.
        options: limits.
        semiring: what is summed. "sum" adds weights, by logarithms only where small ones may count, and "log"
            by logarithms throughout; "max" takes the largest weight instead; "count" adds 1 for each
            weight that is not 0, so that the result is the logarithm of the number of possible values.

    Raises:
        ObservationError: for evidence that does not fit the model.
        InferenceError: for a model beyond the limits, with its width.
        ArgumentError: for an unknown semiring.
    """
    check_semiring(semiring)
    evidence, options, batch = prepare_query(model, evidence, options)
    if semiring == "count":
        model, evidence = possible_weights(model, evidence)
    if semiring != "max" and is_worth_lifting(model):
        lifted = _lifted_marginals(model, evidence, options)
        if lifted is not None:
            return lifted.log_partition
    reduced = reduce(model, evidence, options)
    chunks = chunks_of(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        return torch.cat([log_partition(part, rows, options, semiring=semiring) for part, rows in chunks])
    conditions = conditions_of(model, evidence, options, reduced)
    parts = [_log_partition(part.reduced, semiring) for part in conditions]
    if len(parts) == 1:
        return _with_graph(parts[0].expand(batch), model)
    total = maximum if semiring == "max" else log_sum
    return _with_graph(total(torch.stack(torch.broadcast_tensors(*parts), -1)).expand(batch), model)


def _with_graph(total: Tensor, model: TableModel) -> Tensor:
    """A log-partition whose derivative by the tables is 0 where it does not depend on them, such as that of
    impossible evidence."""
    if total.requires_grad or not torch.is_grad_enabled():
        return total
    for family in model.families:
        if family.logs.requires_grad:
            total = total + family.logs.flatten()[:0].sum().to(total)
    return total


@without_compilation
def marginals(
    model: TableModel, evidence: TableEvidence | None = None, options: ExactOptions | None = None
) -> Marginals:
    """Log-partition and probabilities of all states, by one upward and one downward sweep.

    Arguments and errors as for ``log_partition``.
    """
    evidence, options, batch = prepare_query(model, evidence, options)
    if is_worth_lifting(model):
        lifted = _lifted_marginals(model, evidence, options)
        if lifted is not None:
            return lifted
    reduced = reduce(model, evidence, options)
    chunks = chunks_of(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        answers = [marginals(part, rows, options) for part, rows in chunks]
        return Marginals(
            torch.cat([answer.log_partition for answer in answers]),
            torch.cat([answer.probabilities for answer in answers]),
        )
    parts = [_marginals(model, part) for part in conditions_of(model, evidence, options, reduced)]
    if len(parts) == 1:
        (part,) = parts
        return Marginals(part.log_partition.expand(batch), part.probabilities.expand(batch, -1, -1))
    total, shares = _shares([part.log_partition.expand(batch) for part in parts])
    mixture = sum(
        share[:, None, None] * part.probabilities for share, part in zip(shares, parts, strict=True)
    )
    assert isinstance(mixture, Tensor)
    return Marginals(total, mixture)


@without_compilation
def entropy(
    model: TableModel, evidence: TableEvidence | None = None, options: ExactOptions | None = None
) -> Tensor:
    """Entropy of the distribution given the evidence in nats, shape ``(batch,)``; 0 for impossible evidence.

    It needs the marginals of all tables. Arguments and errors as for ``log_partition``.
    """
    evidence, options, batch = prepare_query(model, evidence, options)
    reduced = reduce(model, evidence, options)
    chunks = chunks_of(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        return torch.cat([entropy(part, rows, options) for part, rows in chunks])
    parts = [_entropy(part.reduced) for part in conditions_of(model, evidence, options, reduced)]
    _, shares = _shares([total.expand(batch) for total, _ in parts])
    within = torch.stack([share * inner for share, (_, inner) in zip(shares, parts, strict=True)])
    return within.sum(0) + entropy_terms(shares).sum(0)


@without_compilation
def table_marginals(
    model: TableModel, evidence: TableEvidence | None = None, options: ExactOptions | None = None
) -> list[Tensor]:
    """Marginals of the scopes of all tables, by family, shape ``(tables, batch, *states)``.

    Arguments and errors as for ``log_partition``.
    """
    evidence, options, batch = prepare_query(model, evidence, options)
    # inference mode records no graph, so that every marginal would be zero
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [
            family.logs.detach().double().expand(-1, batch, *family.states).clone().requires_grad_()
            for family in model.families
        ]
        families = tuple(
            replace(family, logs=leaf) for family, leaf in zip(model.families, leaves, strict=True)
        )
        copy = replace(model, families=families)
        total = log_partition(copy, evidence, options)
        possible = total > -torch.inf
        if not leaves or not total.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves]
        gradients = torch.autograd.grad(total[possible].sum(), leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


@without_compilation
def best_values(
    model: TableModel, evidence: TableEvidence | None = None, options: ExactOptions | None = None
) -> tuple[Tensor, Tensor]:
    """The most probable values of all variables given the evidence.

    Arguments and errors as for ``log_partition``.

    Returns:
        States, shape ``(batch, variables)``, and the logarithm of their weight, shape ``(batch,)``;
        -inf where no values agree with the evidence, which then have no meaning.
    """
    evidence, options, batch = prepare_query(model, evidence, options)
    reduced = reduce(model, evidence, options)
    chunks = chunks_of(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        answers = [best_values(part, rows, options) for part, rows in chunks]
        return torch.cat([values for values, _ in answers]), torch.cat([weight for _, weight in answers])
    best: tuple[Tensor, Tensor] | None = None
    for part in conditions_of(model, evidence, options, reduced):
        values, weight = _best(model, part, batch)
        if best is None:
            best = values, weight
        else:
            better = weight > best[1]
            best = torch.where(better[:, None], values, best[0]), torch.where(better, weight, best[1])
    assert best is not None
    return best


@without_compilation
def k_best(
    model: TableModel,
    k: int,
    evidence: TableEvidence | None = None,
    options: ExactOptions | None = None,
    *,
    over: int | None = None,
    best: Best | None = None,
) -> tuple[Tensor, Tensor]:
    """The k most probable values of all variables given the evidence, by falling weight.

    The space that remains after each answer is split into parts in which the first variables have the values
    of the answer and the next one has another (Lawler, 1972); the best values of all parts are one batch.

    Args:
        model: tables.
        k: number of answers.
        evidence: observed states and soft evidence; none by default.
        options: limits.
        over: number of leading variables in which answers differ; the others must be functions of
            them. All by default.
        best: best values of the model given evidence and their weights, as ``best_values``, which is the
            default.

    Returns:
        States, shape ``(batch, k, variables)``, and the logarithms of their weights, shape ``(batch, k)``;
        -inf where there are fewer values, which then have no meaning.

    Raises:
        ArgumentError: for a k below 1.
        ObservationError: for evidence that does not fit the model.
        InferenceError: for a model beyond the limits, with its width.
    """
    if not is_whole(k, 1) or k > _MOST_BEST:
        raise ArgumentError(f"k must be a whole number from 1 to {_MOST_BEST:,}, got {k!r}.")
    evidence, options, batch = prepare_query(model, evidence, options)
    count = len(model.states) if over is None else over
    if best is None:

        def best(part: TableModel, rows: TableEvidence) -> tuple[Tensor, Tensor]:
            return best_values(part, rows, options)

    answers = []
    for row in torch.arange(batch).split(1):
        answers.append(_k_best_of_row(rows_of(model, row), k, evidence.rows(row), count, best))
    return torch.stack([states for states, _ in answers]), torch.stack([weights for _, weights in answers])


@without_compilation
def sample(
    model: TableModel,
    count: int,
    evidence: TableEvidence | None = None,
    options: ExactOptions | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Independent exact samples of all variables given the evidence.

    Args:
        model: tables.
        count: number of samples for each row of evidence.
        evidence: observed states and soft evidence; none by default.
        options: limits.
        generator: random number generator; torch's global one by default.

    Returns:
        States, shape ``(batch, count, variables)``.

    Raises:
        ObservationError: for evidence that does not fit the model.
        InferenceError: for a model beyond the limits, evidence of probability zero, or a seed instead of a
            generator.
        ArgumentError: for a number of samples that is no whole number from 0 on.
    """
    check_generator(generator)
    whole_number("exact: count", count, 0, ArgumentError)
    evidence, options, batch = prepare_query(model, evidence, options)
    reduced = reduce(model, evidence, options)
    chunks = chunks_of(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        return torch.cat([sample(part, count, rows, options, generator) for part, rows in chunks])
    parts = list(conditions_of(model, evidence, options, reduced))
    logs = torch.stack([_log_partition(part.reduced).expand(batch) for part in parts])
    impossible = (logs.amax(0) == -torch.inf).nonzero()[:, 0]
    if len(impossible):
        raise impossible_row(model.name, int(impossible[0]))
    share = (logs - logs.amax(0)).exp().T[None, :, None].expand(-1, -1, count, -1)
    most = max((choices(part.reduced.plan) for part in parts if part.reduced.plan is not None), default=0)
    uniforms = torch.rand(batch, count, 1 + most, dtype=torch.float64, generator=generator)
    which = drawn(uniforms, False)(share, 0)[0]
    result = torch.zeros(batch, count, len(model.states), dtype=torch.long, device=model.device)
    for number, part in enumerate(parts):
        if len(parts) > 1 and not bool((which == number).any()):
            continue
        states = _sample(model, part, batch, count, uniforms[..., 1:])
        result = torch.where((which == number)[..., None], states, result)
    return result


def check_semiring(semiring: object) -> None:
    """Check the name of a semiring.

    Raises:
        ArgumentError: for an unknown one, with the closest known one.
    """
    if semiring not in SEMIRINGS:
        raise ArgumentError(f"semiring={semiring!r} is unknown.{suggest(str(semiring), SEMIRINGS)}")


def entropy_terms(p: Tensor) -> Tensor:
    """``-p log p``, 0 at 0, where its derivative is 0 as well and not infinite; shape of ``p``."""
    there = p > 0
    return torch.where(there, torch.special.entr(torch.where(there, p, 1)), 0)


def impossible_row(name: str, row: int) -> InferenceError:
    """The error for samples or means given evidence of probability zero."""
    return InferenceError(
        f"model {name!r}: row {row} of the evidence has probability zero, so it has neither samples nor "
        "means."
    )


def mean_surprise(name: str, total: Tensor, joint: Tensor) -> Tensor:
    """Mean of minus the conditional log-likelihood of examples given their observed parts, a scalar.

    Args:
        name: of the graph.
        total: log-partition given the observed part of each example, shape ``(batch,)``.
        joint: log-partition given the whole example, shape ``(batch,)``.

    Raises:
        InferenceError: for an observed part of probability zero.
    """
    impossible = (total == -torch.inf).nonzero()[:, 0]
    if len(impossible):
        raise InferenceError(
            f"graph {name!r}: the observed part of example {int(impossible[0])} has probability zero, so "
            "that the example has no conditional likelihood."
        )
    return (total - joint).mean()


def cost(
    model: TableModel, evidence: TableEvidence | None = None, options: ExactOptions | None = None
) -> Cost:
    """The cost of a query; arguments and errors as for ``log_partition``, but no model is beyond limits.

    Of a model that is lifted it is the cost of the model of histograms.
    """
    evidence, options, _ = prepare_query(model, evidence, options)
    if is_worth_lifting(model):
        first = evidence.rows(torch.tensor([0]))
        reduced, states = remaining_tables(model, first)
        lifted = lift(reduced.families, states, model.name)
        if lifted is not None:
            return cost(lifted.model, None, options)
    return cost_of(reduce(model, evidence, options))


def _shares(log_partitions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Log-partition of several parts together, and the share of each, shape ``(parts, batch)``."""
    logs = torch.stack(list(log_partitions))
    total = log_sum(logs.T)
    possible = total > -torch.inf
    return total, torch.where(possible, (logs - torch.where(possible, total, 0)).exp(), 0)


def _log_partition(reduced: Reduced, semiring: Semiring = "sum") -> Tensor:
    if reduced.plan is None:
        return reduced.constant
    if semiring in ("sum", "count"):
        return contract_tables(reduced)[0].log_partition
    return contract_logs(reduced, maximum if semiring == "max" else log_sum).log_partition


def possible_weights(model: TableModel, evidence: TableEvidence) -> tuple[TableModel, TableEvidence]:
    """Tables and soft evidence with the weight 1 instead of any that is not 0."""

    def ones(logs: Tensor) -> Tensor:
        return torch.where(logs > -torch.inf, 0.0, -torch.inf).double()

    families = tuple(replace(family, logs=ones(family.logs)) for family in model.families)
    scores = {variable: ones(x) for variable, x in evidence.scores.items()}
    return replace(model, families=families), TableEvidence(evidence.values, scores)


def _marginals(model: TableModel, part: Condition) -> Marginals:
    reduced = part.reduced
    plan, constant = reduced.plan, reduced.constant
    if plan is None:
        return Marginals(
            constant, place_probabilities(model, part.evidence, reduced, [], constant > -torch.inf)
        )
    up, beliefs = beliefs_of(reduced, {r.block for r in plan.readings})
    readings = plan.readings if up.log_scales else leaf_readings(reduced)
    parts = []
    for reading in readings:
        # the order of axes in memory, so that nothing is transposed
        belief = rows_of_stack(beliefs[reading.block].movedim(1, -1), reading.rows)
        others = [k for k in range(1, belief.ndim - 1) if k != 1 + reading.axis]
        parts.append((reading.variables, (belief.sum(others) if others else belief).mT))
    return Marginals(
        up.log_partition,
        place_probabilities(model, part.evidence, reduced, parts, up.log_partition > -torch.inf),
    )


def _lifted_marginals(model: TableModel, evidence: TableEvidence, options: ExactOptions) -> Marginals | None:
    """Marginals of a model whose variables are exchangeable; None if they are not."""
    answers = []
    for row in torch.arange(
        max(model.batch, len(evidence.values), *map(len, evidence.scores.values()))
    ).split(1):
        own, observed = rows_of(model, row), evidence.rows(row)
        reduced, states = remaining_tables(own, observed)
        lifted = lift(reduced.families, states, model.name)
        if lifted is None:
            return None
        counted = marginals(lifted.model, None, options)
        tables = table_marginals(lifted.model, None, options)[len(lifted.classes) :]
        p = lifted.probabilities(counted.probabilities[0], [table[0, 0] for table in tables])
        parts = []
        for size in sorted(set(states)):
            variables = [v for v, own_size in enumerate(states) if own_size == size]
            stacked = torch.stack([p[v] for v in variables])
            parts.append((torch.tensor(variables), stacked[:, None]))
        total = reduced.constant + counted.log_partition
        placed = place_probabilities(own, observed, reduced, parts, total > -torch.inf)
        answers.append(Marginals(total, placed))
    return Marginals(
        torch.cat([answer.log_partition for answer in answers]).to(model.device),
        torch.cat([answer.probabilities for answer in answers]).to(model.device),
    )


def _entropy(reduced: Reduced) -> tuple[Tensor, Tensor]:
    """Log-partition and entropy."""
    if reduced.plan is None:
        return reduced.constant, torch.zeros_like(reduced.constant)
    up, beliefs = beliefs_of(reduced, set(range(reduced.plan.leaves)))
    total = up.log_partition
    # relative to the largest entries of the tables, whose size would otherwise absorb the entropy
    relative_logs = [_relative(family.logs.double()) for family in reduced.families]
    if up.log_scales:
        tables = [logs.exp() for logs in relative_logs]
        relative = upward(reduced.plan, tables, torch.zeros_like(total)).log_partition
    else:
        relative = upward_log(reduced.plan, relative_logs, log_sum).log_partition
    expected = torch.zeros_like(total)
    for block, logs in enumerate(relative_logs):
        terms = beliefs[block] * torch.where(logs > -torch.inf, logs, 0)
        expected = expected + terms.flatten(2).sum(2).sum(0)
    # an entropy is not negative; the difference of two numbers may be
    return total, torch.where(total > -torch.inf, relative - expected, 0).clamp(min=0)


def _relative(logs: Tensor) -> Tensor:
    """Logarithms of tables relative to the largest entry of each, which counts as constant."""
    top = logs.detach().flatten(2).amax(2)
    top = torch.where(top > -torch.inf, top, 0)
    return logs - top.view(*top.shape, *[1] * (logs.ndim - 2))


def _best(model: TableModel, part: Condition, batch: int) -> tuple[Tensor, Tensor]:
    reduced = part.reduced
    if reduced.plan is None:
        constant = reduced.constant.detach().expand(batch)
        return place_states(part.evidence, reduced, None, batch, 1)[:, 0], constant
    with torch.no_grad():
        up = contract_logs(reduced, maximum)
        states = assign(reduced.plan, up, most_probable, batch, 1, are_logs=True)
    return place_states(part.evidence, reduced, states, batch, 1)[:, 0], up.log_partition.expand(batch)


def _k_best_of_row(
    model: TableModel, k: int, evidence: TableEvidence, count: int, best: Best
) -> tuple[Tensor, Tensor]:
    """States of shape ``(k, variables)`` and logarithms of weights, for one row of evidence."""
    values, weights = (x.cpu() for x in best(model, evidence))
    free = (evidence.values[0, :count] < 0).nonzero()[:, 0].tolist()
    # parts of the space by the weight of their best values, with the first variable in which they may differ
    parts = [(-float(weights[0]), 0, 0, values[0])]
    number = 0
    states = torch.zeros(k, len(model.states), dtype=torch.long)
    logs = torch.full((k,), -torch.inf, dtype=torch.float64)
    for place in range(k):
        if not parts or parts[0][0] == math.inf:
            break
        negative, _, first, answer = heapq.heappop(parts)
        states[place], logs[place] = answer, -negative
        rows, starts = [], []
        for position in range(first, len(free)):
            variable = free[position]
            for state in range(model.states[variable]):
                if state != int(answer[variable]):
                    row = evidence.values[0].clone()
                    row[free[:position]] = answer[free[:position]]
                    row[variable] = state
                    rows.append(row)
                    starts.append(position + 1)
        if place + 1 < k and rows:
            scores = {v: x.expand(len(rows), -1) for v, x in evidence.scores.items()}
            answers = best(model, TableEvidence(torch.stack(rows), scores))
            candidates, theirs = (x.cpu() for x in answers)
            for start, weight, own in zip(starts, theirs.tolist(), candidates, strict=True):
                number += 1
                heapq.heappush(parts, (-weight, number, start, own))
    return states.to(model.device), logs.to(model.device)


def _sample(model: TableModel, part: Condition, batch: int, count: int, uniforms: Tensor) -> Tensor:
    reduced = part.reduced
    if reduced.plan is None:
        return place_states(part.evidence, reduced, None, batch, count)
    with torch.no_grad():
        up, are_logs = contract_tables(reduced)
        states = assign(reduced.plan, up, drawn(uniforms, are_logs), batch, count, are_logs)
    return place_states(part.evidence, reduced, states, batch, count)
