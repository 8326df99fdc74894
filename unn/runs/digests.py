"""Checksums of training data, compared when a run is resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

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
