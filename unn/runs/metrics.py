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
    """Append-only file with one entry per line.

    Lines have no checksum, since metrics do not affect the weights; a line that is not valid JSON
    is an error.

    Entries that cannot be written because the disk is full are buffered and written with a later
    entry. After a crash the last line may be incomplete; readers skip it.

    Args:
        folder: run folder.
        until_step: delete entries of later steps, which were measured after the checkpoint that is resumed.

    Raises:
        DataError: if the file cannot be read or replaced.
    """

    def __init__(self, folder: Path, until_step: int = 0) -> None:
        self.path = folder / METRICS
        entries = [entry for entry in read_metrics(folder) if entry["step"] <= until_step]
        content = "".join(_line(entry) for entry in entries).encode()
        if not self.path.exists() or self.path.read_bytes() != content:
            write_atomically(self.path, content)
        self._size = len(content)
        self._pending = b""
        try:
            self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror or error}.") from None

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append one entry, a mapping with the step number under ``step``."""
        self._pending += _line(entry).encode()
        try:
            self._flush()
        except OSError:
            return  # stays in the buffer; sync() reports the error

    def sync(self) -> None:
        """Make all entries durable.

        Raises:
            DataError: if they cannot be written; they stay in the buffer for the next call.
        """
        try:
            self._flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror or error}.") from None

    def close(self) -> None:
        """Write the buffered entries, if possible, and close the file."""
        try:
            self._flush()
        except OSError:
            pass
        finally:
            self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _flush(self) -> None:
        if not self._pending:
            return
        # a failed write may have left part of a line
        self._file.seek(self._size)
        self._file.truncate()
        rest = memoryview(self._pending)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self._size += len(self._pending)
        self._pending = b""


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the entries of a run, in order; none if there is no file.

    An incomplete last line is skipped. Values that were not finite are NaN.

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
                raise ValueError("not a mapping with an integer under 'step'")
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is corrupt ({error}).") from None
        entries.append({name: math.nan if value is None else value for name, value in entry.items()})
    return entries


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(strict(dict(entry)), allow_nan=False) + "\n"


def strict(content: Any) -> Any:
    """Replace non-finite numbers, which JSON does not have, by null."""
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, dict):
        return {name: strict(value) for name, value in content.items()}
    return [strict(value) for value in content] if isinstance(content, (list, tuple)) else content
