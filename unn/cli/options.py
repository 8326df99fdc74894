"""Options and checks that several commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ..engine import SamplingOptions as SamplingOptions
from ..errors import UnnError

Json = Annotated[bool, arg(help="Print JSON instead of text.")]
Quiet = Annotated[bool, arg(help="Show no progress bar.")]
Theme = Annotated[str, arg(metavar="{light,dark}", help="Colour theme of pictures.")]
RunFolder = Annotated[Positional[Path], arg(metavar="RUN", help="Folder of a run.")]

MOST_ROUNDS = 100_000


def shows_progress(json: bool, quiet: bool) -> bool:
    """Whether to show a progress bar: only on a terminal, without ``--json`` and ``--quiet``."""
    return sys.stderr.isatty() and not json and not quiet


def require_rounds(*iterations: int) -> None:
    """Check numbers of rounds.

    Raises:
        UnnError: if a number is below 1 or above 100,000.
    """
    if any(not 1 <= k <= MOST_ROUNDS for k in iterations):
        raise UnnError(
            f"--iterations must lie between 1 and {MOST_ROUNDS}, got {' '.join(map(str, iterations))}."
        )


def require_number(option: str, value: int, most: int = 10**6) -> None:
    """Check a number of samples, steps or attempts.

    Raises:
        UnnError: if it is below 1 or above ``most``.
    """
    if not 1 <= value <= most:
        raise UnnError(f"--{option} must lie between 1 and {most}, got {value}.")
