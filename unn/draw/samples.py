"""Pictures of samples: one row of panels per sample or step, one panel per variable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ObservationError
from .theme import LABEL, LIGHT, NAME, Theme, new_figure, ramp, style_axes
from .values import as_array, described

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 1.2  # minimum side in inches
CELL = 0.2  # side of a cell with a written category, in inches
WRITTEN = 16  # maximum rows and columns with categories written as numbers

Matrix = NDArray[np.float64]
Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class Marking:
    """Marks on a picture of samples.

    Attributes:
        given: observation mask by variable, boolean, shape of its node axes, or of one for each sample.
        blocks: numbers of rows and columns of a block by variable; lines are drawn between blocks.
        first: number of the first category by variable; 1 where it is left out.
        changes: whether to mark cells whose category differs from the previous sample.
    """

    given: Mapping[str, object] | None = None
    blocks: Mapping[str, tuple[int, int]] | None = None
    first: Mapping[str, int] | None = None
    changes: bool = False


def draw_samples(
    rows: Sequence[Mapping[str, object]],
    names: Sequence[str],
    categories: Sequence[str] = (),
    theme: Theme = LIGHT,
    marking: Marking | None = None,
    columns: int = 1,
) -> Figure:
    """Draw the values of each sample as panels: numbers as colours, categories written as numbers.

    Observed cells are shaded with bold numbers; changed cells have the first colour of the theme.
    Categories of variables with more than 16 rows or columns of nodes are drawn as colours.

    Args:
        rows: values of each sample by variable, without a batch axis; of three or more axes, the
            later are flattened.
        names: names of the rows.
        categories: variables that are one-hot along their last axis.
        theme: light or dark.
        marking: marks of observed cells, blocks and changes; None for no marks.
        columns: number of samples per row.

    Raises:
        ObservationError: if there are no samples or columns, samples differ in their variables, a
            value is not an array, or a mask has another shape than its variable.
    """
    if not rows or len(names) != len(rows) or len({tuple(row) for row in rows}) > 1 or not rows[0]:
        raise ObservationError(
            "a picture of samples needs at least one sample, a name for each, and the same variables in all."
        )
    if columns < 1:
        raise ObservationError(f"a picture of samples needs at least one column, got columns={columns}.")
    marking = marking or Marking()
    variables = list(rows[0])
    first = {name: (marking.first or {}).get(name, 1) for name in categories}
    matrices = [{name: _matrix(name, value, first.get(name)) for name, value in row.items()} for row in rows]
    given = {name: _given(name, marking, matrices[0][name].shape, len(rows)) for name in variables}
    written = {name: name in categories and max(matrices[0][name].shape) <= WRITTEN for name in variables}
    limits = {name: _limits([row[name] for row in matrices]) for name in variables}
    across = min(columns, len(rows))
    down = math.ceil(len(rows) / across)
    sizes = [_panel_size(matrices[0][name].shape, written[name]) for name in variables]
    figure = new_figure(
        theme,
        across * (0.3 + sum(width for width, _ in sizes)) + 0.3,
        down * (0.1 + max(height for _, height in sizes)) + 0.4,
    )
    grid: Any = figure.subplots(
        down, across * len(variables), squeeze=False, width_ratios=[width for width, _ in sizes] * across
    )
    for position in range(down * across):
        for k, name in enumerate(variables):
            axes = grid[position // across][position % across * len(variables) + k]
            if position >= len(rows):
                axes.set_axis_off()
                continue
            style_axes(axes, theme, frame=("left", "right", "top", "bottom"))
            axes.set(xticks=[], yticks=[])
            matrix = matrices[position][name]
            if written[name]:
                before = matrices[position - 1][name] if position and marking.changes else matrix
                _write_categories(axes, matrix, given[name][position], matrix != before, theme)
            else:
                low, high = limits[name]
                axes.imshow(
                    matrix, cmap=ramp(theme), vmin=low, vmax=high, aspect="auto", interpolation="nearest"
                )
            if marking.blocks and name in marking.blocks:
                _draw_blocks(axes, matrix.shape, marking.blocks[name], theme)
            if position < across:
                axes.set_title(name, fontsize=NAME, color=theme.foreground, parse_math=False)
            if k == 0:
                axes.set_ylabel(names[position], parse_math=False)
    return figure


def _panel_size(shape: tuple[int, ...], written: bool) -> tuple[float, float]:
    """Width and height of a panel in inches."""
    if not written:
        return PANEL, PANEL
    return max(PANEL, CELL * shape[1]), max(PANEL if shape[0] > 1 else 2 * CELL, CELL * shape[0])


def _write_categories(axes: Axes, matrix: Matrix, given: Marks, changed: Marks, theme: Theme) -> None:
    from matplotlib.colors import ListedColormap

    down, across = matrix.shape
    axes.imshow(
        given,
        cmap=ListedColormap([theme.background, theme.fill]),
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
    )
    for line in range(1, down):
        axes.axhline(line - 0.5, color=theme.faint, linewidth=0.3)
    for line in range(1, across):
        axes.axvline(line - 0.5, color=theme.faint, linewidth=0.3)
    for i, j in np.ndindex(down, across):
        marked = bool(changed[i, j])
        axes.text(
            j,
            i,
            f"{int(matrix[i, j])}",
            ha="center",
            va="center_baseline",
            fontsize=LABEL,
            fontweight="bold" if given[i, j] else "normal",
            color=theme.background if marked else theme.foreground,
            bbox={"boxstyle": "square,pad=0.15", "color": theme.cycle[0], "linewidth": 0} if marked else None,
        )


def _draw_blocks(axes: Axes, shape: tuple[int, ...], block: tuple[int, int], theme: Theme) -> None:
    for line in range(block[0], shape[0], block[0]):
        axes.axhline(line - 0.5, color=theme.foreground, linewidth=1.2)
    for line in range(block[1], shape[1], block[1]):
        axes.axvline(line - 0.5, color=theme.foreground, linewidth=1.2)


def _limits(matrices: Sequence[Matrix]) -> tuple[float, float]:
    low, high = min(float(x.min()) for x in matrices), max(float(x.max()) for x in matrices)
    return low, high if high > low else low + 1


def _given(name: str, marking: Marking, shape: tuple[int, ...], samples: int) -> Marks:
    """Observation masks of a variable, in the shape of its panel, one for each sample."""
    if not marking.given or name not in marking.given:
        return np.zeros((samples, *shape), dtype=bool)
    marks, nodes = as_array(marking.given[name]), math.prod(shape)
    if marks is None or marks.dtype != bool or marks.size not in (nodes, samples * nodes):
        raise ObservationError(
            f"a picture of samples: what is given of {name!r} must be boolean with {nodes} entries, "
            f"one for each of its nodes, or {samples * nodes}, got {described(marking.given[name])}."
        )
    return np.broadcast_to(marks.reshape(-1, *shape), (samples, *shape))


def _matrix(name: str, value: object, first: int | None) -> Matrix:
    """Values of a panel; the numbers of categories, where the first has a number."""
    array = as_array(value)
    if array is None or not array.size or not np.isfinite(array).all():
        raise ObservationError(
            f"a picture of samples needs finite numbers, got {described(value)} for {name!r}."
        )
    x = np.asarray(array if first is None else array.argmax(-1) + first, dtype=np.float64)
    return x.reshape(1, -1) if x.ndim < 2 else x.reshape(x.shape[0], -1)
