"""unn train and unn resume."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import DataError, UnnError
from ..problem import Answer, Problem
from ..runs.files import make_folder
from ..runs.folder import PLOTS, create_run, json_of, lock_run, new_folder
from .open import open_problem

if TYPE_CHECKING:
    from ..training import Fit, Processes

T = TypeVar("T")

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def train(problem: Problem, config: Any, folder: Path | None, progress: bool) -> tuple[Answer, int]:
    """Train a problem from scratch in a new run folder.

    Args:
        problem: to train.
        config: its options.
        folder: of the run; the next free one in ``runs/`` if left out.
        progress: show a bar.

    Raises:
        UnnError: for options out of range, missing data, a folder that holds a run, or a divergence.
    """
    problem.check(config)
    _quiet_workers()
    from ..runs.code import code_version
    from ..training import fit, several_processes

    with several_processes(config.training.device) as processes:
        task = problem.task(config)
        facts = json_of("facts", task.facts)
        network = _fresh_network(problem, config, facts)
        with ExitStack() as stack:

            def begin() -> Path:
                made = _made(folder, problem.name)
                stack.enter_context(lock_run(made))
                create_run(made, problem.name, config, facts, code_version(type(problem).__module__.split(".")[0]))
                return made

            chosen = _by_main(processes, begin)
            result = fit(network, task, config.training, chosen, progress, processes=processes)
            return _finish(result, chosen, processes)


def resume(folder: Path, progress: bool) -> tuple[Answer, int]:
    """Go on with a run from its newest checkpoint, or from the start if it has none.

    Raises:
        UnnError: if the folder holds no run, its data have changed, or its checkpoint belongs to another graph.
    """
    problem, config, run = open_problem(folder)
    _quiet_workers()
    from ..training import fit, several_processes

    with several_processes(config.training.device) as processes:
        task = problem.task(config)
        found = json_of("facts", task.facts)
        other = [name for name in {**run.facts, **found} if run.facts.get(name) != found.get(name)]
        if other:
            was, now = (", ".join(f"{name} {_short(facts.get(name))}" for name in other) for facts in (run.facts, found))
            raise DataError(f"{folder} was trained on data with {was}; those found now have {now}.")
        network = _fresh_network(problem, config, run.facts)
        with ExitStack() as stack:
            _by_main(processes, lambda: stack.enter_context(lock_run(folder)))
            result = fit(network, task, config.training, folder, progress, processes=processes)
            return _finish(result, folder, processes)


def _short(fact: object) -> str:
    text = repr(fact)
    return text if len(text) < 80 else f"{text[:60]}... ({len(text)} characters)"


def _quiet_workers() -> None:
    """Before torch is loaded: several processes shall not each warn that every parameter was used, which is no fault."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _fresh_network(problem: Problem, config: Any, facts: Any) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        return problem.network(config, facts)


def _made(folder: Path | None, problem: str) -> Path:
    """The folder of a new run, made."""
    if folder is None:
        return new_folder(Path("runs"), problem)
    make_folder(folder)
    return folder


def _by_main(processes: Processes, action: Callable[[], T]) -> T:
    """What the main process makes of an action; if it fails, it alone says why, and the others end as quietly as they can.

    Raises:
        UnnError: in the main process, as the action does.
        SystemExit: in the others.
    """
    outcome: T | None = None
    failure: UnnError | None = None
    if processes.main:
        try:
            outcome = action()
        except UnnError as error:
            failure = error
    failed, found = processes.from_main((failure is not None, outcome))
    if failure is not None:
        raise failure
    if failed:
        raise SystemExit(2)
    return cast(T, found)


def _finish(result: Fit, folder: Path, processes: Processes) -> tuple[Answer, int]:
    """Draw the metrics and say how training ended."""
    if not processes.main:
        return Answer((), {}), INTERRUPTED if result.interrupted else 0
    last = result.history[-1] if result.history else {}
    shown = {name: value for name, value in last.items() if name not in ("step", "epoch", "rate", "seconds")}
    lines = [
        f"trained {result.step} steps in {last.get('seconds', 0):.0f} s",
        *(f"{name} {value:.4g}" for name, value in shown.items()),
        f"run folder {folder}",
    ]
    if result.interrupted:
        lines[0] = f"interrupted after step {result.step}, which is saved; go on with unn resume {folder}"
    _draw(result, folder)
    data = {"folder": str(folder), "interrupted": result.interrupted, **last, "step": result.step}
    return Answer(tuple(lines), data), INTERRUPTED if result.interrupted else 0


def _draw(result: Fit, folder: Path) -> None:
    from ..draw import draw_metrics, save_figure

    if not result.history:
        return
    try:
        (folder / PLOTS).mkdir(exist_ok=True)
        save_figure(draw_metrics({folder.name: result.history}), folder / PLOTS / "metrics.png")
    except Exception as error:  # a picture decides nothing: the run is trained and saved
        print(f"unn: the plot of metrics was not written: {error}", file=sys.stderr)
