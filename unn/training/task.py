"""The interface between a problem and the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .batches import Examples

Batch = Any
"""What ``Examples.batch`` returns: tensors, or tuples, lists and dictionaries of them."""


class Task(ABC):
    """Examples, a loss and metrics.

    Attributes:
        facts: properties of the data from which a network is built, such as sizes, as JSON; saved
            with the run. Under ``data``, SHA-256 checksums of the training data by the name of the
            file or part, so that resuming with changed data is an error.
        monitor: metric of ``evaluate`` that selects the best weights, or "loss".
        larger_is_better: whether larger values of ``monitor`` are better.
    """

    facts: Mapping[str, Any] = {}
    monitor: str = "loss"
    larger_is_better: bool = False

    @abstractmethod
    def examples(self) -> Examples:
        """Return the training examples."""

    @abstractmethod
    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss over a batch, a differentiable scalar.

        May draw from torch's global generator, which is seeded for each step.
        """

    def weight(self, batch: Batch, count: int) -> float:
        """Number of items over which the loss of a batch is the mean, for the exact mean over the
        parts of a batch.

        Args:
            batch: a batch, as passed to ``loss``.
            count: number of examples in the batch, the default result.
        """
        return float(count)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Return the metrics of a network in evaluation mode, under ``no_grad``; none by default."""
        return {}
