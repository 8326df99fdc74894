"""unn solve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from ..engine import SolvingOptions
from .open import NOTHING_TO_SOLVE, open_trained, solving_engine
from .options import Json
from .problem import Solvable, require
from .verb import Answer, Verb


@dataclass(frozen=True)
class Solve(Verb):
    """Solve instances of a constraint problem; every answer is verified."""

    name: ClassVar[str] = "solve"

    run: Annotated[Positional[Path], arg(metavar="PROBLEM|RUN")]
    """A problem that comes with trained weights, or the folder of a run."""
    instances: Annotated[Positional[tuple[str, ...]], arg(metavar="FILE|VALUE [...]")] = ()
    """What the problem reads, such as files of puzzles."""
    engine: str = ""
    """Engine, where a problem is named: one with trained weights or that needs none; by default the trained
    solver, if there is one, or the default engine."""
    options: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE [...]")] = ()
    """Options of the problem and of the engine that differ from those of the run, such as colours=5 or, for
    the engine search, mode=depth-first."""
    solving: SolvingOptions = SolvingOptions()
    draw: Path | None = None
    """File for a picture of the first answers."""
    json: Json = False

    def __call__(self) -> Answer:
        self.solving.check()
        problem, run = open_trained(self.run, self.engine or solving_engine(self.run))
        return require(problem, Solvable, NOTHING_TO_SOLVE).solve(run, self)
