"""unn train and unn resume."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError
from ..problem import Answer, Problem
from ..runs.folder import PLOTS, create_run, lock_run, new_folder
from .open import open_problem

if TYPE_CHECKING:
    from ..training import Fit, Processes

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
    from ..runs.code import code_version
    from ..training import fit, several_processes

    with several_processes(config.training.device) as processes:
        task = problem.task(config)
        network = _fresh_network(problem, config, task.facts)
        chosen = processes.from_main(_made(folder, problem.name) if processes.main else None)
        with _locked(chosen, processes):
            if processes.main:
                create_run(chosen, problem.name, config, task.facts, code_version(type(problem).__module__.split(".")[0]))
            result = fit(network, task, config.training, chosen, progress, processes=processes)
            return _finish(result, chosen, processes)


def resume(folder: Path, progress: bool) -> tuple[Answer, int]:
    """Go on with a run from its newest checkpoint, or from the start if it has none.

    Raises:
        UnnError: if the folder holds no run, its data have changed, or its checkpoint belongs to another graph.
    """
    problem, config, run = open_problem(folder)
    from ..training import fit, several_processes

    with several_processes(config.training.device) as processes:
        task = problem.task(config)
        if json.loads(json.dumps(dict(task.facts))) != dict(run.facts):
            raise DataError(f"{folder} was trained on data with {dict(run.facts)}; those found now have {dict(task.facts)}.")
        network = _fresh_network(problem, config, run.facts)
        with _locked(folder, processes):
            result = fit(network, task, config.training, folder, progress, processes=processes)
            return _finish(result, folder, processes)


def _fresh_network(problem: Problem, config: Any, facts: Any) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        return problem.network(config, facts)


def _made(folder: Path | None, problem: str) -> Path:
    """The folder of a new run, made."""
    if folder is None:
        return new_folder(Path("runs"), problem)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"run folder {folder} cannot be made: {error.strerror or error}.") from None
    return folder


@contextlib.contextmanager
def _locked(folder: Path, processes: Processes) -> Iterator[None]:
    """The main process holds the lock for all."""
    with lock_run(folder) if processes.main else contextlib.nullcontext():
        yield


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
    except (OSError, DataError) as error:
        print(f"unn: the plot of metrics was not written: {error}", file=sys.stderr)
