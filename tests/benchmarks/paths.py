"""Measure a solver of shortest paths on the test grids of a file, of any size.

    UNN_DATA=... python -m tests.benchmarks.paths RUN csp/shortest_path_12x12.npz [--count 1000] [--tries 1 8]

A try is verified by the counts and the connection of the path alone, so that a detour passes; whether a path
is shortest is found by breadth-first search. "Network alone" is the best of eight random initial states by
the residual, without verification.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import unn
from problems.paths.files import grid_of_file, load_grids
from problems.paths.graph import given_of, used_edges
from problems.paths.grid import Grid, Instance
from unn.cli.open import open_trained
from unn.extending import DeclaredProblem

AT_ONCE = 50
BIN = 5
"""Distances that are counted together."""


def shares(grid: Grid, instances: Sequence[Instance], used: Sequence[Sequence[int]]) -> str:
    """Paths, shortest paths, mean number of edges beyond a shortest path, and shortest paths by distance."""
    detours = []
    by_distance: dict[int, list[bool]] = {}
    for instance, row in zip(instances, used, strict=True):
        distance = grid.distances(instance.open_edges, instance.end)[instance.start]
        assert distance is not None
        if grid.is_path(instance, row):
            detours.append(sum(row) - distance)
        by_distance.setdefault((distance - 1) // BIN, []).append(grid.is_shortest(instance, row))
    parts = [
        f"{BIN * k + 1}-{BIN * (k + 1)}: {sum(x) / len(x):.1%} of {len(x)}"
        for k, x in sorted(by_distance.items())
    ]
    path, shortest = len(detours) / len(instances), detours.count(0) / len(instances)
    detour = sum(detours) / max(1, len(detours))
    return f"paths {path:.1%}, shortest {shortest:.1%} ({', '.join(parts)}), detour {detour:.3f} edges"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("file")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--tries", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    problem, run = open_trained(options.run)
    assert isinstance(problem, DeclaredProblem)
    grid = grid_of_file(options.file)
    run = problem.with_options(run, {"rows": grid.rows, "columns": grid.columns})
    instances = load_grids(options.file, grid).test[: options.count]
    given = given_of(grid, instances, "counts")
    values = run.network.infer_values(given, len(instances), {}, options.steps)
    print("network alone:", shares(grid, instances, used_edges(grid, values).tolist()), flush=True)
    for tries in options.tries:
        started = time.perf_counter()
        solving = unn.SolvingOptions(tries=tries, steps=options.steps, at_once=AT_ONCE)
        solutions = unn.solve(run.network, given, count=len(instances), options=solving)
        used = used_edges(grid, solutions.values)
        used[~solutions.solved] = 0
        seconds = (time.perf_counter() - started) / len(instances)
        print(f"{tries} tries: {shares(grid, instances, used.tolist())}, {seconds:.2f} s a grid", flush=True)


if __name__ == "__main__":
    main()
