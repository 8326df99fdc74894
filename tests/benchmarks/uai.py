"""Exact inference on the models of a folder in the UAI format, each in a process of its own.

    unn bench uai DIR --seconds 20
    python -m tests.benchmarks.uai DIR --seconds 20 --out docs/results/uai.csv --rival

For each instance: log10 of the partition function beside the published value (``log10_partition.csv`` in the
folder), the largest difference of a marginal between two independent orders, the seconds of the first answer
with reading and ordering, and the memory of the process. With ``--rival`` also pyAgrum (``pip install
pyagrum``), which receives the same tables; its time is that of the inference alone.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unn.errors import DataError, InferenceError
from unn.exact import ExactOptions, inference, read_uai, read_uai_evidence

FIELDS = [
    "instance",
    "variables",
    "log10 partition",
    "published",
    "score of the published",
    "seconds",
    "again",
    "log2 multiplications",
    "log2 largest table",
    "MiB",
    "difference",
    "pyAgrum seconds",
    "pyAgrum difference",
]


@dataclass(frozen=True)
class Instance:
    """A model with its evidence.

    Attributes:
        name: name of the files.
        model: file of the model.
        evidence: file of the evidence; None if there is none.
    """

    name: str
    model: Path
    evidence: Path | None


def instances(folder: Path) -> list[Instance]:
    """The models of a folder, by name.

    Raises:
        DataError: if it has none.
    """
    files = sorted({*folder.glob("*.uai"), *folder.glob("*.uai.gz")})
    if not files:
        raise DataError(f"{folder} has no models (*.uai or *.uai.gz).")
    result = []
    for file in files:
        name = file.name.removesuffix(".gz").removesuffix(".uai")
        evidence = folder / f"{name}.uai.evid"
        result.append(Instance(name, file, evidence if evidence.exists() else None))
    return result


def published(folder: Path) -> dict[str, tuple[str, str]]:
    """Published log10 partition functions, and the scores of the solver that they are from."""
    path = folder / "log10_partition.csv"
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {row[0]: (row[1], row[2] if len(row) > 2 else "") for row in rows}


def answer(instance: Instance, seconds: float, memory: float, send: Connection) -> None:
    """Answer one instance and send its figures: first the answer, then what checks it."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    file = read_uai(instance.model)
    evidence = None if instance.evidence is None else read_uai_evidence(instance.evidence, file.model)
    options = ExactOptions(
        search_seconds=min(seconds / 4, 30.0), attempts=10_000, memory=memory, operations=44.0
    )
    try:
        first = inference.marginals(file.model, evidence, options)
    except InferenceError as error:
        send.send({"refused": str(error)})
        return
    spent = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cost = inference.cost(file.model, evidence, options)
    figures: dict[str, Any] = {
        "variables": cost.variables,
        "log10 partition": float(first.log_partition[0]) / math.log(10),
        "seconds": spent,
        "log2 multiplications": cost.log_operations,
        "log2 largest table": cost.log_largest,
        "MiB": peak,
        "invalid": bool(first.probabilities.isnan().any()),
    }
    send.send(figures)
    began = time.perf_counter()
    inference.marginals(file.model, evidence, options)
    send.send({"again": time.perf_counter() - began})
    second = inference.marginals(file.model, evidence, replace(options, order_seed=1, attempts=40))
    send.send({"difference": float((first.probabilities - second.probabilities).abs().max())})


def rival_answer(instance: Instance, memory: float, send: Connection) -> None:
    """The time of pyAgrum within a limit of memory in GiB, and the largest difference of a marginal."""
    import pyagrum

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (int(memory * 2**30),) * 2)
    file = read_uai(instance.model)
    model = file.model
    evidence = None if instance.evidence is None else read_uai_evidence(instance.evidence, model)
    # not by its reader, which orders the entries of tables over three and more variables otherwise
    field = pyagrum.MarkovRandomField()
    for name, states in zip(file.names, file.states, strict=True):
        field.add(pyagrum.RangeVariable(name, name, 0, len(states) - 1))
    for scope, weights in zip(file.scopes, file.weights, strict=True):
        table = field.addFactor([file.names[v] for v in scope])
        order = [file.names.index(name) for name in table.names[::-1]]
        table[:] = np.ascontiguousarray(weights.transpose([scope.index(v) for v in order]))
    engine = pyagrum.ShaferShenoyMRFInference(field)
    observed = (
        {}
        if evidence is None
        else {file.names[v]: int(s) for v, s in enumerate(evidence.values[0].tolist()) if s >= 0}
    )
    engine.setEvidence(observed)
    began = time.perf_counter()
    engine.makeInference()
    own = [engine.posterior(name).toarray() for name in file.names if name not in observed]
    send.send({"pyAgrum seconds": time.perf_counter() - began})
    ours = inference.marginals(model, evidence).probabilities[0]
    free = [v for v, name in enumerate(file.names) if name not in observed]
    difference = max(
        float((torch.from_numpy(p) - ours[v, : len(p)]).abs().max()) for v, p in zip(free, own, strict=True)
    )
    send.send({"pyAgrum difference": difference})


