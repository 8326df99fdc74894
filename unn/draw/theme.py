"""Light and dark themes, and helpers that make figures and axes in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ObservationError, unknown

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

TITLE, NAME, LABEL, FINE = 10.0, 9.0, 8.0, 7.0
"""Sizes of text in points."""

STROKES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Theme:
    """The colours of a picture, as ``#RRGGBB``.

    Attributes:
        name: name for ``theme_named``.
        background: background colour.
        foreground: colour of text and main elements.
        muted: colour of frames, ticks and minor text; contrast with the background at least 4.5:1.
        faint: colour of edges, plates and minor lines; contrast at least 3:1.
        fill: colour of observed variables, behind text in the foreground colour.
        cycle: line colours, in order; distinct under common colour blindness, contrast at least 3:1.
        sequential: a perceptually uniform colormap that begins near the background.
    """

    name: str
    background: str
    foreground: str
    muted: str
    faint: str
    fill: str
    cycle: tuple[str, ...]
    sequential: str


# The hues of Okabe and Ito (2008) with lightness and chroma moved, until each stands out from the background
# and the smallest distance in CIELAB between any two, as seen with normal, protan, deutan and tritan vision
# (Machado et al., 2009), is as large as it gets.
LIGHT = Theme(
    name="light",
    background="#FFFFFF",
    foreground="#222222",
    muted="#5F6368",
    faint="#868B92",
    fill="#BDBDBD",
    cycle=("#075084", "#CD7D0C", "#1C9857", "#BA7C9D", "#8A3308", "#5894E1"),
    sequential="magma_r",
)
DARK = Theme(
    name="dark", background="#14171C", foreground="#E8EAED", muted="#A9AFB8", faint="#767D88", fill="#4A515C",
    cycle=("#63D4FD", "#FDBF37", "#98DEAE", "#AB678C", "#BA682C", "#387BCE"), sequential="magma",
)  # fmt: skip
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def theme_named(name: str) -> Theme:
    """Return a theme by its name, ``"light"`` or ``"dark"``.

    Raises:
        ObservationError: if the name is unknown; suggests the closest.
    """
    if not isinstance(name, str) or name not in THEMES:
        raise ObservationError(unknown("theme", name, THEMES))
    return THEMES[name]


def check_theme(theme: object) -> None:
    """Require a theme object.

    Raises:
        ObservationError: if the argument is not a theme, for example only the name of one.
    """
    if not isinstance(theme, Theme):
        raise ObservationError(
            f"a theme is unn.draw.LIGHT, unn.draw.DARK or theme_named('dark'), got {theme!r}."
        )


def new_figure(
    theme: Theme, width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """Make an empty figure without a window, width and height in inches; notebooks display it.

    Raises:
        ObservationError: if ``theme`` is not a theme.
    """
    from .picture import Picture

    check_theme(theme)
    return Picture(
        figsize=(width, height), layout=layout, facecolor=theme.background, edgecolor=theme.background
    )


def new_panels(
    theme: Theme, count: int, across: int, width: float, height: float
) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels in rows, as many axes as panels; places without a panel stay empty.

    Args:
        theme: light or dark.
        count: number of panels, at least 1.
        across: panels in a row.
        width, height: size of a panel in inches.

    Raises:
        ObservationError: if ``theme`` is not a theme.
    """
    across = min(across, count)
    down = math.ceil(count / across)
    figure = new_figure(theme, across * width, down * height)
    grid = list(figure.subplots(down, across, squeeze=False).flatten())
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid[:count]


def style_axes(
    axes: Axes, theme: Theme, frame: Sequence[str] = ("left", "bottom"), size: float = LABEL
) -> None:
    """Colour the axes, their ticks and labels, and draw only the named sides of the frame."""
    axes.set_facecolor(theme.background)
    for side, spine in axes.spines.items():
        spine.set(visible=side in frame, color=theme.muted, linewidth=0.8)
    axes.tick_params(
        which="both", color=theme.muted, labelcolor=theme.foreground, labelsize=size, width=0.8, length=3
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=theme.foreground, fontsize=NAME)
        axis.get_offset_text().set(color=theme.foreground, fontsize=size)


def add_title(axes: Axes, theme: Theme, text: str, size: float = NAME) -> None:
    """Add a title above axes, without math mode."""
    axes.set_title(text, fontsize=size, color=theme.foreground, parse_math=False)


def add_legend(
    target: Axes | Figure, theme: Theme, handles: Sequence[Artist], loc: str = "best", columns: int = 1
) -> Legend:
    """Add a legend of the given artists by their labels, in order."""
    options: dict[str, Any] = {
        "loc": loc,
        "ncols": columns,
        "frameon": False,
        "fontsize": LABEL,
        "labelcolor": theme.foreground,
    }
    legend = target.legend(handles, [str(handle.get_label()) for handle in handles], **options)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return legend


def line_style(theme: Theme, number: int) -> dict[str, Any]:
    """Colour and line style of a line; beyond the colours of the theme, line styles differ."""
    return {
        "color": theme.cycle[number % len(theme.cycle)],
        "linestyle": STROKES[number // len(theme.cycle) % len(STROKES)],
    }


def ramp(theme: Theme, start: float = 0.0) -> Colormap:
    """Sequential colormap from a fraction of its length on; masked entries have the background colour."""
    import matplotlib
    import numpy as np
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(matplotlib.colormaps[theme.sequential](np.linspace(start, 1, 256)))
    return colours.with_extremes(bad=theme.background)


def shortened(text: str, limit: int, mark: str = "…") -> str:
    """Shorten a text to at most ``limit`` characters, keeping the beginning and the end, where
    names differ."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}{mark}{text[len(text) - tail :]}"
