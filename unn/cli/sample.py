"""unn sample."""

from __future__ import annotations

from .arguments import Sample
from .evaluate import require_number
from .open import open_trained
from .problem import Answer, SampleRequest


def sample(command: Sample) -> Answer:
    """Sample variables of a run given others.

    Raises:
        UnnError: for options out of range, a run that cannot be opened, or values that cannot be read.
    """
    for name, value in (("count", command.count), ("steps", command.steps), ("tries", command.tries), ("at-once", command.at_once)):
        if value is not None:
            require_number(name, value)
    problem, run = open_trained(command.run)
    request = SampleRequest(
        given=command.given, count=command.count, steps=command.steps, sampler=command.sampler, spacing=command.spacing, seed=command.seed,
        tries=command.tries, at_once=command.at_once, draw=command.draw, trace=command.trace,
    )  # fmt: skip
    return problem.sample(run, request)
