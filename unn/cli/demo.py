"""unn demo."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from ..errors import UnnError
from .options import Json, Quiet, shows_progress
from .problem import HasDemo, load_problem, problem_names, require
from .verb import Answer, Verb


@dataclass(frozen=True)
class Demo(Verb):
    """Train a small model of a problem and draw pictures of it."""

    name: ClassVar[str] = "demo"

    problem: Annotated[Positional[str | None], arg(metavar="PROBLEM")] = None
    """Name of a problem that has a demo; the first one by default."""
    folder: Path = Path("runs/demo")
    """Folder for the pictures."""
    json: Json = False
    quiet: Quiet = False

    def __call__(self) -> Answer:
        name = self.problem or _first()
        return require(load_problem(name), HasDemo, f"has no demo; use unn train {name}").demo(
            self.folder, shows_progress(self.json, self.quiet)
        )


def _first() -> str:
    for name in problem_names():
        with contextlib.suppress(UnnError):
            if isinstance(load_problem(name), HasDemo):
                return name
    raise UnnError("no installed problem has a demo; unn problems lists them.")
