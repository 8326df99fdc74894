"""Options of the engine ``perception``; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArgumentError
from ..ranges import check_kinds, check_ranges


@dataclass(frozen=True)
class PerceptionOptions:
    """Options of the engine ``perception``.

    Attributes:
        filters: Number of filters of the first convolutions, where the features of a node are an image.
        hidden: Hidden units before the classes.
        dropout: Dropout probability before the classes.
        shift: Largest shift of images in training, in pixels, in both directions.
        readings: Number of readings of an instance that a try searches, in order of falling probability.
        solving_steps: Number of nodes of the search tree of each reading.
        unique: Prefer readings that leave exactly one answer, as those of proper puzzles do.
    """

    filters: int = 16
    hidden: int = 128
    dropout: float = 0.25
    shift: int = 1
    readings: int = 200
    solving_steps: int = 1000
    unique: bool = False

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "filters": (self.filters, 1, 4096),
            "hidden": (self.hidden, 1, 10**5),
            "shift": (self.shift, 0, 1000),
            "readings": (self.readings, 1, 10**6),
            "solving_steps": (self.solving_steps, 1, 10**9),
        }
        check_ranges(where, ranges)
        check_kinds(where, self)
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"{where}: dropout is a probability < 1, got {self.dropout}.")
