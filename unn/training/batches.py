"""Batches that are functions of a seed and the number of the step: nothing needs to be remembered to go on from any step.

Step t takes its examples from the permutation of its epoch; the permutation depends on the seed and the epoch alone. What is random in the
making of a batch draws from a generator seeded by (seed, step, part). Neither depends on what ran before, nor on the number of workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from ..errors import DataError
from ..ops.seeds import seed_of


class Examples(ABC):
    """What to train on, as batches."""

    @abstractmethod
    def __len__(self) -> int:
        """How many examples there are; 0 for a stream without an end."""

    @abstractmethod
    def batch(self, indices: Tensor, generator: torch.Generator) -> Any:
        """The examples with these numbers.

        Args:
            indices: shape ``(n,)``, int64. In a stream every number comes once.
            generator: of everything random in them; seeded by the step and the part of the batch, so that what must not change with the
                number of processes or parts has to be drawn from the indices instead.
        """


class TensorExamples(Examples):
    """Examples that lie in tensors: a batch is a tuple with the same rows of each.

    Args:
        tensors: shape ``(examples, ...)`` each.

    Raises:
        DataError: if there is none, or if they differ in their number of examples.
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors or len({len(x) for x in tensors}) != 1 or not len(tensors[0]):
            raise DataError(f"examples: tensors need one common number of examples, got shapes {[tuple(x.shape) for x in tensors]}.")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The rows with these numbers."""
        return tuple(x[indices] for x in self.tensors)


class DatasetExamples(Examples):
    """Examples of a ``torch.utils.data.Dataset`` with a length.

    Args:
        dataset: of single examples.
        collate: makes a batch of a list of them.

    Raises:
        DataError: for an empty dataset.
    """

    def __init__(self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any] = default_collate) -> None:
        if not len(cast(Any, dataset)):
            raise DataError("examples: the dataset is empty.")
        self.dataset = dataset
        self.collate = collate

    def __len__(self) -> int:
        return len(cast(Any, self.dataset))

    def batch(self, indices: Tensor, generator: torch.Generator) -> Any:
        """The examples with these numbers, collated."""
        return self.collate([self.dataset[k] for k in indices.tolist()])


@dataclass(frozen=True)
class Draw:
    """One part of the batch of a step."""

    step: int
    part: int
    indices: Tensor


@dataclass(frozen=True)
class Part:
    """One part of a batch as it comes from a loader; ``count`` is 0 where there were fewer examples than parts."""

    step: int
    count: int
    batch: Any


def steps_in_epoch(length: int, batch: int) -> int:
    """How many steps one pass over the examples takes; the last may be smaller."""
    return -(-length // batch)


def indices_of(step: int, length: int, batch: int, seed: int) -> Tensor:
    """The numbers of the examples of a step, over all processes and parts, shape ``(n,)``.

    Args:
        step: from 0.
        length: of the examples, 0 for a stream.
        batch: examples in a step.
        seed: of the shuffling.
    """
    if length == 0:
        return torch.arange(step * batch, (step + 1) * batch)
    epoch, place = divmod(step, steps_in_epoch(length, batch))
    return _permutation(length, seed_of(seed, 1, epoch))[place * batch : (place + 1) * batch]


_PERMUTATIONS: dict[tuple[int, int], Tensor] = {}


def _permutation(length: int, seed: int) -> Tensor:
    """Shuffled numbers; the last permutation is kept, since the steps of an epoch ask for it one after another."""
    if (length, seed) not in _PERMUTATIONS:
        _PERMUTATIONS.clear()
        _PERMUTATIONS[length, seed] = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return _PERMUTATIONS[length, seed]


def load_parts(
    examples: Examples, start: int, stop: int, batch: int, seed: int, parts: range, of: int, workers: int = 0, pin: bool = False
) -> Iterator[list[Part]]:
    """The parts of each step that this process computes, from step ``start`` up to ``stop``.

    Args:
        examples: to draw from.
        start: the first step.
        stop: one after the last step.
        batch: examples in a step, over all processes.
        seed: of shuffling and of what is random in batches.
        parts: which of the parts of a batch to make.
        of: how many parts a batch has in all processes together.
        workers: processes that make them ahead of time.
        pin: put them into pinned memory, for a GPU.
    """
    draws = _Draws(len(examples), start, stop, batch, seed, parts, of)
    loader = DataLoader(_Made(examples, seed), sampler=draws, batch_size=None, num_workers=workers, pin_memory=pin)
    found = iter(loader)
    for _ in range(start, stop):
        yield [Part(*next(found)) for _ in parts]


class _Draws(Sampler[Draw]):
    def __init__(self, length: int, start: int, stop: int, batch: int, seed: int, parts: range, of: int) -> None:
        self.arguments = (length, start, stop, batch, seed, parts, of)

    def __iter__(self) -> Iterator[Draw]:
        length, start, stop, batch, seed, parts, of = self.arguments
        for step in range(start, stop):
            pieces = indices_of(step, length, batch, seed).tensor_split(of)
            for part in parts:
                yield Draw(step, part, pieces[part])


class _Made(Dataset[tuple[int, int, Any]]):
    def __init__(self, examples: Examples, seed: int) -> None:
        self.examples = examples
        self.seed = seed

    def __getitem__(self, draw: Any) -> tuple[int, int, Any]:
        # a process without an example of its own still has to take part in the step, with weight 0
        indices = draw.indices if len(draw.indices) else torch.zeros(1, dtype=torch.int64)
        generator = torch.Generator().manual_seed(seed_of(self.seed, 2, draw.step, draw.part))
        return draw.step, len(draw.indices), self.examples.batch(indices, generator)
