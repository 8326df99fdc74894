"""Pictures: graphs, energies along a run, grids of images. Figures stand alone; no global state of matplotlib is touched."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from .describe import factor_label
from .errors import ObservationError
from .factor import Factor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .graph import FactorGraph

Node = str | Factor
Place = tuple[float, float]
Columns = list[list[Node]]  # variables and factors in turn: factors meet only the variables left and right of them
Extents = Mapping[Node, tuple[float, float, float]]  # how far each node with its labels reaches up, down and sideways

RADIUS, SIDE, GAP, MARGIN, UNARY, LINE = 0.28, 0.16, 0.16, 0.25, 0.22, 0.15  # inches
BAND = 8  # columns of variables before the picture goes on below, in the other direction
BLUE, GREY, DARK, PALE = "#0072B2", "#BDBDBD", "#222222", "#8A8A8A"


def draw_graph(graph: FactorGraph, given: Collection[str] = ()) -> Figure:
    """The graph as a figure: variables as circles in columns by their distance from what is given, factors as squares between.

    Args:
        graph: of any size; long chains go back and forth in several bands.
        given: names of observed variables, drawn shaded; columns begin at the first variable if there are none.

    Raises:
        DeclarationError: for a name that is not declared.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    observed = {graph[name].name for name in ([given] if isinstance(given, str) else given)}.intersection(graph.variables)
    factors = [factor for factor in graph.factors.values() if factor.variables]
    unary = {name: [factor for factor in factors if factor.variables == (name,)] for name in graph.variables}
    places, width, height = _layout(graph, observed, unary)
    legend = {"variable": ("o", "white", BLUE)} | ({"observed": ("o", GREY, BLUE)} if observed else {})
    legend |= {("factor" if f.inferable() else "no energy"): ("s", DARK if f.inferable() else "white", DARK) for f in factors}
    wide, tall = max(width, 1.2 * len(legend), _text_width(graph.name, 10)) + 2 * MARGIN, height + 2 * MARGIN + 0.6
    figure = Figure(figsize=(wide, tall))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, wide), ylim=(tall, 0))
    axes.set_axis_off()
    places = {node: (x + (wide - width) / 2, y + MARGIN + 0.25) for node, (x, y) in places.items()}
    _text(axes, wide / 2, 0.2, graph.name, 10)
    for name in graph.variables:
        _draw_variable(axes, name, places[name], GREY if name in observed else "white")
    for factor in factors:
        _draw_factor(axes, factor, places)
    handles = [Line2D([], [], ls="none", marker=m, mfc=fill, mec=edge, ms=8, label=word) for word, (m, fill, edge) in legend.items()]
    figure.legend(handles=handles, ncols=len(handles), loc="lower center", frameon=False, fontsize=8)
    return figure


