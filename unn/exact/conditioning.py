"""Queries within limits of memory and time: batches in parts, and models given states of some variables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from ..errors import ArgumentError, InferenceError, ObservationError
from .options import ExactOptions
from .plan import Plan
from .reduction import Reduced, reduce
from .tables import TableEvidence, TableModel, rows_of

_BYTES = 8
"""Bytes of an entry of a table."""


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
class Condition:
    """A part of a query: the model given its evidence and states of some further variables."""

    evidence: TableEvidence
    reduced: Reduced = field(repr=False)


def prepare_query(
    model: TableModel, evidence: TableEvidence | None, options: ExactOptions | None
) -> tuple[TableEvidence, ExactOptions, int]:
    """Check the arguments of a query, and return its batch size too.

    Raises:
        ObservationError: for evidence that does not fit the model.
        ArgumentError: for arguments that are no tables, table evidence or options.
    """
    if not isinstance(model, TableModel):
        raise ArgumentError(
            f"exact: inference on tables needs a TableModel, got {type(model).__name__}. A model file has "
            "one as file.model; a declared graph is answered by unn.exact.marginals(graph, ...)."
        )
    evidence = TableEvidence.of(model) if evidence is None else evidence
    if not isinstance(evidence, TableEvidence):
        raise ArgumentError(
            f"exact: evidence on tables must be TableEvidence, got {type(evidence).__name__}."
        )
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


def chunks_of(
    model: TableModel, evidence: TableEvidence, options: ExactOptions, batch: int, reduced: Reduced
) -> list[tuple[TableModel, TableEvidence]]:
    """Parts of a batch whose tables fit into the memory limit; the whole batch where it fits, or is
    one row."""
    plan = reduced.plan
    rows = batch if plan is None else max(1, int(options.memory * 2**30 / bytes_of(plan)))
    if rows >= batch:
        return [(model, evidence)]
    return [(rows_of(model, part), evidence.rows(part)) for part in torch.arange(batch).split(rows)]


def conditions_of(
    model: TableModel, evidence: TableEvidence, options: ExactOptions, reduced: Reduced
) -> list[Condition]:
    """The query itself, or its parts given states of variables, where the query would need too much memory.

    Raises:
        InferenceError: for a query beyond the limits.
    """
    batch = max(model.batch, len(evidence.values))
    conditioned: list[int] = []
    parts = 1
    current = reduced
    while current.plan is not None and bytes_of(current.plan) * batch > options.memory * 2**30:
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
        if operations > options.operations or bytes_of(plan) * batch > options.memory * 2**30:
            cost = cost_of(reduced)
            raise InferenceError(
                f"model {model.name!r}: exact inference needs 2^{cost.log_operations:.0f} multiplications "
                f"and {cost.bytes * batch / 2**30:.3g} GiB; its largest table has 2^{cost.log_largest:.0f} "
                f"entries. The limits are 2^{options.operations:.0f} and {options.memory:g} GiB. Observe "
                "more variables, raise the limits (ExactOptions), or use an approximate engine."
            )
    if not conditioned:
        return [Condition(evidence, reduced)]
    states = [reduced.domain[variable].nonzero()[:, 0] for variable in conditioned]
    result = []
    for combination in torch.cartesian_prod(*states).view(-1, len(states)).tolist():
        values = evidence.values.clone()
        for variable, state in zip(conditioned, combination, strict=True):
            values[:, variable] = state
        part = replace(evidence, values=values)
        result.append(Condition(part, reduce(model, part, options)))
    return result


def cost_of(reduced: Reduced) -> Cost:
    if reduced.plan is None:
        return Cost(0, 0.0, 0.0, 0)
    plan = reduced.plan
    return Cost(len(plan.states), plan.log_cost, plan.log_largest, bytes_of(plan))


def bytes_of(plan: Plan) -> int:
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
