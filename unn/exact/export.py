"""Declared graphs as models of the field's files: tables as they are, or as a Bayesian network."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ArgumentError, InferenceError
from ..graph.declaration import Declaration
from .elimination import quick_order
from .files import ModelFile
from .nodes import Given
from .queries import tables_of
from .sweeps import joint_logs, log_sum
from .tables import TableModel

_MOST_LOG = 700.0
"""Largest magnitude of the logarithm of a weight in a file; exp(709) is the largest float64."""

_MOST_ENTRIES = 2**24
"""Largest number of entries of a conditional distribution."""

Weights = NDArray[np.float64]
Table = tuple[tuple[int, ...], Weights]
"""Variables of a table, and its weights, one axis for each of them."""


def to_model_file(
    graph: Declaration, given: Given | None = None, *, sizes: Mapping[str, int] | None = None
) -> ModelFile:
    """A declared graph as a Markov network, which ``write_uai`` writes.

    The weights are ``exp(-E)``, so that log-partitions are those of the declaration. Nodes are named as in
    ``X[0, 3]``, states by number; constraints that count are tables of 0 and 1, with counters where a group
    is large.

    Args:
        graph: declaration whose variables are discrete and whose factors are tables.
        given: values of constants without a declared one. Evidence on variables is no part of a model.
        sizes: sizes of the axes without a static size.

    Raises:
        DeclarationError: for a graph without tables; names the variable or factor.
        InferenceError: for evidence on a variable, several models in a batch, or a weight beyond float64.
    """
    _, model, evidence = tables_of(graph, given, sizes, None)
    if bool((evidence.values >= 0).any()):
        raise InferenceError(f"graph {graph.name!r}: a model has no evidence; write it in a file of its own.")
    if model.batch > 1:
        raise InferenceError(
            f"graph {graph.name!r}: its constants are a batch of {model.batch} models; pass one."
        )
    tables = _tables(model)
    return ModelFile(
        "MARKOV",
        model.names,
        tuple(tuple(map(str, range(count))) for count in model.states),
        tuple(scope for scope, _ in tables),
        tuple(weights for _, weights in tables),
        graph.name,
        graph.name,
    )


def to_bayesian_network(model: ModelFile) -> ModelFile:
    """A Bayesian network with the same distribution, which ``write_bif`` writes.

    Variables are eliminated one after another; each is conditioned on its neighbours at that time, so that
    the number of parents is the width of the order. The log-partition of the network is 0.

    Args:
        model: model of any tables.

    Raises:
        ArgumentError: for anything but a ModelFile.
        InferenceError: for a conditional distribution of more than 2^24 entries, or a model whose weights
            are all zero.
    """
    if not isinstance(model, ModelFile):
        raise ArgumentError(f"to_bayesian_network takes a ModelFile, got {type(model).__name__}.")
    states = [len(own) for own in model.states]
    tables = [
        (scope, torch.as_tensor(weights, dtype=torch.float64).log()[None])
        for scope, weights in zip(model.scopes, model.potentials, strict=True)
    ]
    is_possible = all(bool((logs > -torch.inf).any()) for _, logs in tables)
    distributions: dict[int, Table] = {}
    for variable in quick_order(model.scopes, states):
        own = [table for table in tables if variable in table[0]]
        tables = [table for table in tables if variable not in table[0]]
        parents = sorted({v for scope, _ in own for v in scope} - {variable})
        scope = (*parents, variable)
        entries = math.prod(states[v] for v in scope)
        if entries > _MOST_ENTRIES:
            raise InferenceError(
                f"model {model.name!r}: the distribution of {model.names[variable]!r} given {len(parents)} "
                f"others has {entries:,} entries, more than {_MOST_ENTRIES:,}; write it as tables (UAI)."
            )
        product = joint_logs(own, scope, states)
        total = log_sum(product)
        possible = (total > -torch.inf)[..., None]
        # impossible parents have any distribution
        conditional = torch.where(possible, product - torch.where(possible, total[..., None], 0), 0)
        distributions[variable] = scope, torch.softmax(conditional, -1)[0].numpy()
        if not is_possible or not bool(possible.any()):
            raise InferenceError(f"model {model.name!r}: the weights of all values are zero.")
        tables.append((tuple(parents), total))
    ordered = sorted(distributions)
    return ModelFile(
        "BAYES",
        model.names,
        model.states,
        tuple(distributions[variable][0] for variable in ordered),
        tuple(distributions[variable][1] for variable in ordered),
        model.name,
        model.title,
    )


def _tables(model: TableModel) -> list[Table]:
    """Weights of all tables of a model without a batch."""
    tables = []
    for family in model.families:
        logs = family.logs.detach().double()[:, 0]
        beyond = logs[(logs.abs() > _MOST_LOG) & (logs > -torch.inf)]
        if len(beyond):
            raise InferenceError(
                f"model {model.name!r}: a weight is exp({float(beyond[0]):.0f}), beyond the numbers of a "
                "file; add a constant to the energies, or make their differences smaller."
            )
        for scope, weights in zip(family.scopes.tolist(), logs.exp().cpu().numpy(), strict=True):
            tables.append((tuple(scope), weights))
    return tables
