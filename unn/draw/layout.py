"""Layout of the variables, factors, plates and labels of a graph without overlaps. All lengths are inches."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from .theme import FINE, LABEL, NAME

if TYPE_CHECKING:
    from ..graph.declaration import Declaration
    from ..graph.factor import Factor

Node: TypeAlias = "str | Factor"  # variables by name
Point = tuple[float, float]
Columns = list[
    list[Node]
]  # alternating variables and factors: factors connect only to the two adjacent columns
Extents = Mapping[
    Node, tuple[float, float, float]
]  # extent of each node with its labels upwards, downwards and sideways
Cells = dict[Node, tuple[int, float]]  # the column and the height of each node

RADIUS, SIDE, GAP, UNARY, LINE = 0.28, 0.16, 0.16, 0.22, 0.15
PAD, FINE_LINE = 0.09, 0.13  # padding inside a plate; line height of its label
BAND = 8  # columns of variables per band; the next band runs in the other direction


@dataclass(frozen=True)
class Plate:
    """The frame of a variable with several nodes, relative to its centre."""

    text: str
    up: float
    down: float
    side: float


@dataclass(frozen=True)
class Placement:
    """Centres of all nodes, relative to the top left corner of the bounding box.

    Attributes:
        positions: centres of variables (by name) and of factors.
        plates: plates of the variables with several nodes, by name.
        lane: distance from the centre of a variable beyond which no plate extends, where edges may bend.
        width: total width with labels.
        height: total height with labels.
    """

    positions: Mapping[Node, Point]
    plates: Mapping[str, Plate]
    lane: float
    width: float
    height: float


def layout_of(graph: Declaration, observed: Collection[str]) -> Placement:
    """Place all variables, all factors with variables, and their labels."""
    factors = [factor for factor in graph.factors.values() if factor.variables]
    unary = {name: [factor for factor in factors if factor.variables == (name,)] for name in graph.variables}
    plates = {name: plate for name in graph.variables if (plate := _plate(graph, name))}
    parts = _parts(graph, observed)
    extents = {
        node: _extent(node, unary, plates) for columns in parts for column in columns for node in column
    }
    heights = [_heights(columns, extents) for columns in parts]
    # each column has its own strip, so that labels of different columns cannot overlap
    strips = [
        max((side for node, (_, _, side) in extents.items() if isinstance(node, str) == kind), default=0.0)
        for kind in (True, False)
    ]
    tallest = max((max(y.values()) - min(y.values()) for y in heights), default=0.0)
    pitch = max(sum(strips) + 0.25, 0.8, 0.16 * tallest)
    cells = _shelve([_fold(columns, y, extents) for columns, y in zip(parts, heights, strict=True)], extents)
    positions: dict[Node, Point] = {node: (column * pitch, y) for node, (column, y) in cells.items()}
    left = min((positions[node][0] - extents[node][2] for node in positions), default=0.0)
    right = max((positions[node][0] + extents[node][2] for node in positions), default=0.0)
    height = max((positions[node][1] + extents[node][1] for node in positions), default=0.0)
    positions = {node: (x - left, y) for node, (x, y) in positions.items()}
    for name, alone in unary.items():
        positions.update(_above(positions[name], alone, plates.get(name)))
    lane = max([RADIUS, *(plate.side + 0.04 for plate in plates.values())])
    return Placement(positions, plates, lane, right - left, height)


def factor_text(factor: Factor) -> tuple[str, float, float]:
    """Label of a factor broken into lines, its width and its height."""
    from ..graph.describe import factor_label

    lines = textwrap.wrap(factor_label(factor), 16, max_lines=3, placeholder="...")
    return "\n".join(lines), max([0.0, *(text_width(line, LABEL) for line in lines)]), LINE * len(lines)


def fits(name: str) -> bool:
    """Whether the name of a variable fits into its circle; otherwise it is placed below."""
    return text_width(name, NAME) < 2 * RADIUS - 0.1


def text_width(text: str, size: float) -> float:
    """Width of a line of text; dollar signs are replaced, because they would start math mode."""
    from matplotlib.textpath import TextPath

    return (
        float(TextPath((0, 0), text.replace("$", "S"), size=size).get_extents().width) / 72
        if text.strip()
        else 0.0
    )


def _plate(graph: Declaration, name: str) -> Plate | None:
    """Plate of a variable, labelled with its declared node axes and their sizes; None without a bar."""
    variable = graph.variables[name]
    sizes = graph.size_table.shape(variable, graph.size_table.static)
    if not (variable.has_bar and variable.node_axes):
        return None
    nodes = zip(variable.node_axes, sizes, strict=False)
    # no-break spaces keep an axis and its size on one line
    words = " ×\u00a0".join(axis if size is None else f"{axis}\u00a0{size}" for axis, size in nodes)
    lines = [
        line.replace("\u00a0", " ") for line in textwrap.wrap(words, 18, max_lines=3, placeholder=" ...")
    ]
    width = max(text_width(line, FINE) for line in lines)
    inside = 0.0 if fits(name) else text_width(name, NAME) / 2
    down = RADIUS + (0.0 if fits(name) else 0.04 + LINE) + 0.04 + FINE_LINE * len(lines) + PAD / 2
    return Plate("\n".join(lines), RADIUS + PAD, down, max(RADIUS, inside, width / 2) + PAD)


def _parts(graph: Declaration, observed: Collection[str]) -> list[Columns]:
    """Columns of each connected component of the graph, by distance from the evidence."""
    left = [factor for factor in graph.factors.values() if len(factor.variables) > 1]
    waiting = list(graph.variables)
    parts: list[Columns] = []
    while waiting:
        start = [name for name in waiting if name in observed and not parts] or waiting[:1]
        columns: Columns = [list(start)]
        reached = set(start)
        while touching := [factor for factor in left if reached.intersection(factor.variables)]:
            left = [factor for factor in left if factor not in touching]
            near = dict.fromkeys(
                name for factor in touching for name in factor.variables if name not in reached
            )
            columns += [list(touching), list(near)]
            reached.update(near)
        waiting = [name for name in waiting if name not in reached]
        parts.append(columns)
    return parts


def _extent(
    node: Node, unary: Mapping[str, Sequence[Factor]], plates: Mapping[str, Plate]
) -> tuple[float, float, float]:
    """Extent of a node with its labels above, below and beside its centre."""
    if not isinstance(node, str):
        _, width, height = factor_text(node)
        return SIDE / 2 + 0.04 + height, SIDE / 2, max(SIDE, width) / 2
    plate = plates.get(node) or Plate("", RADIUS, RADIUS + (0.0 if fits(node) else 0.04 + LINE), RADIUS)
    row = _above((0.0, 0.0), unary[node], plates.get(node))
    up = max([plate.up, *(max(SIDE, factor_text(factor)[2] / 2) - y for factor, (_, y) in row)])
    reach = max([plate.side, *(abs(x) + SIDE + factor_text(factor)[1] for factor, (x, _) in row)])
    return up, plate.down, max(reach, text_width(node, NAME) / 2)


def _above(centre: Point, factors: Sequence[Factor], plate: Plate | None) -> list[tuple[Factor, Point]]:
    """Place unary factors in a row above their variable and its plate, with labels on the right."""
    starts = np.cumsum([0.0, *(2 * SIDE + factor_text(factor)[1] for factor in factors)])[:-1]
    y = centre[1] - UNARY - (plate.up if plate else RADIUS)
    return [
        (factor, (centre[0] + float(x - starts.mean()), y)) for factor, x in zip(factors, starts, strict=True)
    ]


def _heights(columns: Columns, extents: Extents) -> dict[Node, float]:
    """Order each column by the mean height of its neighbours (Sugiyama et al., 1981), and return
    the best of 30 sweeps."""
    column_of = {node: k for k, column in enumerate(columns) for node in column}
    edges = [
        (name, factor) for factor in column_of if not isinstance(factor, str) for name in factor.variables
    ]
    neighbours: dict[Node, list[Node]] = {node: [] for node in column_of}
    for name, factor in edges:
        neighbours[name].append(factor)
        neighbours[factor].append(name)
    y = {
        node: height
        for column in columns
        for node, height in _spaced(column, dict.fromkeys(column, 0.0), extents).items()
    }
    best, least = dict(y), math.inf
    for sweep in range(30):
        side = (-1, 1, 0)[sweep % 3]  # use the neighbours in the left column, the right column, both
        for column in columns[::-1] if side == 1 else columns:
            adjacent = {
                node: [y[n] for n in neighbours[node] if column_of[n] - column_of[node] != -side]
                for node in column
            }
            target = {node: float(np.mean(heights or [y[node]])) for node, heights in adjacent.items()}
            y.update(_spaced(sorted(column, key=target.__getitem__), target, extents))
        cost = sum(abs(y[name] - y[factor]) for name, factor in edges)
        if cost < least:
            best, least = dict(y), cost
    return best


def _spaced(order: Sequence[Node], targets: Mapping[Node, float], extents: Extents) -> dict[Node, float]:
    """Heights closest to the targets that preserve the order and leave room for labels."""
    rooms = [extents[upper][1] + extents[lower][0] + GAP for upper, lower in pairwise(order)]
    return dict(zip(order, spread([targets[node] for node in order], rooms), strict=True))


def spread(wishes: Sequence[float], rooms: Sequence[float]) -> list[float]:
    """Least-squares positions with minimum distances between neighbours, by isotonic regression.

    Args:
        wishes: target positions, in the order to preserve.
        rooms: minimum distance of each position to the next, one fewer.
    """
    from scipy.optimize import isotonic_regression

    offsets = np.cumsum([0.0, *rooms])
    positions: list[float] = (isotonic_regression(np.subtract(wishes, offsets)).x + offsets).tolist()
    return positions


def _fold(columns: Columns, y: Mapping[Node, float], extents: Extents) -> Cells:
    """Fold one component into bands of alternating direction that share outer columns of factors."""
    bands = math.ceil((len(columns) + 1) // 2 / BAND)
    length = 2 * math.ceil((len(columns) + 1) // 2 / bands)
    shifts, bottom = [], 0.0
    for start in range(0, len(columns), length):
        band = [node for column in columns[start : start + length] for node in column]
        shifts.append(bottom - min(y[node] - extents[node][0] for node in band))
        bottom = shifts[-1] + max(y[node] + extents[node][1] for node in band) + 2 * GAP
    cells: Cells = {}
    for number, column in enumerate(columns):
        band_number, k = divmod(number, length)
        turns = k == length - 1 and band_number + 1 < len(shifts)
        shift = (shifts[band_number] + shifts[band_number + 1]) / 2 if turns else shifts[band_number]
        cells.update(
            {node: (k if band_number % 2 == 0 else length - 2 - k, y[node] + shift) for node in column}
        )
    return cells


def _shelve(parts: Sequence[Cells], extents: Extents) -> Cells:
    """Place components side by side on shelves as wide as a band, with their first variables aligned."""
    cells: Cells = {}
    shelf: Cells = {}
    used, bottom = 0, 0.0
    for part in parts:
        first, last = min(column for column, _ in part.values()), max(column for column, _ in part.values())
        if shelf and used + last - first + 1 > 2 * BAND:
            bottom = _put(shelf, cells, bottom, extents)
            shelf, used = {}, 0
        start = next(iter(part.values()))[1]
        shelf.update({node: (column - first + used, y - start) for node, (column, y) in part.items()})
        # columns of variables have even numbers
        used += 2 * ((last - first) // 2 + 1)
    _put(shelf, cells, bottom, extents)
    return cells


def _put(shelf: Cells, cells: Cells, top: float, extents: Extents) -> float:
    """Add a shelf to the cells below ``top``; return the top of the next shelf."""
    shift = top - min((y - extents[node][0] for node, (_, y) in shelf.items()), default=0.0)
    cells.update({node: (column, y + shift) for node, (column, y) in shelf.items()})
    return max((cells[node][1] + extents[node][1] for node in shelf), default=0.0) + 2 * GAP
