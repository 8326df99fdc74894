"""Belief propagation as the model of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..engine import CanInfer, CanLearn, check_model
from ..errors import ArgumentError
from ..exact.ground import refusal_of_tables
from ..exact.inference import impossible_row, mean_surprise
from ..exact.model import conditional_evidence, like_parameters
from ..exact.nodes import Given, on_cpu
from ..exact.queries import tables_of
from ..graph.declaration import Declaration
from .options import BeliefOptions
from .queries import marginals_of_tables, table_marginals


class BeliefModel(nn.Module, CanLearn, CanInfer):
    """Approximate means of any variables given any others.

    Its parameters are those of the graph. The loss is the conditional negative log-likelihood with the Bethe
    approximation of both log-partitions; its gradients are those of messages at rest.

    Args:
        graph: declaration with discrete variables, products of arrays, and constraints that count.
        options: method and limits.

    Raises:
        DeclarationError: for a graph without tables; names the variable or factor.

    Attributes:
        graph: the declaration.
        options: method and limits.
    """

    def __init__(self, graph: Declaration, options: BeliefOptions) -> None:
        super().__init__()
        check_model("BeliefModel", options, BeliefOptions, refusal_of_tables(graph))
        self.graph, self.options = graph, options

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean of minus the approximate conditional log-likelihood, a scalar; arguments as for
        ``ExactModel.loss``.

        Raises:
            ArgumentError: for the method "max-product", which has no log-partition.
            InferenceError: for an example whose observed part has probability zero.
        """
        if self.options.method == "max-product":
            raise ArgumentError(
                "belief propagation with method='max-product' has no log-partition to learn from; use "
                "another method."
            )
        values, observed = on_cpu(values), on_cpu(observed)
        nodes, model, everything = tables_of(self.graph, values, sizes, None)
        evidence = conditional_evidence(nodes, model, values, observed, len(everything.values))
        joint = marginals_of_tables(nodes, model, everything, self.options).log_partition
        total = marginals_of_tables(nodes, model, evidence, self.options).log_partition
        return like_parameters(mean_surprise(self.graph.name, total, joint), self)

    @torch.no_grad()
    def infer_values(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
    ) -> dict[str, Tensor]:
        """Approximate means of all variables; see ``unn.belief.marginals``. ``iterations`` limits the
        rounds.

        Raises:
            ObservationError: for evidence that does not fit the graph.
            InferenceError: for evidence that belief propagation proves to have probability zero.
        """
        options = self.options
        if iterations is not None:
            options = replace(options, rounds=iterations)
        nodes, model, evidence = tables_of(self.graph, given, sizes, None)
        probabilities = table_marginals(model, evidence, options).probabilities
        impossible = (probabilities.sum(2) == 0).any(1).nonzero()[:, 0]
        if len(impossible):
            raise impossible_row(self.graph.name, int(impossible[0]))
        means = nodes.means(probabilities)
        return {name: x.expand(count, *x.shape[1:]).float() for name, x in means.items()}
