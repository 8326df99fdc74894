"""Atomic saving of pictures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataError
from ..runs.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg", "jpg", "jpeg", "webp")


def save_figure(figure: Figure, path: Path | str, dpi: float = 120) -> None:
    """Save a figure atomically, in the format given by the suffix of the path.

    Args:
        figure: figure to save, with its own colours.
        path: path ending in .png, .pdf, .svg, .jpg, .jpeg or .webp, in an existing folder.
        dpi: dots per inch, for raster formats.

    Raises:
        DataError: if the suffix is unknown, or the path cannot be written.
    """
    write_atomically(Path(path), rendered(figure, picture_format(Path(path)), dpi, str(path)))


def picture_format(path: Path) -> str:
    """Format of a picture from the suffix of its path.

    Raises:
        DataError: if the suffix is missing or unknown.
    """
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        problem = f"has the ending .{ending}" if ending else "has no ending"
        raise DataError(
            f"the picture {path} {problem}; end its name in "
            f"{', '.join('.' + known for known in FORMATS[:-1])} or .{FORMATS[-1]}."
        )
    return ending


def rendered(figure: Figure, kind: str, dpi: float, what: str = "") -> bytes:
    """Render a figure to the content of a file.

    Raises:
        DataError: if it cannot be drawn, for example at 0 dots per inch or with more pixels than
            the format allows.
    """
    import matplotlib

    buffer = io.BytesIO()
    # equal pictures give equal files: no date, no random names
    metadata: dict[str, str | None] | None = {"Date": None} if kind == "svg" else None
    try:
        with matplotlib.rc_context({"svg.hashsalt": "unn"}):
            figure.savefig(
                buffer,
                format=kind,
                dpi=dpi,
                facecolor=figure.get_facecolor(),
                edgecolor=figure.get_edgecolor(),
                metadata=metadata,
            )
    except (ValueError, OSError, MemoryError) as error:
        raise DataError(
            f"the picture {what} cannot be drawn at {dpi} dots per inch: {str(error).rstrip('.')}."
        ) from None
    return buffer.getvalue()
