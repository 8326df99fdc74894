"""What the training loop needs of a problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from .batches import Examples

Batch = Any
"""What ``Examples.batch`` returns: tensors, or tuples, lists and dictionaries of them."""


class Task(ABC):
    """Examples, a loss and a measure: all that training needs beside a network.

    Attributes:
        facts: sizes found in the data that a network is built from, as JSON; they are saved with the run. Under ``data``, SHA-256 checksums
            of the training data by the name of the file or part, so that a resumed run notices changed data.
        monitor: the metric of ``evaluate`` that says which weights are best, or "loss".
        larger_is_better: whether the best is its largest value.
    """

    facts: Mapping[str, Any] = {}
    monitor: ClassVar[str] = "loss"
    larger_is_better: ClassVar[bool] = False

    @abstractmethod
    def examples(self) -> Examples:
        """What to train on."""

    @abstractmethod
    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over a batch, a scalar, differentiable. May draw from torch's global generator, which is seeded for each step."""

    def weight(self, batch: Batch, count: int) -> float:
        """Of how many items the loss of a batch is the mean, so that parts of a batch can be put together exactly.

        Args:
            batch: as the loss gets it.
            count: how many examples it has, which is the default answer.
        """
        return float(count)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Metrics of a network in evaluation mode, under ``no_grad``; none by default."""
        return {}
