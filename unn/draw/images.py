"""Grids of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ObservationError
from .theme import LABEL, LIGHT, Theme, add_title, new_figure
from .values import as_array, described

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor


def draw_images(
    images: Tensor,
    titles: Sequence[str] | None = None,
    columns: int = 10,
    theme: Theme = LIGHT,
    low: float = -1.0,
    high: float = 1.0,
) -> Figure:
    """Draw a grid of images, grey or RGB, with intensities from ``low`` (black) to ``high``.

    Args:
        images: shape ``(n, 1, rows, columns)`` for grey or ``(n, 3, rows, columns)`` for red, green and blue;
            values outside ``low`` and ``high`` are clipped.
        titles: one title per image.
        columns: number of images per row.
        theme: light or dark.
        low, high: range of values.

    Raises:
        ObservationError: if the images have another shape, the number of titles differs, there are
            no columns, or the range is empty.
    """
    pixels = as_array(images)
    if pixels is None or pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or 0 in pixels.shape:
        raise ObservationError(
            f"draw_images takes images of shape (n, 1, rows, columns) or (n, 3, rows, columns), nowhere 0, "
            f"got {described(images)}."
        )
    if titles is not None and len(titles) != len(pixels):
        raise ObservationError(
            f"draw_images got {len(pixels)} images, but {len(titles)} titles; pass one for each."
        )
    if columns < 1:
        raise ObservationError(f"draw_images needs at least one column, got columns={columns}.")
    if not -math.inf < low < high < math.inf:
        raise ObservationError(
            f"draw_images needs a range of values from low to a larger high, got low={low} and high={high}."
        )
    across = min(columns, len(pixels))
    down = math.ceil(len(pixels) / across)
    room = 0.25 if titles is not None else 0.0
    figure = new_figure(theme, across * 1.05, down * (pixels.shape[2] / pixels.shape[3] + room + 0.05))
    grid = figure.subplots(
        down, across, squeeze=False, subplot_kw={"frame_on": False, "xticks": [], "yticks": []}
    ).flatten()
    for axes, image in zip(grid, pixels, strict=False):
        if len(image) == 1:
            axes.imshow(image[0], cmap="gray", vmin=low, vmax=high, interpolation="nearest")
        else:
            axes.imshow(((image - low) / (high - low)).clip(0, 1).transpose(1, 2, 0), interpolation="nearest")
    for axes, title in zip(grid, titles or (), strict=False):
        add_title(axes, theme, title, LABEL)
    return figure
