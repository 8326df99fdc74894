"""Measure depth-first search on the puzzles that are instances of their own, beside CP-SAT where it is short.

    UNN_DATA=... python -m tests.benchmarks.puzzles docs/results/puzzles.csv [COUNT [SECONDS]]

Nonograms are those of the data; all others are drawn with the seeds 0, 1, ... Answers are checked by the
rules in ``tests/problems/test_instances.py``. CP-SAT needs ``pip install unn[rivals]``.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unn
from problems.futoshiki.problem import FutoshikiProblem
from problems.instances import InstanceProblem
from problems.jigsaw.problem import JigsawProblem
from problems.kenken.problem import KenKenProblem
from problems.killer.problem import KillerProblem
from problems.latin.problem import LatinProblem
from problems.nonogram.problem import Nonogram, NonogramProblem
from problems.queens.problem import QueensProblem
from unn.extending import SearchOptions, SolvingOptions, open_trained
from unn.solver.layout import Layout
from unn.solver.propagation import evidence

FIELDS = ["set", "instances", "method", "solved", "median seconds", "longest seconds"]


@dataclass(frozen=True)
class Instances:
    """Instances of one problem.

    Attributes:
        name: for the table.
        problem: the problem.
        instances: the instances.
    """

    name: str
    problem: InstanceProblem
    instances: list[Any]


def drawn(name: str, problem: InstanceProblem, count: int, **options: float) -> Instances:
    """Random instances of the seeds 0, 1, ..."""
    configs = [replace(problem.config(), puzzle_seed=seed, **options) for seed in range(count)]
    return Instances(name, problem, [problem.instance(config) for config in configs])


def nonograms(size: int, count: int) -> Instances:
    """The last nonograms of the data."""
    data = np.load(Path(os.environ["UNN_DATA"]) / "csp" / f"nonogram{size}.npz")

    def hints(name: str, k: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(x) for x in line if x) for line in data[name][k])

    last = range(len(data["grid"]) - count, len(data["grid"]))
    puzzles = [Nonogram(hints("row_hints", k), hints("col_hints", k)) for k in last]
    return Instances(f"nonogram {size}x{size}", NonogramProblem(), puzzles)


def sets(count: int) -> list[Instances]:
    """All sets of instances."""
    return [
        nonograms(7, count),
        nonograms(15, count),
        drawn("latin 15x15, 42% holes", LatinProblem(), count, size=15, holes=0.42),
        drawn("latin 25x25, 42% holes", LatinProblem(), count, size=25, holes=0.42),
        drawn("queens 20x20, 4 given", QueensProblem(), count, size=20, queens=4),
        drawn("jigsaw 9x9, 70% holes", JigsawProblem(), count, size=9, holes=0.7),
        drawn("futoshiki 7x7", FutoshikiProblem(), count, size=7, inequalities=0.4, cells_given=3),
        drawn("KenKen 6x6", KenKenProblem(), count, size=6, largest_cage=3),
        drawn("killer 9x9, cages of 2-3", KillerProblem(), count, size=9, largest_cage=3),
        drawn("killer 9x9, cages of 2-4", KillerProblem(), count, size=9, largest_cage=4),
    ]


def measure(instances: Instances, name: str, solve: Callable[[Any], bool]) -> dict[str, object]:
    """Share of the instances that are solved, and times."""
    seconds, solved = [], 0
    for instance in instances.instances:
        started = time.perf_counter()
        solved += solve(instance)
        seconds.append(time.perf_counter() - started)
    return {
        "set": instances.name,
        "instances": len(seconds),
        "method": name,
        "solved": solved / len(seconds),
        "median seconds": statistics.median(seconds),
        "longest seconds": max(seconds),
    }


def depth_first(problem: InstanceProblem, limit: float) -> Callable[[Any], bool]:
    """Declaration and depth-first search within a time limit."""

    def solve(instance: Any) -> bool:
        graph = problem.declare_instance(instance)
        search = unn.Search(graph, SearchOptions(mode="depth-first", solving_steps=10**6))
        solutions = unn.solve(search, problem.given(instance), options=SolvingOptions(seconds=limit))
        return bool(solutions.solved.all())

    return solve


def sudoku_weights(problem: InstanceProblem, limit: float, trained: bool = True) -> Callable[[Any], bool]:
    """The engine ``solver`` with the weights for sudoku that come with the package, or with random ones."""
    _, run = open_trained("sudoku", "solver")
    weights = run.network.state_dict()

    def solve(instance: Any) -> bool:
        torch.manual_seed(0)
        solver = unn.Solver(problem.declare_instance(instance), run.network.options, {})
        if trained:
            solver.load_state_dict(weights)
        options = SolvingOptions(seconds=limit, tries=64)
        return bool(unn.solve(solver, problem.given(instance), options=options).solved.all())

    return solve


def random_weights(problem: InstanceProblem, limit: float) -> Callable[[Any], bool]:
    """The engine ``solver`` without training."""
    return sudoku_weights(problem, limit, trained=False)


def cp_sat(problem: InstanceProblem, limit: float) -> Callable[[Any], bool]:
    """The groups of the declaration as linear constraints on booleans, by OR-tools CP-SAT on one core."""
    from ortools.sat.python import cp_model

    def solve(instance: Any) -> bool:
        layout = Layout(problem.declare_instance(instance), {})
        known = evidence(layout, *layout.frame.observation(problem.given(instance), 1))
        model = cp_model.CpModel()
        x = [model.new_bool_var("") for _ in range(layout.candidates)]
        order = layout.group.argsort()
        bounds = [0, *torch.bincount(layout.group, minlength=layout.groups).cumsum(0).tolist()]
        for group, (first, last) in enumerate(pairwise(bounds)):
            members = [x[k] for k in layout.candidate[order[first:last]].tolist()]
            model.add_linear_constraint(sum(members), int(layout.lower[group]), int(layout.upper[group]))
        for k, (true, false) in enumerate(zip(known.true[0].tolist(), known.false[0].tolist(), strict=True)):
            if true or false:
                model.add(x[k] == int(true))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = limit
        return solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)

    return solve


def main(out: str, count: int, seconds: float) -> None:
    """Measure both methods on all sets."""
    torch.set_num_threads(1)
    with open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for instances in sets(count):
            methods = {"depth-first search": depth_first, "CP-SAT": cp_sat}
            if Layout(instances.problem.declare_instance(instances.instances[0]), {}).kinds == [(1, 1)]:
                # groups of exactly one, as in sudoku
                methods |= {"weights of sudoku": sudoku_weights, "random weights": random_weights}
            for name, method in methods.items():
                row = measure(instances, name, method(instances.problem, seconds))
                writer.writerow({k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()})
                file.flush()
                print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 50, float(sys.argv[3]) if sys.argv[3:] else 60.0)
