"""Atomic writing of files and folders."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import DataError

TEMPORARY = ".partial-"
"""Prefix of the names of unfinished files and folders; those of a killed process are deleted when
its run is locked again."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically and durably.

    Raises:
        DataError: if it cannot be written; the old file is unchanged.
    """
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


def write_folder_atomically(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files atomically and durably.

    Raises:
        DataError: if it cannot be written; no part of it remains.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=TEMPORARY))
        for name, content in files.items():
            with open(temporary / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        os.chmod(temporary, 0o777 & ~_umask())
        sync_folder(temporary)
        delete_folder(path)
        os.rename(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, if they do not exist.

    Raises:
        DataError: if it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"folder {folder} cannot be made: {error.strerror or error}.") from None


def delete_folder(path: Path) -> None:
    """Delete a folder, if it exists; it is renamed first, so that a partly deleted folder is never read."""
    if path.exists():
        doomed = path.with_name(f"{TEMPORARY}{path.name}-deleted")
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def delete_unfinished(folder: Path) -> None:
    """Delete the unfinished files of killed processes from a folder."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith(TEMPORARY):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable, where the system supports it."""
    flags = getattr(os, "O_DIRECTORY", None)
    if flags is None:
        return
    descriptor = os.open(folder, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
