"""Several figures below one another in one picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_collage(figures: Sequence[Figure], path: Path, width: int = 1200) -> None:
    """Save figures below one another as one PNG, each scaled to the same width.

    Args:
        figures: from top to bottom.
        path: of the PNG.
        width: in pixels.
    """
    from PIL import Image

    pictures = []
    for figure in figures:
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=160)
        picture = Image.open(buffer).convert("RGB")
        pictures.append(picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS))
    whole = Image.new("RGB", (width, sum(picture.height for picture in pictures)), "white")
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height
    whole.save(path)
