"""Measure the search on random graph colouring, without training, by mode, beside CP-SAT.

    UNN_DATA=... python -m tests.benchmarks.colouring docs/results/colouring.csv [GRAPHS [NODES ...]]
    UNN_DATA=... python -m tests.benchmarks.colouring FILE GRAPHS NODES ... --modes focused

Graphs are those of RandCSPBench: for each number of nodes and each average degree, ``random.seed(1)`` and
400 graphs of ``networkx.gnm_random_graph`` in turn, of which the first are measured. Those count that CP-SAT
or the search colours; up to 64 nodes its tables agree. Needs networkx, and ``pip install unn[rivals]``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx
import torch

import unn
from problems.colouring.graph import Edge, declare
from unn.engine import SolvingOptions
from unn.search.model import Search
from unn.search.options import SearchOptions

DEGREES = {3: [3.32 + 0.18 * k for k in range(10)], 5: [9.9 + 0.4 * k for k in range(10)]}
MODES = {
    "focused": SearchOptions(mode="focused", solving_steps=10_000),
    "annealed": SearchOptions(mode="annealed", hottest=1.0, coldest=0.15, solving_steps=1000),
    "descent": SearchOptions(mode="descent", solving_steps=200),
}
SECONDS = 3.0
"""Time limit of each method and graph."""


@dataclass(frozen=True)
class Instance:
    """A graph to colour.

    Attributes:
        colours: number of colours.
        nodes: number of nodes.
        degree: average degree.
        number: from 1, among the graphs of this degree.
        edges: pairs of nodes.
        colourable: whether it can be coloured; None if unknown.
    """

    colours: int
    nodes: int
    degree: float
    number: int
    edges: list[Edge]
    colourable: bool | None


def instances(colours: int, nodes: int, count: int) -> Iterator[Instance]:
    """The first graphs of each degree."""
    path = Path(os.environ["UNN_DATA"]) / "colouring" / f"{colours}col_N16_32_64.csv.gz"
    with gzip.open(path, "rt") as file:
        known = {
            (int(row["N"]), int(row["M"]), int(row["id"])): row["solved_by_any"] == "1"
            for row in csv.DictReader(file)
        }
    for degree in DEGREES[colours]:
        number_of_edges = round(degree * nodes / 2)
        random.seed(1)
        for number in range(1, count + 1):
            graph = networkx.gnm_random_graph(nodes, number_of_edges)
            colourable = known.get((nodes, number_of_edges, number))
            yield Instance(colours, nodes, degree, number, list(graph.edges), colourable)


def search(instance: Instance, options: SearchOptions) -> tuple[bool, float]:
    """Whether the search colours a graph within the time limit, and the seconds."""
    graph = declare(instance.nodes, instance.edges, instance.colours)
    limits = SolvingOptions(tries=10**6, seconds=SECONDS)
    solutions = unn.solve(Search(graph, options), {}, options=limits)
    if solutions.outcomes[0] != "solved":
        return False, solutions.seconds
    colours = solutions["X"][0].argmax(-1)
    if any(colours[a] == colours[b] for a, b in instance.edges):
        raise ArithmeticError(f"an invalid colouring was called solved: {instance}")
    return True, solutions.seconds


def cp_sat(instance: Instance) -> tuple[bool | None, float]:
    """Whether a graph can be coloured by CP-SAT on one core; None at the time limit."""
    from ortools.sat.python import cp_model

    started = time.perf_counter()
    model = cp_model.CpModel()
    x = [model.new_int_var(0, instance.colours - 1, "") for _ in range(instance.nodes)]
    for a, b in instance.edges:
        model.add(x[a] != x[b])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = SECONDS
    status = solver.solve(model)
    answer = {cp_model.OPTIMAL: True, cp_model.FEASIBLE: True, cp_model.INFEASIBLE: False}.get(status)
    return answer, time.perf_counter() - started


def main(out: str, count: int, sizes: list[int], modes: list[str]) -> None:
    """Measure CP-SAT and modes of the search on all graphs; one row for each graph and method."""
    torch.set_num_threads(1)
    with open(out, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["colours", "nodes", "degree", "graph", "colourable", "method", "solved", "seconds"])
        for colours in DEGREES:
            for nodes in sizes:
                for instance in instances(colours, nodes, count):
                    exact, seconds = cp_sat(instance)
                    results = [("CP-SAT", bool(exact), seconds)]
                    if exact is not False:
                        results += [(mode, *search(instance, MODES[mode])) for mode in modes]
                    colourable = any(solved for _, solved, _ in results)
                    if instance.colourable is not None and instance.colourable < colourable:
                        raise ArithmeticError(f"the tables call it impossible: {instance}")
                    for method, solved, seconds in results:
                        row = [colours, nodes, f"{instance.degree:.2f}", instance.number, int(colourable)]
                        writer.writerow([*row, method, int(solved), f"{seconds:.3f}"])
                    file.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("graphs", type=int, nargs="?", default=10)
    parser.add_argument("nodes", type=int, nargs="*", default=[16, 32, 64])
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    chosen = parser.parse_args()
    main(chosen.file, chosen.graphs, chosen.nodes, chosen.modes)
