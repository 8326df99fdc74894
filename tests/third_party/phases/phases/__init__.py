"""A problem of somebody else's: learn a gain. Importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unn.extending import Problem, TrainingConfig


@dataclass(frozen=True)
class PhasesConfig:
    """Options of the phases problem.

    Attributes:
        size: entries of each vector.
        examples: how many there are.
        training: how it is trained.
    """

    size: int = 4
    examples: int = 200
    training: TrainingConfig = TrainingConfig(epochs=20, batch=20, rate=0.05)


class PhasesProblem(Problem):
    """Find the gain by which an input was multiplied."""

    name = "phases"
    summary = "find the gain by which an input was multiplied"
    config = PhasesConfig

    def declare(self, config: PhasesConfig) -> Any:
        from .network import declare

        return declare(config.size)

    def task(self, config: PhasesConfig) -> Any:
        from .network import PhasesTask

        return PhasesTask(config.size, config.examples)

    def network(self, config: PhasesConfig, facts: Mapping[str, Any]) -> Any:
        from .network import network

        return network(config.size)
