"""Opening a run: its problem, configuration and network."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine import load_engine
from ..errors import DataError, UnnError
from ..runs.config import config_from_json
from ..runs.digests import require_own_files
from ..runs.folder import CONFIG, Run, open_run
from ..training.options import LATER, TrainingConfig, problem_signature
from .problem import Problem, Solvable, Trained, load_problem, problem_names, require

if TYPE_CHECKING:
    from torch import nn


def open_problem(folder: Path) -> tuple[Problem, Any, Run]:
    """Open a run: its problem and its configuration, of the problem's own type.

    Raises:
        DataError: if the folder contains no run, the configuration is corrupt or of another version, or a
            file that the run copied has changed.
        UnnError: if the problem is not installed, or an option is out of range.
    """
    run = open_run(folder)
    problem = load_problem(run.problem)
    content = dict(problem.earlier_config(run.config))
    if isinstance(content.get("training"), Mapping):
        content["training"] = {**LATER, **content["training"]}
    try:
        engine = content.get("engine")
        if engine is not None and not isinstance(engine, str):
            raise UnnError(f"engine must be the name of one, got {engine!r}.")
        config_type = problem.config_for(engine)
    except UnnError as error:
        raise DataError(
            f"{folder / CONFIG}: {error} Install the package of the engine, or train again."
        ) from None
    config: Any = config_from_json(config_type, content, str(folder / CONFIG))
    config = problem.in_folder(config, folder)
    problem.check(config)
    require_own_files(run, problem.files(config))
    return problem, config, run


def open_trained(folder: Path | str, engine: str = "") -> tuple[Problem, Trained]:
    """Open a run with its network: the final weights, or those of the newest checkpoint if it has
    not finished.

    The name of a problem selects its pretrained run, unless there is a folder with that name.

    Args:
        folder: folder of a run, or the name of a problem.
        engine: engine of the pretrained run; empty for the usual one, or that of the run.

    Raises:
        UnnError: for another engine than that of the run.
        DataError: if the run has no weights, or they belong to another graph.
    """
    folder = Path(folder)
    if not folder.exists() and str(folder) in problem_names():
        folder = load_problem(str(folder)).pretrained(engine) or folder
        if not folder.exists() and engine:
            return _untrained(str(folder), engine)
    problem, config, run = open_problem(folder)
    own = getattr(config, "engine", "")
    if engine and engine != own:
        raise UnnError(
            f"{folder}: the run has the engine {own!r}, so it cannot answer by {engine!r}; leave that out, "
            f"or name the problem {problem.name!r} instead of the run."
        )
    import torch

    from ..runs.weights import WEIGHTS, load_weights

    with torch.random.fork_rng(devices=[]):
        network = problem.network(config, run.facts)
    if (folder / WEIGHTS).exists():
        load_weights(folder, network)
    else:
        _load_checkpoint(run, network, config.training)
    return problem, Trained(folder, config, run.facts, network.eval())


NOTHING_TO_SOLVE = "has no constraints to solve"


def solving_engine(name: Path | str) -> str:
    """Engine that solves a problem by default: the solver, if the problem comes with trained weights of it,
    or the default engine of the problem, if that needs no training or has trained weights; empty for the
    folder of a run.

    Raises:
        UnnError: if a problem is named that has nothing to solve.
    """
    if Path(name).exists() or str(name) not in problem_names():
        return ""
    problem = load_problem(str(name))
    require(problem, Solvable, NOTHING_TO_SOLVE)
    default = getattr(problem, "default_engine", "")
    if problem.pretrained("solver") is not None or not default:
        return "solver"
    answers = not load_engine(default).trains or problem.pretrained(default) is not None
    return default if answers else "solver"


def _untrained(name: str, engine: str) -> tuple[Problem, Trained]:
    """A problem with the default options of an engine that needs no training.

    Raises:
        UnnError: if the engine needs training, or does not serve the problem.
    """
    problem = load_problem(name)
    config: Any = problem.config_for(engine)()
    problem.check(config)
    if load_engine(engine).trains:
        raise UnnError(
            f"problem {name!r} comes without trained weights of engine {engine!r}; train some with unn train "
            f"{name} --engine {engine}."
        )
    return problem, Trained(Path(name), config, {}, problem.network(config, {}).eval())


def earlier_trainings(run: Run, training: TrainingConfig) -> list[TrainingConfig]:
    """Training options of a run before each of its extensions."""
    return [replace(training, epochs=length["epochs"], steps=length["steps"]) for length in run.lengths]


def _load_checkpoint(run: Run, network: nn.Module, training: TrainingConfig) -> None:
    from ..runs.checkpoint import newest_checkpoint
    from ..runs.weights import copy_weights
    from ..training.loop import signatures

    folder = run.folder
    signature, *others = signatures(
        network, (training, *earlier_trainings(run, training)), problem_signature(run.config)
    )
    checkpoint, notes = newest_checkpoint(folder, signature, others)
    for note in notes:
        print(f"unn: {note}", file=sys.stderr)
    if checkpoint is None:
        raise DataError(
            f"{folder} has neither final weights nor a checkpoint; continue with unn resume {folder}."
        )
    tensors = dict(checkpoint.state.get("average") or checkpoint.state["network"])
    tensors.pop("n_averaged", None)
    copy_weights(tensors, network, f"{folder}, checkpoint of step {checkpoint.step}")
    print(
        f"unn: {folder} is not finished: these are the weights of step {checkpoint.step}; go on with "
        f"unn resume "
        f"{folder}",
        file=sys.stderr,
    )
