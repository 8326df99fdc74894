"""unn train and unn resume."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import DataError, UnnError
from ..runs.digests import DATA, require_same_data
from ..runs.files import make_folder
from ..runs.folder import PLOTS, Run, create_run, extend_run, json_of, lock_run, new_folder
from ..training.options import TrainingConfig, option_signature, problem_signature
from .open import earlier_trainings, open_problem
from .problem import Answer, Problem

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
        files = problem.files(config)
        network = _fresh_network(problem, config, facts)
        with ExitStack() as stack:

            def begin() -> Run:
                made = _made(folder, problem.name)
                stack.enter_context(lock_run(made))
                code = code_version(type(problem).__module__.split(".")[0])
                return create_run(made, problem.name, config, facts, code, files)

            run = _by_main(processes, begin)
            options = problem_signature(run.config)
            result = fit(network, task, config.training, run.folder, progress, processes=processes, problem_options=options)
            return _finish(result, run.folder, processes)


def resume(folder: Path, progress: bool, epochs: int | None = None, steps: int | None = None) -> tuple[Answer, int]:
    """Go on with a run from its newest checkpoint, or from the start if it has none.

    Args:
        folder: of the run.
        progress: show a bar.
        epochs: extend the run to so many passes over the examples in all.
        steps: extend the run to so many steps in all.

    Raises:
        UnnError: if the folder holds no run, its data or options have changed, its checkpoint belongs to another graph, or the new length
            is none or shorter than the old one.
    """
    if epochs is not None and steps is not None:
        raise UnnError("unn resume takes --epochs or --steps, not both.")
    problem, config, run = open_problem(folder)
    length = _other_length(config.training, epochs, steps)
    length.check()
    _quiet_workers()
    _require_same_options(run, config.training)
    from ..training import fit, several_processes
    from ..training.loop import total_steps

    with several_processes(config.training.device) as processes:
        task = problem.task(config)
        found = json_of("facts", task.facts)
        require_same_data(folder, run.facts.get(DATA), found.get(DATA))
        names = {**run.facts, **found}.keys() - {DATA}
        other = [name for name in sorted(names) if run.facts.get(name) != found.get(name)]
        if other:
            was, now = (", ".join(f"{name} {_short(facts.get(name))}" for name in other) for facts in (run.facts, found))
            raise DataError(f"{folder} was trained on data with {was}; those found now have {now}.")
        network = _fresh_network(problem, config, run.facts)
        with ExitStack() as stack:

            def begin() -> Run:
                stack.enter_context(lock_run(folder))
                if length == config.training:
                    return run
                examples = task.examples()
                before, after = total_steps(config.training, examples), total_steps(length, examples)
                if after < before:
                    raise UnnError(f"{folder} is a run of {before} steps; {after} steps are no extension of it.")
                return extend_run(run, length.epochs, length.steps)

            opened = _by_main(processes, begin)
            result = fit(
                network, task, length, folder, progress, processes=processes, problem_options=problem_signature(opened.config),
                earlier=earlier_trainings(opened, length),
            )  # fmt: skip
            return _finish(result, folder, processes)


def _other_length(training: TrainingConfig, epochs: int | None, steps: int | None) -> TrainingConfig:
    """The same training with another number of epochs or steps in all, if one is given."""
    if epochs is not None:
        return replace(training, epochs=epochs, steps=0)
    if steps is not None:
        if steps < 1:
            raise UnnError(f"--steps must be at least 1, got {steps}.")
        return replace(training, steps=steps)
    return training


def _require_same_options(run: Run, training: TrainingConfig) -> None:
    """Check that a run has the options that its newest checkpoint was trained with, before its data are loaded.

    Raises:
        DataError: names the first that differs.
    """
    from ..runs.checkpoint import require_options

    of_problem = problem_signature(run.config)
    now, *earlier = ((*option_signature(each), *of_problem) for each in (training, *earlier_trainings(run, training)))
    require_options(run.folder, now, earlier)


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
    seconds = f"{last.get('seconds', 0):.0f} s"
    nothing_to_do = not result.interrupted and result.begun == result.step
    if result.interrupted:
        first = f"interrupted after step {result.step}, which is saved; go on with unn resume {folder}"
    elif nothing_to_do:
        first = f"already finished: {result.step} steps in {seconds}; nothing was trained now"
    elif result.begun:
        first = f"trained {result.step - result.begun} more steps, {result.step} in all in {seconds}"
    else:
        first = f"trained {result.step} steps in {seconds}"
    lines = [
        first,
        *([result.stopped_early] if result.stopped_early else []),
        *(f"{name} {value:.4g}" for name, value in shown.items()),
        f"run folder {folder}",
    ]
    _draw(result, folder)
    data = {
        "folder": str(folder), "interrupted": result.interrupted, "already_finished": nothing_to_do,
        "stopped_early": result.stopped_early, **last, "step": result.step,
    }  # fmt: skip
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
