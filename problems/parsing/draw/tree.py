"""Dependency trees: arcs above a sentence, and the probabilities of all arcs as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unn.draw.matrices import _axes_at, _colour_bar
from unn.draw.theme import (
    FINE,
    LABEL,
    LIGHT,
    NAME,
    Theme,
    add_legend,
    new_figure,
    ramp,
    shortened,
    style_axes,
)

from .arcs import ArcLayout, DrawnArc, layout_arcs
from .fonts import font_for
from .sentences import checked_heads, checked_labels, checked_marginals, checked_weights, checked_words

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from torch import Tensor

MARGIN, WORD, ROOT, LEGEND = (
    0.12,
    0.2,
    0.16,
    0.24,
)  # inches: around, and the heights of words, of "root" and of the legend
BEND, TIP = 0.15, (0.07, 0.08)  # inches: of corners, and the width and the height of an arrow head
CELL, LARGEST = 0.21, 9.0  # inches: a side of a cell, and of a whole heat map at most


def draw_arcs(
    heads: Sequence[int],
    words: Sequence[str],
    labels: Sequence[str | None] | None = None,
    *,
    weights: Sequence[float] | Tensor | None = None,
    gold: Sequence[int] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """The dependency tree of a sentence: words in a row, above them an arc from each head to each of its
    modifiers.

    The picture is as wide as the sentence is long. Words stand in the order of the sentence from left to
    right, also those that are written from right to left. Characters that the usual font lacks are taken from
    other installed fonts (matplotlib shapes scripts such as Telugu from version 3.11 on); those that no font
    has are boxes, without a warning for each.

    Args:
        heads: number of the head of each word from 1, or 0 for the root; shape ``(n,)``.
        words: n words; long ones are shortened.
        labels: label of the arc to each word; that of the root is always marked "root".
        weights: probabilities, with which arcs become wider and darker, of the arc to each word, shape
            ``(n,)``, or the marginals, shape ``(n + 1, n)``, as for ``draw_marginals``.
        gold: gold heads, shape ``(n,)``; arcs that differ have another colour, and gold ones are added,
            dashed.
        theme: light or dark.

    Raises:
        ObservationError: for heads that are not a tree with one root, or arguments of wrong length.
    """
    forms = [shortened(word, 24) for word in checked_words("draw_arcs", words)]
    parents = checked_heads("draw_arcs", heads, forms)
    names = [shortened(label, 16) for label in checked_labels("draw_arcs", labels, forms)]
    strengths = (
        [1.0] * len(forms) if weights is None else checked_weights("draw_arcs", weights, parents, forms)
    )
    right = parents if gold is None else checked_heads("draw_arcs", gold, forms, "gold heads")
    font = font_for([*forms, *names])
    arcs = [
        DrawnArc(
            head,
            k,
            "arc" if head == right[k - 1] else "wrong",
            label if head else "",
            _width(label, FINE, font),
            strength,
        )
        for k, (head, label, strength) in enumerate(zip(parents, names, strengths, strict=True), 1)
    ]
    wrong = [arc for arc in arcs if arc.kind == "wrong"]
    arcs += [DrawnArc(right[arc.modifier - 1], arc.modifier, "gold") for arc in wrong]
    layout = layout_arcs(arcs, [_width(form, NAME, font) for form in forms], _width("root", FINE, font))
    return _arc_figure(arcs, layout, forms, bool(wrong), font, theme)


def draw_marginals(
    marginals: Tensor, words: Sequence[str], *, gold: Sequence[int] | None = None, theme: Theme = LIGHT
) -> Figure:
    """The probabilities of all arcs of a sentence as a heat map on a scale from 0 to 1.

    Characters that the usual font lacks are drawn as in ``draw_arcs``.

    Args:
        marginals: in [0, 1], shape ``(n + 1, n)``: a row for each head, the first for the root, and a column
            for each modifier.
        words: n words; long ones are shortened, and beyond some fifty not all are named.
        gold: gold heads, from 1, 0 for the root, shape ``(n,)``; their cells are outlined.
        theme: light or dark.

    Raises:
        ObservationError: for marginals of another shape, NaN, values outside [0, 1], or gold heads that are
            not a tree.
    """
    forms = [shortened(word, 16) for word in checked_words("draw_marginals", words)]
    values = checked_marginals("draw_marginals", marginals, forms)
    right = None if gold is None else checked_heads("draw_marginals", gold, forms, "gold heads")
    font = font_for(forms)
    n = len(forms)
    # minimum size for the names of the axes
    cell = min(max(CELL, 0.6 / n), LARGEST / (n + 1))
    width, height = n * cell, (n + 1) * cell
    longest = max(_width(form, LABEL, font) for form in forms)
    # beside the names are those of the axes
    left, bottom = (MARGIN + 0.3 + length for length in (max(longest, _width("root", LABEL, font)), longest))
    scale = max(min(height, 2.2), 0.8)
    figure = new_figure(
        theme, left + width + 0.95, MARGIN + max(height + bottom, scale + LEGEND + MARGIN), layout=None
    )
    axes = _axes_at(figure, left, MARGIN, width, height)
    style_axes(axes, theme, ("left", "right", "top", "bottom"))
    image = axes.imshow(values, aspect="auto", interpolation="nearest", cmap=ramp(theme), vmin=0.0, vmax=1.0)
    _name_ticks(axes, forms, cell, font, theme)
    axes.set_xlabel("modifier", fontsize=LABEL)
    axes.set_ylabel("head", fontsize=LABEL)
    if right:
        _outline(figure, axes, right, left + width + 0.12, MARGIN + scale + LEGEND / 2 + 0.02, theme)
    _colour_bar(figure, image, left + width + 0.15, MARGIN, scale, "probability", theme)
    return figure


def _arc_figure(
    arcs: Sequence[DrawnArc],
    layout: ArcLayout,
    forms: Sequence[str],
    legend: bool,
    font: FontProperties,
    theme: Theme,
) -> Figure:
    handles = _handles(arcs, theme) if legend else []
    across = max(layout.left + layout.right, 0.85 * len(handles)) + 2 * MARGIN
    below = MARGIN + WORD + (LEGEND if handles else 0.0)
    figure = new_figure(theme, across, max(layout.tops) + ROOT + MARGIN + below, layout=None)
    axes = figure.add_axes((0, 0, 1, 1))
    start = (across - layout.left - layout.right) / 2 + layout.left
    axes.set(xlim=(-start, across - start), ylim=(-below, max(layout.tops) + ROOT + MARGIN))
    axes.set_axis_off()
    text: dict[str, Any] = {
        "ha": "center",
        "color": theme.foreground,
        "parse_math": False,
        "font": font,
        "zorder": 4,
    }
    for form, place in zip(forms, layout.words, strict=True):
        axes.text(place, -0.05 - 0.72 * NAME / 72, form, va="baseline", size=NAME, gid="word", **text)
    for arc, ends, top, place in zip(arcs, layout.ends, layout.tops, layout.labels, strict=True):
        _draw_arc(axes, arc, ends, top, theme)
        name = arc.label if arc.head else "root"
        if name and (arc.kind != "gold" or not arc.head):
            label = axes.text(place, top + 0.045, name, va="baseline", size=FINE, gid="label", **text)
            label.set_path_effects(_halo(theme))
    if handles:
        add_legend(figure, theme, handles, loc="lower center", columns=len(handles))
    return figure


def _draw_arc(axes: Axes, arc: DrawnArc, ends: tuple[float, float], top: float, theme: Theme) -> None:
    """Draw an arc from head to modifier; root arcs come straight from above."""
    from matplotlib.patches import PathPatch, Polygon
    from matplotlib.path import Path

    left, right = ends
    (wide, high), gid = TIP, f"{arc.head} {arc.modifier}"
    tip = left if arc.modifier < arc.head else right
    if arc.head:
        bend = min(BEND, (right - left) / 2)
        # the line ends inside the arrow head
        low, lower = (high / 2 if tip == left else 0.0), (high / 2 if tip == right else 0.0)
        points = [(left, low), (left, top - bend), (left, top), (left + bend, top)]
        points += [(right - bend, top), (right, top), (right, top - bend), (right, lower)]
        codes = [
            Path.MOVETO,
            Path.LINETO,
            Path.CURVE3,
            Path.CURVE3,
            Path.LINETO,
            Path.CURVE3,
            Path.CURVE3,
            Path.LINETO,
        ]
    else:
        points, codes = [(tip, top), (tip, high / 2)], [Path.MOVETO, Path.LINETO]
    colour = _colour(arc.kind, theme)
    style: dict[str, Any] = {
        "edgecolor": colour,
        "linewidth": 0.5 + 0.7 * arc.weight,
        "linestyle": (0, (3, 2)) if arc.kind == "gold" else "-",
    }
    alpha, order = 0.5 + 0.5 * arc.weight, {"gold": 1, "arc": 2, "wrong": 3}[arc.kind]
    axes.add_patch(
        PathPatch(
            Path(points, codes),
            fill=False,
            capstyle="butt",
            alpha=alpha,
            zorder=order,
            gid=f"{arc.kind} {gid}",
            **style,
        )
    )
    corners = [(tip, 0.0), (tip - wide / 2, high), (tip + wide / 2, high)]
    axes.add_patch(
        Polygon(corners, facecolor=colour, edgecolor="none", alpha=alpha, zorder=order, gid=f"tip {gid}")
    )


def _colour(kind: str, theme: Theme) -> str:
    """Blue for correct arcs, orange for errors, grey for missed ones."""
    return {"arc": theme.cycle[0], "wrong": theme.cycle[1], "gold": theme.muted}[kind]


def _handles(arcs: Sequence[DrawnArc], theme: Theme) -> list[Artist]:
    """One handle for each kind of arc in the picture."""
    from matplotlib.lines import Line2D

    kinds = dict.fromkeys(arc.kind for arc in arcs)
    words = {"arc": "right", "wrong": "wrong", "gold": "gold"}
    style = {"gold": (0, (3, 2))}
    return [
        Line2D([], [], color=_colour(kind, theme), lw=1.2, ls=style.get(kind, "-"), label=words[kind])
        for kind in words
        if kind in kinds
    ]


def _halo(theme: Theme) -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground=theme.background)]


def _width(text: str, size: float, font: FontProperties) -> float:
    """Text path of one line in a font with fallbacks."""
    from matplotlib.textpath import TextPath

    return (
        float(TextPath((0, 0), text.replace("$", "S"), size=size, prop=font).get_extents().width) / 72
        if text.strip()
        else 0.0
    )


def _name_ticks(axes: Axes, forms: Sequence[str], cell: float, font: FontProperties, theme: Theme) -> None:
    """Label the root and as many words as fit."""
    step = max(1, -int(-0.16 // cell))
    style: dict[str, Any] = {"color": theme.foreground, "parse_math": False, "font": font, "size": LABEL}
    rows = [0, *range(step, len(forms) + 1, step)]
    axes.yaxis.set_ticks(rows, [["root", *forms][k] for k in rows], **style)
    columns = range(step - 1, len(forms), step)
    axes.xaxis.set_ticks(columns, [forms[k] for k in columns], rotation=90, **style)


def _outline(figure: Figure, axes: Axes, gold: Sequence[int], x: float, y: float, theme: Theme) -> None:
    """Outline gold arcs in a colour between both ends of the scale, with a legend below the scale."""
    from matplotlib.patches import Rectangle

    style: dict[str, Any] = {"fill": False, "edgecolor": theme.cycle[5], "linewidth": 1.2}
    for column, row in enumerate(gold):
        axes.add_patch(
            Rectangle((column - 0.42, row - 0.42), 0.84, 0.84, gid=f"gold {row} {column + 1}", **style)
        )
    wide, high = figure.get_size_inches()
    sign = Rectangle(
        (x / wide, 1 - (y + 0.06) / high), 0.12 / wide, 0.12 / high, transform=figure.transFigure, **style
    )
    figure.add_artist(sign)
    figure.text((x + 0.18) / wide, 1 - y / high, "gold", va="center", fontsize=LABEL, color=theme.foreground)
