"""Entry points of installed packages, scanned again only when the search path changes."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import metadata


def entry_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Entry points of a group, of all packages on the search path.

    A scan reads the metadata of every package, 13 ms each time, and a listing of problems and engines asks
    some hundred times. A package that is installed or removed changes the modification time of its folder.

    Args:
        group: name of the group, for example ``"unn.engines"``.
    """
    return _scan(group, tuple((path, _modified(path)) for path in sys.path))


@lru_cache(maxsize=32)
def _scan(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))


def _modified(path: str) -> int:
    """Time of the last modification of a folder in nanoseconds; 0 if there is none."""
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0
