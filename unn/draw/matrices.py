"""Heat maps of adjacency matrices and attention weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ObservationError
from .adjacency import Blocks, binned_edges, checked_edges, edges_per_pair
from .layout import LINE, spread, text_width
from .theme import LABEL, LIGHT, TITLE, Theme, add_title, new_figure, ramp, shortened, style_axes
from .values import as_array, described

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from torch import Tensor

MARGIN, LEADER, BAR, GAP = (
    0.15,
    0.3,
    0.14,
    0.3,
)  # inches: page margin, leader lines, width of the colour bar, gap between panels
CELLS = 400  # maximum per side; in 5 inches each is at least a pixel at 80 dots per inch
SIDE = 5.0  # inches per side of a large matrix
HEADS = 4  # panels per row


def draw_adjacency(
    rows: object, columns: object, blocks: Blocks, theme: Theme = LIGHT, title: str = ""
) -> Figure:
    """Draw the adjacency matrix as a heat map, with names of blocks and lines between them.

    Above 400 nodes, cells of several nodes per side show the number of edges per pair of nodes; the
    dense matrix is never built.

    Args:
        rows: source node of each edge, integers of shape ``(edges,)``, an array or a tensor;
            duplicates are counted.
        columns: target node of each edge, likewise.
        blocks: name and number of nodes of each block, in order, such as ``[("image", 64), ("label", 10)]``.
        theme: light or dark.
        title: title above the picture.

    Raises:
        ObservationError: if an edge has a node that does not exist, or the blocks have no nodes.
    """
    sources, targets, nodes = checked_edges("draw_adjacency", rows, columns, blocks)
    counts, width = binned_edges(sources, targets, nodes, CELLS)
    shown = np.ma.masked_equal(edges_per_pair(counts, nodes, width), 0)
    names = [shortened(str(name), 24) for name, _ in blocks]
    side = max((LINE + 0.02) * len(blocks), min(SIDE, max(2.0, 0.25 * nodes)))
    starts = np.cumsum([0, *(size for _, size in blocks)]) * (side / nodes)
    middles = [float(middle) for middle in (starts[1:] + starts[:-1]) / 2]
    widths = [text_width(name, LABEL) for name in names]
    upright = all(
        b - a > (v + w) / 2 + 0.1
        for a, b, v, w in zip(middles, middles[1:], widths, widths[1:], strict=False)
    )
    upright = upright and widths[0] / 2 <= middles[0] + 0.1 and widths[-1] / 2 <= side - middles[-1] + 0.1
    left, top = (
        MARGIN + max(widths) + LEADER,
        MARGIN + (LINE if upright else max(widths)) + LEADER + (0.25 if title else 0.0),
    )
    varied = shown.count() > 0 and shown.max() > shown.min()
    across, tall = (
        max(left + side + (0.95 if varied else LEADER), text_width(title, TITLE) + 2 * MARGIN),
        top + side + MARGIN,
    )
    figure = new_figure(theme, across, tall, layout=None)
    paper = figure.add_axes((0, 0, 1, 1))
    paper.set(xlim=(0, across), ylim=(tall, 0))
    paper.set_axis_off()
    paper.text(
        across / 2,
        MARGIN + 0.05,
        title,
        fontsize=TITLE,
        color=theme.foreground,
        ha="center",
        va="center",
        parse_math=False,
    )
    _name_blocks(paper, names, middles, side, left, top, upright, theme)
    axes = _axes_at(figure, left, top, side, side)
    style_axes(axes, theme, ("left", "right", "top", "bottom"))
    axes.set(xticks=[], yticks=[])
    length = len(counts) * width
    image = axes.imshow(
        shown,
        extent=(0, length, length, 0),
        aspect="auto",
        interpolation="nearest",
        **_colours(shown, bool(varied), theme),
    )
    axes.set(xlim=(0, nodes), ylim=(nodes, 0))
    for border in np.cumsum([size for _, size in blocks])[:-1].tolist():
        axes.axhline(border, color=theme.faint, linewidth=0.5, gid="border")
        axes.axvline(border, color=theme.faint, linewidth=0.5, gid="border")
    if varied:
        _colour_bar(figure, image, left + side + 0.15, top, side, "edges per pair of nodes", theme)
    return figure


def draw_attention(
    weights: Tensor,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    theme: Theme = LIGHT,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draw attention weights as heat maps: one panel per head, one scale from 0 to the largest weight.

    Args:
        weights: attention weights >= 0 of n queries to m keys, shape ``(n, m)`` or ``(heads, n, m)``.
        rows: names of the n queries, such as tokens; numbers from 0 by default.
        columns: names of the m keys, likewise.
        theme: light or dark.
        titles: titles of several heads; their numbers by default.

    Raises:
        ObservationError: if the weights have another shape, are negative or NaN, or the number of
            names or titles is wrong.
    """
    heads = _attention_heads(weights)
    if titles is not None and len(titles) != len(heads):
        raise ObservationError(f"draw_attention got {len(heads)} heads, but {len(titles)} titles.")
    names = [
        _axis_names(word, given, size)
        for word, given, size in zip(("rows", "columns"), (rows, columns), heads.shape[1:], strict=True)
    ]
    across = min(HEADS, len(heads))
    down = math.ceil(len(heads) / across)
    longest, cell = (4.5, 0.22) if len(heads) == 1 else (2.2, 0.2)
    height, width = (max(0.6, size * min(cell, longest / max(heads.shape[1:]))) for size in heads.shape[1:])
    left, bottom = (max(text_width(name, LABEL) for name in group) + 0.1 + MARGIN for group in names)
    head = 0.25 if len(heads) > 1 else 0.0
    gap = head + 0.1
    wide = left + across * (width + GAP) - GAP + 0.95
    tall = MARGIN + head + down * (height + gap) - gap + bottom
    figure = new_figure(theme, wide, tall, layout=None)
    colours: dict[str, Any] = {"cmap": ramp(theme), "vmin": 0.0, "vmax": float(heads.max()) or 1.0}
    for number, weight in enumerate(heads):
        axes = _axes_at(
            figure,
            left + number % across * (width + GAP),
            MARGIN + head + number // across * (height + gap),
            width,
            height,
        )
        style_axes(axes, theme, ("left", "right", "top", "bottom"))
        image = axes.imshow(weight, aspect="auto", interpolation="nearest", **colours)
        if len(heads) > 1:
            add_title(axes, theme, titles[number] if titles else f"head {number + 1}", LABEL)
        below = number + across < len(heads)
        _name_ticks(axes, "y", names[0], height, number % across > 0, theme)
        _name_ticks(axes, "x", names[1], width, below, theme)
    _colour_bar(figure, image, wide - 0.8, MARGIN + head, min(height, 2.2), "weight", theme)
    return figure


