"""Reliability diagrams: estimated probabilities against exact ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import ObservationError
from .theme import LIGHT, Theme, line_style, new_figure, shortened, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 6.4, 4.4  # size of the figure in inches


def draw_reliability(diagrams: Mapping[str, Sequence[tuple[float, float]]], theme: Theme = LIGHT) -> Figure:
    """Plot the mean exact probability in bins of the estimated one, a line for each estimate.

    Args:
        diagrams: mean estimated and mean exact probability of each bin, by the name of the estimate.
        theme: light or dark.

    Raises:
        ObservationError: if there is nothing to draw.
    """
    if not diagrams:
        raise ObservationError("draw_reliability: no probabilities to draw.")
    figure = new_figure(theme, WIDTH, HEIGHT)
    axes = figure.subplots()
    style_axes(axes, theme)
    axes.plot([0, 1], [0, 1], color=theme.faint, linewidth=1)
    for number, (name, points) in enumerate(diagrams.items()):
        estimated, exact = [x for x, _ in points], [y for _, y in points]
        axes.plot(estimated, exact, marker=".", label=shortened(name, 40), **line_style(theme, number))
    axes.set_xlabel("estimated probability", parse_math=False)
    axes.set_ylabel("exact probability", parse_math=False)
    legend = axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for text in legend.get_texts():
        text.set_color(theme.foreground)
    return figure
