"""Checksums of the data and the files of a run, compared when it is opened or resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from .folder import Run

DATA = "data"
"""Key of the checksums in the facts of a task, ``{file or part of the data: SHA-256}``."""


def tensor_digest(x: Tensor) -> str:
    """SHA-256 of the dtype, shape and values of a tensor."""
    digest = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    digest.update(x.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def text_digest(lines: Iterable[str]) -> str:
    """SHA-256 of lines of text, independent of their line ends."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def require_same_data(folder: Path, before: object, now: object) -> None:
    """Check that the data of a run have not changed since its start.

    Args:
        folder: run folder.
        before: checksums at the start of the run, by name; None (older versions wrote no checksums) passes.
        now: checksums of the data as loaded now.

    Raises:
        DataError: names the files that have changed.
    """
    if before is None or not isinstance(now, Mapping):
        return
    earlier = before if isinstance(before, Mapping) else {}
    changed = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    if changed:
        raise DataError(
            f"{folder}: the training data have changed since the run was begun: {', '.join(changed)} "
            f"({'has' if len(changed) == 1 else 'have'} another SHA-256). Restore them, or begin a new run."
        )


def bytes_digest(content: bytes) -> str:
    """SHA-256 of the contents of a file."""
    return hashlib.sha256(content).hexdigest()


def require_own_files(run: Run, files: Mapping[str, bytes]) -> None:
    """Check that the files that a run copied into its folder are as they were at its start.

    Args:
        run: the run.
        files: their contents now, by name: those of the copies, or of the originals where a copy is missing.

    Raises:
        DataError: names the first file that has changed.
    """
    recorded = run.facts.get(DATA)
    before = recorded if isinstance(recorded, Mapping) else {}
    for name, content in files.items():
        if before.get(name, bytes_digest(content)) == bytes_digest(content):
            continue
        copy = run.folder / name
        state = (
            "has changed since the run was made"
            if copy.is_file()
            else "is missing, and the file of which it was a copy has changed since the run was made"
        )
        raise DataError(f"{copy} {state} (it has another SHA-256). Restore it, or train again.")
