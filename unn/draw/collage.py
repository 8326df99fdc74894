"""Several figures stacked in one image."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataError, ObservationError
from ..runs.files import write_atomically
from .save import picture_format, rendered
from .theme import LIGHT, Theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 160  # of each figure before it is scaled


def save_collage(figures: Sequence[Figure], path: Path, width: int = 1200, theme: Theme = LIGHT) -> None:
    """Stack figures vertically in one PNG, each scaled to the same width.

    Args:
        figures: figures from top to bottom, at least one.
        path: path of the PNG, in an existing folder; written atomically.
        width: width in pixels.
        theme: theme of the background for transparent figures.

    Raises:
        ObservationError: if there are no figures, or the width is below 1.
        DataError: if the path does not end in .png, or cannot be written.
    """
    from PIL import Image

    path = Path(path)
    if not figures or width < 1:
        raise ObservationError(f"save_collage needs figures and a width of at least 1 pixel, got {len(figures)} figures and width={width}.")
    if picture_format(path) != "png":
        raise DataError(f"save_collage writes PNG files; end the name of {path} in .png.")
    pictures = []
    for figure in figures:
        picture = Image.open(io.BytesIO(rendered(figure, "png", DPI, str(path)))).convert("RGBA")
        pictures.append(picture.resize((width, max(1, round(picture.height * width / picture.width))), Image.Resampling.LANCZOS))
    whole = Image.new("RGB", (width, sum(picture.height for picture in pictures)), theme.background)
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top), picture)
        top += picture.height
    buffer = io.BytesIO()
    whole.save(buffer, format="PNG")
    write_atomically(path, buffer.getvalue())
