"""Options of the engine of coordinate descent; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import DeclarationError
from ..ranges import check_kinds, check_ranges


@dataclass(frozen=True)
class DescentOptions:
    """Options of the engine ``descent``.

    Attributes:
        iterations: Number of rounds of coordinate descent in training and evaluation (k).
        rounds: Rounds of a training step: "fixed", all of them; or a number drawn anew from 1 to
            ``iterations``, for networks that are accurate with any number: "random", all equally likely; or
            "log-random", with probability in proportion to its inverse, so that few rounds come as often as
            many and a step costs less.
        gradient_rounds: Number of last rounds of a training step that are differentiated (``unn.Truncate``);
            0 for all. What earlier rounds compute then counts as constant, which saves time and memory where
            rounds are many.
        round_losses: Rounds of a training step that have a loss: the "last" one, or "every" one with equal
            weight, which costs little more and trains all numbers of rounds up to that of the step.
        sweep: Order of updates: "forward-backward" (away from the evidence and back, as H1, H2, Y, H2),
            "forward" (H1, H2, Y), or "random", a new permutation in each round with what is wanted last.
        initial: Initial value of all variables that are not given: "zero", "random" or "uniform".
        dropout: Dropout probability for variables that are neither given nor wanted, in training, with one
            mask for all iterations.
        penalty: Initial weight of the energies of constraints, where they have one; the weights are learned.
        contraction: Largest spectral radius of the couplings, below 1, so that the energy has one fixed point
            for any evidence: stronger parameters are scaled down in training (``unn.spectral_normalise``), at
            the cost of a singular value decomposition of the couplings in each step; 0 for no limit. With
            dropout they are scaled to this times the share that is kept, so that it holds in training too.
    """

    iterations: int = 3
    rounds: Literal["fixed", "random", "log-random"] = "fixed"
    gradient_rounds: int = 0
    round_losses: Literal["last", "every"] = "last"
    sweep: Literal["forward-backward", "forward", "random"] = "forward-backward"
    initial: Literal["zero", "random", "uniform"] = "zero"
    dropout: float = 0.0
    penalty: float = 1.0
    contraction: float = 0.0

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            DeclarationError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "iterations": (self.iterations, 1, 10_000),
            "gradient_rounds": (self.gradient_rounds, 0, 10_000),
            "dropout": (self.dropout, 0, 0.999),
            "penalty": (self.penalty, 1e-6, 1e6),
            "contraction": (self.contraction, 0, 1 - 1e-6),
        }
        check_ranges(where, ranges)
        check_kinds(where, self)
        if self.round_losses == "every" and self.gradient_rounds:
            raise DeclarationError(
                f"{where}: losses of every round differentiate all of them; leave out gradient_rounds."
            )
