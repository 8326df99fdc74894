"""Checkpoints: the state from which training resumes, as safetensors and JSON in a folder that is
written atomically."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..renamed import current_name
from .files import delete_folder, write_folder_atomically
from .tree import from_bytes, join_tensors, split_tensors, to_bytes

CHECKPOINTS = "checkpoints"
FORMAT = 2
READABLE = (1, FORMAT)
"""Format 1 differs only in its signature, which has the options of training but not those of the problem."""
TENSORS, STATE = "state.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint.

    Attributes:
        step: number of steps taken.
        signature: graphs, sizes and options of the run, one per line.
        state: nested state, from ``state_dict()``.
        format: version of the file format.
    """

    step: int
    signature: tuple[str, ...]
    state: dict[str, Any]
    format: int = FORMAT


def write_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write a checkpoint into a run folder and delete all but the newest ones up to its step.

    Checkpoints with a larger step (from an abandoned continuation) are deleted too.

    Args:
        folder: run folder.
        checkpoint: checkpoint to write.
        keep: number of checkpoints to keep, at least 1; others are deleted only after the new one is durable.

    Raises:
        DataError: if it cannot be written (the others are then unchanged), or if another cannot be deleted.
    """
    from .. import __version__

    content, tensors = split_tensors(checkpoint.state)
    packed = to_bytes(tensors)
    head = {
        "format": FORMAT,
        "unn": __version__,
        "step": checkpoint.step,
        "signature": list(checkpoint.signature),
        "state": content,
    }
    path = _checkpoint_path(folder, checkpoint.step)
    write_folder_atomically(
        path, {TENSORS: packed, STATE: json.dumps({**head, "sha256": _digest(head, packed)}).encode()}
    )
    try:
        steps = checkpoint_steps(folder)
        earlier = [step for step in steps if step <= checkpoint.step]
        for step in [*earlier[: -max(1, keep)], *(step for step in steps if step > checkpoint.step)]:
            delete_folder(_checkpoint_path(folder, step))
    except OSError as error:
        raise DataError(
            f"{path} is written, but an older checkpoint cannot be deleted: {error.strerror or error}."
        ) from None
    return path


def _checkpoint_path(folder: Path, step: int) -> Path:
    return folder / CHECKPOINTS / f"step-{step:09d}"


def _digest(head: dict[str, Any], packed: bytes) -> str:
    """SHA-256 of the header (without the checksum) and the tensors."""
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode() + packed).hexdigest()


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints of a run, in order."""
    root = folder / CHECKPOINTS
    names = (
        [re.fullmatch(r"step-([0-9]{9,18})", path.name) for path in root.iterdir() if path.is_dir()]
        if root.is_dir()
        else []
    )
    return sorted(
        int(match.group(1))
        for match in names
        if match and match.group() == _checkpoint_path(folder, int(match.group(1))).name
    )


def newest_checkpoint(
    folder: Path, signature: Sequence[str], earlier: Sequence[Sequence[str]] = ()
) -> tuple[Checkpoint | None, list[str]]:
    """Read the newest intact checkpoint of a run.

    Args:
        folder: run folder.
        signature: graphs, sizes and options that the checkpoint must match.
        earlier: alternative signatures, those of the run before its extensions.

    Returns:
        The checkpoint (None if there are none) and a warning for each newer one that is corrupt.

    Raises:
        DataError: if it belongs to another graph, version or size, or if all checkpoints are corrupt.
    """
    warnings: list[str] = []
    for step in reversed(checkpoint_steps(folder)):
        try:
            checkpoint = read_checkpoint(_checkpoint_path(folder, step))
        except _CorruptError as error:
            if not _checkpoint_path(folder, step).exists():
                # a running training has just replaced it by a newer one
                return newest_checkpoint(folder, signature, earlier)
            warnings.append(str(error))
            continue
        difference = _difference(checkpoint, signature)
        if difference and all(_difference(checkpoint, other) for other in earlier):
            raise DataError(
                f"{folder}: the checkpoint of step {step} belongs to another graph, or was trained with "
                f"other options: {difference} Resume the run with the version and the options that it was "
                "begun with, or train again in another folder."
            )
        return checkpoint, warnings
    if warnings:
        raise DataError(" ".join([*warnings, "No checkpoint of this run can be read; train it anew."]))
    return None, []


def require_options(folder: Path, options: Sequence[str], earlier: Sequence[Sequence[str]] = ()) -> None:
    """Check the options of the newest checkpoint of a run, without reading its tensors.

    An unreadable checkpoint is skipped here and reported by training.

    Args:
        folder: run folder.
        options: lines of the signature that the checkpoint must match.
        earlier: alternative lines, those of the run before its extensions.

    Raises:
        DataError: names the first option that differs, with both values.
    """
    for step in reversed(checkpoint_steps(folder)):
        try:
            head = json.loads((_checkpoint_path(folder, step) / STATE).read_bytes())
            theirs = [str(line) for line in head["signature"] if str(line).startswith("option ")]
            checkpoint = Checkpoint(step, tuple(theirs), {}, int(head["format"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if checkpoint.format not in READABLE or any(
            not _difference(checkpoint, lines) for lines in (options, *earlier)
        ):
            return
        raise DataError(
            f"{folder}: the checkpoint of step {step} was trained with other options: "
            f"{_difference(checkpoint, options)} Put the option back in config.json, or begin a new run."
        )


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Args:
        path: folder of the checkpoint.

    Raises:
        DataError: if it is missing, corrupt, or of another format.
    """
    try:
        head = json.loads((path / STATE).read_bytes())
        format_version, version, digest = head["format"], head["unn"], head["sha256"]
        if format_version in READABLE:
            packed = (path / TENSORS).read_bytes()
            if _digest({name: value for name, value in head.items() if name != "sha256"}, packed) != digest:
                raise ValueError("the checksum does not match")
            state = join_tensors(head["state"], from_bytes(packed))
            return Checkpoint(
                int(head["step"]),
                tuple(current_name(str(line)) for line in head["signature"]),
                dict(state),
                format_version,
            )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _CorruptError(f"{path} is corrupt ({type(error).__name__}: {error}).") from None
    raise DataError(
        f"{path} has checkpoint format {format_version}, written by unn {version}; "
        f"this version reads format {' and '.join(map(str, READABLE))}."
    )


def _difference(checkpoint: Checkpoint, signature: Sequence[str]) -> str:
    """Describe the first difference between the signature of a checkpoint and another; empty if
    they are equal."""
    if checkpoint.format == 1:
        present = {line.split(":")[0] for line in checkpoint.signature}
        signature = [
            line for line in signature if not line.startswith("option ") or line.split(":")[0] in present
        ]
    return first_difference(checkpoint.signature, signature)


def first_difference(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """Describe the first difference between two signatures; empty if they are equal."""
    for line in theirs:
        if line not in ours:
            subject = line.split(":")[0]
            other = next((own for own in ours if own.split(":")[0] == subject), None)
            return f"it has [{line}], but the resumed run has " + (
                f"[{other}]." if other else "no such entry."
            )
    for line in ours:
        if line not in theirs:
            return f"it lacks [{line}]."
    return "" if list(theirs) == list(ours) else "its parts are declared in another order."


class _CorruptError(DataError):
    """A checkpoint that cannot be read; an older one may be intact."""