def _name_blocks(
    paper: Axes,
    names: Sequence[str],
    middles: Sequence[float],
    side: float,
    left: float,
    top: float,
    upright: bool,
    theme: Theme,
) -> None:
    """Write non-overlapping names beside the rows and above the columns, each with a line to its block."""
    positions = spread(middles, [LINE] * (len(names) - 1))
    positions = [max(position, (k + 0.5) * LINE) for k, position in enumerate(positions)]
    positions = [min(position, side - (len(names) - k - 0.5) * LINE) for k, position in enumerate(positions)]
    line: dict[str, Any] = {"color": theme.faint, "linewidth": 0.7, "gid": "leader"}
    style: dict[str, Any] = {"fontsize": LABEL, "color": theme.foreground, "parse_math": False}
    for name, middle, position in zip(names, middles, positions, strict=True):
        elbow = [0.0, -0.05, -LEADER + 0.08, -LEADER + 0.04]
        heights = [middle, middle, position, position]
        paper.plot([left + x for x in elbow], [top + y for y in heights], **line)
        paper.text(left - LEADER, top + position, name, ha="right", va="center", **style)
        if upright:
            paper.plot([left + middle, left + middle], [top, top - 0.05], **line)
            paper.text(left + middle, top - 0.1, name, ha="center", va="bottom", **style)
        else:
            paper.plot([left + x for x in heights], [top + y for y in elbow], **line)
            paper.text(left + position, top - LEADER, name, ha="center", va="bottom", rotation=90, **style)


def _colours(shown: Any, varied: bool, theme: Theme) -> dict[str, Any]:
    """One colour if all cells are equal; else a square-root scale, so that sparse cells are visible
    beside dense ones."""
    from matplotlib.colors import ListedColormap, PowerNorm

    if not varied:
        return {"cmap": ListedColormap([theme.cycle[0]]).with_extremes(bad=theme.background)}
    return {"cmap": ramp(theme, 0.25), "norm": PowerNorm(0.5, vmin=0.0, vmax=float(shown.max()))}


def _colour_bar(
    figure: Figure, image: AxesImage, x: float, y: float, height: float, label: str, theme: Theme
) -> None:
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axes = _axes_at(figure, x, y, BAR, height)
    bar = figure.colorbar(image, cax=axes)
    style_axes(axes, theme, ())
    bar.outline.set(edgecolor=theme.muted, linewidth=0.8, visible=True)
    bar.set_label(label, color=theme.foreground, fontsize=LABEL)
    bar.locator = MaxNLocator(4)
    # small numbers are multiples of a power of ten above the bar
    bar.formatter = formatter = ScalarFormatter()
    formatter.set_powerlimits((-2, 3))
    bar.update_ticks()
    axes.yaxis.get_offset_text().set_horizontalalignment("left")


def _axes_at(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Add axes at a position in inches from the top left corner."""
    wide, tall = figure.get_size_inches()
    return figure.add_axes((x / wide, 1 - (y + height) / tall, width / wide, height / tall))


def _attention_heads(weights: object) -> Any:
    values = as_array(weights)
    if values is None or values.ndim not in (2, 3) or 0 in values.shape:
        raise ObservationError(
            f"draw_attention takes weights of shape (n, m) or (heads, n, m), nowhere 0, got "
            f"{described(weights)}."
        )
    if not (values >= 0).all() or not np.isfinite(values).all():
        raise ObservationError(
            "draw_attention takes weights that are finite and >= 0; pass them after the softmax, not before."
        )
    return values[None] if values.ndim == 2 else values


def _axis_names(word: str, given: Sequence[str] | None, size: int) -> list[str]:
    if given is None:
        return [str(k) for k in range(size)]
    if isinstance(given, str) or len(given) != size:
        received = repr(given) if isinstance(given, str) else f"{len(given)} names"
        raise ObservationError(f"draw_attention needs {size} names of {word}, got {received}.")
    return [shortened(str(name), 16) for name in given]


def _name_ticks(
    axes: Axes, axis: str, names: Sequence[str], length: float, hidden: bool, theme: Theme
) -> None:
    """Label as many rows or columns as fit, at equal distances."""
    step = math.ceil(len(names) * LINE / length)
    positions = range(0, len(names), step)
    target = axes.xaxis if axis == "x" else axes.yaxis
    style: dict[str, Any] = {
        "fontsize": LABEL,
        "color": theme.foreground,
        "parse_math": False,
        "rotation": 90 if axis == "x" else 0,
    }
    target.set_ticks(positions, [] if hidden else [names[k] for k in positions], **({} if hidden else style))
