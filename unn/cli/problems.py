"""unn problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..engine import Verdict, engine_names, load_engine
from ..errors import UnnError
from .options import Json
from .problem import load_problem, problem_names
from .verb import Answer, Verb


@dataclass(frozen=True)
class Problems(Verb):
    """List the installed problems and engines, and which engine serves which problem."""

    name: ClassVar[str] = "problems"

    json: Json = False

    def __call__(self) -> Answer:
        return problems()


def problems() -> Answer:
    """List problems and engines with their summaries, or the error if one cannot be loaded, and the matrix of
    problems and engines."""
    summaries: dict[str, str] = {}
    verdicts: dict[str, dict[str, Verdict]] = {}
    defaults: dict[str, str] = {}
    for name in problem_names():
        try:
            problem = load_problem(name)
            summaries[name] = problem.summary
            verdicts[name] = problem.verdicts()
            defaults[name] = problem.default_engine
        except UnnError as error:
            summaries[name] = f"({error})"
        except Exception as error:  # a broken problem must not disable the others
            summaries[name] = f"(problem {name!r} failed: {type(error).__name__}: {error})"
            verdicts.pop(name, None)
    engines: dict[str, str] = {}
    for name in engine_names():
        try:
            engines[name] = load_engine(name).summary
        except UnnError as error:
            engines[name] = f"({error})"
    if not summaries:
        return Answer(("no problems are installed",), {"problems": {}, "engines": engines, "matrix": {}})
    lines = ["Problems", *_listed(summaries), "", "Engines", *_listed(engines), ""]
    if verdicts and engines:
        lines += _matrix(verdicts, list(engines), defaults)
    data = {
        "problems": summaries,
        "engines": engines,
        "matrix": {
            name: {engine: verdict.reason or None for engine, verdict in row.items()}
            for name, row in verdicts.items()
        },
        "defaults": defaults,
    }
    return Answer(tuple(lines), data)


def _listed(summaries: dict[str, str]) -> list[str]:
    width = max((len(name) for name in summaries), default=0)
    return [f"  {name:{width}}  {summary}" for name, summary in summaries.items()]


def _matrix(
    verdicts: dict[str, dict[str, Verdict]], engines: list[str], defaults: dict[str, str]
) -> list[str]:
    """A row for each problem and a column for each engine, and the reasons of refusals below."""
    width = max(map(len, verdicts))
    reasons: list[str] = []
    lines = ["Which engine serves which problem (--engine; numbers are reasons why not)"]
    lines.append(f"  {'':{width}}  " + "  ".join(engines))
    for name, row in verdicts.items():
        cells = []
        for engine in engines:
            verdict = row.get(engine, Verdict("it cannot be loaded"))
            text = "default" if engine == defaults.get(name) else "yes"
            if not verdict:
                if verdict.reason not in reasons:
                    reasons.append(verdict.reason)
                text = f"({reasons.index(verdict.reason) + 1})"
            cells.append(f"{text:{len(engine)}}")
        lines.append(f"  {name:{width}}  " + "  ".join(cells).rstrip())
    return [*lines, *(f"  ({k}) {reason}" for k, reason in enumerate(reasons, 1))]
