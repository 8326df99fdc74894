"""unn train."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from ..errors import UnnError
from ..runs.digests import DATA, bytes_digest
from ..runs.files import make_folder
from ..runs.folder import PLOTS, Run, create_run, json_of, lock_run, new_folder
from ..training.options import problem_signature
from .options import Json, Quiet, shows_progress
from .problem import Problem
from .verb import Answer, Config, ProblemVerb

if TYPE_CHECKING:
    from ..training import Fit, Processes, Task

T = TypeVar("T")

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


@dataclass(frozen=True)
class Train(ProblemVerb[Config]):
    """Train a problem."""

    name: ClassVar[str] = "train"

    config: Config
    folder: Path | None = None
    """Folder of the new run; runs/PROBLEM-NNN by default."""
    json: Json = False
    quiet: Quiet = False

    def __call__(self, problem: Problem) -> Answer:
        return train(problem, self.config, self.folder, shows_progress(self.json, self.quiet))


def train(problem: Problem, config: Any, folder: Path | None, progress: bool) -> Answer:
    """Train a problem from scratch in a new run folder.

    Args:
        problem: the problem.
        config: its options.
        folder: run folder; None makes the next free one in ``runs/``.
        progress: whether to show a progress bar.

    Raises:
        UnnError: if an option is out of range, data are missing, the folder contains a run, or
            training diverges.
    """
    problem.check(config)
    quiet_workers()
    from ..runs.code import code_version
    from ..training import fit, several_processes

    with several_processes(config.training.device) as processes:
        task = problem.task(config)
        files = problem.files(config)
        facts = facts_with_files(task, files)
        network = fresh_network(problem, config, facts)
        with ExitStack() as stack:

            def begin() -> Run:
                new = _make_run_folder(folder, problem.name)
                stack.enter_context(lock_run(new))
                code = code_version(type(problem).__module__.split(".")[0])
                return create_run(new, problem.name, config, facts, code, files)

            run = by_main(processes, begin)
            options = problem_signature(run.config)
            result = fit(
                network,
                task,
                config.training,
                run.folder,
                progress,
                processes=processes,
                problem_options=options,
            )
            return finish(result, run.folder, processes)


def quiet_workers() -> None:
    """Silence a harmless warning of each process that all parameters were used; call before torch is
    loaded."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def facts_with_files(task: Task, files: Mapping[str, bytes]) -> Any:
    """The facts of a task with the checksums of the files that a run copies, as JSON."""
    digests = {name: bytes_digest(content) for name, content in files.items()}
    data = {**task.facts.get(DATA, {}), **digests}
    return json_of("facts", {**task.facts, **({DATA: data} if data else {})})


def fresh_network(problem: Problem, config: Any, facts: Any) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        network = problem.network(config, facts)
        problem.prepare(config, network)
        return network


def _make_run_folder(folder: Path | None, problem: str) -> Path:
    """Make the folder of a new run."""
    if folder is None:
        return new_folder(Path("runs"), problem)
    make_folder(folder)
    return folder


def by_main(processes: Processes, action: Callable[[], T]) -> T:
    """Run an action in the main process and return its result in all; only the main process reports an error.

    Raises:
        UnnError: in the main process, if the action raises it.
        SystemExit: in the other processes.
    """
    outcome: T | None = None
    failure: UnnError | None = None
    if processes.main:
        try:
            outcome = action()
        except UnnError as error:
            failure = error
    failed, result = processes.from_main((failure is not None, outcome))
    if failure is not None:
        raise failure
    if failed:
        raise SystemExit(2)
    return cast(T, result)


def finish(result: Fit, folder: Path, processes: Processes) -> Answer:
    """Draw the metrics and summarise the training."""
    if not processes.main:
        return Answer((), {}, code=INTERRUPTED if result.interrupted else 0)
    last = result.history[-1] if result.history else {}
    shown = {name: value for name, value in last.items() if name not in ("step", "epoch", "rate", "seconds")}
    seconds = f"{last.get('seconds', 0):.0f} s"
    nothing_to_do = not result.interrupted and result.begun == result.step
    if result.interrupted:
        first = f"interrupted after step {result.step}, which is saved; go on with unn resume {folder}"
    elif nothing_to_do and not result.step:
        first = "the engine has nothing to train; its model is ready"
    elif nothing_to_do:
        first = f"already finished: {result.step} steps in {seconds}; nothing was trained now"
    elif result.begun:
        first = f"trained {result.step - result.begun} more steps, {result.step} in all in {seconds}"
    else:
        first = f"trained {result.step} steps in {seconds}"
    lines = [
        first,
        *(text for text in (result.stopped_early, result.restored) if text),
        *(f"{name} {value:.4g}" for name, value in shown.items()),
        f"run folder {folder}",
    ]
    _draw(result, folder)
    data = {
        "folder": str(folder), "interrupted": result.interrupted, "already_finished": nothing_to_do,
        "stopped_early": result.stopped_early, **last, "step": result.step,
    }  # fmt: skip
    return Answer(tuple(lines), data, code=INTERRUPTED if result.interrupted else 0)


def _draw(result: Fit, folder: Path) -> None:
    from ..draw import draw_metrics, save_figure

    if not result.history:
        return
    try:
        (folder / PLOTS).mkdir(exist_ok=True)
        save_figure(draw_metrics({folder.name: result.history}), folder / PLOTS / "metrics.png")
    except Exception as error:  # a failed plot must not fail a finished run
        print(f"unn: the plot of metrics was not written: {error}", file=sys.stderr)
