"""Score trained runs against exact answers and write a table.

    python -m tests.benchmarks.calibration docs/results/calibration.csv LABEL=RUN,RUN,... [LABEL=...]

Each label names runs of one problem with the same options; see ``unn calibrate``. Discrete and continuous
problems need tables of their own.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import torch

from unn.cli.calibrate import calibrate
from unn.cli.truth.scores import COLUMNS


def process_of(run: Path) -> str:
    """Process of a denoiser; empty for other engines."""
    config = json.loads((run / "config.json").read_text())["config"]
    return str(config["model"].get("process", "")) if config["engine"] == "denoiser" else ""


def main(out: str, groups: list[str]) -> None:
    """Score all groups of runs."""
    torch.set_num_threads(1)
    with open(out, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names: list[str] = []
        for group in groups:
            label, _, folders = group.rpartition("=")
            paths = [Path(folder) for folder in folders.split(",")]
            masked = {path.name for path in paths if process_of(path) == "masked"}
            data = calibrate(paths, 64, 100, None).data
            for query, rows in data.items():
                for engine, row in rows.items():
                    name, _, folder = engine.rstrip(")").partition(" (")
                    name += ", masked" if folder in masked else ""
                    if name == "exact" and engine != "exact":
                        # a run of the engine exact, which may have learned its parameters
                        name = "exact, learned"
                    if not names:
                        # the first row is the exact one, which has all figures
                        names = [key for key in COLUMNS if key in row]
                        titles = [key.replace("_", " ") for key in names]
                        writer.writerow(["problem", "query", "engine", *titles, "ms"])
                    figures = [f"{row[key]:{COLUMNS[key][1]}}".strip() if key in row else "" for key in names]
                    milliseconds = f"{1000 * row['seconds']:.1f}"
                    writer.writerow([label, query or "test queries", name, *figures, milliseconds])
                file.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
