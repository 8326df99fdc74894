"""Declarations of shortest paths in a grid, and values of their variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

import unn
from factors import Among, Cardinality, Connected, Implies, Path, Table

from .grid import Grid, Instance

START, END = 1, 2
"""Roles of nodes; 0 is neither."""


def declare_distances(grid: Grid, levels: int) -> unn.FactorGraph:
    """A path along which the distance to its end falls at every step; distances prove that it is shortest.

    ``within[n, d]`` states that a path of at most d edges joins node n and the end, and ``across[a, d]``
    that one of at most d + 1 edges does so that begins with the arc a, an open edge in one of its directions.
    The path is the set of ``used`` arcs, which enter each ``visited`` node but the start once, and leave each
    but the end once.

    Args:
        grid: nodes and edges.
        levels: number of distances, from 0; the start must be nearer.
    """
    g = unn.FactorGraph(
        "paths", node=grid.rows * grid.columns, edge=len(grid.edges), arc=len(grid.arcs), level=levels,
        role=3, truth=2,
    )  # fmt: skip
    place = g.index("place", "node", range(grid.rows * grid.columns), into="node")
    origin = g.index("origin", "arc", [arc.node for arc in grid.arcs], into="node")
    target = g.index("target", "arc", [arc.target for arc in grid.arcs], into="node")
    g.index("along", "arc", [arc.edge for arc in grid.arcs], into="edge")
    g.index("first", "one", [0], into="level")
    g.index("last", "one", [levels - 1], into="level")
    g.index("no", "one", [0], into="truth")
    g.index("yes", "one", [1], into="truth")
    g.index("start", "one", [START], into="role")
    g.index("end", "one", [END], into="role")
    open_edges = g.variable("open", "edge | truth", unn.Entropy())
    role = g.variable("role", "node | role", unn.Entropy())
    within = g.variable("within", "node level | truth", unn.Entropy())
    across = g.variable("across", "arc level | truth", unn.Entropy())
    used = g.variable("used", "arc | truth", unn.Entropy())
    visited = g.variable("visited", "node | truth", unn.Entropy())
    both = [(x * y, x, y) for x in (0, 1) for y in (0, 1)]
    implies = [(0, 0), (0, 1), (1, 1)]
    falls = [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1) if (x, y, z) != (1, 1, 0)]
    g.factor(
        Table(across["a d x"], open_edges["along[a] y"], within["target[a] d z"], allowed=both, name="steps")
    )
    g.factor(Table(across["a d x"], within["origin[a] d+1 y"], allowed=implies, name="nearer"))
    g.factor(Table(within["n d x"], within["n d+1 y"], allowed=implies, name="growing"))
    g.factor(Among(within["n d+1 no[o]"], within["n d yes[o]"], across["a d yes[o]"], each="d",
                   group=[place, place, origin], at_least=1, name="reached"))  # fmt: skip
    g.factor(Table(role["n r"], within["n first[o] x"], allowed=[(0, 0), (START, 0), (END, 1)], name="ends"))
    g.factor(
        Table(
            role["n r"], within["n last[o] x"], allowed=[(0, 0), (0, 1), (START, 1), (END, 1)], name="joined"
        )
    )
    g.factor(Table(used["a x"], open_edges["along[a] y"], allowed=implies, name="open edges"))
    g.factor(Table(used["a x"], within["origin[a] last[o] y"], allowed=implies, name="joined steps"))
    g.factor(
        Table(used["a x"], within["origin[a] d+1 y"], within["target[a] d z"], allowed=falls, name="falling")
    )
    g.factor(Among(used["a yes[o]"], role["n start[o]"], visited["n no[o]"], group=[target, place, place],
                   equals=1, name="entered"))  # fmt: skip
    g.factor(Among(used["a yes[o]"], role["n end[o]"], visited["n no[o]"], group=[origin, place, place],
                   equals=1, name="left"))  # fmt: skip
    return g


def declare_degrees(grid: Grid) -> unn.FactorGraph:
    """A path by the degrees of its nodes alone (recurrent-transformer paper, Appendix D.1), and connected.

    Whether the path is shortest is not declared.

    Args:
        grid: nodes and edges.
    """
    g = unn.FactorGraph("paths", edge=len(grid.edges), node=grid.rows * grid.columns)
    g.index("one", "edge", [a for a, _ in grid.edges], into="node")
    g.index("other", "edge", [b for _, b in grid.edges], into="node")
    open_edges, used = (g.variable(name, "edge", unn.BinaryEntropy()) for name in ("open", "used"))
    visited, ends = (g.variable(name, "node", unn.BinaryEntropy()) for name in ("visited", "ends"))
    g.factor(Path(used["e"], visited["one[e]"], visited["other[e]"], ends["n"], name="degrees"))
    g.factor(Connected(used["e"], visited["one[e]"], visited["other[e]"], name="connected"))
    is_used = Cardinality(used["e"], each="e", equals=1)
    is_open = Cardinality(open_edges["e"], each="e", equals=1)
    g.factor(Implies(is_used, is_open, name="open edges"))
    return g


def declare_counts(grid: Grid) -> unn.FactorGraph:
    """A path by counts alone, which solvers read, and connected; whether it is shortest is not declared.

    Counts have no negation: ``avoided`` states that a node is not ``visited``, and ``closed`` that an edge is
    removed. The used edges at a node, one more for an end and two more for an avoided node are two.

    Args:
        grid: nodes and edges.
    """
    nodes = range(grid.rows * grid.columns)
    g = unn.FactorGraph("paths", edge=len(grid.edges), node=len(nodes), arc=len(grid.arcs))
    edge = g.index("edge_itself", "edge", range(len(grid.edges)), into="edge")
    node = g.index("node_itself", "node", nodes, into="node")
    origin = g.index("origin", "arc", [arc.node for arc in grid.arcs], into="node")
    g.index("along", "arc", [arc.edge for arc in grid.arcs], into="edge")
    g.index("one", "edge", [a for a, _ in grid.edges], into="node")
    g.index("other", "edge", [b for _, b in grid.edges], into="node")
    closed, used = (g.variable(name, "edge", unn.BinaryEntropy()) for name in ("closed", "used"))
    ends, avoided, visited = (
        g.variable(name, "node", unn.BinaryEntropy()) for name in ("ends", "avoided", "visited")
    )
    g.factor(Among(used["along[a]"], ends["n"], avoided["n"], avoided["n"],
                   group=[origin, node, node, node], equals=2, name="degrees"))  # fmt: skip
    g.factor(Among(used["e"], closed["e"], group=[edge, edge], at_most=1, name="open edges"))
    g.factor(Among(visited["n"], avoided["n"], group=[node, node], equals=1, name="visits"))
    g.factor(Connected(used["e"], visited["one[e]"], visited["other[e]"], name="connected"))
    return g


def given_of(grid: Grid, instances: Sequence[Instance], declared: str) -> dict[str, Tensor]:
    """Kept edges and ends of some instances, by variable.

    Args:
        grid: nodes and edges.
        instances: the instances.
        declared: "distances", "degrees" or "counts".
    """
    open_edges = torch.tensor([instance.open_edges for instance in instances]).long()
    role = torch.zeros(len(instances), grid.rows * grid.columns, dtype=torch.long)
    for k, instance in enumerate(instances):
        role[k, instance.start], role[k, instance.end] = START, END
    if declared == "degrees":
        return {"open": open_edges.float(), "ends": (role > 0).float()}
    if declared == "counts":
        return {"closed": 1 - open_edges.float(), "ends": (role > 0).float()}
    return {"open": _one_hot(open_edges, 2), "role": _one_hot(role, 3)}


def values_of(
    grid: Grid, instances: Sequence[Instance], paths: Sequence[Sequence[int]], declared: str, levels: int
) -> dict[str, Tensor]:
    """Values of all variables, given a shortest path of each instance.

    Args:
        grid: nodes and edges.
        instances: the instances.
        paths: nodes of the path of each instance, from its start to its end.
        declared: "distances", "degrees" or "counts".
        levels: number of distances.
    """
    nodes = grid.rows * grid.columns
    steps = [set(pairwise(path)) for path in paths]
    used = torch.tensor([[(arc.node, arc.target) in step for arc in grid.arcs] for step in steps]).long()
    visited = torch.zeros(len(instances), nodes, dtype=torch.long)
    for k, path in enumerate(paths):
        visited[k, list(path)] = 1
    given = given_of(grid, instances, declared)
    if declared != "distances":
        along = torch.tensor([arc.edge for arc in grid.arcs])
        edges = torch.zeros(len(instances), len(grid.edges)).index_add(1, along, used.float())
        values = {**given, "used": edges, "visited": visited.float()}
        return values if declared == "degrees" else {**values, "avoided": 1 - visited.float()}
    far = levels
    distance = torch.tensor(
        [
            [far if d is None else d for d in grid.distances(instance.open_edges, instance.end)]
            for instance in instances
        ]
    )
    within = (distance[:, :, None] <= torch.arange(levels)).long()
    open_edges = given["open"][:, [arc.edge for arc in grid.arcs], 1:].long()
    across = open_edges * within[:, [arc.target for arc in grid.arcs]]
    return {
        **given,
        "within": _one_hot(within, 2),
        "across": _one_hot(across, 2),
        "used": _one_hot(used, 2),
        "visited": _one_hot(visited, 2),
    }


def instances_of(values: Mapping[str, Tensor | unn.Partial]) -> list[Instance]:
    """The instances of some values; without roles, the start is the first of the two ends.

    Args:
        values: values or evidence of the open edges and the two nodes.
    """
    complete = {name: x.value if isinstance(x, unn.Partial) else x for name, x in values.items()}
    open_edges = complete["open"] if "open" in complete else 1 - complete["closed"]
    if "role" in complete:
        roles = complete["role"].argmax(-1)
        starts, ends = ((roles == role).long().argmax(-1).tolist() for role in (START, END))
        open_edges = open_edges[..., 1]
    else:
        both = complete["ends"].topk(2).indices.sort(-1).values
        starts, ends = both.T.tolist()
    return [
        Instance(tuple(row), start, end)
        for row, start, end in zip((open_edges > 0.5).tolist(), starts, ends, strict=True)
    ]


def used_edges(grid: Grid, values: Mapping[str, Tensor]) -> Tensor:
    """Number of times that each edge is used, shape ``(instances, edges)``."""
    if values["used"].ndim == 2:
        return (values["used"] > 0.5).long()
    arcs = values["used"].argmax(-1)
    along = torch.tensor([arc.edge for arc in grid.arcs], device=arcs.device)
    return arcs.new_zeros(len(arcs), len(grid.edges)).index_add(1, along, arcs)


def _one_hot(x: Tensor, size: int) -> Tensor:
    return torch.nn.functional.one_hot(x, size).float()
