"""Belief propagation and upper bounds on models in the UAI format, beside exact answers.

    python -m tests.benchmarks.uai_belief DIR docs/results/uai_belief.csv [SECONDS]

For each instance, in a process of its own: log10 of the upper bound by weighted mini-buckets, of the Bethe
partition function and of the exact one; the rounds after which the messages are at rest; the mean and the
largest difference of a marginal from the exact one; seconds. Messages that are not at rest with the usual
options are tried again with more rounds, and then with more damping as well.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.uai import Instance, in_process, instances
from unn.belief import BeliefOptions, table_marginals, upper_bound
from unn.errors import InferenceError
from unn.exact import ExactOptions, inference, read_uai, read_uai_evidence

ATTEMPTS = (BeliefOptions(), BeliefOptions(rounds=5000), BeliefOptions(rounds=5000, damping=0.6))
FIELDS = [
    "instance",
    "upper bound",
    "bound, seconds",
    "Bethe",
    "rounds",
    "damping",
    "seconds",
    "exact",
    "mean difference",
    "largest difference",
]


def answer(instance: Instance, seconds: float, send: Connection) -> None:
    """Answer one instance, and send its figures as they are computed."""
    torch.set_num_threads(1)
    file = read_uai(instance.model)
    evidence = None if instance.evidence is None else read_uai_evidence(instance.evidence, file.model)
    began = time.perf_counter()
    bound = float(upper_bound(file, evidence)[0]) / math.log(10)
    send.send({"upper bound": f"{bound:.4f}", "bound, seconds": f"{time.perf_counter() - began:.2f}"})
    exact = None
    try:
        exact = inference.marginals(file.model, evidence, ExactOptions(search_seconds=seconds / 4))
        send.send({"exact": f"{float(exact.log_partition[0]) / math.log(10):.4f}"})
    except InferenceError:
        pass
    hidden = torch.ones(len(file.model.states), dtype=torch.bool)
    if evidence is not None:
        hidden = evidence.values[0] < 0
    for options in ATTEMPTS:
        began = time.perf_counter()
        beliefs = table_marginals(file, evidence, options)
        rests = bool(beliefs.converged.all())
        figures: dict[str, Any] = {
            "Bethe": f"{float(beliefs.log_partition[0]) / math.log(10):.4f}",
            "rounds": beliefs.rounds if rests else "",
            "damping": options.damping,
            "seconds": f"{time.perf_counter() - began:.2f}",
        }
        if exact is not None:
            differences = (beliefs.probabilities - exact.probabilities).abs().amax(2)[0]
            figures["mean difference"] = f"{float(differences[hidden].mean()):.4f}"
            figures["largest difference"] = f"{float(differences.max()):.4f}"
        send.send(figures)
        if rests:
            break


def main(folder: Path, out: Path, seconds: float) -> None:
    """Answer all instances and write the table as it grows."""
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for instance in instances(folder):
            figures: dict[str, Any] = in_process(answer, (instance, seconds), seconds)
            writer.writerow({"instance": instance.name} | figures)
            file.flush()
            print(instance.name, figures, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]) if sys.argv[3:] else 120.0)
