"""unn sample."""

from __future__ import annotations

from ..errors import UnnError
from ..problem import Answer, SampleRequest
from .arguments import Sample
from .open import open_trained


def sample(command: Sample) -> Answer:
    """Sample variables of a run given others.

    Raises:
        UnnError: for options out of range, a run that cannot be opened, or values that cannot be read.
    """
    for name, value in (("count", command.count), ("steps", command.steps), ("tries", command.tries)):
        if value is not None and not 1 <= value <= 10**6:
            raise UnnError(f"--{name} must lie between 1 and 1000000, got {value}.")
    problem, run = open_trained(command.run)
    request = SampleRequest(
        given=command.given, count=command.count, steps=command.steps, sampler=command.sampler, seed=command.seed, tries=command.tries,
        draw=command.draw, trace=command.trace,
    )  # fmt: skip
    return problem.sample(run, request)
