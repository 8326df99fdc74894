"""Metrics of runs over the steps of training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING

from ..errors import ObservationError, suggest
from .theme import LIGHT, Theme, add_legend, add_title, line_style, new_figure, shortened, style_axes

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = Sequence[Mapping[str, float]]

CLOCKS = frozenset({"step", "epoch", "seconds", "time"})
"""Keys that measure progress and are not metrics."""

ACROSS, WIDTH, HEIGHT = 3, 3.2, 2.2  # panels per row, and size of a panel in inches


def draw_metrics(histories: Mapping[str, History], x: str = "step", theme: Theme = LIGHT) -> Figure:
    """Plot one panel per metric and one line per run.

    Args:
        histories: entries of each run in order, by the name of the run; an entry holds values by
            metric. Entries without a metric are skipped in its line, non-finite values break the line,
            isolated values are dots.
        x: key of the x axis: "step", "epoch", "seconds", or another key of the entries.
        theme: light or dark.

    Raises:
        ObservationError: if there is nothing to draw, or a run has no entry with ``x``.
    """
    names = _metric_names(histories, x)
    across = 2 if len(names) == 4 else min(ACROSS, len(names))
    down = math.ceil(len(names) / across)
    labels = [shortened(str(label), 36) for label in histories]
    # as many names per row as fit, at about 0.075 inches per letter
    columns = max(1, min(len(labels), int(across * WIDTH / (0.075 * max(map(len, labels)) + 0.6))))
    figure = new_figure(theme, across * WIDTH, down * HEIGHT + 0.25 + 0.2 * math.ceil(len(labels) / columns))
    grid = figure.subplots(down, across, squeeze=False).flatten()
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    for number, (axes, name) in enumerate(zip(grid, names, strict=False)):
        style_axes(axes, theme)
        add_title(axes, theme, shortened(name, 40))
        for run, history in enumerate(histories.values()):
            _draw_line(
                axes,
                [
                    (entry[x], entry[name])
                    for entry in history
                    if _is_number(entry, x) and _is_number(entry, name)
                ],
                theme,
                run,
            )
        axes.locator_params(axis="y", nbins=5)
        axes.locator_params(axis="x", nbins=5)
        if number + across >= len(names):
            axes.set_xlabel(x, parse_math=False)
    add_legend(figure, theme, _handles(labels, theme), loc="outside lower center", columns=columns)
    return figure


def _metric_names(histories: Mapping[str, History], x: str) -> list[str]:
    """Names of all metrics of all runs, in order of appearance."""
    if not histories:
        raise ObservationError("draw_metrics needs at least one run: a mapping from its name to its entries.")
    for run, history in histories.items():
        keys = dict.fromkeys(key for entry in history for key in entry if _is_number(entry, key))
        if keys and x not in keys:
            raise ObservationError(
                f"draw_metrics: no entry of run {run!r} has a number for x={x!r}.{suggest(x, keys)} Pass "
                "another x."
            )
    entries = [entry for history in histories.values() for entry in history if _is_number(entry, x)]
    names = dict.fromkeys(
        key for entry in entries for key in entry if _is_number(entry, key) and key != x and key not in CLOCKS
    )
    if not names:
        raise ObservationError(
            f"draw_metrics found no metric: no entry of {', '.join(map(repr, histories))} has a number "
            f"beside {x!r}."
        )
    return list(names)


def _is_number(entry: Mapping[str, float], key: str) -> bool:
    value = entry.get(key)
    return isinstance(value, Real) and not isinstance(value, bool)


def _draw_line(axes: Axes, points: Sequence[tuple[float, float]], theme: Theme, run: int) -> None:
    positions = [float(position) for position, _ in points]
    values = [float(value) if math.isfinite(value) else math.nan for _, value in points]
    gaps = [True, *map(math.isnan, values), True]
    # a value without neighbours makes no line and is invisible without a dot
    lone = [k for k in range(len(values)) if gaps[k] and gaps[k + 2] and not gaps[k + 1]]
    axes.plot(
        positions, values, linewidth=1.4, marker="o", markersize=4, markevery=lone, **line_style(theme, run)
    )


def _handles(labels: Sequence[str], theme: Theme) -> list[Artist]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], linewidth=1.4, label=label, **line_style(theme, run))
        for run, label in enumerate(labels)
    ]
