"""Protection of the packages installed with ``unn`` against other files with their names."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

BESIDE = ("factors", "problems")
"""Packages of the same distribution as ``unn``, in the same folder."""


@dataclass(frozen=True)
class Shadow:
    """A file that Python would import instead of an installed package.

    Attributes:
        package: name of the package.
        file: the file that shadows it.
        folder: folder of the file.
    """

    package: str
    file: Path
    folder: Path


def home() -> Path:
    """Folder of the installed packages."""
    return Path(__file__).resolve().parents[2]


def shadows(folders: Sequence[str | Path]) -> list[Shadow]:
    """Find files in the given folders that shadow an installed package.

    Args:
        folders: folders as in ``sys.path``; "" is the current one. The folder of the installed
            packages is skipped.
    """
    own = home()
    shadowing: dict[Path, Shadow] = {}
    for folder in map(Path, folders):
        for package in BESIDE:
            spec = PathFinder.find_spec(package, [str(folder)])
            # a folder without an __init__.py has no origin; regular packages take precedence over it anywhere
            # on the path
            if spec is None or spec.origin is None or folder.resolve() == own:
                continue
            file = Path(spec.origin).resolve()
            shadowing[file] = Shadow(package, file, folder.resolve())
    return list(shadowing.values())


def import_own_packages_first() -> None:
    """Move folders that contain another ``factors`` or ``problems`` to the end of ``sys.path``.

    ``python -m unn`` and ``torchrun -m unn`` put the current folder first, and so does an empty entry of
    PYTHONPATH. The path is changed, rather than the import system, because processes that prepare batches
    inherit it.
    """
    own = home()
    before: list[str] = []
    for entry in sys.path:
        if Path(entry).resolve() == own:
            break
        before.append(entry)
    else:
        # unn was not imported from the path
        return
    moved = [entry for entry in before if shadows([entry])]
    sys.path[:] = [*(entry for entry in sys.path if entry not in moved), *moved]


def current_shadows() -> list[Shadow]:
    """Find files in the current folder or in PYTHONPATH that a Python program started here would import
    instead."""
    folders = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return shadows([folder for folder in folders if folder])
