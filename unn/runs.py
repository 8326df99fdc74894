"""Run folders: the configuration, metrics and weights of a training run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import DataError, suggest

if TYPE_CHECKING:
    from torch import nn

CONFIG, METRICS, WEIGHTS = "config.json", "metrics.jsonl", "model.safetensors"


def new_folder(root: Path, problem: str) -> Path:
    """The next free folder ``root/problem-NNN``."""
    number = 1
    while (folder := root / f"{problem}-{number:03d}").exists():
        number += 1
    return folder


def write_config(folder: Path, problem: str, config: Any, facts: Mapping[str, Any]) -> None:
    """Write the resolved configuration, a dataclass, and facts found at run time (sizes of the data).

    Raises:
        DataError: if the folder holds a run already, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"run folder {folder} cannot be made: {error}.") from None
    if (folder / CONFIG).exists():
        raise DataError(f"run folder {folder} holds a run already; choose another with --folder, or delete it.")
    write_atomically(folder / CONFIG, json.dumps({"problem": problem, "config": asdict(config), "facts": dict(facts)}, indent=2).encode())


def read_config(folder: Path, config_type: type | None = None) -> tuple[str, Any, dict[str, Any]]:
    """The problem's name, its configuration (as ``config_type`` if given) and the facts of a run.

    Raises:
        DataError: if the folder holds no run, or its configuration is corrupt or from another version.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise DataError(f"{folder} is no run folder: it has no {CONFIG}; train one with unn train PROBLEM.")
    try:
        content = json.loads(path.read_text())
        problem, config, facts = content["problem"], content["config"], content["facts"]
        if not (isinstance(problem, str) and isinstance(config, dict) and isinstance(facts, dict)):
            raise TypeError("problem, config and facts must be a text and two mappings")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is corrupt ({type(error).__name__}: {error}).") from None
    if config_type is None:
        return problem, config, facts
    known = {field.name for field in fields(config_type)}
    for name in config:
        if name not in known:
            raise DataError(f"{path}: unknown option {name!r}, written by another version.{suggest(name, known)}")
    try:
        return problem, config_type(**config), facts
    except TypeError as error:
        raise DataError(f"{path} lacks options ({error}); it was written by another version.") from None


def append_metrics(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add one line of metrics."""
    with open(folder / METRICS, "a") as file:
        file.write(json.dumps(dict(entry)) + "\n")


def save_weights(folder: Path, module: nn.Module) -> None:
    """Save all parameters and buffers as safetensors, atomically."""
    from safetensors.torch import save

    tensors = {name: x.detach().cpu().contiguous() for name, x in dict(module.state_dict(keep_vars=True)).items()}
    # safetensors refuses tensors that share memory
    write_atomically(folder / WEIGHTS, save({name: x.clone() for name, x in tensors.items()}))


def load_weights(folder: Path, module: nn.Module) -> None:
    """Load what ``save_weights`` wrote into a module of the same structure.

    Raises:
        DataError: if the file is missing, truncated or corrupt, or its names and shapes are not those of the module.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS
    if not path.is_file():
        raise DataError(f"{folder} has no {WEIGHTS}; the run has not finished.")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is truncated or corrupt ({error}).") from None
    own = module.state_dict(keep_vars=True)
    for name, x in own.items():
        if name not in tensors:
            raise DataError(f"{path} lacks {name!r}; it belongs to another graph.{suggest(name, tensors)}")
        if tensors[name].shape != x.shape:
            raise DataError(f"{path}: {name!r} has shape {tuple(tensors[name].shape)}, but this graph needs {tuple(x.shape)}.")
    for name in tensors:
        if name not in own:
            raise DataError(f"{path} holds {name!r}, which this graph has not; it belongs to another graph.")
    for name, x in own.items():
        x.data.copy_(tensors[name])


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is either the old or the new one, whatever happens.

    Raises:
        DataError: if it cannot be written.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            temporary = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise DataError(f"{path} cannot be written: {error}.") from None
