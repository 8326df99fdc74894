"""Options and checks that several commands share."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ..errors import UnnError

Json = Annotated[bool, arg(help="Print JSON instead of text.")]
Quiet = Annotated[bool, arg(help="Show no progress bar.")]
Theme = Annotated[str, arg(metavar="{light,dark}", help="Colour theme of pictures.")]
RunFolder = Annotated[Positional[Path], arg(metavar="RUN", help="Folder of a run.")]

MOST_ROUNDS = 100_000


@dataclass(frozen=True)
class SamplingOptions:
    """How samples are drawn."""

    sampler: Literal["ancestral", "ddim", "heun", "dpm-solver", "dpm-solver-sde", "churn"] | None = None
    """Sampler, where the run samples; that of the run by default. churn sharpens when steps are few."""
    spacing: Literal["log-snr", "schedule", "restarts"] | None = None
    """Spacing of the noise levels, where the run samples; that of the run by default. restarts sharpen when steps are few."""
    seed: int | None = None
    """Seed of all samples. By default evaluation takes the same one for all runs, and sampling a fresh one."""
    tries: int = 1
    """Maximum number of attempts per sample until it meets the constraints, where the run samples."""
    at_once: int = 256
    """Samples in memory at a time."""

    def check(self) -> None:
        """Check the ranges.

        Raises:
            UnnError: names the first option that is out of range.
        """
        require_number("tries", self.tries)
        require_number("at-once", self.at_once)


def shows_progress(json: bool, quiet: bool) -> bool:
    """Whether to show a progress bar: only on a terminal, without ``--json`` and ``--quiet``."""
    return sys.stderr.isatty() and not json and not quiet


def require_rounds(*iterations: int) -> None:
    """Check numbers of rounds.

    Raises:
        UnnError: if a number is below 1 or above 100,000.
    """
    if any(not 1 <= k <= MOST_ROUNDS for k in iterations):
        raise UnnError(f"--iterations must lie between 1 and {MOST_ROUNDS}, got {' '.join(map(str, iterations))}.")


def require_number(option: str, value: int, most: int = 10**6) -> None:
    """Check a number of samples, steps or attempts.

    Raises:
        UnnError: if it is below 1 or above ``most``.
    """
    if not 1 <= value <= most:
        raise UnnError(f"--{option} must lie between 1 and {most}, got {value}.")
