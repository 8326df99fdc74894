"""Exact queries of declarations: log-partition, marginals, most probable values, samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..cache import BoundedCache
from ..descent.checks import given_array
from ..errors import DeclarationError, ObservationError
from ..graph.arrays import Constant
from ..graph.declaration import Declaration
from ..graph.devices import device_of
from ..graph.dynamic import check_mapping, check_sizes, sizes_with
from ..graph.partial import Partial
from ..plain import without_compilation
from . import inference, structures
from .conditioning import Cost
from .ground import ground
from .inference import Semiring
from .nodes import Given, Nodes, on_cpu, refusal_of_variables
from .options import ExactOptions, check_count
from .plan import Plan
from .structures import Query
from .tables import TableEvidence, TableModel

_SIZES = 16
"""Number of sizes of a graph whose nodes and plans are cached."""

Scores = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class ExactMarginals:
    """Exact marginals of a declaration given evidence.

    Attributes:
        means: means by variable, shape ``(batch, *axes)``: probabilities of the options of categories
            and of the value 1 of binary nodes, means of spins. Given values are unchanged.
        log_partition: logarithm of the sum of ``exp(-E)`` over all values that agree with the evidence, shape
            ``(batch,)``; -inf where there are none, and then the means are 0.
    """

    means: Mapping[str, Tensor]
    log_partition: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.means[name]


@dataclass(frozen=True, eq=False)
class BestValues:
    """The most probable values of a declaration given evidence.

    Attributes:
        values: by variable, shape ``(batch, *axes)``.
        energy: their energy, less their scores where soft evidence is given, shape ``(batch,)``; +inf
            where no values agree with the evidence.

    Of the k best, both have an axis of size k after the batch.
    """

    values: Mapping[str, Tensor]
    energy: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]


@without_compilation
def log_partition(
    graph: Declaration,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    scores: Scores | None = None,
    options: ExactOptions | None = None,
    semiring: Semiring = "sum",
) -> Tensor:
    """Logarithm of the sum of ``exp(-E)`` over all values that agree with the evidence, shape ``(batch,)``.

    Differentiable by the parameters of the graph.

    Args:
        graph: declaration whose variables are categorical, binary, spins or structured
            (``TreeEntropy``, ``Structured``, ``Budget``), and whose factors are products of arrays
            (``Multilinear``) or constraints that count.
        given: evidence by variable, complete or partial, and values of constants.
        sizes: sizes of the axes without a static size; those of the evidence by default.
        scores: soft evidence: logarithms of weights of the states, by variable, shape ``(batch or 1,
            *node axes, states)``.
        options: limits of time and memory.
        semiring: "sum" or "log" for the sum, "max" for the largest ``exp(-E)`` instead, "count" for the
            number of values whose energy is finite; see ``unn.exact.inference.log_partition``.

    Raises:
        DeclarationError: for a graph without tables; names the variable or factor.
        ObservationError: for evidence that does not fit the graph.
        InferenceError: for a graph beyond the limits, with its width; or for two entries of structures
            that other factors couple, with their names.
        ArgumentError: for an unknown semiring.
    """
    return structures.log_partition(query_of(graph, given, sizes, scores), options, semiring)


@without_compilation
def marginals(
    graph: Declaration,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    scores: Scores | None = None,
    options: ExactOptions | None = None,
) -> ExactMarginals:
    """Means of all variables given the evidence; arguments and errors as for ``log_partition``.

    Example:
        >>> import torch, unn
        >>> from factors import Multilinear
        >>> g = unn.FactorGraph("pair", spin=2)
        >>> s = g.variable("s", "spin", unn.SignedEntropy())
        >>> J = g.constant("J", "", torch.tensor(0.5))
        >>> g.factor(Multilinear(J[""], s["i"], s["i+1"]))
        -sum J[] s[i] s[i+1]
        >>> given = {"s": unn.Partial(torch.ones(1, 2), torch.tensor([[True, False]]))}
        >>> unn.exact.marginals(g, given)["s"]
        tensor([[1.0000, 0.4621]], dtype=torch.float64)
    """
    query = query_of(graph, given, sizes, scores)
    nodes, *_ = query
    answer = structures.marginals(query, options)
    return ExactMarginals(nodes.means(answer.probabilities), answer.log_partition)


@without_compilation
def entropy(
    graph: Declaration,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    scores: Scores | None = None,
    options: ExactOptions | None = None,
) -> Tensor:
    """Entropy of the distribution given the evidence in nats, shape ``(batch,)``; arguments and errors as for
    ``log_partition``."""
    return structures.entropy(query_of(graph, given, sizes, scores), options)


@without_compilation
def best_values(
    graph: Declaration,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    scores: Scores | None = None,
    options: ExactOptions | None = None,
) -> BestValues:
    """The most probable values of all variables given the evidence; arguments and errors as for
    ``log_partition``."""
    query = query_of(graph, given, sizes, scores)
    nodes, *_ = query
    states, weight = structures.best_values(query, options)
    return BestValues(nodes.values(states), -weight)


@without_compilation
def k_best_values(
    graph: Declaration,
    k: int,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    scores: Scores | None = None,
    options: ExactOptions | None = None,
) -> BestValues:
    """The k most probable values of all variables given the evidence, by rising energy.

    Arguments and errors as for ``log_partition``; besides:

    Args:
        k: number of answers. Each takes the best values of as many parts of the space as there are other
            states of nodes that are not given, in one batch.

    Returns:
        Values of shape ``(batch, k, *axes)``, and their energies, shape ``(batch, k)``; +inf beyond the
        number of possible values.

    Raises:
        ArgumentError: for a k below 1.
        InferenceError: for structures of which single entries cannot be fixed: ``Structured`` other than
            chains.

    Example:
        >>> import torch, unn
        >>> from factors import AllDifferent
        >>> g = unn.FactorGraph("order", node=3, place=3)
        >>> x = g.variable("x", "node | place", unn.Entropy())
        >>> g.factor(AllDifferent(x["n p"], each=""))
        values of x[n p] differ
        >>> unn.exact.k_best_values(g, 7).energy
        tensor([[0., 0., 0., 0., 0., 0., inf]], dtype=torch.float64)
    """
    query = query_of(graph, given, sizes, scores)
    nodes, *_ = query
    states, weights = structures.k_best(query, k, options)
    return BestValues(nodes.values(states), 0.0 - weights)


@without_compilation
def sample(
    graph: Declaration,
    count: int,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    scores: Scores | None = None,
    options: ExactOptions | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Independent exact samples given the evidence.

    Arguments and errors as for ``log_partition``; besides:

    Args:
        count: number of samples for each row of evidence.
        generator: random number generator; torch's global one by default.

    Returns:
        Values by variable, shape ``(batch, count, *axes)``.

    Raises:
        InferenceError: for evidence of probability zero.
        ArgumentError: for a count below 1.
    """
    check_count(count)
    query = query_of(graph, given, sizes, scores)
    nodes, *_ = query
    return nodes.values(structures.sample(query, count, options, generator))


