"""The sequences: consecutive numbers, ascending or descending, some of them missing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from .graph import SYMBOLS, positions

LENGTHS = range(8, 25)
"""Lengths of the sequences."""

HELD_OUT = 0.1
"""Share of the test set."""

Split = Literal["sequences", "instances"]


@dataclass(frozen=True)
class Sequences:
    """All sequences of one length, and all choices of missing tokens.

    Attributes:
        tokens: numbers less 1, shape ``(sequences, n)``.
        missing: choices of missing tokens, boolean, shape ``(choices, n)``.
        held_out: test instances, boolean, shape ``(sequences, choices)``.
    """

    tokens: Tensor
    missing: Tensor
    held_out: Tensor

    def draw(self, count: int, test: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random instances of the training or the test set: tokens and missing ones, shape ``(count, n)``."""
        instances = self._instances(test)
        chosen = instances[torch.randint(len(instances), (count,), generator=generator)]
        return self.tokens[chosen[:, 0]], self.missing[chosen[:, 1]]

    def all_instances(self, test: bool) -> tuple[Tensor, Tensor]:
        """All instances of the training or the test set, as of ``draw``."""
        chosen = self._instances(test)
        return self.tokens[chosen[:, 0]], self.missing[chosen[:, 1]]

    def _instances(self, test: bool) -> Tensor:
        return (self.held_out if test else ~self.held_out).nonzero()


def values_of(tokens: Tensor, features: int) -> dict[str, Tensor]:
    """Values of the variables that examples have: one-hot tokens and embeddings of positions.

    Args:
        tokens: numbers less 1, shape ``(count, n)``.
        features: width of an embedding.
    """
    place = positions(tokens.shape[1], features)
    return {
        "token": torch.nn.functional.one_hot(tokens, SYMBOLS).float(),
        "P": place.expand(len(tokens), *place.shape),
    }


def masks_of(missing: Tensor) -> dict[str, Tensor]:
    """Observed nodes, from the missing tokens of shape ``(count, n)``."""
    return {"token": ~missing, "P": torch.ones(1, missing.shape[1], dtype=torch.bool)}


def most_missing(length: int) -> int:
    """The largest number of missing tokens: a tenth of the length, rounded up."""
    return math.ceil(length / 10)


@lru_cache(maxsize=64)
def sequences(length: int, split: Split) -> Sequences:
    """The sequences of one length; in all lengths from 8 to 24 there are 785,142 instances.

    Args:
        length: number of tokens.
        split: what the test set holds out: "sequences", with all their instances, or "instances", as the
            paper's, most of whose sequences also occur in training with other tokens missing.
    """
    starts = torch.arange(SYMBOLS - length + 1)
    ascending = starts[:, None] + torch.arange(length)
    tokens = torch.cat([ascending, ascending.flip(1)])
    choices = [c for m in range(1, most_missing(length) + 1) for c in combinations(range(length), m)]
    missing = torch.zeros(len(choices), length, dtype=torch.bool)
    for row, places in enumerate(choices):
        missing[row, list(places)] = True
    generator = torch.Generator().manual_seed(length)
    if split == "sequences":
        rank = torch.randperm(len(tokens), generator=generator)
        held_out = (rank < round(HELD_OUT * len(tokens)))[:, None].expand(len(tokens), len(missing))
    else:
        total = len(tokens) * len(missing)
        rank = torch.randperm(total, generator=generator).view(len(tokens), len(missing))
        held_out = rank < round(HELD_OUT * total)
    return Sequences(tokens, missing, held_out)
