"""unn baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .options import Json, require_number
from .problem import HasBaselines, Problem, require
from .verb import Answer, Config, ProblemVerb


@dataclass(frozen=True)
class Baselines(ProblemVerb[Config]):
    """Measure methods that need no training on a problem's test conditions."""

    name: ClassVar[str] = "baselines"

    config: Config
    count: int = 256
    """Number of test conditions."""
    chain_steps: int = 10_000
    """Number of steps of each Markov chain."""
    json: Json = False

    def __call__(self, problem: Problem) -> Answer:
        problem.check(self.config)
        require_number("count", self.count, 10**9)
        require_number("chain-steps", self.chain_steps, 10**9)
        return require(problem, HasBaselines, "has no baselines without training").baselines(
            self.config, self.count, self.chain_steps
        )
