"""Pictures: graphs, energies along a run, grids of images. Figures stand alone; no global state of matplotlib is touched."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .describe import factor_label
from .errors import ObservationError
from .factor import Factor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .graph import FactorGraph

Node = str | Factor
Columns = list[list[Node]]
"""Variables (by name) and factors in turn: the factors of a column meet only the variables left and right of it."""

# inches
RADIUS, SIDE, GAP, MARGIN, UNARY = 0.28, 0.16, 0.16, 0.25, 0.22
LINE = {9: 0.16, 8: 0.14}
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

    given = [given] if isinstance(given, str) else list(given)
    observed = {graph[name].name for name in given if graph[name].name in graph.variables}
    unary = {name: [f for f in graph.factors.values() if f.variables == (name,)] for name in graph.variables}
    places, width, height = _layout(graph, observed, unary)
    entries = 1 + bool(observed) + len({factor.inferable() for factor in graph.factors.values()})
    wide = max(width, 1.25 * entries, _text_width(graph.name, 9)) + 2 * MARGIN
    tall = height + 2 * MARGIN + 0.6
    figure = Figure(figsize=(wide, tall))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, wide), ylim=(tall, 0))
    axes.set_axis_off()
    left, top = (wide - width) / 2, MARGIN + 0.25
    places = {node: (x + left, y + top) for node, (x, y) in places.items()}
    _text(axes, wide / 2, 0.2, graph.name, 9, weight="bold")
    for name in graph.variables:
        _draw_variable(axes, name, places[name], name in observed)
    for factor in graph.factors.values():
        _draw_factor(axes, factor, places, beside=len(factor.variables) == 1)
    _draw_legend(axes, wide, tall - 0.22, bool(observed), {factor.inferable() for factor in graph.factors.values()})
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
        raise ObservationError(f"draw_energy takes energies of shape (updates, batch), got {found}; infer records them with trace=True.")
    if schedule is not None and len(schedule) != len(energy):
        raise ObservationError(f"draw_energy got {len(energy)} updates, but a schedule of {len(schedule)} names; pass both from one solution.")
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    values = energy.detach().to("cpu", torch.float64).numpy()
    updates = [k for k, row in enumerate(values) if np.isfinite(row).any()]
    finite = [values[k][np.isfinite(values[k])] for k in updates]
    numbers = [k + 1 for k in updates]
    if energy.shape[1] > 1:
        low, high = [[float(np.quantile(row, q)) for row in finite] for q in (0.1, 0.9)]
        axes.fill_between(numbers, low, high, color=BLUE, alpha=0.2, linewidth=0, label="10% to 90% of the batch")
    label = "mean over the batch" if energy.shape[1] > 1 else "energy"
    axes.plot(numbers, [float(row.mean()) for row in finite], color=BLUE, marker="o" if len(values) <= 40 else None, markersize=3.5, label=label)
    axes.set(xlabel="update", ylabel="energy", xlim=(0.5, len(values) + 0.5))
    if schedule is not None:
        step = max(1, math.ceil(len(schedule) / 30))
        axes.set_xticks(range(1, len(schedule) + 1, step), list(schedule)[::step], rotation=90, fontsize=7, parse_math=False)
        axes.set_xlabel("update" if step == 1 else f"update (every {step}th is named)")
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
    grid = figure.subplots(down, across, squeeze=False).flatten()
    for axes in grid:
        axes.set_axis_off()
    for k, image in enumerate(images.detach().to("cpu", torch.float32).numpy()):
        grid[k].imshow(image[0], cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
        if titles is not None:
            grid[k].set_title(titles[k], fontsize=8, parse_math=False)
    return figure


def _layout(
    graph: FactorGraph, observed: Collection[str], unary: Mapping[str, Sequence[Factor]]
) -> tuple[dict[Node, tuple[float, float]], float, float]:
    """The centre of every node in inches from the top left corner, and the width and height of them all."""
    pictures = _pictures(graph, observed)
    extents = {node: _extent(node, unary) for columns in pictures for column in columns for node in column}
    heights = [_heights(columns, extents) for columns in pictures]
    # each column keeps to its own strip, so that labels of different columns cannot meet
    strips = [max((2 * side for node, (_, _, side) in extents.items() if isinstance(node, kind)), default=0.0) for kind in (str, Factor)]
    tallest = max((max(y.values()) - min(y.values()) for y in heights), default=0.0)
    pitch = max(sum(strips) / 2 + 0.25, 0.8, 0.16 * tallest)
    places: dict[Node, tuple[float, float]] = {}
    bottom = 0.0
    for columns, y in zip(pictures, heights, strict=True):
        folded = _folded(columns, y, extents)
        shift = bottom - min(folded[node][1] - extents[node][0] for node in folded)
        places.update({node: (column * pitch, height + shift) for node, (column, height) in folded.items()})
        bottom = max(places[node][1] + extents[node][1] for node in folded) + 2 * GAP
    left = min((places[node][0] - extents[node][2] for node in places), default=0.0)
    right = max((places[node][0] + extents[node][2] for node in places), default=0.0)
    places = {node: (x - left, y) for node, (x, y) in places.items()}
    for name, factors in unary.items():
        places.update(_beside(places[name], factors))
    return places, right - left, max(bottom - 2 * GAP, 0.0)


def _pictures(graph: FactorGraph, observed: Collection[str]) -> list[Columns]:
    """The columns of each connected part of the graph, by distance from what is observed."""
    left = [factor for factor in graph.factors.values() if len(factor.variables) > 1]
    waiting = dict.fromkeys(graph.variables)
    pictures: list[Columns] = []
    while waiting:
        start = [name for name in waiting if name in observed and not pictures] or [next(iter(waiting))]
        columns: Columns = [list(start)]
        reached = set(start)
        while touching := [factor for factor in left if reached.intersection(factor.variables)]:
            left = [factor for factor in left if factor not in touching]
            near = dict.fromkeys(name for factor in touching for name in factor.variables if name not in reached)
            columns += [list(touching), list(near)]
            reached.update(near)
        waiting = {name: None for name in waiting if name not in reached}
        pictures.append(columns)
    return pictures


def _extent(node: Node, unary: Mapping[str, Sequence[Factor]]) -> tuple[float, float, float]:
    """How far a node with its labels reaches up, down and to each side of its centre."""
    if isinstance(node, Factor):
        lines = _lines(factor_label(node))
        return SIDE / 2 + 0.04 + LINE[8] * len(lines), SIDE / 2, max([SIDE / 2, *(_text_width(line, 8) / 2 for line in lines)])
    row = _beside((0.0, 0.0), unary[node])
    reach = [abs(x) + SIDE + max(_text_width(line, 8) for line in [*_lines(factor_label(f)), ""]) for f, (x, _) in row.items()]
    below = 0.0 if _fits(node) else 0.04 + LINE[9]
    up = RADIUS + UNARY + SIDE if row else RADIUS
    return up, RADIUS + below, max([RADIUS, 0.0 if _fits(node) else _text_width(node, 9) / 2, *reach])


def _beside(centre: tuple[float, float], factors: Sequence[Factor]) -> dict[Node, tuple[float, float]]:
    """Unary factors in a row above their variable, each with its label to its right."""
    widths = [2 * SIDE + max(_text_width(line, 8) for line in [*_lines(factor_label(f)), ""]) for f in factors]
    starts = np.cumsum([0.0, *widths[:-1]])
    middle = starts.mean() if factors else 0.0
    return {f: (centre[0] + float(start - middle), centre[1] - RADIUS - UNARY) for f, start in zip(factors, starts, strict=False)}


def _heights(columns: Columns, extents: Mapping[Node, tuple[float, float, float]]) -> dict[Node, float]:
    """Order each column by the mean height of its neighbours (Sugiyama et al., 1981), and keep the best of some sweeps."""
    column_of = {node: k for k, column in enumerate(columns) for node in column}
    edges = [(name, f) for column in columns[1::2] for f in column if isinstance(f, Factor) for name in f.variables]
    neighbours: dict[Node, list[Node]] = {node: [] for node in column_of}
    for name, f in edges:
        neighbours[name].append(f)
        neighbours[f].append(name)
    y = {node: height for column in columns for node, height in _spaced(column, dict.fromkeys(column, 0.0), extents).items()}
    best, least = y, (math.inf, math.inf)
    for sweep in range(30):
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            wish = {}
            for node in column:
                side = {0: [n for n in neighbours[node] if column_of[n] < column_of[node]], 1: [n for n in neighbours[node] if column_of[n] > column_of[node]]}
                chosen = side.get(sweep % 4, neighbours[node]) or neighbours[node]
                wish[node] = float(np.mean([y[n] for n in chosen])) if chosen else y[node]
            y.update(_spaced(sorted(column, key=wish.__getitem__), wish, extents))
        cost = (_crossings(edges, column_of, y), sum((y[name] - y[f]) ** 2 for name, f in edges))
        if cost < least:
            best, least = dict(y), cost
    return best


def _spaced(order: Sequence[Node], wish: Mapping[Node, float], extents: Mapping[Node, tuple[float, float, float]]) -> dict[Node, float]:
    """The heights closest to the wished ones that keep the order and leave room: isotonic regression by pooling neighbours."""
    offsets = [0.0]
    for upper, lower in zip(order, order[1:], strict=False):
        offsets.append(offsets[-1] + extents[upper][1] + extents[lower][0] + GAP)
    pools: list[tuple[float, int]] = []
    for node, offset in zip(order, offsets, strict=False):
        total, count = wish[node] - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    levels = [total / count for total, count in pools for _ in range(count)]
    return {node: level + offset for node, level, offset in zip(order, levels, offsets, strict=False)}


def _crossings(edges: Sequence[tuple[str, Factor]], column_of: Mapping[Node, int], y: Mapping[Node, float]) -> int:
    ends = np.array([sorted([(column_of[name], y[name]), (column_of[f], y[f])]) for name, f in edges]).reshape(len(edges), 4)
    same = ends[:, None, 0] == ends[None, :, 0]
    return int((same & (ends[:, None, 1] < ends[None, :, 1]) & (ends[:, None, 3] > ends[None, :, 3])).sum())


def _folded(
    columns: Columns, y: Mapping[Node, float], extents: Mapping[Node, tuple[float, float, float]]
) -> dict[Node, tuple[int, float]]:
    """The column and height of every node, after folding many columns into bands that run to the right and back in turn.

    A band turns at a column of factors, which lies outside of both bands, at a height between them.
    """
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


def _draw_variable(axes: Axes, name: str, place: tuple[float, float], observed: bool) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle(place, RADIUS, facecolor=GREY if observed else "white", edgecolor=BLUE, linewidth=1.4, zorder=3, gid=f"variable {name}"))
    _text(axes, place[0], place[1] if _fits(name) else place[1] + RADIUS + 0.04 + LINE[9] / 2, name, 9)


def _draw_factor(axes: Axes, factor: Factor, places: Mapping[Node, tuple[float, float]], beside: bool) -> None:
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path

    x, y = places[factor]
    hollow = not factor.inferable()
    for name in factor.variables:
        u, v = places[name]
        # edges leave both ends sideways, so that steep ones do not run over the nodes above and below
        u += 0.0 if beside else math.copysign(RADIUS, x - u)
        curve = Path([(u, v), ((u + x) / 2, v), ((u + x) / 2, y), (x, y)], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
        style = "--" if hollow else "-"
        axes.add_patch(PathPatch(curve, fill=False, edgecolor=PALE, linewidth=1.0, linestyle=style, zorder=1, gid=f"edge {name} {factor.name}"))
    corner = (x - SIDE / 2, y - SIDE / 2)
    axes.add_patch(Rectangle(corner, SIDE, SIDE, facecolor="white" if hollow else DARK, edgecolor=DARK, zorder=3, gid=f"factor {factor.name}"))
    lines = _lines(factor_label(factor))
    if beside:
        _text(axes, x + SIDE / 2 + 0.05, y, "\n".join(lines), 8, ha="left")
    else:
        _text(axes, x, y - SIDE / 2 - 0.03 - LINE[8] * len(lines) / 2, "\n".join(lines), 8)


def _draw_legend(axes: Axes, wide: float, y: float, observed: bool, kinds: Collection[bool]) -> None:
    from matplotlib.lines import Line2D

    entries = [("variable", "o", "white", BLUE)] + [("observed", "o", GREY, BLUE)] * observed
    entries += [("factor", "s", DARK, DARK)] * (True in kinds) + [("no energy", "s", "white", DARK)] * (False in kinds)
    handles = [
        Line2D([], [], linestyle="none", marker=m, markerfacecolor=c, markeredgecolor=e, markersize=9 if m == "o" else 7, label=text)
        for text, m, c, e in entries
    ]
    axes.legend(handles=handles, ncols=len(handles), loc="center", bbox_to_anchor=(wide / 2, y), bbox_transform=axes.transData, frameon=False, fontsize=8)


def _text(axes: Axes, x: float, y: float, text: str, size: float, ha: str = "center", weight: str = "normal") -> None:
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2.5, foreground="white")] if size == 8 else []
    axes.text(x, y, text, fontsize=size, ha=ha, va="center", weight=weight, zorder=4, parse_math=False, path_effects=halo, linespacing=1.15)


def _lines(label: str) -> list[str]:
    return textwrap.wrap(label, 16, max_lines=3, placeholder="...")


def _fits(name: str) -> bool:
    return _text_width(name, 9) < 2 * RADIUS - 0.1


def _text_width(text: str, size: float) -> float:
    """In inches; a dollar sign would be read as the beginning of mathematics."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text.replace("$", "S"), size=size).get_extents().width) / 72 if text.strip() else 0.0
