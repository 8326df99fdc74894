"""Refusals of runs whose models do not answer a kind of query."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..engine import CanInfer, CanSample, CanSolve, engine_names, load_engine
from ..errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

    from .declared import DeclaredProblem
    from .problem import Trained


def check_tries(problem: DeclaredProblem, run: Trained, tries: int) -> None:
    """Check that samples can be tried again.

    Raises:
        ArgumentError: for several tries without a constraint.
    """
    if tries > 1 and not problem.graph(run.network).constraints:
        raise ArgumentError(
            f"--tries: the graph of problem {problem.name!r} has no constraint that a sample could violate."
        )


def refusal(problem: DeclaredProblem, run: Trained, what: str, capability: type) -> str:
    """Why a run does not answer a kind of query, and the engines that do."""
    queries: dict[type, str] = {CanSample: "sample", CanSolve: "solve"}
    query = queries.get(capability, "infer")
    able = []
    for name in engine_names():
        # a broken engine must not disable the others
        with contextlib.suppress(Exception):
            if query in load_engine(name).answers and problem.can_serve(run.config, name):
                able.append(name)
    others = f" Engines of this problem that do: {', '.join(able)}." if able else ""
    return f"{run.folder}: engine {run.config.engine!r} {what}.{others}"


def instead(network: nn.Module) -> str:
    """The commands that the model of a run does answer, as the end of a refusal."""
    kinds = {"sample": CanSample, "infer": CanInfer, "solve": CanSolve}
    commands = [f"unn {name}" for name, kind in kinds.items() if isinstance(network, kind)]
    return f"; use {' or '.join(commands)}" if commands else ""
