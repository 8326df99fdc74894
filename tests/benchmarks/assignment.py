"""Measure the solver on assignments with real gains, beside a greedy rule and the exact algorithm.

    python -m tests.benchmarks.assignment docs/results/assignment.csv [--steps 2000] [--seeds 0 1 2]

Gains of workers and tasks are independent standard normal numbers. The solver is trained on optimal
assignments of 6 workers, and tested with the same weights on 1,000 of each size.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import unn
from factors import AllDifferent, Multilinear

SIZES = (6, 8, 10, 12)
TRAINED = 6
TESTED = 1000
OPTIONS = unn.SolverOptions(
    width=16, pool=32, truncation=4, oldest=32, solving_steps=48, noise=0.0, decimate_every=0
)


@dataclass(frozen=True)
class Assignments:
    """Answers to the tested instances of one size.

    Attributes:
        method: name of the method.
        tasks: task of each worker, shape ``(instances, workers)``.
        seconds: time of one instance.
    """

    method: str
    tasks: Tensor
    seconds: float


def declare(workers: int) -> unn.FactorGraph:
    """Each worker has one task, the tasks differ, and the energy is minus the total gain."""
    g = unn.FactorGraph("assignment", worker=workers, task=workers)
    X = g.variable("X", "worker | task", unn.Entropy())
    gain = g.variable("gain", "worker task", unn.SquaredNorm())
    g.factor(AllDifferent(X["w t"], each=""))
    g.factor(Multilinear(gain["w t"], X["w t"]))
    return g


def exact(gains: Tensor) -> Tensor:
    """The best task of each worker, by the algorithm of scipy, shape ``(instances, workers)``."""
    return torch.from_numpy(np.stack([linear_sum_assignment(x, maximize=True)[1] for x in gains.numpy()]))


def greedy(gains: Tensor) -> Tensor:
    """The largest gain first, without its worker and its task, and so on, shape ``(instances, workers)``."""
    left, tasks = gains.clone(), torch.zeros(gains.shape[:2], dtype=torch.long)
    rows = torch.arange(len(gains))
    for _ in range(gains.shape[1]):
        best = left.flatten(1).argmax(1)
        worker, task = best // gains.shape[2], best % gains.shape[2]
        tasks[rows, worker] = task
        left[rows, worker] = -torch.inf
        left[rows, :, task] = -torch.inf
    return tasks


def draw(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Optimal assignments of the trained size."""
    gains = torch.randn(count, TRAINED, TRAINED, generator=generator)
    return {"X": torch.eye(TRAINED)[exact(gains)], "gain": gains}


def observed(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """All gains, and no task."""
    return {
        "X": torch.zeros(1, TRAINED, dtype=torch.bool),
        "gain": torch.ones(1, TRAINED, TRAINED, dtype=torch.bool),
    }


def answers(solver: unn.Solver, gains: Tensor) -> list[Assignments]:
    """Assignments by all methods; those of the solver are verified to be assignments."""
    results = []
    for name, rule in (("scipy", exact), ("greedy", greedy)):
        began = time.perf_counter()
        tasks = rule(gains)
        results.append(Assignments(name, tasks, (time.perf_counter() - began) / len(gains)))
    for tries in (1, 8):
        options = unn.SolvingOptions(tries=tries)
        solutions = unn.solve(solver, {"gain": gains}, options=options)
        tasks = solutions["X"].argmax(-1)
        tasks[~solutions.solved] = -1
        results.append(Assignments(f"solver, tries: {tries}", tasks, solutions.seconds / len(gains)))
    return results


def row_of(answer: Assignments, gains: Tensor, best: Tensor) -> dict[str, object]:
    """The figures of one method."""
    complete = (answer.tasks >= 0).all(1)
    total = gains.gather(2, answer.tasks.clamp(min=0)[..., None])[..., 0].sum(1)
    most = gains.gather(2, best[..., None])[..., 0].sum(1)
    return {
        "method": answer.method,
        "assignments": round(float(complete.float().mean()), 4),
        "optimal": round(float(((most - total) < 1e-4)[complete].sum()) / len(gains), 4),
        "lost gain": round(float((1 - total / most)[complete].mean()), 5),
        "seconds": f"{answer.seconds:.6f}",
    }


def main(out: str, steps: int, seeds: list[int]) -> None:
    """Train a solver for each seed, and measure it at all sizes."""
    torch.set_num_threads(1)
    rows = []
    for seed in seeds:
        torch.manual_seed(seed)
        model = unn.Solver(declare(TRAINED), OPTIONS, {})
        began = time.perf_counter()
        unn.fit(model, draw, observed=observed, steps=steps, batch=32, rate=0.01, seed=seed)
        trained = time.perf_counter() - began
        for size in SIZES:
            solver = unn.Solver(declare(size), OPTIONS, {})
            solver.load_state_dict(model.state_dict())
            gains = torch.randn(TESTED, size, size, generator=torch.Generator().manual_seed(10**6 + size))
            best = exact(gains)
            for answer in answers(solver.eval(), gains):
                row = {"workers": size, "seed": seed, **row_of(answer, gains, best)}
                rows.append({**row, "training seconds": round(trained)})
                print(rows[-1], flush=True)
    with open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args()
    main(chosen.file, chosen.steps, chosen.seeds)
