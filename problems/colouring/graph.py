"""Graph colouring: the declaration, random graphs and files of graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import unn
from factors import Different
from unn.errors import DataError

_MOST_NODES = 10**6
"""Largest number of nodes of a file, beyond which a number is more likely a mistake."""

Edge = tuple[int, int]


def declare(nodes: int, edges: Sequence[Edge], colours: int) -> unn.FactorGraph:
    """One colour for each node; the ends of each edge have different colours.

    Args:
        nodes: number of nodes.
        edges: pairs of nodes, numbered from 0; at least one.
        colours: number of colours.
    """
    g = unn.FactorGraph("colouring", node=nodes, colour=colours, edge=len(edges))
    g.index("one", "edge", [a for a, _ in edges], into="node")
    g.index("other", "edge", [b for _, b in edges], into="node")
    X = g.variable("X", "node | colour", unn.Entropy())
    g.factor(Different(X["one[e] c"], X["other[e] c"], name="edges"))
    return g


def random_edges(nodes: int, degree: float, generator: torch.Generator) -> list[Edge]:
    """Distinct edges drawn uniformly, as many as give an average degree.

    Args:
        nodes: number of nodes, at least 2.
        degree: average number of neighbours of a node.
        generator: random number generator.
    """
    return _edges_between(torch.arange(nodes), degree, generator)


def colourable_edges(nodes: int, degree: float, colours: int, generator: torch.Generator) -> list[Edge]:
    """Distinct edges drawn uniformly among those that join different colours of a random colouring.

    Args:
        nodes: number of nodes, at least 2.
        degree: average number of neighbours of a node.
        colours: number of colours, at least 2.
        generator: random number generator.
    """
    return _edges_between(torch.randperm(nodes, generator=generator) % colours, degree, generator)


def _edges_between(part: Tensor, degree: float, generator: torch.Generator) -> list[Edge]:
    """Distinct edges between different parts, as many as give an average degree, or all of them.

    Args:
        part: part of each node, shape ``(nodes,)``.
        degree: average number of neighbours of a node.
        generator: random number generator.
    """
    nodes, parts = len(part), part.tolist()
    most = (nodes**2 - int(part.bincount().square().sum())) // 2
    count = max(1, min(most, round(degree * nodes / 2)))
    edges: set[Edge] = set()
    while len(edges) < count:
        pairs = torch.randint(nodes, (count - len(edges), 2), generator=generator).tolist()
        edges |= {(min(a, b), max(a, b)) for a, b in pairs if parts[a] != parts[b]}
    return sorted(edges)


def _announced(words: Sequence[str], where: str) -> tuple[int, int]:
    """Numbers of nodes and edges of the line ``p edge NODES EDGES``.

    Raises:
        DataError: for another line, or too many nodes.
    """
    numbers = words[2:]
    if len(numbers) != 2 or not all(x.isascii() and x.isdecimal() and len(x) < 20 for x in numbers):
        raise DataError(f"{where}: expected p edge NODES EDGES, got {' '.join(words)!r}.")
    nodes, edges = map(int, numbers)
    if not 0 < nodes <= _MOST_NODES:
        raise DataError(f"{where}: {nodes:,} nodes; 1 to {_MOST_NODES:,} are possible.")
    return nodes, edges


def read_graph(text: str, source: str) -> tuple[int, list[Edge]]:
    """Number of nodes and edges of a graph.

    Either the DIMACS format (``p edge NODES EDGES``, then ``e A B`` with nodes from 1, comments ``c``), or
    two nodes per line, numbered from 0.

    Args:
        text: contents of the file.
        source: name of the file, for messages.

    Raises:
        DataError: for a malformed line, a loop or a node out of range, with the number of the line, and for a
            graph without edges, or with fewer than announced.
    """
    nodes: int | None = None
    announced, lines_of_edges = 0, 0
    bare = ""
    edges: dict[Edge, None] = {}
    highest, highest_line = -1, 0
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{source}, line {number}"
        words = line.split()
        if not words or words[0] == "c" or words[0].startswith("#"):
            continue
        if words[0] == "p":
            if nodes is not None:
                raise DataError(f"{where}: a second line p; a file has one graph.")
            nodes, announced = _announced(words, where)
            continue
        first = 1 if words[0] == "e" else 0
        if not first:
            bare = bare or f"{where}: expected e A B, got {line.strip()!r}"
        ends = words[first:]
        if len(ends) != 2 or not all(end.isascii() and end.isdecimal() for end in ends):
            raise DataError(f"{where}: expected the two nodes of an edge, got {line.strip()!r}.")
        if max(map(len, ends)) > 9:
            raise DataError(f"{where}: the number of a node has at most nine digits, got {line.strip()!r}.")
        a, b = (int(end) - first for end in ends)
        if a == b:
            raise DataError(f"{where}: node {ends[0]} is joined to itself, so it has no colour.")
        if min(a, b) < 0:
            raise DataError(f"{where}: a node of {line.strip()!r} is out of range; they are numbered from 1.")
        if max(a, b) > highest:
            highest, highest_line = max(a, b), number
        edges[min(a, b), max(a, b)] = None
        lines_of_edges += 1
    if not edges:
        raise DataError(
            f"{source}: it contains no edge, and a colouring needs one; write two nodes per line, or the "
            "DIMACS format."
        )
    # some files announce each edge once and list it in both directions, or the other way round
    if lines_of_edges < announced != 2 * len(edges):
        raise DataError(f"{source}: it has {lines_of_edges} edges, and its line p announces {announced}.")
    if nodes is not None and bare:
        raise DataError(f"{bare}, since the file has a line p and so the DIMACS format.")
    if nodes is not None and highest >= nodes:
        raise DataError(f"{source}, line {highest_line}: a node is out of range, since there are {nodes}.")
    if highest >= _MOST_NODES:
        raise DataError(
            f"{source}, line {highest_line}: the number of a node implies {highest + 1:,} nodes, since they "
            f"are numbered from 0 without gaps; at most {_MOST_NODES:,} are possible. Number them anew."
        )
    return nodes or 1 + highest, list(edges)
