"""unn images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from unn.errors import UnnError
from unn.extending import Answer, RunFolder, Trained, Verb, open_trained, require, require_number

TEMPERATURES = (1.0, 0.8, 0.6, 0.4)
"""Those of ``--of temperatures`` by default."""

Subject = Literal[
    "reconstructions", "completions", "temperatures", "interpolations", "attention", "divergences"
]


class DrawsLatents(ABC):
    """A problem whose runs have latent groups to draw."""

    @abstractmethod
    def draw_latents(self, run: Trained, request: DrawImages) -> Answer:
        """Draw what the latent groups of a run hold.

        Raises:
            UnnError: for a run without latent groups, or without what is to be drawn.
        """


@dataclass(frozen=True)
class DrawImages(Verb):
    """Draw what the latent groups of a run hold: reconstructions, samples at temperatures, interpolations."""

    name: ClassVar[str] = "images"

    run: RunFolder
    of: Subject = "reconstructions"
    """What to draw: test images and their reconstructions; completions of their upper halves; samples at
    temperatures; interpolations between the latent groups of two images; mean attention over layers; or the
    divergence of each layer."""
    draw: Path = Path("images.png")
    """File for the picture."""
    count: int = 8
    """Number of columns."""
    temperatures: tuple[float, ...] = ()
    """Temperatures of samples, a row for each; 1, 0.8, 0.6 and 0.4 by default."""
    seed: int = 0
    """Seed of everything random."""

    def __call__(self) -> Answer:
        require_number("count", self.count, 100)
        if self.temperatures and self.of != "temperatures":
            raise UnnError(f"--of {self.of} has no temperatures; leave out --temperatures.")
        if len(self.temperatures) > 20:
            raise UnnError(f"--temperatures needs 1 to 20 temperatures, got {len(self.temperatures)}.")
        problem, run = open_trained(self.run)
        return require(problem, DrawsLatents, "has no latent groups").draw_latents(run, self)
