"""What the command line needs of a problem; problems are found by entry points of the group ``unn.problems``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

from .errors import UnnError, suggest

GROUP = "unn.problems"


@dataclass(frozen=True)
class Answer:
    """What a command prints: lines for people, the same as data for machines."""

    lines: tuple[str, ...]
    data: Mapping[str, Any]


class Problem(ABC):
    """A problem on the command line.

    A package adds one by an entry point: ``[project.entry-points."unn.problems"]`` with ``name = "module:Class"``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    config: ClassVar[type]
    """A frozen dataclass; its fields become the options of ``unn train NAME``."""

    @abstractmethod
    def train(self, config: Any, folder: Path, progress: bool) -> Answer:
        """Train and write the run into ``folder``."""

    @abstractmethod
    def evaluate(self, folder: Path, iterations: Sequence[int]) -> Answer:
        """Measure a trained run; ``iterations`` are numbers of rounds at test time, those of training if empty."""

    @abstractmethod
    def infer(self, folder: Path, given: Mapping[str, str], want: Sequence[str], iterations: int | None, out: Path | None) -> Answer:
        """Infer some variables given others, each given as ``NAME=TEXT``."""

    def demo(self, folder: Path, progress: bool) -> Answer:
        """A complete small run with pictures.

        Raises:
            UnnError: if the problem has none.
        """
        raise UnnError(f"problem {self.name!r} has no demo; use unn train {self.name}.")


def problem_names() -> list[str]:
    """The names of all installed problems."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_problem(name: str) -> Problem:
    """The installed problem with this name.

    Raises:
        UnnError: if there is none; suggests the closest.
    """
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            problem = entry.load()()
            if not isinstance(problem, Problem):
                raise UnnError(f"entry point {name!r} of group {GROUP!r} is not a unn.problem.Problem, but {type(problem).__name__}.")
            return problem
    raise UnnError(f"unknown problem {name!r}.{suggest(name, problem_names())}")
