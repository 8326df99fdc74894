"""Options of the engine ``exact``; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArgumentError, is_whole, whole_number
from ..ranges import check_ranges


def check_count(count: object) -> None:
    """Check a number of samples.

    Raises:
        ArgumentError: for a count below 1, or no whole number.
    """
    if not is_whole(count, 1):
        raise ArgumentError(f"sample: count must be a whole number of at least 1, got {count!r}.")


@dataclass(frozen=True)
class ExactOptions:
    """Options of the engine ``exact``.

    Attributes:
        search_seconds: Time limit of the search for an order of elimination, roughly, which also stops at a
            quarter of the estimated time of the contraction. It is counted as work, so that the same
            order is found on every machine.
        attempts: Maximum number of orders that are tried.
        memory: Limit of the memory for tables in GiB. A model that needs more is conditioned on some
            variables, and refused if that takes too long.
        operations: Limit of the number of multiplications, as a power of two.
        order_seed: Seed of the search.
    """

    search_seconds: float = 5.0
    attempts: int = 500
    memory: float = 4.0
    operations: float = 40.0
    order_seed: int = 0

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "search_seconds": (self.search_seconds, 0, 1e6),
            "attempts": (self.attempts, 1, 10**6),
            "memory": (self.memory, 0, 1e6),
            "operations": (self.operations, 1, 100),
            "order_seed": (self.order_seed, 0, 2**63 - 1),
        }
        check_ranges(where, ranges)
        whole_number(f"{where}: option attempts", self.attempts, 1, ArgumentError)
        whole_number(f"{where}: option order_seed", self.order_seed, 0, ArgumentError)
