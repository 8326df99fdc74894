"""Run folders: creation, configuration and write lock."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, DataError
from .config import config_from_json
from .files import delete_unfinished, make_folder, write_atomically

CONFIG, LOCK, PLOTS = "config.json", "lock", "plots"
LENGTHS = "earlier_lengths"
"""Key of the lengths before each extension in the configuration file of a run."""


class RunBusyError(DataError):
    """Another process is writing into the folder of a run."""


@dataclass(frozen=True)
class Run:
    """An opened run folder.

    Attributes:
        folder: run folder.
        problem: name of the problem.
        config: resolved configuration, as JSON.
        facts: properties determined at run time, such as the sizes of the data.
        code: versions and commits of the code that made the run.
        lengths: ``epochs`` and ``steps`` before each extension, oldest first.
    """

    folder: Path
    problem: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    code: Mapping[str, Any]
    lengths: tuple[Mapping[str, int], ...] = ()


def new_folder(root: Path, problem: str) -> Path:
    """Make the next free folder ``root/problem-NNN``; two processes never get the same one.

    Raises:
        DataError: if it cannot be made.
    """
    number = 1
    while True:
        folder = root / f"{problem}-{number:03d}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise DataError(f"run folder {folder} cannot be made: {error.strerror or error}.") from None


def create_run(
    folder: Path,
    problem: str,
    config: Any,
    facts: Mapping[str, Any],
    code: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Run:
    """Make the folder of a run and write its configuration.

    Args:
        folder: run folder; it may exist, but must not contain a run.
        problem: name of the problem.
        config: configuration, a dataclass.
        facts: properties determined at run time, as JSON.
        code: versions and commits, from ``code_version``.
        files: contents of further files, by name.

    Raises:
        ArgumentError: if the configuration or the facts do not survive saving as JSON.
        DataError: if the folder already contains a run, or cannot be written.
    """
    saved, saved_facts = json_of("config", asdict(config)), json_of("facts", facts)
    if config_from_json(type(config), saved, "config") != config:
        raise ArgumentError(
            f"config: {type(config).__name__} has values that JSON does not preserve; use numbers, strings "
            "and paths."
        )
    make_folder(folder)
    if (folder / CONFIG).exists():
        raise DataError(
            f"run folder {folder} holds a run already; continue it with unn resume {folder}, choose another "
            "with --folder, or delete it."
        )
    content = {"problem": problem, "config": saved, "facts": saved_facts, "code": dict(code or {})}
    # the configuration is written last: its presence makes the folder a run
    for name, raw in (files or {}).items():
        write_atomically(folder / name, raw)
    write_atomically(folder / CONFIG, json.dumps(content, indent=2).encode())
    return open_run(folder)


def json_of(what: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a mapping to JSON and back.

    Args:
        what: name of the mapping, for messages.
        content: numbers, strings, lists, tuples, paths and mappings with string keys.

    Raises:
        ArgumentError: names a value of another type.
    """
    try:
        return dict(json.loads(json.dumps({name: content[name] for name in content}, default=_path_text)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{what}: {error}; runs save it as JSON, so use numbers, strings, lists and mappings with string "
            "keys."
        ) from None


def _path_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} is not JSON serialisable")


def open_run(folder: Path) -> Run:
    """Read the configuration of a run.

    Raises:
        DataError: if the folder contains no run, or its configuration is corrupt.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise DataError(
            f"{folder} is no run folder: it has no {CONFIG}; train one with unn train "
            f"PROBLEM.{_similar_run(folder)}"
        )
    try:
        content = json.loads(path.read_text())
        problem, config, facts, code = (
            content["problem"],
            content["config"],
            content["facts"],
            content.get("code", {}),
        )
        lengths = content.get(LENGTHS, [])
        if not (isinstance(problem, str) and all(isinstance(part, dict) for part in (config, facts, code))):
            raise TypeError("problem must be a string; config, facts and code must be mappings")
        if not isinstance(lengths, list) or not all(map(_is_length, lengths)):
            raise TypeError(f"{LENGTHS} must be a list of the epochs and steps before each extension")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is corrupt ({type(error).__name__}: {error}).") from None
    return Run(folder, problem, config, facts, code, tuple(lengths))


def _similar_run(folder: Path) -> str:
    """Suggest ' Did you mean ...?' with a run of a similar name in the same folder or in ``runs/``;
    empty if there is none."""
    try:
        paths = [path for root in (Path("runs"), folder.parent) for path in sorted(root.glob("*"))]
        runs = {path.name: path for path in paths if (path / CONFIG).is_file()}
    except OSError:
        return ""
    close = difflib.get_close_matches(folder.name, runs, n=1, cutoff=0.75)
    return f" Did you mean {runs[close[0]]}?" if close else ""


def extend_run(run: Run, epochs: int, steps: int) -> Run:
    """Change the length of training in the configuration of a run.

    The previous length is stored as well, because existing checkpoints were trained with it.

    Args:
        run: run whose ``config`` has ``training`` with ``epochs`` and ``steps``; locked by the caller.
        epochs: number of passes over the examples.
        steps: total number of steps, instead of epochs; 0 uses the epochs.

    Raises:
        DataError: if the configuration cannot be written; the old one is unchanged.
    """
    training = dict(run.config["training"])
    lengths = [*run.lengths, {name: training[name] for name in ("epochs", "steps")}]
    config = {**run.config, "training": {**training, "epochs": epochs, "steps": steps}}
    content = {
        "problem": run.problem,
        "config": config,
        "facts": run.facts,
        "code": run.code,
        LENGTHS: lengths,
    }
    write_atomically(run.folder / CONFIG, json.dumps(content, indent=2).encode())
    return open_run(run.folder)


def _is_length(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"epochs", "steps"}
        and all(type(number) is int for number in value.values())
    )


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the exclusive write lock of a run folder; the operating system releases it when the process dies.

    Raises:
        RunBusyError: if another process holds the lock.
        DataError: if the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunBusyError(
            f"run folder {folder} is in use by another process; wait until it ends, or stop it."
        ) from None
    except OSError as error:
        raise DataError(f"run folder {folder} cannot be written: {error.strerror or error}.") from None
    try:
        for inside in (folder, folder / "checkpoints"):
            delete_unfinished(inside)
        yield
    finally:
        lock.release()
