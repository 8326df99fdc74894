"""Measure runs of visual sudoku on the listed test boards, beside readings alone and CP-SAT.

    UNN_DATA=... python -m tests.benchmarks.visual docs/results/visual.csv RUN [RUN ...]

All methods use the probabilities of the run's network. CP-SAT needs ``pip install unn[rivals]``.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import unn
from problems.sudoku.grids import declare, one_hot
from unn.extending import Query, SearchOptions, SolvingOptions, open_trained

FIELDS = [
    "boards of",
    "method",
    "whole boards right",
    "given cells right",
    "empty cells right",
    "verified",
    "verified but wrong",
    "ms per board",
    "parameters",
]
COUNT = 1000


def figures(truth: Mapping[str, Tensor], X: Tensor, verified: Tensor) -> dict[str, object]:
    """Shares of digits, shape ``(boards, 9, 9)``, that are right."""
    right = truth["X"].argmax(-1) == X
    given = truth["S"].argmax(-1) > 0
    boards = right.flatten(1).all(1)
    return {
        "whole boards right": float((boards & verified).float().mean()),
        "given cells right": float(right[given].float().mean()),
        "empty cells right": float(right[~given].float().mean()),
        "verified": float(verified.float().mean()),
        "verified but wrong": float((verified & ~boards).float().mean()),
    }


def reading_alone(query: Query, logs: Tensor) -> dict[str, object]:
    """The most probable sign of each cell, and depth-first search for a solution of these."""
    signs = logs.argmax(-1)
    search = unn.Search(declare(3, 3), SearchOptions(mode="depth-first", chains=1))
    given = {"X": unn.Partial(one_hot((signs - 1).clamp(min=0), 9), signs > 0)}
    solutions = unn.solve(search, given, options=SolvingOptions(tries=1))
    return figures(query.truth, solutions["X"].argmax(-1), solutions.solved)


def most_probable(query: Query, network: unn.Perception, tries: int, unique: bool) -> dict[str, object]:
    """The readings in order of falling probability."""
    network.options = replace(network.options, unique=unique)
    solutions = unn.solve(network, query.given, options=SolvingOptions(tries=tries))
    return figures(query.truth, solutions["X"].argmax(-1), solutions.solved)


def cp_sat(query: Query, logs: Tensor) -> dict[str, object]:
    """The most probable signs and digits that meet the constraints, by OR-tools CP-SAT on one core."""
    from ortools.sat.python import cp_model

    answers = []
    for board in logs:
        model = cp_model.CpModel()
        x = [[[model.new_bool_var("") for _ in range(9)] for _ in range(9)] for _ in range(9)]
        cost = []
        for r in range(9):
            for c in range(9):
                model.add_exactly_one(x[r][c])
                signs = [model.new_bool_var("") for _ in range(10)]
                model.add_exactly_one(signs)
                for v in range(9):
                    model.add_implication(signs[v + 1], x[r][c][v])
                cost += [int(-1e4 * float(p)) * s for s, p in zip(signs, board[r, c], strict=True)]
        for v in range(9):
            for k in range(9):
                model.add_exactly_one(x[k][c][v] for c in range(9))
                model.add_exactly_one(x[r][k][v] for r in range(9))
                top, left = k // 3 * 3, k % 3 * 3
                model.add_exactly_one(x[top + i][left + j][v] for i in range(3) for j in range(3))
        model.minimize(sum(cost))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = 20
        assert solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        answers.append([[[solver.value(v) for v in cell] for cell in row] for row in x])
    X = torch.tensor(answers).argmax(-1)
    return figures(query.truth, X, torch.ones(len(X), dtype=torch.bool))


def main(out: str, runs: list[str]) -> None:
    """Measure all methods with all runs."""
    torch.set_num_threads(1)
    with open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for folder in runs:
            problem, run = open_trained(folder, "perception")
            network = run.network
            for kind in ("easy", "hard"):
                config = replace(run.config, boards=kind)
                query = problem.test_queries(config, COUNT, torch.Generator())[""]
                images = query.given["image"].flatten(0, 2)
                started = time.perf_counter()
                logs = network.log_probabilities(network.sensors[0], images).view(-1, 9, 9, 10)
                seconds = time.perf_counter() - started
                first_boards = Query(
                    {"image": query.given["image"][:50]}, {k: x[:50] for k, x in query.truth.items()}
                )
                methods = {
                    "readings alone": (lambda q=query, x=logs: reading_alone(q, x), COUNT, seconds),
                    "any answer": (lambda q=query: most_probable(q, network, 1, False), COUNT, 0.0),
                    "unique": (lambda q=query: most_probable(q, network, 1, True), COUNT, 0.0),
                    "unique, 8 tries": (lambda q=query: most_probable(q, network, 8, True), COUNT, 0.0),
                    "any answer, 50 boards": (
                        lambda q=first_boards: most_probable(q, network, 1, False),
                        50,
                        0.0,
                    ),
                    "CP-SAT, 50 boards": (lambda q=first_boards, x=logs[:50]: cp_sat(q, x), 50, seconds / 20),
                }
                if folder != runs[0]:
                    methods = {name: m for name, m in methods.items() if "50" not in name}
                for name, (measure, count, before) in methods.items():
                    started = time.perf_counter()
                    row = measure()
                    row["ms per board"] = 1000 * (time.perf_counter() - started + before) / count
                    row["parameters"] = sum(p.numel() for p in network.parameters())
                    row |= {"boards of": f"{kind} puzzles", "method": f"{Path(folder).name}: {name}"}
                    writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
                    file.flush()
                    print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
