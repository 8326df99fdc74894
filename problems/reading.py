"""Files of instances; importing this does not load torch."""

from __future__ import annotations

import gzip
from pathlib import Path

from unn.errors import DataError


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
    """Text of a file in UTF-8, decompressed if its name ends in .gz; arguments as of ``read_bytes``.

    Raises:
        DataError: for a file that is missing, damaged or no text.
    """
    data = read_bytes(path, content)
    try:
        return (gzip.decompress(data) if Path(path).suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no {content} can be read: {error}.") from None
