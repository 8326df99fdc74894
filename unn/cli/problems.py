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
    """List the installed problems with their summaries, or the error if one cannot be loaded."""
    summaries: dict[str, str] = {}
    for name in problem_names():
        try:
            summaries[name] = load_problem(name).summary
        except UnnError as error:
            summaries[name] = f"({error})"
    width = max((len(name) for name in summaries), default=0)
    lines = tuple(f"{name:{width}}  {summary}" for name, summary in summaries.items())
    return Answer(lines or ("no problems are installed",), {"problems": summaries})
