"""Options of the engine ``belief``; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ArgumentError, whole_number
from ..ranges import check_ranges

METHODS = ("sum-product", "max-product", "tree-reweighted", "mini-bucket")

SCHEDULES = ("all", "residual")


@dataclass(frozen=True)
class BeliefOptions:
    """Options of the engine ``belief``.

    Attributes:
        method: "sum-product" for marginals with the Bethe log-partition; "max-product" for best values;
            "tree-reweighted" for marginals with an upper bound of the log-partition, on graphs whose factors
            have at most two nodes; "mini-bucket" for an upper bound on any graph, which falls to the exact
            log-partition as ``entries`` rises.
        message_schedule: Which messages a round renews once those are at rest that zeros imply: all, or with
            "residual" those whose change is at least half of the largest, which takes two to four times the
            rounds on graphs without zeros.
        rounds: Maximum number of rounds, in each of which all messages are renewed.
        damping: Weight of the old message in the logarithm of the new one.
        tolerance: Change of the logarithm of every message at which the rounds end.
        entries: Largest number of entries of a product of tables of the method "mini-bucket".
    """

    method: Literal["sum-product", "max-product", "tree-reweighted", "mini-bucket"] = "sum-product"
    message_schedule: Literal["all", "residual"] = "all"
    rounds: int = 500
    damping: float = 0.3
    tolerance: float = 1e-8
    entries: int = 2**16

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        if self.method not in METHODS:
            raise ArgumentError(f"{where}: method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if self.message_schedule not in SCHEDULES:
            raise ArgumentError(
                f"{where}: message_schedule must be one of {', '.join(SCHEDULES)}, got "
                f"{self.message_schedule!r}."
            )
        ranges: dict[str, tuple[float, float, float]] = {
            "rounds": (self.rounds, 1, 10**6),
            "damping": (self.damping, 0, 0.999),
            "tolerance": (self.tolerance, 0, 1),
            "entries": (self.entries, 1, 2**30),
        }
        check_ranges(where, ranges)
        whole_number(f"{where}: option entries", self.entries, 1, ArgumentError)
        whole_number(f"{where}: option rounds", self.rounds, 1, ArgumentError)
