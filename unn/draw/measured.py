"""Measures of several queries beside the value of the right answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import ObservationError
from .theme import LIGHT, Theme, add_title, new_panels, shortened, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS, WIDTH, HEIGHT = 4, 2.4, 2.1  # panels per row, and size of a panel in inches


def draw_measured(
    values: Mapping[str, Sequence[float]], ideal: Mapping[str, float], theme: Theme = LIGHT
) -> Figure:
    """Draw each measure of all queries in rising order, with a line at its mean and one at the best value.

    A mean alone hides single queries that are far off.

    Args:
        values: values of a measure, one for each query, by its name.
        ideal: the value of the right answer, for some of the names.
        theme: light or dark.

    Raises:
        ObservationError: for no measures, one without values, or values that are not finite.
    """
    if not values or not all(len(x) for x in values.values()):
        raise ObservationError("draw_measured: there are no values to draw.")
    for name, x in values.items():
        if not all(math.isfinite(number) for number in x):
            raise ObservationError(f"draw_measured: values of {name!r} must be finite.")
    figure, panels = new_panels(theme, len(values), ACROSS, WIDTH, HEIGHT)
    for axes, (name, x) in zip(panels, values.items(), strict=True):
        style_axes(axes, theme)
        add_title(axes, theme, shortened(name, 24))
        if name in ideal:
            axes.axhline(ideal[name], color=theme.muted, linewidth=0.8)
        axes.axhline(sum(x) / len(x), color=theme.cycle[1], linewidth=1.0, linestyle="--")
        axes.plot(range(1, len(x) + 1), sorted(x), ".", color=theme.cycle[0], markersize=4)
        axes.locator_params(axis="x", integer=True, nbins=5)
        axes.set_xlabel("queries in order", parse_math=False)
    return figure
