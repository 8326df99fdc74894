"""Score trained runs against exact answers and write a table.

    python -m tests.benchmarks.calibration docs/results/calibration.csv LABEL=RUN,RUN,... [LABEL=...]

Each label names runs of one problem with the same options; see ``unn calibrate``. Discrete and continuous
problems need tables of their own.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import torch

from unn.cli.calibrate import calibrate

FIGURES = {
    "kl": ("KL", ".4f"),
    "total_variation": ("total variation", ".4f"),
    "log_score": ("log score", ".4f"),
    "calibration_error": ("calibration error", ".4f"),
    "argmax_match": ("argmax match", ".3f"),
    "mean_error": ("error of means", ".4f"),
    "largest_mean_error": ("largest", ".3f"),
    "deviation_ratio": ("ratio of deviations", ".3f"),
    "coverage_error": ("coverage error", ".4f"),
}
"""Titles and formats of the columns, by figure. Runs of one table have the same figures."""


def main(out: str, groups: list[str]) -> None:
    """Score all groups of runs."""
    torch.set_num_threads(1)
    with open(out, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names: list[str] = []
        for group in groups:
            label, _, folders = group.rpartition("=")
            data = calibrate([Path(folder) for folder in folders.split(",")], 64, 100, None).data
            for query, rows in data.items():
                for engine, row in rows.items():
                    name = engine.partition(" (")[0]
                    if name == "exact" and engine != "exact":
                        # a run of the engine exact, which may have learned its parameters
                        name = "exact, learned"
                    if not names:
                        # the first row is the exact one, which has all figures
                        names = [key for key in FIGURES if key in row]
                        titles = [FIGURES[key][0] for key in names]
                        writer.writerow(["problem", "query", "engine", *titles, "ms"])
                    figures = [f"{row[key]:{FIGURES[key][1]}}" if key in row else "" for key in names]
                    milliseconds = f"{1000 * row['seconds']:.1f}"
                    writer.writerow([label, query or "test queries", name, *figures, milliseconds])
                file.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
