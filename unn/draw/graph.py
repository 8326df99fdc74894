"""The drawing of a graph: circles for variables, squares for factors, plates around variables with several
nodes."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from .layout import (
    FINE_LINE,
    LINE,
    RADIUS,
    SIDE,
    Placement,
    Plate,
    Point,
    factor_text,
    fits,
    layout_of,
    text_width,
)
from .theme import FINE, LABEL, LIGHT, NAME, TITLE, Theme, add_legend, check_theme, new_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..graph.declaration import Declaration
    from ..graph.factor import Factor

MARGIN = 0.25  # inches


def draw_graph(graph: Declaration, given: Collection[str] = (), theme: Theme = LIGHT) -> Figure:
    """Draw a graph: variables as circles in columns by their distance from the evidence, factors as
    squares between.

    A variable with node axes (left of a bar) has a plate with these axes and their sizes.

    Args:
        graph: graph of any size; long chains are folded into several bands.
        given: names of observed variables, drawn shaded; if there are none, columns begin at the
            first variable.
        theme: light or dark.

    Raises:
        DeclarationError: if a name is not declared.
        ObservationError: if ``theme`` is not a theme.
    """
    check_theme(theme)
    observed = {graph[name].name for name in ([given] if isinstance(given, str) else given)}.intersection(
        graph.variables
    )
    factors = [factor for factor in graph.factors.values() if factor.variables]
    layout = layout_of(graph, observed)
    with_energy = {factor.name for factor in graph.energy_factors}
    handles = _legend_handles(
        {factor.name in with_energy for factor in factors}, bool(observed), bool(layout.plates), theme
    )
    width = max(layout.width, 1.2 * len(handles), text_width(graph.name, TITLE)) + 2 * MARGIN
    height = layout.height + 2 * MARGIN + 0.6
    figure = new_figure(theme, width, height, layout=None)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    positions = {
        node: (x + (width - layout.width) / 2, y + MARGIN + 0.25) for node, (x, y) in layout.positions.items()
    }
    _text(axes, width / 2, 0.2, graph.name, TITLE, theme.foreground)
    for name, plate in layout.plates.items():
        _draw_plate(axes, name, positions[name], plate, theme)
    for name in graph.variables:
        _draw_variable(axes, name, positions[name], theme, name in observed)
    for factor in factors:
        energy = factor.name in with_energy
        _draw_edges(
            axes,
            factor,
            energy,
            [positions[name] for name in factor.variables],
            positions[factor],
            layout,
            theme,
        )
        _draw_factor(axes, factor, energy, positions[factor], theme)
    add_legend(figure, theme, handles, loc="lower center", columns=len(handles))
    return figure


def _legend_handles(energies: Collection[bool], observed: bool, plates: bool, theme: Theme) -> list[Artist]:
    """One legend handle for each kind of element in the picture."""
    from matplotlib.lines import Line2D

    line, ink, paper = theme.cycle[0], theme.foreground, theme.background
    kinds = {"variable": ("o", paper, line)} | ({"observed": ("o", theme.fill, line)} if observed else {})
    kinds |= {"factor": ("s", ink, ink)} if True in energies else {}
    kinds |= {"no energy": ("s", paper, ink)} if False in energies else {}
    kinds |= {"repeated": ("s", paper, theme.faint)} if plates else {}
    styles: list[tuple[str, dict[str, Any]]] = [
        (word, {"marker": m, "mfc": fill, "mec": edge}) for word, (m, fill, edge) in kinds.items()
    ]
    return [
        Line2D([], [], ls="none", ms=10 if word == "repeated" else 8, label=word, **style)
        for word, style in styles
    ]


def _draw_plate(axes: Axes, name: str, position: Point, plate: Plate, theme: Theme) -> None:
    from matplotlib.patches import BoxStyle, FancyBboxPatch

    x, y = position
    corner, width, height = (x - plate.side, y - plate.up), 2 * plate.side, plate.up + plate.down
    box = FancyBboxPatch(
        corner, width, height, boxstyle=BoxStyle("Round", pad=0, rounding_size=0.08),
        facecolor="none", edgecolor=theme.faint, linewidth=1.0, zorder=2, gid=f"plate {name}",
    )  # fmt: skip
    axes.add_patch(box)
    lines = plate.text.count("\n") + 1
    _text(axes, x, y + plate.down - 0.04 - FINE_LINE * lines / 2, plate.text, FINE, theme.muted)


def _draw_variable(axes: Axes, name: str, position: Point, theme: Theme, observed: bool) -> None:
    from matplotlib.patches import Circle

    colour = theme.fill if observed else theme.background
    axes.add_patch(
        Circle(
            position,
            RADIUS,
            facecolor=colour,
            edgecolor=theme.cycle[0],
            linewidth=1.4,
            zorder=3,
            gid=f"variable {name}",
        )
    )
    _text(
        axes,
        position[0],
        position[1] + (0.0 if fits(name) else RADIUS + 0.04 + LINE / 2),
        name,
        NAME,
        theme.foreground,
    )


def _draw_edges(
    axes: Axes,
    factor: Factor,
    energy: bool,
    ends: Collection[Point],
    position: Point,
    layout: Placement,
    theme: Theme,
) -> None:
    """Draw an edge to each variable, dashed if the factor has no energy."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    x, y = position
    for name, (u, v) in zip(factor.variables, ends, strict=True):
        if len(ends) == 1:
            middle = (v - RADIUS + y) / 2
            bends = [(u, v), (u, v - RADIUS), (u, middle), (x, middle), (x, y)]
            codes = [Path.MOVETO, Path.LINETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        else:
            # edges leave both ends sideways and bend outside the plates, so that steep ones do not cross
            # other nodes
            start, bend = u + math.copysign(RADIUS, x - u), u + math.copysign(layout.lane, x - u)
            middle = (bend + x) / 2
            bends = [(start, v), (bend, v), (middle, v), (middle, y), (x, y)]
            codes = [Path.MOVETO, Path.LINETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        stroke = "-" if energy else "--"
        edge = PathPatch(
            Path(bends, codes),
            fill=False,
            edgecolor=theme.faint,
            ls=stroke,
            zorder=1,
            gid=f"edge {name} {factor.name}",
        )
        axes.add_patch(edge)


def _draw_factor(axes: Axes, factor: Factor, energy: bool, position: Point, theme: Theme) -> None:
    from matplotlib.patches import Rectangle

    x, y = position
    colour = theme.foreground if energy else theme.background
    gid = f"factor {factor.name}"
    axes.add_patch(
        Rectangle(
            (x - SIDE / 2, y - SIDE / 2),
            SIDE,
            SIDE,
            facecolor=colour,
            edgecolor=theme.foreground,
            zorder=3,
            gid=gid,
        )
    )
    label, _, height = factor_text(factor)
    if len(factor.variables) == 1:
        _text(axes, x + SIDE / 2 + 0.05, y, label, LABEL, theme.foreground, "left", theme.background)
    else:
        _text(
            axes,
            x,
            y - SIDE / 2 - 0.03 - height / 2,
            label,
            LABEL,
            theme.foreground,
            "center",
            theme.background,
        )


def _text(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    size: float,
    colour: str,
    ha: str = "center",
    halo: str | None = None,
) -> None:
    """Centred text; a halo keeps it readable on top of edges."""
    from matplotlib.patheffects import withStroke

    effects = [withStroke(linewidth=2.5, foreground=halo)] if halo else []
    options: dict[str, Any] = {"ha": ha, "va": "center", "fontsize": size, "color": colour}
    axes.text(x, y, text, zorder=4, parse_math=False, path_effects=effects, linespacing=1.15, **options)
