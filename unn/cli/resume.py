"""unn resume."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ..errors import DataError, UnnError
from ..runs.digests import DATA, require_same_data
from ..runs.folder import Run, extend_run, lock_run
from ..training.options import TrainingConfig, option_signature, problem_signature
from .open import earlier_trainings, open_problem
from .options import Json, Quiet, RunFolder, shows_progress
from .train import by_main, facts_with_files, finish, fresh_network, quiet_workers
from .verb import Answer, Verb


@dataclass(frozen=True)
class Resume(Verb):
    """Resume an interrupted run, or extend one."""

    name: ClassVar[str] = "resume"

    run: RunFolder
    epochs: int | None = None
    """Extend the run to this number of epochs in all."""
    steps: int | None = None
    """Extend the run to this number of steps in all."""
    json: Json = False
    quiet: Quiet = False

    def __call__(self) -> Answer:
        return resume(self.run, shows_progress(self.json, self.quiet), self.epochs, self.steps)


def resume(folder: Path, progress: bool, epochs: int | None = None, steps: int | None = None) -> Answer:
    """Resume a run from its newest checkpoint, or from the start if it has none.

    Args:
        folder: run folder.
        progress: whether to show a progress bar.
        epochs: extend the run to this total number of passes over the examples.
        steps: extend the run to this total number of steps.

    Raises:
        UnnError: if the folder contains no run, its data or options have changed, its checkpoint
            belongs to another graph, or the new length is invalid or shorter than the old one.
    """
    if epochs is not None and steps is not None:
        raise UnnError("unn resume takes --epochs or --steps, not both.")
    problem, config, run = open_problem(folder)
    length = _with_length(config.training, epochs, steps)
    length.check()
    quiet_workers()
    _require_same_options(run, config.training)
    from ..runs.checkpoint import checkpoint_steps
    from ..runs.weights import WEIGHTS
    from ..training import fit, several_processes
    from ..training.loop import total_steps

    with several_processes(config.training.device) as processes:
        task = problem.task(config)
        facts = facts_with_files(task, problem.files(config))
        require_same_data(folder, run.facts.get(DATA), facts.get(DATA))
        names = {**run.facts, **facts}.keys() - {DATA}
        other = [name for name in sorted(names) if run.facts.get(name) != facts.get(name)]
        if other:
            before, now = (
                ", ".join(f"{name} {_short(x.get(name))}" for name in other) for x in (run.facts, facts)
            )
            raise DataError(f"{folder} was trained on data with {before}; the data now have {now}.")
        network = fresh_network(problem, config, run.facts)
        with ExitStack() as stack:

            def begin() -> Run:
                stack.enter_context(lock_run(folder))
                learns = next(network.parameters(), None) is not None
                if learns and (folder / WEIGHTS).exists() and not checkpoint_steps(folder):
                    raise DataError(
                        f"{folder} has final weights and no checkpoint to continue from, so training "
                        f"would start "
                        "again and replace them; train in another folder."
                    )
                if length == config.training:
                    return run
                examples = task.examples()
                before, after = total_steps(config.training, examples), total_steps(length, examples)
                if after < before:
                    raise UnnError(
                        f"{folder} is a run of {before} steps; {after} steps are no extension of it."
                    )
                return extend_run(run, length.epochs, length.steps)

            opened = by_main(processes, begin)
            result = fit(
                network,
                task,
                length,
                folder,
                progress,
                processes=processes,
                problem_options=problem_signature(opened.config),
                earlier=earlier_trainings(opened, length),
            )
            return finish(result, folder, processes)


def _with_length(training: TrainingConfig, epochs: int | None, steps: int | None) -> TrainingConfig:
    """Replace the total number of epochs or steps, if one is given."""
    if epochs is not None:
        return replace(training, epochs=epochs, steps=0)
    if steps is not None:
        if steps < 1:
            raise UnnError(f"--steps must be at least 1, got {steps}.")
        return replace(training, steps=steps)
    return training


def _require_same_options(run: Run, training: TrainingConfig) -> None:
    """Check the options of a run against its newest checkpoint, before its data are loaded.

    Raises:
        DataError: names the first option that differs.
    """
    from ..runs.checkpoint import require_options

    of_problem = problem_signature(run.config)
    now, *earlier = (
        (*option_signature(each), *of_problem) for each in (training, *earlier_trainings(run, training))
    )
    require_options(run.folder, now, earlier)


def _short(fact: object) -> str:
    text = repr(fact)
    return text if len(text) < 80 else f"{text[:60]}... ({len(text)} characters)"
