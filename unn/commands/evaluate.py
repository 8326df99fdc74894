"""unn evaluate."""

from __future__ import annotations

from pathlib import Path

from ..errors import UnnError
from ..problem import Answer
from .open import open_trained


def evaluate(folder: Path, iterations: tuple[int, ...]) -> Answer:
    """Measure a trained run.

    Raises:
        UnnError: for rounds below 1, or a run that cannot be opened.
    """
    require_rounds(*iterations)
    problem, run = open_trained(folder)
    return problem.evaluate(run, iterations)


def require_rounds(*iterations: int) -> None:
    """Check numbers of rounds.

    Raises:
        UnnError: if one is below 1.
    """
    if any(k < 1 for k in iterations):
        raise UnnError(f"--iterations must be at least 1, got {' '.join(map(str, iterations))}.")
