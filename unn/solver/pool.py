"""Training examples whose states persist between updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .propagation import Known


@dataclass(eq=False)
class Pool:
    """Examples in training, with the states of their candidates.

    Attributes:
        truth: true candidates of each example, boolean, shape ``(pool, candidates)``.
        true, false: what is known of the candidates, boolean, shape ``(pool, candidates)``.
        state: state of each candidate, shape ``(pool, candidates, width)``.
        age: number of steps of each example, shape ``(pool,)``.
    """

    truth: Tensor
    true: Tensor
    false: Tensor
    state: Tensor
    age: Tensor

    @classmethod
    def of(cls, truth: Tensor, known: Known, width: int) -> Pool:
        """A pool of examples with random states."""
        state = torch.randn(*truth.shape, width)
        return cls(truth, known.true, known.false, state, torch.zeros(len(truth), dtype=torch.long))

    @property
    def known(self) -> Known:
        """What is known of the candidates."""
        return Known(self.true, self.false)

    def replace(self, places: Tensor, truth: Tensor, known: Known) -> None:
        """Replace some examples by others, and give all of these places random states.

        Where there are fewer new examples than places, the last places keep their examples.

        Args:
            places: indices of the examples, shape ``(places,)``.
            truth: true candidates of new examples.
            known: what is known of their candidates.
        """
        count = min(len(places), len(truth))
        changed = places[:count]
        self.truth[changed] = truth[:count]
        self.true[changed] = known.true[:count]
        self.false[changed] = known.false[:count]
        self.state[places] = torch.randn(len(places), *self.state.shape[1:])
        self.age[places] = 0

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Pool:
        """The inverse of ``tensors``."""
        return cls(**{field.name: tensors[field.name].clone() for field in fields(cls)})
