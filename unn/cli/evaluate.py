"""unn evaluate."""

from __future__ import annotations

from ..errors import UnnError
from .arguments import Evaluate
from .open import open_trained
from .problem import Answer, EvaluationRequest

MOST_ROUNDS = 100_000


def evaluate(command: Evaluate) -> Answer:
    """Measure a trained run, on other data than its own if so.

    Raises:
        UnnError: for options out of range, or a run that cannot be opened.
    """
    require_rounds(*command.iterations)
    for name, value in (("tries", command.tries), ("count", command.count), ("at-once", command.at_once)):
        if value is not None:
            require_number(name, value)
    problem, run = open_trained(command.run)
    if command.data is not None:
        run = problem.on_data(run, command.data)
    request = EvaluationRequest(
        iterations=command.iterations, count=command.count, sampler=command.sampler, spacing=command.spacing, seed=command.seed,
        tries=command.tries, at_once=command.at_once, draw=command.draw,
    )  # fmt: skip
    if request == EvaluationRequest(iterations=command.iterations):
        return problem.evaluate(run, command.iterations)
    return problem.evaluate_samples(run, request)


def require_rounds(*iterations: int) -> None:
    """Check numbers of rounds.

    Raises:
        UnnError: if one is below 1, or so large that nobody would wait for it.
    """
    if any(not 1 <= k <= MOST_ROUNDS for k in iterations):
        raise UnnError(f"--iterations must lie between 1 and {MOST_ROUNDS}, got {' '.join(map(str, iterations))}.")


def require_number(option: str, value: int) -> None:
    """Check a number of samples, steps or tries.

    Raises:
        UnnError: if it is below 1, or so large that nobody would wait for it.
    """
    if not 1 <= value <= 10**6:
        raise UnnError(f"--{option} must lie between 1 and 1000000, got {value}.")
