"""Exact inference as the model of an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ..engine import CanInfer, CanLearn, CanSample, Samples, SamplingOptions, check_model
from ..errors import ArgumentError, UnnError
from ..graph.declaration import Declaration
from ..graph.partial import restricted
from . import structures
from .ground import refusal_of_structures
from .inference import impossible_row, mean_surprise
from .nodes import Given, Nodes, check_rows, on_cpu
from .options import ExactOptions
from .queries import query_of, with_counters
from .reduction import width
from .tables import TableEvidence, TableModel


class ExactModel(nn.Module, CanLearn, CanInfer, CanSample):
    """Exact means and samples of any variables given any others.

    Its parameters are those of the graph. The loss is minus the logarithm of the probability of the
    values that are not observed given those that are; variables without values are summed out.

    Args:
        graph: declaration with discrete or structured variables, products of arrays, and constraints that
            count.
        options: limits of time and memory.

    Raises:
        DeclarationError: for a graph without tables; names the variable or factor.

    Attributes:
        graph: the declaration.
        options: limits of time and memory.
    """

    has_rounds = False

    def __init__(self, graph: Declaration, options: ExactOptions) -> None:
        super().__init__()
        check_model("ExactModel", options, ExactOptions, refusal_of_structures(graph))
        self.graph, self.options = graph, options

    def loss(self, values: Given, observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean of minus the conditional log-likelihood, a scalar.

        Args:
            values: examples by variable, shape ``(batch, *axes)``; variables that are left out are latent,
                and so are entries outside of the mask of ``unn.Partial``.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)``.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values or masks that do not fit the graph.
            InferenceError: for a graph beyond the limits, or an example whose observed part has probability
                zero.
        """
        values, observed = on_cpu(values), on_cpu(observed)
        nodes, model, everything = query_of(self.graph, values, sizes, None)
        evidence = conditional_evidence(nodes, model, values, observed, len(everything.values))
        joint = structures.log_partition((nodes, model, everything), self.options)
        total = structures.log_partition((nodes, model, evidence), self.options)
        return like_parameters(mean_surprise(self.graph.name, total, joint), self)

    @torch.no_grad()
    def infer_values(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
    ) -> dict[str, Tensor]:
        """Exact means of all variables; see ``unn.exact.marginals``. There are no iterations.

        Raises:
            ObservationError: for evidence that does not fit the graph, or of another number of rows.
            InferenceError: for evidence of probability zero, or a graph beyond the limits.
        """
        check_rows(self._variables_of(given), count)
        nodes, model, evidence = query_of(self.graph, given, sizes, None)
        answer = structures.marginals((nodes, model, evidence), self.options)
        impossible = (answer.log_partition == -torch.inf).nonzero()[:, 0]
        if len(impossible):
            raise impossible_row(self.graph.name, int(impossible[0]))
        probabilities = answer.probabilities.expand(count, -1, -1)
        return {name: x.float() for name, x in nodes.means(probabilities).items()}

    @torch.no_grad()
    def sample_with(
        self,
        given: Given,
        count: int,
        options: SamplingOptions,
        sizes: Mapping[str, int],
        *,
        verify: bool = False,
        trace: Callable[[int, dict[str, Tensor]], None] | None = None,
    ) -> Samples:
        """Independent exact samples, one for each row of evidence.

        Raises:
            ArgumentError: for options of denoising, which there is none of.
            ObservationError: for evidence that does not fit the graph.
            InferenceError: for evidence of probability zero, or a graph beyond the limits.
        """
        generator = generator_of(options, trace)
        check_rows(self._variables_of(given), count)
        nodes, model, evidence = query_of(self.graph, given, sizes, None)
        rows = evidence.values.expand(count, -1) if len(evidence.values) == 1 else evidence.values
        evidence = type(evidence)(rows, evidence.scores)
        query = nodes, model, evidence
        states = structures.sample(query, 1, self.options, generator)[:, 0]
        values = {name: x.float() for name, x in nodes.values(states).items()}
        return verified(self.graph, values, count, verify)

    def _variables_of(self, given: Given) -> Given:
        """The evidence without values of constants, which may have no axis of rows."""
        return {name: x for name, x in given.items() if name in self.graph.variables}


def generator_of(options: SamplingOptions, trace: object) -> torch.Generator | None:
    """The source of randomness of exact samples; errors as for ``refuse_steps``."""
    refuse_steps("exact samples", options, trace)
    return None if options.seed is None else torch.Generator().manual_seed(options.seed)


def refuse_steps(samples: str, options: SamplingOptions, trace: object) -> None:
    """Check options of samples that are drawn in one step, which have no options of denoising.

    Args:
        samples: what is drawn, for messages.
        options: options of sampling.
        trace: callback after each step, of which there is none.

    Raises:
        ArgumentError: names the option.
        UnnError: for an option out of range, or a trace.
    """
    options.check()
    for name in ("steps", "sampler", "spacing"):
        if getattr(options, name) is not None:
            raise ArgumentError(f"{samples} have no {name}; leave out --{name}.")
    if trace is not None:
        raise UnnError(f"{samples} are drawn in one step, so there is no trace.")


def verified(graph: Declaration, values: dict[str, Tensor], count: int, verify: bool) -> Samples:
    """Samples, drawn in one try each, and whether they meet all constraints, if that is asked for."""
    valid = None
    if verify and graph.constraints:
        valid = torch.stack([c.violations_of(values) for c in graph.constraints]).sum(0) == 0
    return Samples(values, valid, torch.ones(count, dtype=torch.long))


def like_parameters(loss: Tensor, model: nn.Module) -> Tensor:
    """A loss in the type and on the device of the parameters of a model; itself where there are none."""
    parameter = next(model.parameters(), None)
    return loss if parameter is None else loss.to(parameter)


def conditional_evidence(
    nodes: Nodes,
    model: TableModel,
    values: Given,
    observed: Mapping[str, Tensor],
    count: int,
) -> TableEvidence:
    """The observed part of examples as evidence.

    Args:
        nodes: nodes of the graph.
        model: its tables.
        values: examples by variable, shape ``(count, *axes)``.
        observed: mask of observed nodes by variable, shape ``(count or 1, *node axes)``, axes of size
            1 repeated.
        count: number of examples.

    Raises:
        ObservationError: for values or masks that do not fit the graph.
    """
    given = {
        name: restricted(values[name], mask.expand(count, *nodes.ranges[name].node_shape))
        for name, mask in observed.items()
        if name in nodes.ranges and name in values
    }
    return with_counters(model, nodes.evidence(given, batch=count))


def refusal_of_width(graph: Declaration) -> str:
    """Why the tables of a graph of static size are too large, in one sentence; empty if they are not, or if
    its size is not known."""
    try:
        nodes, model, _ = query_of(graph, None, None, None)
    except UnnError:
        # sizes and constants may come with the queries
        return ""
    limits = ExactOptions()
    order = width(model, limits.operations)
    if order is not None and order.log_largest <= math.log2(limits.memory * 2**30 / 8):
        return ""
    bound = f"2^{limits.operations:.0f}"
    return f"exact inference on its {nodes.count} nodes needs more than {bound} multiplications"
