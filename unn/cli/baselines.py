"""unn baselines."""

from __future__ import annotations

from typing import Any

from ..errors import UnnError
from .problem import Answer, Problem


def baselines(problem: Problem, config: Any, count: int, chain_steps: int) -> Answer:
    """Measure methods that need no training on a problem's test conditions.

    Args:
        problem: whose conditions and metrics.
        config: its options.
        count: of conditions.
        chain_steps: of each Markov chain.

    Raises:
        UnnError: for options out of range, or a problem without baselines.
    """
    problem.check(config)
    for name, value in (("count", count), ("chain-steps", chain_steps)):
        if not 1 <= value <= 10**9:
            raise UnnError(f"--{name} must lie between 1 and 1000000000, got {value}.")
    return problem.baselines(config, count, chain_steps)
