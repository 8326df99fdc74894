"""Exact inference with continuous variables as the model of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..engine import CanInfer, CanLearn, CanSample, Samples, SamplingOptions, check_model
from ..errors import ObservationError
from ..graph.declaration import Declaration
from ..graph.partial import Partial
from .gaussian import gaussian_marginals, gaussian_refusal
from .mixed import mixed_marginals, mixed_refusal
from .model import check_sampling
from .nodes import Given
from .options import ExactOptions


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of evidence that give the same entries.

    Attributes:
        places: numbers of the rows, shape ``(rows,)``.
        given: their evidence.
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

    def __init__(self, graph: Declaration, options: ExactOptions) -> None:
        super().__init__()
        check_model("MixedModel", options, ExactOptions, mixed_refusal(graph))
        self.graph, self.options = graph, options
        self._marginals = mixed_marginals if gaussian_refusal(graph) else gaussian_marginals

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean of minus the conditional log-density, a scalar.

        Args:
            values: examples by variable, shape ``(batch, *axes)``; variables that are left out are latent.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)``.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values or masks that do not fit the graph.
            InferenceError: for an energy that is not bounded below, or a graph beyond the limits.
        """
        if not values:
            raise ObservationError(f"graph {self.graph.name!r}: examples have no values.")
        count = max(len(x) for x in values.values())
        given = {
            name: Partial(values[name], mask.expand(count, *mask.shape[1:]))
            for name, mask in observed.items()
            if name in values
        }
        joint = self._log_partition(dict(values), count, sizes)
        loss: Tensor = (self._log_partition(given, count, sizes) - joint).mean()
        return loss.to(next((p.dtype for p in self.parameters()), loss.dtype))

    @torch.no_grad()
    def infer_values(
        self, given: Given, count: int, sizes: Mapping[str, int], iterations: int | None = None
    ) -> dict[str, Tensor]:
        """Exact means of all variables. There are no iterations."""
        parts = []
        for rows in rows_by_pattern(given, count):
            answer = self._marginals(self.graph, rows.given, sizes=sizes, options=self.options)
            size = len(rows.places)
            parts.append({name: x.expand(size, *x.shape[1:]).float() for name, x in answer.means.items()})
        return _in_order(parts, rows_by_pattern(given, count))

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
        check_sampling(options, trace)
        generator = None if options.seed is None else torch.Generator().manual_seed(options.seed)
        parts, groups = [], rows_by_pattern(given, count)
        for rows in groups:
            answer = self._marginals(self.graph, rows.given, sizes=sizes, options=self.options)
            one = len(answer.log_partition) == 1
            samples = answer.sample(len(rows.places) if one else 1, generator)
            parts.append({name: (x[0] if one else x[:, 0]).float() for name, x in samples.items()})
        values = _in_order(parts, groups)
        valid = None
        if verify and self.graph.constraints:
            valid = torch.stack([c.violations_of(values) for c in self.graph.constraints]).sum(0) == 0
        return Samples(values, valid, torch.ones(count, dtype=torch.long))

    def _log_partition(self, given: Given, count: int, sizes: Mapping[str, int]) -> Tensor:
        groups = rows_by_pattern(given, count)
        parts = [
            self._marginals(self.graph, rows.given, sizes=sizes, options=self.options).log_partition.expand(
                len(rows.places)
            )
            for rows in groups
        ]
        return _by_place(torch.cat(parts), groups)


def rows_by_pattern(given: Given, count: int) -> list[_Rows]:
    """Rows of evidence by the entries that they give.

    Args:
        given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
        count: number of rows.

    Raises:
        ObservationError: for evidence of another number of rows.
    """
    for name, x in given.items():
        value = x.value if isinstance(x, Partial) else x
        if len(value) not in (1, count):
            raise ObservationError(
                f"variable {name!r}: {len(value)} rows are given, but {count} answers are wanted."
            )
    masks = [
        x.mask.reshape(len(x.mask), -1).expand(count, -1) for x in given.values() if isinstance(x, Partial)
    ]
    if not masks or not count:
        return [_Rows(torch.arange(count), dict(given))]
    _, pattern = torch.cat(masks, 1).unique(dim=0, return_inverse=True)
    groups = []
    for number in range(int(pattern.max()) + 1):
        places = (pattern == number).nonzero()[:, 0]
        groups.append(_Rows(places, {name: _select(x, places, count) for name, x in given.items()}))
    return groups


def _select(x: Tensor | Partial, places: Tensor, count: int) -> Tensor | Partial:
    if isinstance(x, Partial):
        value = x.value.expand(count, *x.value.shape[1:])[places]
        return Partial(value, x.mask.expand(count, *x.mask.shape[1:])[places])
    return x.expand(count, *x.shape[1:])[places]


def _by_place(parts: Tensor, groups: list[_Rows]) -> Tensor:
    """Rows of all groups in the order of the evidence."""
    places = torch.cat([rows.places for rows in groups])
    return parts[places.argsort()]


def _in_order(parts: list[dict[str, Tensor]], groups: list[_Rows]) -> dict[str, Tensor]:
    return {name: _by_place(torch.cat([part[name] for part in parts]), groups) for name in parts[0]}
