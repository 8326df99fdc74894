"""Regression: one estimate of all variables, without noise."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..engine import SamplingOptions
from ..networks.denoiser import Denoiser
from .conditional import Condition, ConditionalModel, Trace
from .coordinates import CoordinateName
from .sampling import DrawRows


class Regressor(ConditionalModel):
    """Regression baseline: a denoiser without noise, which estimates the posterior mean instead of a sample.

    The mean is that of coordinates: of positive variables and counts, whose coordinates are logarithms by
    default, the estimate lies below their mean; ``coordinates="linear"`` estimates the mean itself, which may
    leave the support.

    Noisy values and time are replaced by zeros (structured-diffusion paper, Appendix D: "Regressor + GS";
    "Regressor" is the same with ``Denoiser(..., structure="dense")``).

    Args:
        denoiser: denoiser of a graph.
        coordinates: as for ``ConditionalModel``.
    """

    def __init__(self, denoiser: Denoiser, coordinates: CoordinateName = "auto") -> None:
        super().__init__(denoiser.frames, coordinates)
        self.denoiser = denoiser

    def estimate(self, condition: Condition) -> Tensor:
        """Standardised estimate with exact observed values, shape ``(batch, numbers)``."""
        level = condition.rows.new_zeros(len(condition.rows))
        estimate = self.denoiser(condition.rows, level, condition.nodes, condition.frame)
        return torch.where(condition.numbers, condition.rows, estimate)

    def loss(
        self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int
    ) -> Tensor:
        """Mean squared error over the unobserved nodes, all nodes weighted equally; a scalar.

        Args:
            values: training samples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes, boolean, shape ``(batch, nodes)``; or by variable, shape
                ``(batch, *node axes)``.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values or observed nodes that do not fit the graph.
        """
        clean, condition = self.example(values, observed, **sizes)
        return self.mean_over_unknown((self.estimate(condition) - clean) ** 2, condition)

    def drawing(self, options: SamplingOptions, trace: Trace | None) -> DrawRows:
        """The estimate, which is deterministic."""
        return lambda batch, _: self.estimate(batch)
