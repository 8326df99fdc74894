"""unn parse."""

from __future__ import annotations

from ..errors import UnnError
from .arguments import Parse
from .evaluate import require_rounds
from .open import open_trained
from .problem import Answer, ParseRequest


def parse(command: Parse) -> Answer:
    """Parse sentences.

    Raises:
        UnnError: for options out of range, a run that cannot be opened, or a file that cannot be read.
    """
    if command.iterations is not None:
        require_rounds(command.iterations)
    if not 1 <= command.batch <= 10**9:
        raise UnnError(f"--batch must lie between 1 and 1000000000 words, got {command.batch}.")
    problem, run = open_trained(command.run)
    request = ParseRequest(
        file=command.file, out=command.out, format=command.format, iterations=command.iterations, complete=command.complete,
        skip_bad=command.skip_bad, show=command.show, draw=command.draw, batch=command.batch,
    )  # fmt: skip
    return problem.parse(run, request)
