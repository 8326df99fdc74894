"""unn problems."""

from __future__ import annotations

from ..errors import UnnError
from .problem import Answer, load_problem, problem_names


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
