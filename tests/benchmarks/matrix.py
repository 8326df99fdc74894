"""Train every engine on every problem that it serves, with the defaults of the problem, and write the
figures.

    python tests/benchmarks/matrix.py docs/results/matrix.csv [PROBLEM|PROBLEM:ENGINE ...]

Rows of earlier calls for other problems are kept.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from unn.cli.declared import DeclaredProblem
from unn.cli.main import main
from unn.cli.measures import answer
from unn.cli.open import open_trained
from unn.cli.problem import load_problem, problem_names
from unn.extending import SamplingOptions, engine_names

FIELDS = ["problem", "engine", "quality", "training (s)", "query (ms)", "parameters"]
METRICS = {
    "boltzmann": ["accuracy_label_of_image", "nearest_mean_image_of_label", "log_likelihood"],
    "boolean": ["accuracy"],
    "completion": ["accuracy", "ends", "accuracy_shortest", "accuracy_longest"],
    "digits": ["test_accuracy", "recognised_images", "spread_images"],
    "factorisation": ["rmse", "unused_spread"],
    "hierarchical": ["rmse"],
    "hierarchy": ["probability", "highest", "of_samples"],
    "hopfield": ["recalled_half_given", "stored", "distinct"],
    "inversion": ["rmse", "rmse_as_trained"],
    "gaussian": ["error_half_given", "excess_correlation"],
    "ising": ["error_half_given", "lowest_error_half_given", "excess_correlation"],
    "program": ["worst_mean", "spread_ratio"],
    "sorting": ["rmse", "permutations"],
    "tables": ["probability", "highest", "of_samples"],
    "sudoku": ["valid_half_given", "valid"],
    "colouring": ["valid", "conflicts"],
    "paths": ["path", "shortest"],
    "pictures": ["solved", "pictures", "cells"],
    "visual": ["boards", "given_cells", "valid"],
    "vae": ["error_upper_half_given", "excess_intensity", "bound", "log_likelihood"],
}
METRICS |= {
    name: ["valid", "violations"]
    for name in ("futoshiki", "jigsaw", "kenken", "killer", "latin", "nonogram", "queens")
}
"""Metrics that the table shows, by problem."""

QUERIES = 64


def run(*arguments: str) -> dict:
    """Run a command and return its JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*arguments, "--json"])
    assert code == 0, arguments
    return json.loads(out.getvalue())


def row_of(name: str, engine: str) -> dict[str, str]:
    """Train, evaluate and time one cell."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        run("train", name, "--engine", engine, "--folder", f"{folder}/run", "--threads", "1")
        seconds = time.perf_counter() - started
        figures = run("evaluate", f"{folder}/run")
        if "test_accuracy" in figures:
            # coordinate descent on digits reports its own lines
            accuracy = next(iter(figures["test_accuracy"].values()))
            quality = f"test_accuracy {accuracy:.4f}"
            if "recognised_by_classifier" in figures:
                quality += f", prototypes recognised {figures['recognised_by_classifier'] / 10:.1f}, spread 0"
        else:
            metrics = next(iter(figures.values()))
            shown = [key for key in METRICS[name] if key in metrics]
            shown += [key for key in ("coverage_50", "coverage_90") if key in metrics]
            quality = ", ".join(f"{key} {metrics[key]:.3g}" for key in shown)
        problem, trained = open_trained(Path(folder) / "run")
        assert isinstance(problem, DeclaredProblem)
        generator = torch.Generator().manual_seed(0)
        queries = list(problem.test_queries(trained.config, QUERIES, generator).values())
        query = queries[-1] if name in ("ising", "gaussian", "hopfield", "sudoku", "tables") else queries[0]
        sizes = problem.test_sizes(trained.config)
        times = []
        for _ in range(3):
            started = time.perf_counter()
            answer(trained.network, query.given, QUERIES, SamplingOptions(seed=0), sizes, verify=False)
            times.append(time.perf_counter() - started)
        count = sum(p.numel() for p in trained.network.parameters())
    cells = [name, engine, quality, f"{seconds:.0f}", f"{1000 * min(times) / QUERIES:.2f}", str(count)]
    return dict(zip(FIELDS, cells, strict=True))


def main_of(out: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = list(csv.DictReader(out.open())) if out.exists() else []
    for cell in names or problem_names():
        name, _, only = cell.partition(":")
        problem = load_problem(name)
        if not isinstance(problem, DeclaredProblem):
            continue
        verdicts = problem.verdicts()
        for engine in [only] if only else engine_names():
            if verdicts[engine]:
                row = row_of(name, engine)
                print(row, flush=True)
                rows = [each for each in rows if (each["problem"], each["engine"]) != (name, engine)] + [row]
                rows.sort(key=lambda each: (each["problem"], each["engine"]))
                with out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main_of(Path(sys.argv[1]), sys.argv[2:])