def draw_energy(energy: Tensor, schedule: Sequence[str] | None = None) -> Figure:
    """The energy after each update: the mean over the batch and a band from its 10% to its 90% quantile.

    Args:
        energy: shape ``(updates, batch)``, as in ``Solution.energy``; entries that are not finite are left out.
        schedule: the name of each update, as in ``Solution.schedule``.

    Raises:
        ObservationError: for an energy of another shape, or a schedule of another length.
    """
    from matplotlib.figure import Figure

    if not isinstance(energy, Tensor) or energy.ndim != 2:
        found = f"shape {tuple(energy.shape)}" if isinstance(energy, Tensor) else repr(energy)
        raise ObservationError(f"draw_energy takes energies of shape (updates, batch), got {found}; infer gives them with trace=True.")
    if schedule is not None and len(schedule) != len(energy):
        raise ObservationError(f"draw_energy got {len(energy)} updates, but {len(schedule)} names of updates; pass both from one solution.")
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    rows = [(number, row[row.isfinite()]) for number, row in enumerate(energy.detach().double().cpu(), 1) if row.isfinite().any()]
    numbers = [number for number, _ in rows]
    if energy.shape[1] > 1:
        low, high = ([float(row.quantile(q)) for _, row in rows] for q in (0.1, 0.9))
        axes.fill_between(numbers, low, high, color=BLUE, alpha=0.2, linewidth=0, label="10% to 90% of the batch")
    axes.plot(numbers, [float(row.mean()) for _, row in rows], color=BLUE, marker="o", markersize=3, label="mean over the batch")
    axes.set(xlabel="update", ylabel="energy", xlim=(0.5, max(1, len(energy)) + 0.5))
    if schedule:
        step = math.ceil(len(schedule) / 30)
        axes.set_xticks(range(1, len(schedule) + 1, step), list(schedule)[::step], rotation=90, fontsize=7, parse_math=False)
        axes.set_xlabel("update" if step == 1 else f"update (one in {step} is named)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def draw_images(images: Tensor, titles: Sequence[str] | None = None, columns: int = 10) -> Figure:
    """A grid of grey images, -1 black and 1 white.

    Args:
        images: shape ``(n, 1, rows, columns)`` in [-1, 1].
        titles: one for each image.
        columns: images side by side.

    Raises:
        ObservationError: for images of another shape, fewer titles than images, or no column.
    """
    from matplotlib.figure import Figure

    if images.ndim != 4 or images.shape[1] != 1 or not len(images):
        raise ObservationError(f"draw_images takes images of shape (n, 1, rows, columns) with n >= 1, got {tuple(images.shape)}.")
    if titles is not None and len(titles) != len(images):
        raise ObservationError(f"draw_images got {len(images)} images, but {len(titles)} titles; pass one for each.")
    if columns < 1:
        raise ObservationError(f"draw_images needs at least one column, got columns={columns}.")
    across = min(columns, len(images))
    down = math.ceil(len(images) / across)
    room = 0.25 if titles is not None else 0.0
    figure = Figure(figsize=(across * 1.05, down * (images.shape[2] / images.shape[3] + room + 0.05)), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, subplot_kw={"frame_on": False, "xticks": [], "yticks": []}).flatten()
    for axes, image in zip(grid, images.detach().float().cpu().numpy(), strict=False):
        axes.imshow(image[0], cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
    for axes, title in zip(grid, titles or (), strict=False):
        axes.set_title(title, fontsize=8, parse_math=False)
    return figure


def _layout(graph: FactorGraph, observed: Collection[str], unary: Mapping[str, Sequence[Factor]]) -> tuple[dict[Node, Place], float, float]:
    """The centre of every node in inches from the top left corner, and the width and height of them all."""
    pictures = _pictures(graph, observed)
    extents = {node: _extent(node, unary) for columns in pictures for column in columns for node in column}
    heights = [_heights(columns, extents) for columns in pictures]
    # each column keeps to its own strip, so that labels of different columns cannot meet
    strips = [max((side for node, (_, _, side) in extents.items() if isinstance(node, kind)), default=0.0) for kind in (str, Factor)]
    tallest = max((max(y.values()) - min(y.values()) for y in heights), default=0.0)
    pitch = max(sum(strips) + 0.25, 0.8, 0.16 * tallest)
    places: dict[Node, Place] = {}
    bottom = 0.0
    for columns, y in zip(pictures, heights, strict=True):
        places.update({node: (column * pitch, bottom + height) for node, (column, height) in _folded(columns, y, extents).items()})
        bottom = max(places[node][1] + extents[node][1] for node in y) + 2 * GAP
    left = min((places[node][0] - extents[node][2] for node in places), default=0.0)
    right = max((places[node][0] + extents[node][2] for node in places), default=0.0)
    places = {node: (x - left, y) for node, (x, y) in places.items()}
    for name, factors in unary.items():
        for factor, place in _beside(places[name], factors):
            places[factor] = place
    return places, right - left, max(bottom - 2 * GAP, 0.0)


def _pictures(graph: FactorGraph, observed: Collection[str]) -> list[Columns]:
    """The columns of each connected part of the graph, by distance from what is observed."""
    left = [factor for factor in graph.factors.values() if len(factor.variables) > 1]
    waiting = list(graph.variables)
    pictures: list[Columns] = []
    while waiting:
        start = [name for name in waiting if name in observed and not pictures] or waiting[:1]
        columns: Columns = [list(start)]
        reached = set(start)
        while touching := [factor for factor in left if reached.intersection(factor.variables)]:
            left = [factor for factor in left if factor not in touching]
            near = dict.fromkeys(name for factor in touching for name in factor.variables if name not in reached)
            columns += [list(touching), list(near)]
            reached.update(near)
        waiting = [name for name in waiting if name not in reached]
        pictures.append(columns)
    return pictures


def _extent(node: Node, unary: Mapping[str, Sequence[Factor]]) -> tuple[float, float, float]:
    """How far a node with its labels reaches up, down and to each side of its centre."""
    if isinstance(node, Factor):
        _, width, height = _label(node)
        return SIDE / 2 + 0.04 + height, SIDE / 2, max(SIDE, width) / 2
    row = _beside((0.0, 0.0), unary[node])
    up = max([0.0, *(UNARY + max(SIDE, _label(factor)[2] / 2) for factor, _ in row)])
    reach = max([RADIUS, *(abs(x) + SIDE + _label(factor)[1] for factor, (x, _) in row)])
    return RADIUS + up, RADIUS + (0.0 if _fits(node) else 0.04 + LINE), max(reach, _text_width(node, 9) / 2)


def _beside(centre: Place, factors: Sequence[Factor]) -> list[tuple[Factor, Place]]:
    """Unary factors in a row above their variable, each with its label to its right."""
    starts = np.cumsum([0.0, *(2 * SIDE + _label(factor)[1] for factor in factors)])[:-1]
    return [(f, (centre[0] + float(x - starts.mean()), centre[1] - RADIUS - UNARY)) for f, x in zip(factors, starts, strict=True)]


def _heights(columns: Columns, extents: Extents) -> dict[Node, float]:
    """Order each column by the mean height of its neighbours (Sugiyama et al., 1981), and keep the best of some sweeps."""
    column_of = {node: k for k, column in enumerate(columns) for node in column}
    edges = [(name, factor) for factor in column_of if isinstance(factor, Factor) for name in factor.variables]
    neighbours: dict[Node, list[Node]] = {node: [] for node in column_of}
    for name, factor in edges:
        neighbours[name].append(factor)
        neighbours[factor].append(name)
    y = {node: height for column in columns for node, height in _spaced(column, dict.fromkeys(column, 0.0), extents).items()}
    best, least = dict(y), math.inf
    for sweep in range(30):
        side = (-1, 1, 0)[sweep % 3]  # look at the column on the left, on the right, at both
        for column in columns[::-1] if side == 1 else columns:
            seen = {node: [y[n] for n in neighbours[node] if column_of[n] - column_of[node] != -side] for node in column}
            wish = {node: float(np.mean(heights or [y[node]])) for node, heights in seen.items()}
            y.update(_spaced(sorted(column, key=wish.__getitem__), wish, extents))
        cost = sum(abs(y[name] - y[factor]) for name, factor in edges)
        if cost < least:
            best, least = dict(y), cost
    return best


def _spaced(order: Sequence[Node], wish: Mapping[Node, float], extents: Extents) -> dict[Node, float]:
    """The heights closest to the wished ones that keep the order and leave room: isotonic regression by pooling neighbours."""
    rooms = [extents[upper][1] + extents[lower][0] + GAP for upper, lower in pairwise(order)]
    offsets = [float(offset) for offset in np.cumsum([0.0, *rooms])]
    pools: list[tuple[float, int]] = []
    for node, offset in zip(order, offsets, strict=False):
        total, count = wish[node] - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    levels = [total / count for total, count in pools for _ in range(count)]
    return {node: level + offset for node, level, offset in zip(order, levels, offsets, strict=False)}


def _folded(columns: Columns, y: Mapping[Node, float], extents: Extents) -> dict[Node, tuple[int, float]]:
    """The column and height of every node, folded into bands that run right and back in turn and meet in outer columns of factors."""
    bands = math.ceil((len(columns) + 1) // 2 / BAND)
    length = 2 * math.ceil((len(columns) + 1) // 2 / bands)
    shifts, bottom = [], 0.0
    for start in range(0, len(columns), length):
        band = [node for column in columns[start : start + length] for node in column]
        shifts.append(bottom - min(y[node] - extents[node][0] for node in band))
        bottom = shifts[-1] + max(y[node] + extents[node][1] for node in band) + 2 * GAP
    places: dict[Node, tuple[int, float]] = {}
    for number, column in enumerate(columns):
        band_number, k = divmod(number, length)
        turns = k == length - 1 and band_number + 1 < len(shifts)
        shift = (shifts[band_number] + shifts[band_number + 1]) / 2 if turns else shifts[band_number]
        places.update({node: (k if band_number % 2 == 0 else length - 2 - k, y[node] + shift) for node in column})
    return places


def _draw_variable(axes: Axes, name: str, place: Place, colour: str) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle(place, RADIUS, facecolor=colour, edgecolor=BLUE, linewidth=1.4, zorder=3, gid=f"variable {name}"))
    _text(axes, place[0], place[1] + (0.0 if _fits(name) else RADIUS + 0.04 + LINE / 2), name, 9)


def _draw_factor(axes: Axes, factor: Factor, places: Mapping[Node, Place]) -> None:
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path

    (x, y), unary, hollow = places[factor], len(factor.variables) == 1, not factor.inferable()
    for name in factor.variables:
        u, v = places[name]
        # edges leave both ends sideways, so that steep ones do not run over the nodes above and below
        side = u + math.copysign(RADIUS, x - u)
        bends = [(u, v), (u, y), (x, v), (x, y)] if unary else [(side, v), ((side + x) / 2, v), ((side + x) / 2, y), (x, y)]
        curve = Path(bends, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
        axes.add_patch(PathPatch(curve, fill=False, edgecolor=PALE, ls="--" if hollow else "-", zorder=1, gid=f"edge {name} {factor.name}"))
    corner, colour = (x - SIDE / 2, y - SIDE / 2), "white" if hollow else DARK
    axes.add_patch(Rectangle(corner, SIDE, SIDE, facecolor=colour, edgecolor=DARK, zorder=3, gid=f"factor {factor.name}"))
    label, _, height = _label(factor)
    if unary:
        _text(axes, x + SIDE / 2 + 0.05, y, label, 8, ha="left")
    else:
        _text(axes, x, y - SIDE / 2 - 0.03 - height / 2, label, 8)


def _text(axes: Axes, x: float, y: float, text: str, size: float, ha: str = "center") -> None:
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2.5, foreground="white")] if size == 8 else []
    axes.text(x, y, text, fontsize=size, ha=ha, va="center", zorder=4, parse_math=False, path_effects=halo, linespacing=1.15)


def _label(factor: Factor) -> tuple[str, float, float]:
    """A factor's label in lines, its width and its height in inches."""
    lines = textwrap.wrap(factor_label(factor), 16, max_lines=3, placeholder="...")
    return "\n".join(lines), max([0.0, *(_text_width(line, 8) for line in lines)]), LINE * len(lines)


def _fits(name: str) -> bool:
    return _text_width(name, 9) < 2 * RADIUS - 0.1


def _text_width(text: str, size: float) -> float:
    """In inches; a dollar sign would be read as the beginning of mathematics."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text.replace("$", "S"), size=size).get_extents().width) / 72 if text.strip() else 0.0
