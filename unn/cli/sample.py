"""unn sample."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from ..engine import SamplingOptions
from .open import open_trained
from .options import Json, RunFolder, require_number
from .problem import Sampleable, require
from .verb import Answer, Verb


@dataclass(frozen=True)
class Sample(Verb):
    """Sample variables of a run given others."""

    name: ClassVar[str] = "sample"

    run: RunFolder
    given: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE|FILE [...]")] = ()
    """Observed values: of variables, or what the problem reads, such as the file of a puzzle."""
    count: int = 1
    """Number of samples."""
    sampling: SamplingOptions = SamplingOptions()
    draw: Path | None = None
    """File for a picture of the samples."""
    trace: Path | None = None
    """File for a picture of the steps of the first sample."""
    json: Json = False

    def __call__(self) -> Answer:
        require_number("count", self.count)
        self.sampling.check()
        problem, run = open_trained(self.run)
        return require(
            problem,
            Sampleable,
            "has no generative model to sample from; unn infer finds its most probable values",
        ).sample(run, self)
