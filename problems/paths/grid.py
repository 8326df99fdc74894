"""Grids with removed edges: distances, paths, random instances and their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from unn.errors import DataError


@dataclass(frozen=True)
class Arc:
    """An edge in one of its directions.

    Attributes:
        node: node that it leaves.
        target: node that it enters.
        edge: number of the edge.
    """

    node: int
    target: int
    edge: int


@dataclass(frozen=True)
class Grid:
    """A grid of nodes; neighbours in rows and columns are joined by edges.

    Attributes:
        rows, columns: its size, at least two nodes.
    """

    rows: int
    columns: int

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """Nodes at the ends of each edge: all horizontal edges row by row, then all vertical ones."""
        along = [
            (r * self.columns + c, r * self.columns + c + 1)
            for r in range(self.rows)
            for c in range(self.columns - 1)
        ]
        down = [
            (r * self.columns + c, (r + 1) * self.columns + c)
            for c in range(self.columns)
            for r in range(self.rows - 1)
        ]
        return along + down

    @cached_property
    def arcs(self) -> list[Arc]:
        """Both directions of each edge."""
        return [arc for edge, (a, b) in enumerate(self.edges) for arc in (Arc(a, b, edge), Arc(b, a, edge))]

    def distances(self, open_edges: Sequence[bool], end: int) -> list[int | None]:
        """Number of edges of a shortest path from each node to another one; None if there is no path.

        Args:
            open_edges: whether each edge is open, not removed.
            end: the other node.
        """
        entering: list[list[int]] = [[] for _ in range(self.rows * self.columns)]
        for arc in self.arcs:
            if open_edges[arc.edge]:
                entering[arc.target].append(arc.node)
        result: list[int | None] = [None] * len(entering)
        result[end] = 0
        front, steps = [end], 0
        while front:
            steps += 1
            front = [node for node in {n for here in front for n in entering[here]} if result[node] is None]
            for node in front:
                result[node] = steps
        return result

    def draw(self, removed: float, most: int, random: Random) -> Instance:
        """A grid without a share of its edges, and two nodes that a path joins, all drawn uniformly.

        Args:
            removed: share of the edges that are removed.
            most: greatest length of a shortest path; instances with longer ones are drawn again.
            random: random number generator.
        """
        count = round(removed * len(self.edges))
        while True:
            gone = set(random.sample(range(len(self.edges)), count))
            open_edges = tuple(k not in gone for k in range(len(self.edges)))
            start, end = random.sample(range(self.rows * self.columns), 2)
            steps = self.distances(open_edges, end)[start]
            if steps is not None and steps <= most:
                return Instance(open_edges, start, end)

    def first_path(self, instance: Instance) -> list[int]:
        """Nodes of the first shortest path in the order of nodes, from the start.

        Args:
            instance: open edges and two nodes that a path joins.
        """
        return self._shortest_path(instance, min)

    def random_path(self, instance: Instance, random: Random) -> list[int]:
        """Nodes of a shortest path from the start, each step drawn among those that bring the end nearer.

        Args:
            instance: open edges and two nodes that a path joins.
            random: random number generator.
        """
        return self._shortest_path(instance, random.choice)

    def _shortest_path(self, instance: Instance, choose: Callable[[list[int]], int]) -> list[int]:
        distances = self.distances(instance.open_edges, instance.end)
        path = [instance.start]
        while path[-1] != instance.end:
            here = distances[path[-1]]
            assert here is not None, "a path joins the two nodes"
            nearer = [
                arc.target
                for arc in self.arcs
                if arc.node == path[-1]
                and instance.open_edges[arc.edge]
                and distances[arc.target] == here - 1
            ]
            path.append(choose(nearer))
        return path

    def is_path(self, instance: Instance, used: Sequence[int]) -> bool:
        """Whether the used edges are open and are one path between the two nodes, without cycles.

        Args:
            instance: open edges and the two nodes.
            used: number of times that each edge is used.
        """
        left = {k for k, x in enumerate(used) if x}
        if max(used) > 1 or any(not instance.open_edges[k] for k in left):
            return False
        here = instance.start
        while left:
            onward = [k for k in left if here in self.edges[k]]
            if len(onward) != 1:
                return False
            left.remove(onward[0])
            here = sum(self.edges[onward[0]]) - here
        return here == instance.end

    def is_shortest(self, instance: Instance, used: Sequence[int]) -> bool:
        """Whether the used edges are a shortest path between the two nodes."""
        steps = self.distances(instance.open_edges, instance.end)[instance.start]
        return self.is_path(instance, used) and sum(map(bool, used)) == steps


@dataclass(frozen=True)
class Instance:
    """Two nodes of a grid that a path is wanted between.

    Attributes:
        open_edges: whether each edge is open, not removed.
        start, end: the two nodes.
    """

    open_edges: tuple[bool, ...]
    start: int
    end: int


def read_grids(text: str, source: str) -> tuple[Grid, list[Instance]]:
    """Read grids of one size.

    A grid has a line for each row of nodes, and one for the edges below them. Nodes are ``o``, the start
    ``S`` and the end ``E``; edges are ``-`` and ``|``, removed ones a space or ``.``. Lines of ``=`` separate
    grids.

    Args:
        text: contents of the file.
        source: its name, for messages.

    Raises:
        DataError: for a malformed file, with line, column and reason.
    """
    parts: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        if line.startswith("="):
            parts.append([])
        elif not line.startswith("#") and (line.strip() or parts[-1]):
            parts[-1].append((number, line.rstrip()))
    for part in parts:
        while part and not part[-1][1]:
            part.pop()
    parts = [part for part in parts if part]
    if not parts:
        raise DataError(f"{source}: the file has no content.")
    read = [_read_grid(part, source) for part in parts]
    places = [f"{source}, line {part[0][0]}" for part in parts]
    grid = common_size([grid for grid, _ in read], places)
    return grid, [instance for _, instance in read]


def common_size(grids: Sequence[Grid], places: Sequence[str]) -> Grid:
    """The grid that all of some grids equal.

    Args:
        grids: the grids.
        places: where each was read, for messages.

    Raises:
        DataError: for a grid of another size than the first.
    """
    first = grids[0]
    for grid, place in zip(grids, places, strict=True):
        if grid != first:
            raise DataError(
                f"{place}: a grid of {grid.rows} x {grid.columns} nodes, but the first has {first.rows} x "
                f"{first.columns}; give one size at a time."
            )
    return first


def _read_grid(lines: list[tuple[int, str]], source: str) -> tuple[Grid, Instance]:
    columns = (len(lines[0][1]) + 1) // 2
    if not len(lines) % 2:
        raise DataError(
            f"{source}, line {lines[-1][0]}: the last row of nodes is missing; rows of nodes and of "
            "the edges below them alternate."
        )
    grid = Grid((len(lines) + 1) // 2, columns)
    if grid.rows * columns < 2:
        raise DataError(f"{source}, line {lines[0][0]}: a grid has at least two nodes.")
    signs = {}
    for r, (number, line) in enumerate(lines):
        if len(line) > 2 * columns - 1:
            raise DataError(
                f"{source}, line {number}: {len(line)} signs, but the first row has {columns} nodes, so that "
                f"lines have at most {2 * columns - 1}."
            )
        for c, sign in enumerate(line.ljust(2 * columns - 1)):
            allowed = ("oOsSeE", "-. ", "|. ", " .")[2 * (r % 2) + c % 2]
            if sign not in allowed:
                what = ("a node (o, S or E)", "an edge (-)", "an edge (|)", "a space")[2 * (r % 2) + c % 2]
                raise DataError(f"{source}, line {number}, column {c + 1}: {sign!r} is not {what}.")
            signs[r, c] = sign.upper()
    nodes = [signs[2 * r, 2 * c] for r in range(grid.rows) for c in range(columns)]
    for sign, what in (("S", "start"), ("E", "end")):
        if nodes.count(sign) != 1:
            raise DataError(
                f"{source}, line {lines[0][0]}: this grid has {nodes.count(sign)} nodes {sign}, expected one "
                f"{what}."
            )
    middles = [(a // columns + b // columns, a % columns + b % columns) for a, b in grid.edges]
    open_edges = tuple(signs[middle] in "-|" for middle in middles)
    return grid, Instance(open_edges, nodes.index("S"), nodes.index("E"))


def grid_text(grid: Grid, instance: Instance, used: Sequence[int]) -> list[str]:
    """A grid as in files, where used edges are ``=`` and ``"``, and nodes on the path ``*``."""
    lines = [[" "] * (2 * grid.columns - 1) for _ in range(2 * grid.rows - 1)]
    on_path = {node for edge, x in zip(grid.edges, used, strict=True) if x for node in edge}
    for node in range(grid.rows * grid.columns):
        sign = "*" if node in on_path else "o"
        lines[2 * (node // grid.columns)][2 * (node % grid.columns)] = (
            "S" if node == instance.start else "E" if node == instance.end else sign
        )
    for (a, b), is_open, is_used in zip(grid.edges, instance.open_edges, used, strict=True):
        row, column = a // grid.columns + b // grid.columns, a % grid.columns + b % grid.columns
        if is_open:
            lines[row][column] = ('"' if row % 2 else "=") if is_used else "|" if row % 2 else "-"
    return ["".join(line).rstrip() for line in lines]
