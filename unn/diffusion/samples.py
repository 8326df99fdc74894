"""Evidence of conditional models."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..engine import Samples as Samples
from ..networks.tokens import Frame


@dataclass(frozen=True, eq=False)
class Condition:
    """Evidence for a batch of samples.

    Attributes:
        frame: frame of the graph at the sizes of the samples.
        rows: standardised known values, 0 elsewhere, shape ``(batch, numbers)``.
        nodes: mask of known nodes, shape ``(batch, nodes)``, boolean.
        numbers: mask of known numbers, shape ``(batch, numbers)``, boolean.
    """

    frame: Frame
    rows: Tensor
    nodes: Tensor
    numbers: Tensor

    def select(self, chosen: Tensor) -> Condition:
        """The condition of a subset of the samples, selected by indices or a boolean mask."""
        return Condition(self.frame, self.rows[chosen], self.nodes[chosen], self.numbers[chosen])
