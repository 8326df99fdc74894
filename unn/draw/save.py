"""Pictures as files that are either the old or the new one."""

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
    """Save a picture in the format that the ending of its path says; a file of that name is replaced whole or stays as it was.

    Args:
        figure: keeps its colours.
        path: ends in .png, .pdf, .svg, .jpg, .jpeg or .webp, in a folder that exists.
        dpi: dots per inch, for formats of dots.

    Raises:
        DataError: for another ending, or a place that cannot be written.
    """
    write_atomically(Path(path), rendered(figure, picture_format(Path(path)), dpi, str(path)))


def picture_format(path: Path) -> str:
    """The format that the ending of a path says.

    Raises:
        DataError: if there is none.
    """
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        found = f"has the ending .{ending}" if ending else "has no ending"
        raise DataError(f"the picture {path} {found}; end its name in {', '.join('.' + known for known in FORMATS[:-1])} or .{FORMATS[-1]}.")
    return ending


def rendered(figure: Figure, kind: str, dpi: float, what: str = "") -> bytes:
    """A picture as the content of a file.

    Raises:
        DataError: if it cannot be drawn, for example at 0 dots per inch or with more dots than the format can hold.
    """
    import matplotlib

    buffer = io.BytesIO()
    # one picture, one file: no date, no random names
    metadata: dict[str, str | None] | None = {"Date": None} if kind == "svg" else None
    try:
        with matplotlib.rc_context({"svg.hashsalt": "unn"}):
            figure.savefig(buffer, format=kind, dpi=dpi, facecolor=figure.get_facecolor(), edgecolor=figure.get_edgecolor(), metadata=metadata)
    except (ValueError, OSError, MemoryError) as error:
        raise DataError(f"the picture {what} cannot be drawn at {dpi} dots per inch: {str(error).rstrip('.')}.") from None
    return buffer.getvalue()
