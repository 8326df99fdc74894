"""Approximate queries of declarations by belief propagation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ArgumentError, DeclarationError
from ..exact.conditioning import prepare_query
from ..exact.files import ModelFile
from ..exact.nodes import Given, Nodes
from ..exact.queries import tables_of
from ..exact.reduction import Reduced, place_probabilities, remaining_tables
from ..exact.tables import TableEvidence, TableModel
from ..graph.declaration import Declaration
from .decoding import best_states
from .merging import merged
from .mini_bucket import mini_bucket_bound
from .options import BeliefOptions
from .propagation import appearance_probabilities, log_partition, propagate


@dataclass(frozen=True, eq=False)
class BeliefMarginals:
    """Approximate marginals.

    Attributes:
        means: means by variable, shape ``(batch, *axes)``; exact on trees. With max-product the states
            of largest max-marginals, one-hot; on trees best values, also where several are equally good.
        log_partition: the Bethe approximation (exact on trees, neither bound elsewhere), or an upper
            bound with "tree-reweighted", in the rows that have converged, and "mini-bucket", shape
            ``(batch,)``; -inf where counting proves that no values agree with the evidence. NaN with
            max-product.
        converged: mask of the rows whose messages rest, shape ``(batch,)``; the means of others may be
            anything.
        residual: largest change of the logarithm of a message in the last round, shape ``(batch,)``.
        rounds: number of rounds.
    """

    means: Mapping[str, Tensor]
    log_partition: Tensor
    converged: Tensor
    residual: Tensor
    rounds: int

    def __getitem__(self, name: str) -> Tensor:
        return self.means[name]


@dataclass(frozen=True, eq=False)
class TableBeliefs:
    """Marginals of the variables of a table model by belief propagation.

    Attributes:
        probabilities: probability of each state of each variable, shape ``(batch, variables, most states)``.
        log_partition: as in ``BeliefMarginals``, shape ``(batch,)``.
        converged: mask of the rows whose messages rest, shape ``(batch,)``.
        residual: largest change of the logarithm of a message in the last round, shape ``(batch,)``.
        rounds: number of rounds.
    """

    probabilities: Tensor
    log_partition: Tensor
    converged: Tensor
    residual: Tensor
    rounds: int


def marginals(
    graph: Declaration,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    scores: Mapping[str, Tensor] | None = None,
    options: BeliefOptions | None = None,
) -> BeliefMarginals:
    """Means of all variables given the evidence, by belief propagation.

    Args:
        graph: declaration as for ``unn.exact.log_partition``.
        given: evidence by variable, complete or partial, and values of constants.
        sizes: sizes of the axes without a static size; those of the evidence by default.
        scores: soft evidence, as for ``unn.exact.log_partition``.
        options: method and limits.

    Raises:
        DeclarationError: for a graph without tables; for "tree-reweighted" also with a factor over
            three nodes.
        ObservationError: for evidence that does not fit the graph.
    """
    nodes, model, evidence = tables_of(graph, given, sizes, scores)
    return marginals_of_tables(nodes, model, evidence, BeliefOptions() if options is None else options)


def marginals_of_tables(
    nodes: Nodes, model: TableModel, evidence: TableEvidence, options: BeliefOptions
) -> BeliefMarginals:
    """Means of the nodes of a graph from its tables; arguments and errors as for ``marginals``."""
    beliefs = table_marginals(model, evidence, options)
    means = nodes.means(beliefs.probabilities)
    return BeliefMarginals(means, beliefs.log_partition, beliefs.converged, beliefs.residual, beliefs.rounds)


def table_marginals(
    model: TableModel | ModelFile,
    evidence: TableEvidence | None = None,
    options: BeliefOptions | None = None,
) -> TableBeliefs:
    """Probabilities of all variables of a table model given the evidence, by belief propagation.

    Args:
        model: tables, or the file of ``unn.exact.read_uai`` or ``read_bif`` that holds them.
        evidence: observed states and soft evidence; none by default.
        options: method and limits.

    Raises:
        DeclarationError: for "tree-reweighted" with a table over three variables.
        ObservationError: for evidence that does not fit the model.
    """
    model = model.model if isinstance(model, ModelFile) else model
    options = BeliefOptions() if options is None else options
    if not isinstance(options, BeliefOptions):
        raise ArgumentError(f"belief: options must be BeliefOptions, got {type(options).__name__}.")
    options.check("belief")
    evidence, _, batch = prepare_query(model, evidence, None)
    remaining, states = remaining_tables(model, evidence)
    families, constant = merged(remaining.families), remaining.constant.expand(batch)
    if not families:
        probabilities = place_probabilities(model, evidence, remaining, [], constant > -torch.inf)
        rest = torch.zeros(batch, dtype=torch.float64)
        return TableBeliefs(probabilities, constant, rest == 0, rest, 0)
    if options.method == "mini-bucket":
        bound, p = mini_bucket_bound(families, states, options.entries)
        total = constant + bound
        probabilities = _placed(model, evidence, remaining, states, p, total > -torch.inf)
        rest = torch.zeros(batch, dtype=torch.float64)
        return TableBeliefs(probabilities, total, rest == 0, rest, 1)
    weights = [torch.ones(len(family.scopes), dtype=torch.float64) for family in families]
    if options.method == "tree-reweighted":
        wide = next((family for family in families if len(family.states) > 2), None)
        if wide is not None:
            name = ", ".join(model.names[int(remaining.remaining.nonzero()[v, 0])] for v in wide.scopes[0])
            raise DeclarationError(
                f"graph {model.name!r}: tree-reweighted belief propagation takes factors of at most two "
                f"nodes, but one couples {name}; use sum-product."
            )
        weights = appearance_probabilities(families, len(states))
    with torch.no_grad():
        beliefs = propagate(families, states, weights, options)
    p = beliefs.variables.exp()
    possible = (constant > -torch.inf) & (p.sum(2) > 0).all(0)
    total = constant + log_partition(families, beliefs, weights, len(states))
    total = torch.where(possible, total, -torch.inf)
    if options.method == "max-product":
        p = torch.nn.functional.one_hot(best_states(families, beliefs), p.shape[2]).double()
        total = torch.full_like(total, torch.nan)
    probabilities = _placed(model, evidence, remaining, states, p, possible)
    residual = beliefs.residual.expand(batch)
    return TableBeliefs(probabilities, total, residual <= options.tolerance, residual, beliefs.rounds)


def upper_bound(
    model: TableModel | ModelFile, evidence: TableEvidence | None = None, *, entries: int = 2**16
) -> Tensor:
    """An upper bound of the log-partition of a model of tables, by weighted mini-buckets, shape ``(batch,)``.

    Args:
        model: tables, or the file of ``unn.exact.read_uai`` that holds them.
        evidence: observed states and soft evidence; none by default.
        entries: largest number of entries of a product of tables.

    Raises:
        ArgumentError: for a number of entries below 1.
        ObservationError: for evidence that does not fit the model.
    """
    BeliefOptions(method="mini-bucket", entries=entries).check("upper_bound")
    model = model.model if isinstance(model, ModelFile) else model
    evidence, _, batch = prepare_query(model, evidence, None)
    remaining, states = remaining_tables(model, evidence)
    if not remaining.families:
        return remaining.constant.expand(batch)
    bound, _ = mini_bucket_bound(merged(remaining.families), states, entries)
    return remaining.constant + bound.expand(batch)


def _placed(
    model: TableModel,
    evidence: TableEvidence,
    remaining: Reduced,
    states: Sequence[int],
    p: Tensor,
    possible: Tensor,
) -> Tensor:
    """Probabilities of all variables, from those of the remaining ones, which have the shape
    ``(variables, batch, most states)``."""
    parts = [
        (torch.tensor([v for v, size in enumerate(states) if size == own]), own)
        for own in sorted(set(states))
    ]
    placed = [(variables, p[variables, :, :own]) for variables, own in parts]
    return place_probabilities(model, evidence, remaining, placed, possible)
