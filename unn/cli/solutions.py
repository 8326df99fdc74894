"""Answers to instances of constraint problems, as text, JSON and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import DRAWN
from .problem import Trained
from .verb import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ..networks.tokens import Given
    from ..solver.solve import Solutions
    from .declared import DeclaredProblem
    from .solve import Solve

_SHOWN_INSTANCES = 20
"""Largest number of instances that are printed one by one."""


def answer_of(
    problem: DeclaredProblem, run: Trained, solutions: Solutions, given: Given, request: Solve
) -> Answer:
    """Verified answers to instances, or the best partial ones and what they violate.

    Args:
        problem: describes and draws values.
        run: with the model that solved.
        solutions: of all instances.
        given: evidence, for the picture.
        request: number of answers that were asked for, and the file of the picture.
    """
    count = len(solutions.outcomes)
    instances = [_instance(problem, run, solutions, k) for k in range(count)]
    lines: list[str] = []
    if count <= _SHOWN_INSTANCES:
        for k in range(count):
            lines += _instance_lines(problem, run, solutions, k, count, request.solving.count)
    number = {name: solutions.outcomes.count(name) for name in ("solved", "unsolved", "impossible")}
    shown = ", ".join(f"{value} {name}" for name, value in number.items() if value or name == "solved")
    lines.append(f"{shown} of {count}, {solutions.seconds:.3g} s")
    if request.draw is not None:
        lines.append(_draw_answers(problem, run, solutions, given, request.draw))
    data = {"instances": instances, **number, "seconds": solutions.seconds}
    return Answer(tuple(lines), data)


def _draw_answers(
    problem: DeclaredProblem, run: Trained, solutions: Solutions, given: Given, file: Path
) -> str:
    """Draw the first answers to the instances that have one, and say so in a line."""
    import torch

    from ..draw import save_figure
    from ..graph.partial import rows_of

    possible = torch.tensor([outcome != "impossible" for outcome in solutions.outcomes])
    drawn = (possible & solutions.is_assigned).nonzero()[:, 0]
    if not len(drawn):
        return f"nothing is drawn in {file}: no instance has an answer"
    values = {name: x[drawn] for name, x in solutions.values.items()}
    count = len(solutions.outcomes)
    own = {name: rows_of(x, drawn, count) for name, x in given.items()}
    save_figure(problem.picture(run, values, own), file)
    shown = ", ".join(str(k + 1) for k in drawn[:DRAWN].tolist())
    which = "answers" if len(drawn) == count <= DRAWN else f"answers to instances {shown}"
    return f"{which} drawn in {file}"


def _instance(problem: DeclaredProblem, run: Trained, solutions: Solutions, k: int) -> dict[str, Any]:
    """Result of one instance as JSON."""
    answers = solutions.answers[k]
    numbers = range(_count(answers) if answers else 0)
    result: dict[str, Any] = {
        "outcome": solutions.outcomes[k],
        "answers": [problem.encode(run, {name: x[j] for name, x in answers.items()}) for j in numbers],
        "tries": int(solutions.tries[k]),
        "complete": bool(solutions.is_complete[k]),
    }
    if solutions.outcomes[k] == "unsolved":
        best = {name: x[k] for name, x in solutions.values.items()}
        has_best = bool(solutions.is_assigned[k])
        result["best"] = problem.encode(run, best) if has_best else None
        result["violations"] = _violations(problem, run, solutions, k) if has_best else {}
    if solutions.reasons[k]:
        result["reason"] = problem.explain(run, solutions.reasons[k])
    return result


def _instance_lines(
    problem: DeclaredProblem, run: Trained, solutions: Solutions, k: int, count: int, wanted: int
) -> list[str]:
    """Result of one instance as text, of which some answers are wanted."""
    title = [f"instance {k + 1}: {solutions.outcomes[k]}"] if count > 1 else []
    if solutions.outcomes[k] == "impossible":
        reason = solutions.reasons[k]
        why = f"{problem.explain(run, reason)} cannot hold" if reason else "the search visited every case"
        return [*title, f"impossible: {why}", ""]
    if solutions.outcomes[k] == "unsolved" and not solutions.is_assigned[k]:
        return [*title, "unsolved; no complete answer within the limits", ""]
    if solutions.outcomes[k] == "unsolved":
        violated = _violations(problem, run, solutions, k)
        text = ", ".join(f"{number} of {name!r}" for name, number in violated.items())
        lines = problem.describe(run, solutions.values, k)
        why = f"the best answer violates {text}" if text else "no answer within the limits"
        return [*title, f"unsolved; {why}", *lines, ""]
    answers = solutions.answers[k]
    lines = title
    for j in range(_count(answers)):
        lines = [*lines, *problem.describe(run, answers, j), ""]
    if solutions.is_complete[k]:
        lines = [*lines, "there is no other answer: the search visited every case", ""]
    elif _count(answers) < wanted:
        few = f"{_count(answers)} of the {wanted} answers that were asked for; more --tries may find others"
        lines = [*lines, few, ""]
    return lines


def _violations(problem: DeclaredProblem, run: Trained, solutions: Solutions, k: int) -> dict[str, int]:
    """Number of violated parts of each violated constraint in the best answer to an instance."""
    values = {name: x[k : k + 1] for name, x in solutions.values.items()}
    counts = {c.name: int(c.violations_of(values)) for c in problem.graph(run.network).constraints}
    return {name: number for name, number in counts.items() if number}


def _count(values: Mapping[str, Tensor]) -> int:
    return len(next(iter(values.values())))
