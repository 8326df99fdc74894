"""unn problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import UnnError
from .options import Json
from .problem import load_problem, problem_names
from .verb import Answer, Verb


@dataclass(frozen=True)
class Problems(Verb):
    """List the installed problems."""

    name: ClassVar[str] = "problems"

    json: Json = False

    def __call__(self) -> Answer:
        return problems()


def problems() -> Answer:
    """The installed problems with their summaries; one that cannot be loaded says why."""
    found: dict[str, str] = {}
    for name in problem_names():
        try:
            found[name] = load_problem(name).summary
        except UnnError as error:
            found[name] = f"({error})"
    width = max((len(name) for name in found), default=0)
    lines = tuple(f"{name:{width}}  {summary}" for name, summary in found.items())
    return Answer(lines or ("no problems are installed",), {"problems": found})
