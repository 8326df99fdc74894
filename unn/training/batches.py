"""Batches as functions of the seed and the step number, so that training resumes at any step
without loader state.

Step t takes its examples from the permutation of its epoch, which depends on the seed and the epoch
alone. Random choices within a batch use a generator seeded by (seed, step, part). Neither depends
on earlier steps or on the number of workers.
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
    """Training examples, served in batches."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of examples; 0 for an infinite stream."""

    @abstractmethod
    def batch(self, indices: Tensor, generator: torch.Generator) -> Any:
        """Return the examples with the given indices.

        Args:
            indices: shape ``(n,)``, int64. In a stream each index occurs once.
            generator: source of randomness, seeded by the step and the part of the batch.
                Randomness that must not depend on the number of processes or parts has to be
                derived from the indices instead.
        """


class TensorExamples(Examples):
    """Examples stored in tensors; a batch is a tuple with the same rows of each tensor.

    Args:
        tensors: tensors of shape ``(examples, ...)``.

    Raises:
        DataError: if there are no tensors or no examples, or if the numbers of examples differ.
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors or len({len(x) for x in tensors}) != 1 or not len(tensors[0]):
            raise DataError(
                f"examples: tensors need one common number of examples, got shapes "
                f"{[tuple(x.shape) for x in tensors]}."
            )
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return the rows with the given indices."""
        return tuple(x[indices] for x in self.tensors)


class DatasetExamples(Examples):
    """Examples of a ``torch.utils.data.Dataset`` with a length.

    What the dataset draws from torch's global generator depends on the seed, the step and the part of the
    batch; generators of its own, of numpy or of ``random`` are its own affair.

    Args:
        dataset: dataset of single examples.
        collate: function that makes a batch of a list of examples.

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
        """Return the examples with the given indices, collated."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            return self.collate([self.dataset[k] for k in indices.tolist()])


@dataclass(frozen=True)
class PartRequest:
    """Request for one part of the batch of a step."""

    step: int
    part: int
    indices: Tensor


@dataclass(frozen=True)
class BatchPart:
    """One part of a batch from the loader; ``count`` is 0 if there were fewer examples than parts."""

    step: int
    count: int
    batch: Any


def steps_in_epoch(length: int, batch: int) -> int:
    """Number of steps in one pass over the examples; the last batch may be smaller."""
    return -(-length // batch)


def indices_of(step: int, length: int, batch: int, seed: int) -> Tensor:
    """Indices of the examples of a step, over all processes and parts, shape ``(n,)``.

    Args:
        step: step number, from 0.
        length: number of examples; 0 for a stream.
        batch: number of examples per step.
        seed: seed of the shuffling.
    """
    if length == 0:
        return torch.arange(step * batch, (step + 1) * batch)
    epoch, number = divmod(step, steps_in_epoch(length, batch))
    return _permutation(length, seed_of(seed, 1, epoch))[number * batch : (number + 1) * batch]


_PERMUTATIONS: dict[tuple[int, int], Tensor] = {}


def _permutation(length: int, seed: int) -> Tensor:
    """Random permutation of ``length`` indices; the last one is cached, since all steps of an epoch
    use it."""
    if (length, seed) not in _PERMUTATIONS:
        _PERMUTATIONS.clear()
        _PERMUTATIONS[length, seed] = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return _PERMUTATIONS[length, seed]


def load_parts(
    examples: Examples,
    start: int,
    stop: int,
    batch: int,
    seed: int,
    parts: range,
    of: int,
    workers: int = 0,
    pin: bool = False,
) -> Iterator[list[BatchPart]]:
    """Yield the parts of each step that this process computes, from step ``start`` up to ``stop``.

    Args:
        examples: examples to draw from.
        start: first step.
        stop: one past the last step.
        batch: number of examples per step, over all processes.
        seed: seed of the shuffling and of the randomness within batches.
        parts: indices of the parts of a batch to load.
        of: number of parts of a batch over all processes.
        workers: number of processes that prefetch batches.
        pin: whether to use pinned memory, for a GPU.
    """
    sampler = _PartSampler(len(examples), start, stop, batch, seed, parts, of)
    dataset = _PartDataset(examples, seed, pin)
    loader = iter(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers, pin_memory=pin))
    for _ in range(start, stop):
        yield [BatchPart(*next(loader)) for _ in parts]


class _PartSampler(Sampler[PartRequest]):
    def __init__(
        self, length: int, start: int, stop: int, batch: int, seed: int, parts: range, of: int
    ) -> None:
        self.arguments = (length, start, stop, batch, seed, parts, of)

    def __iter__(self) -> Iterator[PartRequest]:
        length, start, stop, batch, seed, parts, of = self.arguments
        for step in range(start, stop):
            pieces = indices_of(step, length, batch, seed).tensor_split(of)
            for part in parts:
                yield PartRequest(step, part, pieces[part])


class _PartDataset(Dataset[tuple[int, int, Any]]):
    def __init__(self, examples: Examples, seed: int, dense: bool) -> None:
        self.examples = examples
        self.seed = seed
        self.dense = dense

    def __getitem__(self, draw: Any) -> tuple[int, int, Any]:
        # a process without examples still has to take part in the step, with weight 0
        indices = draw.indices if len(draw.indices) else torch.zeros(1, dtype=torch.int64)
        generator = torch.Generator().manual_seed(seed_of(self.seed, 2, draw.step, draw.part))
        batch = self.examples.batch(indices, generator)
        return draw.step, len(draw.indices), _dense(batch) if self.dense else batch


def _dense(batch: Any) -> Any:
    """A batch with memory of their own for all entries of its tensors: expanded ones cannot be pinned."""
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_dense(part) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(_dense(part) for part in batch)
    if isinstance(batch, dict):
        return {name: _dense(part) for name, part in batch.items()}
    return batch.contiguous() if isinstance(batch, Tensor) else batch
