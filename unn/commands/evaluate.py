"""unn evaluate."""

from __future__ import annotations

from pathlib import Path

from ..errors import UnnError
from ..problem import Answer
from .open import open_trained

MOST_ROUNDS = 100_000


def evaluate(folder: Path, iterations: tuple[int, ...], data: Path | None = None) -> Answer:
    """Measure a trained run, on other data than its own if so.

    Raises:
        UnnError: for rounds out of range, or a run that cannot be opened.
    """
    require_rounds(*iterations)
    problem, run = open_trained(folder)
    return problem.evaluate(run if data is None else problem.on_data(run, data), iterations)


def require_rounds(*iterations: int) -> None:
    """Check numbers of rounds.

    Raises:
        UnnError: if one is below 1, or so large that nobody would wait for it.
    """
    if any(not 1 <= k <= MOST_ROUNDS for k in iterations):
        raise UnnError(f"--iterations must lie between 1 and {MOST_ROUNDS}, got {' '.join(map(str, iterations))}.")
