"""Tables 2, 3, 5 and 6 of the undirected-network paper on MNIST: test accuracies of k rounds, with the
prototypes that are recognised.

    python -m tests.benchmarks.digits docs/results/digits.csv --seeds 0 1 2

Every cell has the same budget. Rows that the file has are not measured again, so that a run that was stopped
is continued by the same command. Minutes are those of the processor, also where a GPU computes.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import unn
from problems.digits.data import load_digits
from problems.digits.network import accuracy, prototypes, recognise
from problems.digits.problem import DigitsProblem, train
from tests.benchmarks.measure import one_thread

FIELDS = ("setting", "k", "seed", "accuracy", "by_network", "by_classifier", "minutes", "device")


@dataclass(frozen=True)
class Setting:
    """A row of the paper's tables.

    Attributes:
        table: of the paper.
        gamma: weight of the loss of images.
        engine: with tied or separate weights.
        initial: first values of the variables that are not given.
    """

    table: int
    gamma: float = 0.1
    engine: Literal["descent", "untied"] = "descent"
    initial: Literal["zero", "random", "uniform"] = "zero"


SETTINGS = {
    "gamma 0.1": Setting(2),
    "separate weights": Setting(3, 0.0, "untied"),
    "random initial values": Setting(5, initial="random"),
    "uniform initial values": Setting(5, initial="uniform"),
    "gamma 0": Setting(6, 0.0),
}


def config_of(setting: Setting, k: int, seed: int, data: str, epochs: int, device: str = "cpu") -> Any:
    """The configuration of a cell: batches of 128 and no dropout, the rest as the problem has it."""
    config = DigitsProblem().config_for(setting.engine)()
    return replace(
        config,
        data=data,
        gamma=setting.gamma,
        model=replace(config.model, iterations=k, initial=setting.initial, dropout=0.0),
        training=replace(config.training, epochs=epochs, batch=128, seed=seed, threads=1, device=device),
    )


def measure(
    setting: Setting, k: int, seed: int, data: str, epochs: int, device: str = "cpu"
) -> dict[str, object]:
    """Train a cell; its accuracy (%) and the prototypes that are recognised, of ten."""
    digits = load_digits(data)
    config = config_of(setting, k, seed, data, epochs, device)
    started = time.process_time()
    network, _ = train(config, digits)
    minutes = (time.process_time() - started) / 60
    row: dict[str, object] = {
        "accuracy": f"{100 * accuracy(network, digits.test_images, digits.test_labels):.2f}",
        "minutes": f"{minutes:.1f}",
        "device": device,
    }
    if isinstance(network, unn.DescentModel):
        recognition = recognise(network, digits, prototypes(network))
        row |= {"by_network": recognition.network, "by_classifier": recognition.classifier}
    return row


def main() -> None:
    """Measure the cells that the file does not have."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--data", choices=["mnist", "embedded"], default="mnist")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    measured: set[tuple[str, str, str]] = set()
    if arguments.out.is_file():
        with arguments.out.open(newline="") as file:
            measured = {(row["setting"], row["k"], row["seed"]) for row in csv.DictReader(file)}
    else:
        with arguments.out.open("w", newline="") as file:
            csv.DictWriter(file, FIELDS, lineterminator="\n").writeheader()
    for seed, k, name in product(arguments.seeds, arguments.rounds, arguments.settings):
        if (name, str(k), str(seed)) in measured:
            continue
        with one_thread():
            row = measure(SETTINGS[name], k, seed, arguments.data, arguments.epochs, arguments.device)
        row |= {"setting": name, "k": k, "seed": seed}
        with arguments.out.open("a", newline="") as file:
            csv.DictWriter(file, FIELDS, lineterminator="\n").writerow(row)
        print(row, flush=True)


if __name__ == "__main__":
    main()
