"""Metrics as JSON lines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import DataError
from .files import write_atomically

METRICS = "metrics.jsonl"


class MetricsFile:
    """Appends entries to a file, one line each.

    Lines have no checksum: a changed digit is not noticed, and changes no weights. A line that is no longer JSON is named.

    What cannot be written, because the disk is full, is kept and written with a later entry; a line is in the file whole or, after a
    crash, as a last line without an end, which readers leave out.

    Args:
        folder: of the run.
        until_step: delete entries of later steps: they were measured after the checkpoint from which training goes on.

    Raises:
        DataError: if the file cannot be read or replaced.
    """

    def __init__(self, folder: Path, until_step: int = 0) -> None:
        self.path = folder / METRICS
        kept = [entry for entry in read_metrics(folder) if entry["step"] <= until_step]
        content = "".join(_line(entry) for entry in kept).encode()
        if not self.path.exists() or self.path.read_bytes() != content:
            write_atomically(self.path, content)
        self._size = len(content)
        self._pending = b""
        try:
            self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror or error}.") from None

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add one entry; it has a number of steps under ``step``."""
        self._pending += _line(entry).encode()
        try:
            self._flush()
        except OSError:
            return  # kept for later; sync() reports it

    def sync(self) -> None:
        """Make all entries durable.

        Raises:
            DataError: if they cannot be written; they are kept for the next call.
        """
        try:
            self._flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror or error}.") from None

    def close(self) -> None:
        """Write what is left, if possible, and close the file."""
        try:
            self._flush()
        except OSError:
            pass
        finally:
            self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _flush(self) -> None:
        if not self._pending:
            return
        # a write that failed half-way left part of a line behind
        self._file.seek(self._size)
        self._file.truncate()
        rest = memoryview(self._pending)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self._size += len(self._pending)
        self._pending = b""


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The entries of a run, in order; none if there is no file. A last line without an end is left out; what was not finite is NaN.

    Raises:
        DataError: names the line that is corrupt.
    """
    path = folder / METRICS
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    entries = []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                raise ValueError("no mapping with a whole number under 'step'")
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is corrupt ({error}).") from None
        entries.append({name: math.nan if value is None else value for name, value in entry.items()})
    return entries


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(strict(dict(entry)), allow_nan=False) + "\n"


def strict(content: Any) -> Any:
    """The same with null for numbers that are not finite, which JSON does not have."""
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, dict):
        return {name: strict(value) for name, value in content.items()}
    return [strict(value) for value in content] if isinstance(content, (list, tuple)) else content
