"""Grids with removed edges: distances, paths, text and files, and the declarations of their paths."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from problems.paths.files import load_grids
from problems.paths.graph import (
    declare_counts,
    declare_degrees,
    declare_distances,
    given_of,
    instances_of,
    used_edges,
    values_of,
)
from problems.paths.grid import Grid, Instance, grid_text, read_grids
from unn.errors import DataError

SIZES = st.tuples(st.integers(1, 5), st.integers(2, 5), st.integers(0, 10**6))


def drawn(rows, columns, seed, count=3):
    grid, random = Grid(rows, columns), Random(seed)
    return grid, [grid.draw(1 / 4 if rows > 1 else 0, rows * columns, random) for _ in range(count)]


def shortest_by_relaxation(grid, instance):
    """Bellman-Ford, independent of breadth-first search."""
    distance = [float("inf")] * (grid.rows * grid.columns)
    distance[instance.end] = 0
    for _ in distance:
        for (a, b), is_open in zip(grid.edges, instance.open_edges, strict=True):
            if is_open:
                distance[a] = min(distance[a], distance[b] + 1)
                distance[b] = min(distance[b], distance[a] + 1)
    return distance[instance.start]


@given(SIZES)
def test_the_first_path_is_a_shortest_path(size):
    grid, instances = drawn(*size)
    for instance in instances:
        path = grid.first_path(instance)
        assert len(path) - 1 == shortest_by_relaxation(grid, instance)
        steps = {frozenset(step) for step in pairwise(path)}
        used = [frozenset(edge) in steps for edge in grid.edges]
        assert grid.is_shortest(instance, used)
        assert not grid.is_path(instance, [False] * len(used))


@given(SIZES)
@settings(max_examples=20)
def test_shortest_paths_meet_every_declaration_and_are_recovered_from_their_values(size):
    grid, instances = drawn(*size)
    levels = grid.rows * grid.columns
    paths = [grid.first_path(instance) for instance in instances]
    for declared, graph in (
        ("distances", declare_distances(grid, levels)),
        ("degrees", declare_degrees(grid)),
        ("counts", declare_counts(grid)),
    ):
        values = values_of(grid, instances, paths, declared, levels)
        assert all(int(c.violations_of(values).sum()) == 0 for c in graph.constraints)
        used = used_edges(grid, values)
        assert all(grid.is_shortest(i, row) for i, row in zip(instances, used.tolist(), strict=True))
        recovered = instances_of(given_of(grid, instances, declared))
        assert [i.open_edges for i in recovered] == [i.open_edges for i in instances]
        assert [{i.start, i.end} for i in recovered] == [{i.start, i.end} for i in instances]


@given(st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_every_answer_of_the_search_is_a_shortest_path(seed):
    grid, instances = drawn(4, 4, seed, count=8)
    search = unn.Search(declare_distances(grid, 16), unn.SearchOptions(mode="depth-first"))
    solutions = unn.solve(search, given_of(grid, instances, "distances"))
    assert bool(solutions.solved.all())
    used = used_edges(grid, solutions.values).tolist()
    assert all(grid.is_shortest(i, row) for i, row in zip(instances, used, strict=True))


@given(SIZES)
def test_a_random_path_is_a_shortest_path_and_all_of_them_occur(size):
    grid, instances = drawn(*size)
    for instance in instances:
        path = grid.random_path(instance, Random(size[2]))
        assert len(path) == len(set(path)) == len(grid.first_path(instance))
        assert all(tuple(sorted(step)) in grid.edges for step in pairwise(path))
        assert (path[0], path[-1]) == (instance.start, instance.end)
    open_grid = Instance((True,) * len(grid.edges), 0, len(grid.edges) and grid.rows * grid.columns - 1)
    paths = {tuple(grid.random_path(open_grid, Random(seed))) for seed in range(20)}
    assert len(paths) == 1 if grid.rows == 1 else len(paths) > 1


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 3), (1, 4)])
def test_counts_admit_exactly_the_paths_of_open_edges(rows, columns):
    grid = Grid(rows, columns)
    nodes, edges = rows * columns, len(grid.edges)
    constraints = declare_counts(grid).constraints
    instance = Instance((False, *(True,) * (edges - 1)), nodes - 1, 0)
    given = given_of(grid, [instance], "counts")
    used = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * edges).view(-1, edges)
    for visited in torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * nodes).view(-1, nodes):
        values = {name: x.expand(len(used), -1) for name, x in given.items()}
        values |= {
            "used": used,
            "visited": visited.expand(len(used), -1),
            "avoided": (1 - visited).expand(len(used), -1),
        }
        violations = torch.stack([c.violations_of(values) for c in constraints]).sum(0)
        for row, number in zip(used.long().tolist(), violations.tolist(), strict=True):
            ends = {node for k, edge in enumerate(grid.edges) if row[k] for node in edge}
            is_path = grid.is_path(instance, row) and ends == set(visited.nonzero()[:, 0].tolist())
            assert (number == 0) == is_path


def test_every_answer_of_the_search_by_counts_is_a_path():
    grid, instances = drawn(3, 4, 0, count=8)
    search = unn.Search(declare_counts(grid), unn.SearchOptions(mode="depth-first"))
    solutions = unn.solve(search, given_of(grid, instances, "counts"))
    assert bool(solutions.solved.all())
    used = used_edges(grid, solutions.values).tolist()
    assert all(grid.is_path(i, row) for i, row in zip(instances, used, strict=True))


def test_the_declared_distances_reject_a_detour():
    grid = Grid(2, 3)
    instance = Instance((True,) * len(grid.edges), 0, 2)
    detour = values_of(grid, [instance], [[0, 3, 4, 5, 2]], "distances", 6)
    violations = [int(c.violations_of(detour).sum()) for c in declare_distances(grid, 6).constraints]
    assert sum(violations) > 0
    degrees = values_of(grid, [instance], [[0, 3, 4, 5, 2]], "degrees", 6)
    assert all(int(c.violations_of(degrees).sum()) == 0 for c in declare_degrees(grid).constraints)


def test_cycles_removed_edges_and_edges_used_twice_are_no_paths():
    grid = Grid(2, 3)
    every = (True,) * 7
    first, edges = Instance(every, 0, 1), list(grid.edges)
    used = [0] * 7
    used[edges.index((0, 1))] = 1
    assert grid.is_path(first, used)
    assert not grid.is_path(first, [2 * x for x in used])
    removed = Instance(tuple(edge != (0, 1) for edge in edges), 0, 1)
    assert not grid.is_path(removed, used)
    cycle = [int(edge in {(1, 2), (1, 4), (2, 5), (4, 5)}) for edge in edges]
    assert not grid.is_path(first, [a + b for a, b in zip(used, cycle, strict=True)])


TEXT = "S-o\n  |\no-E\n"


def test_a_grid_is_read_from_text_and_written():
    grid, (instance,) = read_grids("# a comment\n" + TEXT, "grid.txt")
    assert (grid, instance.start, instance.end) == (Grid(2, 2), 0, 3)
    assert dict(zip(grid.edges, instance.open_edges, strict=True)) == {
        (0, 1): True, (2, 3): True, (0, 2): False, (1, 3): True,
    }  # fmt: skip
    used = [edge in {(0, 1), (1, 3)} for edge in grid.edges]
    assert grid_text(grid, instance, used) == ["S=*", '  "', "o-E"]
    assert len(read_grids(TEXT + "===\n" + TEXT, "grid.txt")[1]) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no content"),
        ("S-o\n  |\no-x\n", "line 3, column 3: 'x' is not a node"),
        ("S|o\n  |\no-E\n", "line 1, column 2: '|' is not an edge"),
        ("S-o\n  |\n", "last row of nodes is missing"),
        ("S-o\n  |\no-o\n", "0 nodes E, expected one end"),
        ("S-S\n  |\no-E\n", "2 nodes S"),
        ("S-o\n  |\no-E-o\n", "line 3: 5 signs"),
        ("S\n", "at least two nodes"),
        (TEXT + "=\nS-E\n", "line 5: a grid of 1 x 2 nodes, but the first has 2 x 2"),
    ],
)
def test_a_malformed_grid_is_refused_with_its_place(text, message):
    with pytest.raises(DataError) as error:
        read_grids(text, "grid.txt")
    assert message in str(error.value)


def arrays_of(count=10):
    grid, random = Grid(3, 3), Random(0)
    instances = [grid.draw(0.25, 9, random) for _ in range(count)]
    return grid, instances, {
        "edges": np.array(grid.edges, dtype=np.uint8),
        "edge_kept": np.array([i.open_edges for i in instances], dtype=np.uint8),
        "endpoints": np.array([(i.start, i.end) for i in instances], dtype=np.uint8),
    }  # fmt: skip


def test_a_file_of_grids_is_split(tmp_path):
    grid, instances, arrays = arrays_of()
    np.savez(tmp_path / "grids.npz", **arrays)
    parts = load_grids(str(tmp_path / "grids.npz"), grid)
    assert parts.training == instances[:8] and parts.test == instances[8:]
    open_edges = arrays.pop("edge_kept")
    order = np.arange(len(grid.edges))[::-1]
    arrays["edges"] = arrays["edges"][order]
    packed = {**arrays, "edge_kept_packed": np.packbits(open_edges[:, order], axis=1)}
    np.savez(tmp_path / "packed.npz", **packed, train_idx=np.array([1, 2]), test_idx=np.array([0]))
    parts = load_grids(str(tmp_path / "packed.npz"), grid)
    assert parts.training == instances[1:3] and parts.test == instances[:1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("edges"), "lacks edges"),
        (lambda a: a.pop("edge_kept"), "lacks edge_kept"),
        (lambda a: a.update(edge_kept=a["edge_kept"][:5]), "open edges of shape"),
        (lambda a: a.update(edge_kept=0 * a["edge_kept"]), "no path joins the two nodes of grid 0"),
        (lambda a: a.update(endpoints=a["endpoints"] + 100), "grid 0 joins nodes that"),
        (lambda a: a.update(edges=a["edges"][:5]), "not those of a grid of 3 x 3"),
        (lambda a: a.update(test_idx=np.array([10])), "a number beyond its 10 grids"),
    ],
)
def test_a_malformed_file_of_grids_is_refused(change, message, tmp_path):
    grid, _, arrays = arrays_of()
    change(arrays)
    np.savez(tmp_path / "grids.npz", **arrays)
    with pytest.raises(DataError) as error:
        load_grids(str(tmp_path / "grids.npz"), grid)
    assert message in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated", b"text"])
def test_a_file_that_is_no_archive_is_refused(content, tmp_path):
    (tmp_path / "grids.npz").write_bytes(content)
    with pytest.raises(DataError, match="no grids can be read"):
        load_grids(str(tmp_path / "grids.npz"), Grid(3, 3))


def test_nodes_without_a_path_have_no_distance():
    grid = Grid(1, 3)
    assert grid.distances((True, False), 0) == [0, 1, None]
    values = values_of(grid, [Instance((True, False), 1, 0)], [[1, 0]], "distances", 3)
    assert values["within"].argmax(-1)[0].tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 0]]