def in_process(work: Callable[..., None], arguments: tuple[Any, ...], seconds: float) -> dict[str, Any]:
    """Run in a process of its own; what it sent before the time limit."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(*arguments, send))
    process.start()
    send.close()
    figures: dict[str, Any] = {}
    deadline = time.perf_counter() + seconds
    try:
        while receive.poll(max(0.0, deadline - time.perf_counter())):
            figures |= receive.recv()
            # a check may take longer than the answer
            deadline = max(deadline, time.perf_counter() + seconds)
    except EOFError:
        pass
    process.kill()
    process.join()
    return figures


def measure(folder: Path, seconds: float, memory: float, out: Path | None, rival: bool, only: str) -> None:
    """Measure all instances, print them, and write a table."""
    known = published(folder)
    rows = []
    for instance in instances(folder):
        if only not in instance.name:
            continue
        figures = in_process(answer, (instance, seconds, memory), seconds)
        if rival:
            figures |= in_process(rival_answer, (instance, memory), max(seconds, 60.0))
        value, score = known.get(instance.name, ("", ""))
        figures |= {"instance": instance.name, "published": value, "score of the published": score}
        rows.append(figures)
        print(line_of(figures, seconds), flush=True)
        if out is not None:
            write_table(out, rows)
    solved = [row for row in rows if row.get("seconds", math.inf) <= seconds]
    agree = [row for row in solved if agrees(row)]
    compared = [row for row in solved if row["published"]]
    print(
        f"{len(solved)} of {len(rows)} exact within {seconds:g} s; {len(agree)} of {len(compared)} with a "
        "published value meet it to its decimal."
    )


def agrees(row: dict[str, Any]) -> bool:
    """Whether an answer rounds to the published value."""
    return bool(row["published"]) and abs(row["log10 partition"] - float(row["published"])) <= 0.05 + 1e-9


def line_of(figures: dict[str, Any], seconds: float) -> str:
    """One instance as a line."""
    name = f"{figures['instance']:24}"
    if "seconds" not in figures:
        return f"{name} {figures.get('refused', f'not within {seconds:g} s')}"
    checks = f"difference {figures['difference']:.1e}" if "difference" in figures else "not checked"
    rival = f", pyAgrum {figures['pyAgrum seconds']:.2f} s" if "pyAgrum seconds" in figures else ""
    return (
        f"{name} {figures['log10 partition']:12.4f} ({figures['published'] or 'unpublished'}) "
        f"{figures['seconds']:7.2f} s, {figures['MiB']:.0f} MiB, {checks}{rival}"
    )


def write_table(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write the figures of all instances so far."""
    shown = {
        "log10 partition": "{:.4f}",
        "seconds": "{:.2f}",
        "again": "{:.2f}",
        "log2 multiplications": "{:.1f}",
        "log2 largest table": "{:.1f}",
        "MiB": "{:.0f}",
        "difference": "{:.1e}",
        "pyAgrum seconds": "{:.2f}",
        "pyAgrum difference": "{:.1e}",
    }
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {k: shown[k].format(x) if k in shown else x for k, x in row.items() if k in FIELDS}
            )


def main(arguments: list[str] | None = None) -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--memory", type=float, default=14.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rival", action="store_true")
    parser.add_argument("--only", default="")
    chosen = parser.parse_args(arguments)
    measure(chosen.folder, chosen.seconds, chosen.memory, chosen.out, chosen.rival, chosen.only)


if __name__ == "__main__":
    main()