def cost(
    graph: Declaration,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    options: ExactOptions | None = None,
) -> Cost:
    """What a query will cost, before it runs: multiplications, largest table, memory.

    Arguments and errors as for ``log_partition``, but nothing is refused for its size.
    """
    _, model, evidence = tables_of(graph, given, sizes, None)
    return inference.cost(model, evidence, options)


def nodes_of(graph: Declaration, sizes: Mapping[str, int]) -> tuple[Nodes, BoundedCache[object, Plan]]:
    """The nodes of a graph, and its plans; made once for given sizes."""
    check_sizes(graph, sizes)
    cached: BoundedCache[object, tuple[Nodes, BoundedCache[object, Plan]]]
    cached = graph.memo((__name__, "nodes"), lambda: BoundedCache(_SIZES))
    return cached.get_or_make(
        tuple(sorted(sizes.items())), lambda: (Nodes(graph, sizes), BoundedCache(_SIZES))
    )


def tables_of(
    graph: Declaration, given: Given | None, sizes: Mapping[str, int] | None, scores: Scores | None
) -> Query:
    """Nodes, tables and evidence of a query about a graph without structured variables.

    Raises:
        DeclarationError: for a graph with structured variables, or without tables.
        ObservationError: for evidence that does not fit the graph.
    """
    reason = refusal_of_variables(graph)
    if reason:
        raise DeclarationError(f"graph {graph.name!r}: {reason}.")
    return _query_on_cpu(graph, given, sizes, scores)


def query_of(
    graph: Declaration, given: Given | None, sizes: Mapping[str, int] | None, scores: Scores | None
) -> Query:
    """Nodes, tables and evidence of a query, for ``structures``; errors as for ``tables_of``.

    Tables are multiplied on the device of the graph, unless some of its variables are structured.
    """
    nodes, model, evidence = _query_on_cpu(graph, given, sizes, scores)
    return nodes, model if nodes.structured else replace(model, device=device_of(graph)), evidence


def _query_on_cpu(
    graph: Declaration, given: Given | None, sizes: Mapping[str, int] | None, scores: Scores | None
) -> Query:
    for what, mapping in (("evidence", given), ("scores", scores), ("sizes", sizes)):
        check_mapping(what, mapping)
    given, scores = on_cpu(given or {}), on_cpu(scores or {})
    constants: dict[str, Tensor] = {}
    observed: dict[str, Tensor | Partial] = {}
    for name, x in given.items():
        if isinstance(graph.arrays.get(name), Constant):
            given_array(graph, name)
            if not isinstance(x, Tensor):
                raise ObservationError(f"constant {name!r} needs a tensor, got {type(x).__name__}.")
            constants[name] = x
        else:
            observed[name] = x
    nodes, plans = nodes_of(graph, sizes_with(graph, given, sizes))
    model = ground(nodes, constants, plans)
    evidence = nodes.evidence(observed, scores)
    # constants that no table reads have rows as well
    sets = {len(x) for name, x in constants.items() if x.ndim > len(nodes.shapes[name])}
    rows = max(sets, default=1)
    if rows > 1 and model.batch == 1:
        if len(evidence.values) not in (1, rows) or len(sets - {1}) > 1:
            raise ObservationError(
                f"constants and evidence have different batch sizes: {sorted({*sets, len(evidence.values)})}."
            )
        evidence = replace(evidence, values=evidence.values.expand(rows, -1))
    return nodes, model, with_counters(model, evidence)


def with_counters(model: TableModel, evidence: TableEvidence) -> TableEvidence:
    """Evidence with an unobserved column for each counter of a constraint."""
    missing = len(model.states) - evidence.values.shape[1]
    unknown = torch.full((len(evidence.values), missing), -1)
    return TableEvidence(torch.cat([evidence.values, unknown], 1), evidence.scores)
