"""Exact inference with continuous variables as the model of an engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..engine import CanInfer, CanLearn, CanSample, Samples, SamplingOptions, check_model
from ..errors import ObservationError
from ..graph.declaration import Declaration
from ..graph.partial import Partial, restricted, rows_of
from .gaussian import constants_given
from .inference import impossible_row, mean_surprise
from .mixed import MixedMarginals, continuous_variables, mixed_marginals, mixed_refusal
from .model import generator_of, like_parameters, verified
from .nodes import Given, check_rows, on_cpu
from .options import ExactOptions


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of evidence that give the same entries and the same constants.

    Attributes:
        places: numbers of the rows, shape ``(rows,)``.
        given: their evidence, and one row of the constants.
    """

    places: Tensor
    given: dict[str, Tensor | Partial]


class MixedModel(nn.Module, CanLearn, CanInfer, CanSample):
    """Exact means and samples of graphs with continuous variables; see ``unn.exact.mixed_marginals``.

    Its parameters are those of the graph. The loss is minus the log-density of the values that are not
    observed given those that are; variables without values are summed out.

    Args:
        graph: declaration whose energy is quadratic given its discrete nodes.
        options: limits.

    Raises:
        DeclarationError: for another graph; names the variable or factor.

    Attributes:
        graph: the declaration.
        options: limits.
    """

    has_rounds = False

    def __init__(self, graph: Declaration, options: ExactOptions) -> None:
        super().__init__()
        check_model("MixedModel", options, ExactOptions, mixed_refusal(graph))
        self.graph, self.options = graph, options

    def loss(self, values: Given, observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean of minus the conditional log-density, a scalar.

        Args:
            values: examples by variable, shape ``(batch, *axes)``, and values of constants; variables that
                are left out are latent, and so are entries outside of the mask of ``unn.Partial``.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)``.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values or masks that do not fit the graph.
            InferenceError: for an energy that is not bounded below, a graph beyond the limits, or an example
                whose observed part has probability zero.
        """
        if not values:
            raise ObservationError(f"graph {self.graph.name!r}: examples have no values.")
        values, observed = on_cpu(values), on_cpu(observed)
        own = {name: x for name, x in values.items() if name in self.graph.variables}
        count = max((len(x.value if isinstance(x, Partial) else x) for x in own.values()), default=1)
        given: dict[str, Tensor | Partial] = {
            name: x for name, x in values.items() if name not in self.graph.variables
        }
        given |= {
            name: restricted(own[name], mask.expand(count, *mask.shape[1:]))
            for name, mask in observed.items()
            if name in own
        }
        joint = self._log_partition(dict(values), count, sizes)
        total = self._log_partition(given, count, sizes)
        return like_parameters(mean_surprise(self.graph.name, total, joint), self)

    @torch.no_grad()
    def infer_values(
        self, given: Given, count: int, sizes: Mapping[str, int], iterations: int | None = None
    ) -> dict[str, Tensor]:
        """Exact means of all variables. There are no iterations; errors as those of ``moments``."""
        means, _ = self.moments(given, count, sizes)
        return {name: mean.float() for name, mean in means.items()}

    @torch.no_grad()
    def moments(
        self, given: Given, count: int, sizes: Mapping[str, int]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Exact means of all variables, and exact variances of the continuous ones.

        Args:
            given: evidence by variable, complete or partial, and values of constants; rows may give different
                entries and constants.
            count: number of rows.
            sizes: sizes of the axes without a static size.

        Returns:
            By variable, float64, shape ``(count, *axes)``; variances of given entries are 0.

        Raises:
            ObservationError: for evidence that does not fit the graph, or of another number of rows.
            InferenceError: for evidence of probability zero, an energy that is not bounded below, or a graph
                beyond the limits.
        """
        groups = self._rows(given, count, sizes)
        answers = [self._answer(rows, sizes) for rows in groups]
        for rows, answer in zip(groups, answers, strict=True):
            impossible = (answer.log_partition == -torch.inf).nonzero()[:, 0]
            if len(impossible):
                raise impossible_row(self.graph.name, int(rows.places[impossible[0]]))
        means = {
            name: _in_order([answer.means[name] for answer in answers], groups)
            for name in self.graph.variables
        }
        variances = {
            name: _in_order([answer.variances[name] for answer in answers], groups)
            for name in continuous_variables(self.graph)
        }
        return means, variances

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
        """Independent exact samples, one for each row of evidence; errors as those of ``ExactModel``."""
        generator = generator_of(options, trace)
        groups = self._rows(given, count, sizes)
        parts = []
        for rows in groups:
            answer = self._answer(rows, sizes)
            # equal rows are answered once
            draws = len(rows.places) if len(answer.log_partition) == 1 else 1
            samples = answer.sample(draws, generator)
            parts.append({name: x.flatten(0, 1) for name, x in samples.items()})
        values = {
            name: _in_order([part[name] for part in parts], groups).float() for name in self.graph.variables
        }
        return verified(self.graph, values, count, verify)

    def _log_partition(self, given: Given, count: int, sizes: Mapping[str, int]) -> Tensor:
        groups = self._rows(given, count, sizes)
        return _in_order([self._answer(rows, sizes).log_partition for rows in groups], groups)

    def _rows(self, given: Given, count: int, sizes: Mapping[str, int]) -> list[_Rows]:
        constants, evidence = constants_given(self.graph, given, sizes)
        return rows_by_pattern(evidence, count, continuous_variables(self.graph), constants)

    def _answer(self, rows: _Rows, sizes: Mapping[str, int]) -> MixedMarginals:
        return mixed_marginals(self.graph, rows.given, sizes=sizes, options=self.options)


def rows_by_pattern(
    given: Given, count: int, continuous: Collection[str], constants: Mapping[str, Tensor]
) -> list[_Rows]:
    """Rows of evidence by the continuous entries that they give, and by their constants.

    Args:
        given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
        count: number of rows.
        continuous: names of the continuous variables.
        constants: values of constants by name, shape ``(1 or count, *axes)``.

    Raises:
        ObservationError: for evidence of another number of rows.
    """
    check_rows({**given, **constants}, count)
    shared = {name: x for name, x in constants.items() if len(x) == 1}
    own = {name: x for name, x in constants.items() if len(x) > 1}
    keys = [x.detach().reshape(len(x), -1) for x in own.values()]
    keys += [
        x.mask.reshape(len(x.mask), -1).expand(count, -1).double()
        for name, x in given.items()
        if isinstance(x, Partial) and name in continuous
    ]
    if not keys or not count:
        return [_Rows(torch.arange(count), {**given, **shared})]
    _, pattern = torch.cat(keys, 1).unique(dim=0, return_inverse=True)
    groups = []
    for number in range(int(pattern.max()) + 1):
        places = (pattern == number).nonzero()[:, 0]
        rows = {name: rows_of(x, places, count) for name, x in given.items()}
        rows |= shared | {name: x[places[:1]] for name, x in own.items()}
        groups.append(_Rows(places, rows))
    return groups


def _in_order(parts: list[Tensor], groups: list[_Rows]) -> Tensor:
    """Rows of all groups in the order of the evidence; a single row is repeated."""
    expanded = [x.expand(len(rows.places), *x.shape[1:]) for x, rows in zip(parts, groups, strict=True)]
    places = torch.cat([rows.places for rows in groups])
    return torch.cat(expanded)[places.argsort()]
