"""Samples as pictures: a row for each sample or step, a panel for each variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ObservationError
from .theme import LABEL, LIGHT, NAME, Theme, new_figure, ramp, style_axes
from .values import as_array, described

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 1.2  # inches, a side
WRITTEN = 12  # rows and columns up to which categories are written as numbers

Matrix = NDArray[np.float64]


def draw_samples(
    rows: Sequence[Mapping[str, object]], names: Sequence[str], categories: Sequence[str] = (), theme: Theme = LIGHT
) -> Figure:
    """Values as panels of colour, a row of panels for each sample; categories as numbers from 1.

    Args:
        rows: for each sample its values by variable, without a batch axis; with three axes or more, the later ones are put side by side.
        names: of the rows.
        categories: variables that are one-hot along their last axis.
        theme: light or dark.

    Raises:
        ObservationError: if there is no sample, samples differ in their variables, or a value is no array.
    """
    if not rows or len(names) != len(rows) or len({tuple(row) for row in rows}) > 1 or not rows[0]:
        raise ObservationError("a picture of samples needs at least one of them, a name for each, and the same variables in all.")
    variables = list(rows[0])
    matrices = [{name: _matrix(name, value, name in categories) for name, value in row.items()} for row in rows]
    figure = new_figure(theme, 0.6 + PANEL * len(variables), 0.4 + PANEL * len(rows))
    grid: Any = figure.subplots(len(rows), len(variables), squeeze=False)
    for column, name in enumerate(variables):
        known = [float(value) for row in matrices for value in (row[name].min(), row[name].max())]
        low, high = min(known), max(known)
        for k, row in enumerate(matrices):
            axes = grid[k][column]
            _draw_panel(axes, row[name], (low, high if high > low else low + 1), name in categories, theme)
            if k == 0:
                axes.set_title(name, fontsize=NAME, color=theme.foreground, parse_math=False)
            if column == 0:
                axes.set_ylabel(names[k], parse_math=False)
    return figure


def _draw_panel(axes: Axes, matrix: Matrix, limits: tuple[float, float], written: bool, theme: Theme) -> None:
    low, high = limits
    style_axes(axes, theme, frame=("left", "right", "top", "bottom"))
    axes.imshow(matrix, cmap=ramp(theme), vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    if not written or max(matrix.shape) > WRITTEN:
        return
    for i, j in np.ndindex(*matrix.shape):
        # the ramp begins near the background
        colour = theme.background if matrix[i, j] - low > 0.5 * (high - low) else theme.foreground
        axes.text(j, i, f"{int(matrix[i, j])}", ha="center", va="center", fontsize=LABEL, color=colour)


def _matrix(name: str, value: object, category: bool) -> Matrix:
    array = as_array(value)
    if array is None or not array.size or not np.isfinite(array).all():
        raise ObservationError(f"a picture of samples needs finite numbers, got {described(value)} for {name!r}.")
    x = np.asarray(array.argmax(-1) + 1 if category else array, dtype=np.float64)
    return x.reshape(1, -1) if x.ndim < 2 else x.reshape(x.shape[0], -1)
