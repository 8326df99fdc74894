"""Options of the engine ``search``; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ArgumentError
from ..ranges import check_kinds, check_ranges


@dataclass(frozen=True)
class SearchOptions:
    """Options of the engine ``search``.

    Attributes:
        mode: Moves of a sweep: sampled updates of the nodes in violated groups alone (focused), sampled
            updates of all nodes at falling temperature (annealed), or the best value of each node (descent);
            or the nodes of a search tree with propagation (depth-first), which also proves that there is no
            answer.
        solving_steps: Number of sweeps of a try, or of nodes of its tree.
        chains: Number of chains of each instance, side by side. Instances of one batch share this number of
            trees, so that each has at least one.
        hottest: Temperature of the first sweep, in violations.
        coldest: Temperature of the last sweep; equal to the hottest one for a constant temperature.
    """

    mode: Literal["focused", "annealed", "descent", "depth-first"] = "focused"
    solving_steps: int = 1000
    chains: int = 16
    hottest: float = 0.5
    coldest: float = 0.5

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "solving_steps": (self.solving_steps, 1, 10**9),
            "chains": (self.chains, 1, 10**6),
            "hottest": (self.hottest, 1e-6, 1e6),
            "coldest": (self.coldest, 1e-6, 1e6),
        }
        check_ranges(where, ranges)
        check_kinds(where, self)
        if self.coldest > self.hottest:
            raise ArgumentError(
                f"{where}: the temperature falls from the hottest to the coldest, got {self.hottest} and "
                f"{self.coldest}."
            )
