"""Training examples whose states persist between updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .energies import Surroundings
from .propagation import Known


@dataclass(eq=False)
class Entering:
    """Examples without states.

    Attributes:
        truth: true candidates of each example, boolean, shape ``(examples, candidates)``.
        true, false: what is known of the candidates, boolean, shape ``(examples, candidates)``.
        numbers: numbers of continuous nodes, shape ``(examples, numbers)``.
        given: mask of those that are given, shape ``(examples, numbers)``.
    """

    truth: Tensor
    true: Tensor
    false: Tensor
    numbers: Tensor
    given: Tensor

    def examples(self) -> dict[str, Tensor]:
        """What describes the examples, by name."""
        return {field.name: getattr(self, field.name) for field in fields(Entering)}

    def to(self, device: torch.device) -> Entering:
        """The same on another device."""
        return Entering(**{name: x.to(device) for name, x in self.examples().items()})

    def select(self, places: Tensor) -> Entering:
        """Some examples, by indices."""
        return Entering(**{name: x[places] for name, x in self.examples().items()})

    @classmethod
    def join(cls, parts: Sequence[Entering]) -> Entering:
        """The examples of all parts."""
        every = [part.examples() for part in parts]
        return Entering(**{name: torch.cat([own[name] for own in every]) for name in every[0]})

    def pool(self, width: int) -> Pool:
        """A pool of these examples on their device, with random states of candidates.

        Args:
            width: numbers in a state.
        """
        device = self.truth.device
        return Pool(
            **self.examples(),
            state=torch.randn(*self.truth.shape, width, device=device),
            reals=torch.zeros(*self.numbers.shape, width, device=device),
            age=torch.zeros(len(self.truth), dtype=torch.long, device=device),
        )


@dataclass(eq=False)
class Pool(Entering):
    """Examples in training, with the states of their candidates and continuous nodes.

    Attributes:
        state: state of each candidate, shape ``(pool, candidates, width)``.
        reals: state of each continuous node, shape ``(pool, numbers, width)``.
        age: number of steps of each example, shape ``(pool,)``.
    """

    state: Tensor
    reals: Tensor
    age: Tensor

    def to(self, device: torch.device) -> Pool:
        """The same on another device; itself where it is there."""
        if self.age.device == device:
            return self
        return Pool(**{name: x.to(device) for name, x in self.tensors().items()})

    @property
    def known(self) -> Known:
        """What is known of the candidates."""
        return Known(self.true, self.false)

    @property
    def surroundings(self) -> Surroundings:
        """A copy of what is beside the open candidates, which gradients need after the pool has changed."""
        value = torch.where(self.given, self.numbers, 0)
        return Surroundings(self.true.clone(), value, self.given.clone(), self.reals.clone())

    def replace(self, places: Tensor, entering: Entering) -> None:
        """Replace some examples by others, and give all of these places new states.

        Where there are fewer new examples than places, the last places keep their examples.

        Args:
            places: indices of the examples, shape ``(places,)``.
            entering: new examples.
        """
        count = min(len(places), len(entering.truth))
        for name, x in entering.examples().items():
            getattr(self, name)[places[:count]] = x[:count]
        self.state[places] = torch.randn(len(places), *self.state.shape[1:], device=self.state.device)
        self.reals[places] = 0
        self.age[places] = 0

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Pool:
        """The inverse of ``tensors``; checkpoints of versions without continuous nodes have none."""
        count, width = len(tensors["age"]), tensors["state"].shape[-1]
        none = {
            "numbers": torch.zeros(count, 0),
            "given": torch.zeros(count, 0, dtype=torch.bool),
            "reals": torch.zeros(count, 0, width),
        }
        return cls(**{field.name: {**none, **tensors}[field.name].clone() for field in fields(cls)})
