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


def save_collage(figures: Sequence[Figure], path: Path, width: int = 1200, theme: Theme = LIGHT) -> None:
    """Stack figures vertically in one PNG, each rendered at the resolution that gives it the same width.

    Args:
        figures: figures from top to bottom, at least one.
        path: path of the PNG, in an existing folder; written atomically.
        width: width in pixels.
        theme: theme of the background for transparent figures.

    Raises:
        ObservationError: if there are no figures, or the width is below 1.
        DataError: if the path does not end in .png, or cannot be written.
    """
    import numpy as np
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread, imsave

    path = Path(path)
    if not figures or width < 1:
        raise ObservationError(
            f"save_collage needs figures and a width of at least 1 pixel, got {len(figures)} figures and "
            f"width={width}."
        )
    if picture_format(path) != "png":
        raise DataError(f"save_collage writes PNG files; end the name of {path} in .png.")
    # matplotlib rounds down the number of pixels
    files = [rendered(figure, "png", (width + 0.5) / figure.get_figwidth(), str(path)) for figure in figures]
    pixels = np.concatenate([imread(io.BytesIO(file)) for file in files])
    opacity = pixels[..., 3:]
    opaque = opacity * pixels[..., :3] + (1 - opacity) * to_rgb(theme.background)
    buffer = io.BytesIO()
    imsave(buffer, (255 * opaque).round().astype(np.uint8), format="png")
    write_atomically(path, buffer.getvalue())
