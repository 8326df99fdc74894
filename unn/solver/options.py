"""Options of the engine ``solver``; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ArgumentError
from ..ranges import check_kinds, check_ranges


@dataclass(frozen=True)
class SolverOptions:
    """Options of the engine ``solver``.

    Attributes:
        width: Numbers in the state of each candidate.
        solving_steps: Steps of a try.
        oldest: Steps after which an unsolved example leaves the pool in training.
        truncation: Steps between updates of the weights, through which gradients are propagated.
        pool: Number of examples, times ``breadth``, whose states persist between updates.
        breadth: Number of random initial states of each example in the pool. Those whose scores are nearest
            to the true values have the largest weights in the loss, so that with several the network learns
            to guess where it cannot infer.
        leave: Probability that an example leaves the pool at an update after it is solved. Below 1, the
            network also learns to stay at solutions.
        noise: Standard deviation of the noise that is added to the states before each step, in training and
            in tries.
        labels: Train with the values of the examples, or from the constraints alone.
        propagation: What the evidence implies before the first step of a try: by one exclusion of what true
            values exclude, as in training, or by all bounds until nothing changes.
        decimate_every: Steps of a try, after the first one, between two values that are fixed, drawn with the
            probabilities of the network (belief-guided decimation); what they imply is propagated, and
            a try whose values are refuted starts again. 0 for none. With full propagation only.
    """

    width: int = 32
    solving_steps: int = 256
    oldest: int = 64
    truncation: int = 8
    pool: int = 32
    breadth: int = 1
    leave: float = 0.5
    noise: float = 0.1
    labels: bool = True
    propagation: Literal["once", "full"] = "full"
    decimate_every: int = 4

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "width": (self.width, 2, 4096),
            "solving_steps": (self.solving_steps, 1, 10**6),
            "oldest": (self.oldest, 1, 10**6),
            "noise": (self.noise, 0, 1e3),
            "truncation": (self.truncation, 1, 10_000),
            "pool": (self.pool, 1, 10**6),
            "breadth": (self.breadth, 1, 10**6),
            "decimate_every": (self.decimate_every, 0, 10**6),
        }
        check_ranges(where, ranges)
        check_kinds(where, self)
        if self.width % 2:
            raise ArgumentError(f"{where}: the width must be even, got {self.width}.")
        if self.pool % self.breadth:
            raise ArgumentError(
                f"{where}: the pool must be a multiple of the breadth, got {self.pool} and {self.breadth}."
            )
        if not 0 < self.leave <= 1:
            raise ArgumentError(f"{where}: leave is a probability > 0, got {self.leave}.")
