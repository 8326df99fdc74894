"""Exact queries of table models: log-partition, marginals, most probable values, samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import torch
from torch import Tensor

from ..errors import ArgumentError, InferenceError, ObservationError
from .backtrack import assign, choices, drawn, most_probable
from .elimination import Order, Scope, greedy_order, neighbours
from .options import ExactOptions
from .plan import Plan, compile_plan
from .sweeps import Downward, Total, Upward, downward, log_sum, maximum, upward, upward_log
from .tables import Family, TableEvidence, TableModel, absorb, grouped, linear, restrict, rows_of, supports
from .tree import search_tree

_RANGE = 600.0
"""Sum of the ranges of logarithms up to which no product of entries underflows."""
_BYTES = 8


@dataclass(frozen=True, eq=False)
class Marginals:
    """Answers about a batch of evidence.

    Attributes:
        log_partition: logarithm of the sum of all weights that agree with the evidence, shape
            ``(batch,)``; -inf where there are none.
        probabilities: probability of each state of each variable, shape ``(batch, variables, most
            states)``; 0 beyond the states of a variable, and everywhere where the log-partition is -inf.
    """

    log_partition: Tensor
    probabilities: Tensor


@dataclass(frozen=True)
class Cost:
    """The cost of a query before it runs.

    Attributes:
        variables: number of variables that remain after evidence and zeros.
        log_operations: log2 of the number of multiplications of the upward sweep.
        log_largest: log2 of the number of entries of the largest table, leaves included.
        bytes: memory of all tables of the upward sweep, for one batch element.
        conditioned: variables on which the model is conditioned to keep the memory limit.
    """

    variables: int
    log_operations: float
    log_largest: float
    bytes: int
    conditioned: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"{self.variables} variables, 2^{self.log_operations:.1f} multiplications, largest table "
            f"2^{self.log_largest:.1f} entries, {self.bytes / 2**20:.1f} MiB of tables"
        )
        return text + (f", conditioned on {', '.join(self.conditioned)}" if self.conditioned else "")


@dataclass(frozen=True, eq=False)
class Reduced:
    """A model after evidence and zeros, with its plan.

    Attributes:
        families: tables over the variables that remain, which are numbered anew.
        constant: logarithm of the weights without a variable, shape ``(batch or 1,)``.
        remaining: variables of the model that remain.
        domain: mask of the states that remain, shape ``(variables, most states)``.
        plan: compiled tree; None if no variable remains.
    """

    families: list[Family]
    constant: Tensor
    remaining: Tensor
    domain: Tensor
    plan: Plan | None


def log_partition(
    model: TableModel, evidence: TableEvidence | None = None, options: ExactOptions | None = None
) -> Tensor:
    """Logarithm of the sum of the weights of all values that agree with the evidence, shape ``(batch,)``.

    Differentiable any number of times by the logarithms of the tables; the first derivatives are the
    marginals of the tables.

    Args:
        model: tables.
        evidence: observed states and soft evidence; none by default.
        options: limits.

    Raises:
        ObservationError: for evidence that does not fit the model.
        InferenceError: for a model beyond the limits, with its width.
    """
    evidence, options, batch = prepare_query(model, evidence, options)
    reduced = reduce(model, evidence, options)
    chunks = _chunks(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        return torch.cat([log_partition(part, rows, options) for part, rows in chunks])
    parts = [_log_partition(part.reduced) for part in _conditions(model, evidence, options, reduced)]
    total = parts[0] if len(parts) == 1 else log_sum(torch.stack(torch.broadcast_tensors(*parts), -1))
    return total.expand(batch)


def marginals(
    model: TableModel, evidence: TableEvidence | None = None, options: ExactOptions | None = None
) -> Marginals:
    """Log-partition and probabilities of all states, by one upward and one downward sweep.

    Arguments and errors as for ``log_partition``.
    """
    evidence, options, batch = prepare_query(model, evidence, options)
    reduced = reduce(model, evidence, options)
    chunks = _chunks(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        answers = [marginals(part, rows, options) for part, rows in chunks]
        return Marginals(
            torch.cat([answer.log_partition for answer in answers]),
            torch.cat([answer.probabilities for answer in answers]),
        )
    parts = [_marginals(model, part) for part in _conditions(model, evidence, options, reduced)]
    if len(parts) == 1:
        (part,) = parts
        return Marginals(part.log_partition.expand(batch), part.probabilities.expand(batch, -1, -1))
    total, shares = _shares([part.log_partition.expand(batch) for part in parts])
    mixture = sum(
        share[:, None, None] * part.probabilities for share, part in zip(shares, parts, strict=True)
    )
    assert isinstance(mixture, Tensor)
    return Marginals(total, mixture)


def entropy(
    model: TableModel, evidence: TableEvidence | None = None, options: ExactOptions | None = None
) -> Tensor:
    """Entropy of the distribution given the evidence in nats, shape ``(batch,)``; 0 for impossible evidence.

    It needs the marginals of all tables. Arguments and errors as for ``log_partition``.
    """
    evidence, options, batch = prepare_query(model, evidence, options)
    reduced = reduce(model, evidence, options)
    chunks = _chunks(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        return torch.cat([entropy(part, rows, options) for part, rows in chunks])
    parts = [_entropy(part.reduced) for part in _conditions(model, evidence, options, reduced)]
    _, shares = _shares([total.expand(batch) for total, _ in parts])
    within = torch.stack([share * inner for share, (_, inner) in zip(shares, parts, strict=True)])
    between: Tensor = torch.special.entr(shares).sum(0)
    return within.sum(0) + between


def _shares(log_partitions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Log-partition of several parts together, and the share of each, shape ``(parts, batch)``."""
    logs = torch.stack(list(log_partitions))
    total = log_sum(logs.T)
    possible = total > -torch.inf
    return total, torch.where(possible, (logs - torch.where(possible, total, 0)).exp(), 0)


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
        copy = TableModel(model.states, families, model.names, model.name, model.plans)
        total = log_partition(copy, evidence, options)
        possible = total > -torch.inf
        if not leaves or not total.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves]
        gradients = torch.autograd.grad(total[possible].sum(), leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


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
    chunks = _chunks(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        answers = [best_values(part, rows, options) for part, rows in chunks]
        return torch.cat([values for values, _ in answers]), torch.cat([weight for _, weight in answers])
    best: tuple[Tensor, Tensor] | None = None
    for part in _conditions(model, evidence, options, reduced):
        values, weight = _best(model, part, batch)
        if best is None:
            best = values, weight
        else:
            better = weight > best[1]
            best = torch.where(better[:, None], values, best[0]), torch.where(better, weight, best[1])
    assert best is not None
    return best


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
        InferenceError: for a model beyond the limits, or evidence of probability zero.
    """
    evidence, options, batch = prepare_query(model, evidence, options)
    reduced = reduce(model, evidence, options)
    chunks = _chunks(model, evidence, options, batch, reduced)
    if len(chunks) > 1:
        return torch.cat([sample(part, count, rows, options, generator) for part, rows in chunks])
    parts = list(_conditions(model, evidence, options, reduced))
    logs = torch.stack([_log_partition(part.reduced).expand(batch) for part in parts])
    impossible = (logs.amax(0) == -torch.inf).nonzero()[:, 0]
    if len(impossible):
        raise InferenceError(
            f"model {model.name!r}: row {int(impossible[0])} of the evidence has probability zero, so there "
            "is nothing to sample."
        )
    share = (logs - logs.amax(0)).exp().T[None, :, None].expand(-1, -1, count, -1)
    most = max((choices(part.reduced.plan) for part in parts if part.reduced.plan is not None), default=0)
    uniforms = torch.rand(batch, count, 1 + most, dtype=torch.float64, generator=generator)
    which = drawn(uniforms, False)(share, 0)[0]
    result = torch.zeros(batch, count, len(model.states), dtype=torch.long, device=evidence.values.device)
    for number, part in enumerate(parts):
        if len(parts) > 1 and not bool((which == number).any()):
            continue
        states = _sample(model, part, batch, count, uniforms[..., 1:])
        result = torch.where((which == number)[..., None], states, result)
    return result


def cost(
    model: TableModel, evidence: TableEvidence | None = None, options: ExactOptions | None = None
) -> Cost:
    """The cost of a query; arguments and errors as for ``log_partition``, but nothing is refused."""
    evidence = TableEvidence.of(model) if evidence is None else evidence
    evidence.check(model)
    options = ExactOptions() if options is None else options
    return _cost_of(reduce(model, evidence, options))


def reduce(model: TableModel, evidence: TableEvidence, options: ExactOptions) -> Reduced:
    """Absorb evidence, drop states that zeros exclude, and compile a plan for what remains."""
    reduced, sizes = remaining_tables(model, evidence)
    if not reduced.families:
        return reduced
    families = reduced.families
    key = (sizes, tuple((f.scopes.cpu().numpy().tobytes(), f.states) for f in families), options)
    return replace(reduced, plan=model.plans.get_or_make(key, lambda: _plan(families, sizes, options)))


def width(model: TableModel, log_bound: float) -> Order | None:
    """A quick order of elimination of a model without evidence; None if its cost exceeds a bound.

    Args:
        model: tables.
        log_bound: log2 of the largest number of entries of all products.
    """
    reduced, sizes = remaining_tables(model, TableEvidence.of(model))
    scopes = [tuple(scope) for f in reduced.families for scope in f.scopes.tolist()]
    log_sizes = [math.log2(size) for size in sizes]
    near = neighbours(scopes, len(sizes))
    return greedy_order(near, log_sizes, 1.0, 0.5, 0.0, 0.0, Random(0), 2.0**log_bound)[0]


def remaining_tables(model: TableModel, evidence: TableEvidence) -> tuple[Reduced, tuple[int, ...]]:
    """What remains of a model without a plan, and the number of states of each variable that remains."""
    families, constant, fixed = absorb(model, evidence)
    states = list(model.states)
    remaining = ~fixed
    if families:
        domain = supports(states, families)
    else:
        most = max(states, default=1)
        domain = torch.arange(most) < torch.tensor(states)[:, None]
    if bool((domain.sum(1) == 0).any()):
        return Reduced([], torch.full_like(constant, -torch.inf), remaining & False, domain, None), ()
    families, states = restrict(families, domain, states)
    single = torch.tensor(states, device=remaining.device) == 1
    remaining = remaining & ~single
    numbers = remaining.cumsum(0) - 1
    kept: list[Family] = []
    touched = torch.zeros_like(remaining)
    for family in families:
        axes = [k for k, size in enumerate(family.states) if size > 1]
        logs = family.logs.reshape(*family.logs.shape[:2], *(family.states[k] for k in axes))
        scopes = family.scopes[:, axes]
        if not axes:
            constant = constant + logs.sum(0)
            continue
        touched[scopes.flatten()] = True
        kept.append(Family(numbers[scopes], logs))
    for variable in (remaining & ~touched).nonzero()[:, 0].tolist():
        logs = torch.zeros(1, 1, states[variable], dtype=torch.float64, device=constant.device)
        kept.append(Family(numbers[variable].view(1, 1), logs))
    sizes = tuple(size for size, flag in zip(states, remaining.tolist(), strict=True) if flag)
    return Reduced(grouped(kept), constant, remaining, domain, None), sizes


def _plan(families: Sequence[Family], states: Sequence[int], options: ExactOptions) -> Plan:
    blocks: list[list[Scope]] = [[tuple(scope) for scope in f.scopes.tolist()] for f in families]
    scopes = [scope for block in blocks for scope in block]
    # a plan that is made in inference mode must serve queries with gradients too
    with torch.inference_mode(False):
        tree = search_tree(scopes, states, options.search_seconds, options.attempts, options.order_seed)
        return compile_plan(tree, blocks, states)


def prepare_query(
    model: TableModel, evidence: TableEvidence | None, options: ExactOptions | None
) -> tuple[TableEvidence, ExactOptions, int]:
    """Check the arguments of a query, and return its batch size too.

    Raises:
        ObservationError: for evidence that does not fit the model.
    """
    evidence = TableEvidence.of(model) if evidence is None else evidence
    evidence.check(model)
    options = ExactOptions() if options is None else options
    if not isinstance(options, ExactOptions):
        raise ArgumentError(f"exact: options must be ExactOptions, got {type(options).__name__}.")
    options.check("exact")
    sizes = {model.batch, len(evidence.values), *(len(scores) for scores in evidence.scores.values())} - {1}
    if 0 in sizes:
        raise ObservationError(f"model {model.name!r}: an empty batch; pass at least one row.")
    if len(sizes) > 1:
        raise ObservationError(
            f"model {model.name!r}: tables and evidence have different batch sizes: {sorted(sizes)}."
        )
    return evidence, options, max(sizes, default=1)


def _chunks(
    model: TableModel, evidence: TableEvidence, options: ExactOptions, batch: int, reduced: Reduced
) -> list[tuple[TableModel, TableEvidence]]:
    """Parts of a batch whose tables fit into the memory limit; the whole batch where it fits, or is
    one row."""
    plan = reduced.plan
    rows = batch if plan is None else max(1, int(options.memory * 2**30 / _bytes(plan)))
    if rows >= batch:
        return [(model, evidence)]
    return [(rows_of(model, part), evidence.rows(part)) for part in torch.arange(batch).split(rows)]


@dataclass(frozen=True, eq=False)
class _Condition:
    """A part of a query: the model given its evidence and states of some further variables."""

    evidence: TableEvidence
    reduced: Reduced = field(repr=False)


def _conditions(
    model: TableModel, evidence: TableEvidence, options: ExactOptions, reduced: Reduced
) -> list[_Condition]:
    """The query itself, or its parts given states of variables, where the query would need too much memory.

    Raises:
        InferenceError: for a query beyond the limits.
    """
    batch = max(model.batch, len(evidence.values))
    conditioned: list[int] = []
    parts = 1
    current = reduced
    while current.plan is not None and _bytes(current.plan) * batch > options.memory * 2**30:
        variable = _split_variable(current, evidence)
        if variable is None:
            break
        conditioned.append(variable)
        parts *= int(current.domain[variable].sum())
        values = evidence.values.clone()
        for each in conditioned:
            values[:, each] = int(reduced.domain[each].nonzero()[0, 0])
        current = reduce(model, replace(evidence, values=values), options)
        if parts > 4096:
            break
    plan = current.plan
    if plan is not None:
        operations = plan.log_cost + math.log2(parts * batch)
        if operations > options.operations or _bytes(plan) * batch > options.memory * 2**30:
            cost = _cost_of(reduced)
            raise InferenceError(
                f"model {model.name!r}: exact inference needs 2^{cost.log_operations:.0f} multiplications "
                f"and {cost.bytes * batch / 2**30:.3g} GiB; its largest table has 2^{cost.log_largest:.0f} "
                f"entries. The limits are 2^{options.operations:.0f} and {options.memory:g} GiB. Observe "
                "more variables, raise the limits (ExactOptions), or use an approximate engine."
            )
    if not conditioned:
        return [_Condition(evidence, reduced)]
    states = [reduced.domain[variable].nonzero()[:, 0] for variable in conditioned]
    result = []
    for combination in torch.cartesian_prod(*states).view(-1, len(states)).tolist():
        values = evidence.values.clone()
        for variable, state in zip(conditioned, combination, strict=True):
            values[:, variable] = state
        part = replace(evidence, values=values)
        result.append(_Condition(part, reduce(model, part, options)))
    return result


def _bytes(plan: Plan) -> int:
    return _BYTES * plan.entries


def _split_variable(reduced: Reduced, evidence: TableEvidence) -> int | None:
    """The variable of the model by which conditioning saves most: the largest share of the entries of
    products.

    Variables that some rows of the evidence observe are left out; None if there is no other.
    """
    plan = reduced.plan
    assert plan is not None
    weights = torch.zeros(len(plan.states), dtype=torch.float64)
    for products in plan.products:
        for axis in range(len(products.sizes)):
            if axis in products.axes:
                size = math.prod(products.sizes[k] for k in products.axes)
                share = size * (1 - 1 / products.sizes[axis]) / math.log2(products.sizes[axis])
                weights.index_add_(
                    0,
                    products.variables[:, axis],
                    torch.full((len(products.variables),), float(share), dtype=torch.float64),
                )
    numbers = reduced.remaining.nonzero()[:, 0]
    weights[(evidence.values[:, numbers] >= 0).any(0).to(weights.device)] = 0
    return int(numbers[int(weights.argmax())]) if bool((weights > 0).any()) else None


def _cost_of(reduced: Reduced) -> Cost:
    if reduced.plan is None:
        return Cost(0, 0.0, 0.0, 0)
    plan = reduced.plan
    return Cost(len(plan.states), plan.log_cost, plan.log_largest, _bytes(plan))


def _log_partition(reduced: Reduced) -> Tensor:
    if reduced.plan is None:
        return reduced.constant
    return _contracted(reduced)[0].log_partition


def _range(families: Sequence[Family]) -> float:
    """Sum over the tables of the difference between the largest and the smallest finite logarithm."""
    total = 0.0
    for family in families:
        flat = family.logs.detach().flatten(2)
        least = torch.where(flat > -torch.inf, flat, torch.inf).amin(2)
        spread = (flat.amax(2) - least).clamp(min=0)
        total += float(spread.amax(1).sum())
    return total


def _contracted(reduced: Reduced) -> tuple[Upward, bool]:
    """The upward sweep, and whether its tables are logarithms because small entries may count."""
    plan = reduced.plan
    assert plan is not None
    tables, scale = linear(reduced.families)
    up = upward(plan, tables, scale + reduced.constant)
    if _is_trusted(reduced, up, None):
        return up, False
    return _contracted_logs(reduced, log_sum), True


def _is_trusted(reduced: Reduced, up: Upward, down: Downward | None) -> bool:
    """Whether no small entry that was lost in the upward sweep may count.

    Args:
        reduced: model.
        up: upward sweep of linear tables.
        down: downward sweep; None if there is none yet, which is then made where it is needed.
    """
    if not bool((up.log_partition > -torch.inf).all()):
        return False
    if down is None:
        if _range(reduced.families) <= _RANGE:
            return True
        assert reduced.plan is not None
        with torch.no_grad():
            down = downward(reduced.plan, up, set())
    return bool(down.is_exact.all())


def _contracted_logs(reduced: Reduced, total: Total) -> Upward:
    plan = reduced.plan
    assert plan is not None
    up = upward_log(plan, [family.logs.double() for family in reduced.families], total)
    return Upward(up.tables, [], up.log_partition + reduced.constant)


def _marginals(model: TableModel, part: _Condition) -> Marginals:
    reduced = part.reduced
    plan, constant = reduced.plan, reduced.constant
    if plan is None:
        return Marginals(
            constant, place_probabilities(model, part.evidence, reduced, [], constant > -torch.inf)
        )
    up, beliefs = _beliefs(reduced, {r.block for r in plan.readings})
    readings = [(r.block, r.axis, r.rows, r.variables) for r in plan.readings]
    if not up.log_scales:
        readings = _leaf_readings(reduced)
    parts = []
    for block, axis, rows, variables in readings:
        belief = beliefs[block].index_select(0, rows.to(constant.device))
        others = [k for k in range(2, belief.ndim) if k != 2 + axis]
        parts.append((variables, belief.sum(others) if others else belief))
    return Marginals(
        up.log_partition,
        place_probabilities(model, part.evidence, reduced, parts, up.log_partition > -torch.inf),
    )


def _entropy(reduced: Reduced) -> tuple[Tensor, Tensor]:
    """Log-partition and entropy."""
    if reduced.plan is None:
        return reduced.constant, torch.zeros_like(reduced.constant)
    up, beliefs = _beliefs(reduced, set(range(reduced.plan.leaves)))
    total = up.log_partition
    # relative to the largest entries of the tables, whose size would otherwise absorb the entropy
    tables, scale = linear(reduced.families)
    relative = upward(reduced.plan, tables, torch.zeros_like(scale)).log_partition
    if not bool((relative > -torch.inf).all()):
        relative = total - scale - reduced.constant
    expected = torch.zeros_like(total)
    for block, family in enumerate(reduced.families):
        logs = family.logs.double()
        top = logs.flatten(2).amax(2)
        shifted = logs - top.view(*top.shape, *[1] * len(family.states))
        shifted = torch.where(family.logs > -torch.inf, shifted, 0)
        expected = expected + (beliefs[block] * shifted).flatten(2).sum(2).sum(0)
    # an entropy is not negative; the difference of two numbers may be
    return total, torch.where(total > -torch.inf, relative - expected, 0).clamp(min=0)


def _beliefs(reduced: Reduced, blocks: set[int]) -> tuple[Upward, dict[int, Tensor]]:
    """The upward sweep, and the normalised marginals of the tables of some blocks.

    Where small entries may count, both are made from logarithms, and the marginals are those of the tables of
    the model.
    """
    plan = reduced.plan
    assert plan is not None
    tables, scale = linear(reduced.families)
    up = upward(plan, tables, scale + reduced.constant)
    down = downward(plan, up, {block for block in blocks if block < plan.leaves})
    if not _is_trusted(reduced, up, down):
        return _contracted_logs(reduced, log_sum), _beliefs_by_gradient(reduced)
    beliefs = {}
    for block in blocks:
        cotangent = down.cotangents[block]
        assert cotangent is not None
        belief = up.tables[block] * cotangent
        total = belief.flatten(2).sum(2) if belief.ndim > 2 else belief
        total = torch.where(total > 0, total, 1)
        beliefs[block] = belief / total.view(*total.shape, *[1] * (belief.ndim - 2))
    return up, beliefs


def _beliefs_by_gradient(reduced: Reduced) -> dict[int, Tensor]:
    """Marginals of the tables of the model, from logarithms."""
    with torch.inference_mode(False), torch.enable_grad():
        batch = max(len(reduced.constant), *(family.logs.shape[1] for family in reduced.families))
        leaves = [
            family.logs.detach().double().expand(-1, batch, *family.states).clone().requires_grad_()
            for family in reduced.families
        ]
        copy = replace(
            reduced,
            families=[replace(f, logs=leaf) for f, leaf in zip(reduced.families, leaves, strict=True)],
        )
        copy = replace(copy, constant=copy.constant.clone())
        total = _contracted_logs(copy, log_sum).log_partition.expand(batch)
        gradients = torch.autograd.grad(total[total > -torch.inf].sum(), leaves)
    return dict(enumerate(gradients))


def _leaf_readings(reduced: Reduced) -> list[tuple[int, int, Tensor, Tensor]]:
    """Block, axis, rows and variables from which each variable is read, among the tables of the model."""
    seen: set[int] = set()
    readings: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for block, family in enumerate(reduced.families):
        for row, scope in enumerate(family.scopes.tolist()):
            for axis, variable in enumerate(scope):
                if variable not in seen:
                    seen.add(variable)
                    rows, variables = readings.setdefault((block, axis), ([], []))
                    rows.append(row)
                    variables.append(variable)
    return [
        (block, axis, torch.tensor(rows), torch.tensor(variables))
        for (block, axis), (rows, variables) in readings.items()
    ]


def place_probabilities(
    model: TableModel,
    evidence: TableEvidence,
    reduced: Reduced,
    parts: Sequence[tuple[Tensor, Tensor]],
    possible: Tensor,
) -> Tensor:
    """Probabilities of all variables of the model, shape ``(batch, variables, most states)``.

    Args:
        model: the model.
        evidence: evidence.
        reduced: what remains of the model.
        parts: remaining variables and their probabilities, shape ``(variables, batch or 1, states)``.
        possible: mask of the batch elements with values that agree with the evidence.
    """
    values = evidence.values
    device = values.device
    most = max(model.states, default=1)
    batch = max(len(values), len(possible), *(p.shape[1] for _, p in parts), 1)
    result = torch.zeros(batch, len(model.states), most, dtype=torch.float64, device=device)
    fixed = (values >= 0).all(0)
    known = fixed.nonzero()[:, 0]
    ones = torch.nn.functional.one_hot(values[:, known].clamp(min=0), most).double()
    result[:, known] = ones.expand(batch, -1, -1)
    single = (~fixed & ~reduced.remaining).nonzero()[:, 0]
    # variables with one state left; none at all only where nothing is possible
    result[:, single] = reduced.domain[single].double().expand(batch, -1, -1)
    numbers = reduced.remaining.nonzero()[:, 0]
    for variables, probabilities in parts:
        own = numbers[variables.to(device)]
        places = reduced.domain[own].nonzero()[:, 1].view(len(own), -1)
        moved = probabilities.movedim(0, 1).expand(batch, -1, -1)
        index = places.expand(batch, -1, -1)
        full = torch.zeros(batch, len(own), most, dtype=torch.float64, device=device)
        result = result.index_copy(1, own, full.scatter(2, index, moved))
    return torch.where(possible[:, None, None], result, 0)


def _states_of(model: TableModel, part: _Condition, states: Tensor | None, batch: int, count: int) -> Tensor:
    """States of all variables of the model, shape ``(batch, count, variables)``.

    Args:
        model: the model.
        part: evidence and what remains of the model.
        states: states of the remaining variables among those that remain of each; None if there are none.
        batch: batch size.
        count: number of assignments.
    """
    reduced, values = part.reduced, part.evidence.values
    first = reduced.domain.to(torch.uint8).argmax(1)
    known = torch.where(values >= 0, values, first)
    result = known[:, None].expand(batch, count, -1).clone()
    if states is not None:
        numbers = reduced.remaining.nonzero()[:, 0]
        # place of the k-th state that remains
        places = (~reduced.domain[numbers]).to(torch.uint8).argsort(dim=1, stable=True)
        result[..., numbers] = places.T[states, torch.arange(len(numbers), device=states.device)]
    return result


def _best(model: TableModel, part: _Condition, batch: int) -> tuple[Tensor, Tensor]:
    reduced = part.reduced
    if reduced.plan is None:
        return _states_of(model, part, None, batch, 1)[:, 0], reduced.constant.expand(batch)
    with torch.no_grad():
        up = _contracted_logs(reduced, maximum)
        states = assign(reduced.plan, up, most_probable, batch, 1, are_logs=True)
    return _states_of(model, part, states, batch, 1)[:, 0], up.log_partition.expand(batch)


def _sample(model: TableModel, part: _Condition, batch: int, count: int, uniforms: Tensor) -> Tensor:
    reduced = part.reduced
    if reduced.plan is None:
        return _states_of(model, part, None, batch, count)
    with torch.no_grad():
        up, are_logs = _contracted(reduced)
        states = assign(reduced.plan, up, drawn(uniforms, are_logs), batch, count, are_logs)
    return _states_of(model, part, states, batch, count)
