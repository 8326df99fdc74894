"""Files of instances; importing this does not load torch."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unn.errors import DataError

if TYPE_CHECKING:
    import numpy as np


def locate(path: str) -> Path:
    """Path of the file or folder, or of that name in ``$UNN_DATA`` if it does not exist; may be missing."""
    data = os.environ.get("UNN_DATA")
    return Path(path) if Path(path).exists() or not data else Path(data) / path


def read_bytes(path: str | Path, content: str) -> bytes:
    """Bytes of a file.

    Args:
        path: the file.
        content: what the file should hold, for messages: "no ``content`` can be read".

    Raises:
        DataError: for a file that is missing or cannot be opened.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: no {content} can be read: {error.strerror}.") from None


def read_text(path: str | Path, content: str) -> str:
    """Text of a file in UTF-8 without a byte order mark, decompressed if its name ends in .gz.

    Arguments as of ``read_bytes``.

    Raises:
        DataError: for a file that is missing, damaged or no text.
    """
    data = read_bytes(path, content)
    try:
        return (gzip.decompress(data) if Path(path).suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no {content} can be read: {error}.") from None


def read_arrays(path: str | Path, content: str) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of a file in the format of ``numpy.savez``, by name; arguments as of ``read_bytes``.

    Raises:
        DataError: for a file that is missing, damaged, or of another format.
    """
    import numpy as np

    try:
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:
        # damaged archives raise errors of many kinds, and numpy would advise to unpickle files of others
        reason = getattr(error, "strerror", None) or "it is no intact .npz file with arrays of numbers"
        raise DataError(f"{path}: no {content} can be read: {reason}.") from None
