"""The same posteriors by neural posterior estimation (the package ``sbi``), beside those of the denoiser.

    pip install sbi
    python -m tests.benchmarks.npe OUT.csv --simulators slcp --seeds 0

Each cell trains a masked autoregressive flow with all defaults of ``sbi.inference.NPE`` on the simulations
that ``tests.benchmarks.posteriors --query posterior`` trains and validates on, and is measured on the same
queries against the same reference samples.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from problems.simulators.problem import SimulatorsProblem
from tests.benchmarks.posteriors import queries
from unn import Partial
from unn.cli.references import measured
from unn.two_sample import CLASSIFIERS, c2st

BOUNDS = {"two-moons": 1.0, "slcp": 3.0, "gaussian-mixture": 10.0}
"""Bounds of uniform priors; that of the other task is normal."""


def flat(values: dict[str, Tensor], names: list[str]) -> Tensor:
    """Numbers of variables, shape ``(count, numbers)``."""
    return torch.cat([values[name].flatten(1).float() for name in names], 1)


def prior_of(simulator: str, numbers: int) -> Any:
    """The prior, by which the package rejects samples out of bounds."""
    from sbi.utils import BoxUniform
    from torch.distributions import MultivariateNormal

    if simulator in BOUNDS:
        bound = BOUNDS[simulator] * torch.ones(numbers)
        return BoxUniform(-bound, bound)
    if simulator == "gaussian-linear":
        return MultivariateNormal(torch.zeros(numbers), 0.1 * torch.eye(numbers))
    raise SystemExit(f"npe: the prior of {simulator!r} is not written down; choose from {[*BOUNDS]}.")


def run(arguments: argparse.Namespace, simulator: str, simulations: int, seed: int) -> dict[str, object]:
    """Train one cell and measure it."""
    from sbi.inference import NPE

    problem = SimulatorsProblem()
    default = problem.config_for("denoiser")()
    training = replace(default.training, seed=seed)
    config = replace(
        default, simulator=simulator, simulations=simulations, query="posterior", training=training
    )
    parameters = list(problem._task(config).parameters)
    data = [name for name in problem.traced(config).graph.variables if name not in parameters]
    theta, x = (
        torch.cat([flat(part, names) for part in problem._simulations(config)])
        for names in (parameters, data)
    )
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    start = time.process_time()
    # the package writes its logs into the working directory
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        inference = NPE(prior=prior_of(simulator, theta.shape[1]), show_progress_bars=False)
        inference.append_simulations(theta, x).train()
        posterior = inference.build_posterior()
    seconds = time.process_time() - start
    asked = queries(problem, config, arguments.queries, arguments.draws, Path(arguments.references))
    sums = {**dict.fromkeys(arguments.classifiers, 0.0), "spread": 0.0}
    for given, reference in asked:
        observed = {n: v.value if isinstance(v, Partial) else v for n, v in given.items()}
        samples = posterior.sample((arguments.draws,), x=flat(observed, data), show_progress_bars=False)
        truth = flat(reference, parameters)
        for classifier in arguments.classifiers:
            sums[classifier] += c2st(truth, samples, classifier) / len(asked)
        sums["spread"] += measured("spread", truth, samples) / len(asked)
    return {
        "simulator": simulator,
        "simulations": simulations,
        "seed": seed,
        "cpu_seconds": round(seconds),
        "queries": arguments.queries,
        "draws": arguments.draws,
        **{name: round(value, 4) for name, value in sums.items()},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--simulators", nargs="+", default=["gaussian-linear", *BOUNDS])
    parser.add_argument("--simulations", nargs="+", type=int, default=[1000, 10_000])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--classifiers", nargs="+", choices=CLASSIFIERS, default=["forest"])
    parser.add_argument("--references", default="references")
    given = parser.parse_args()
    for seed in given.seeds:
        for simulator in given.simulators:
            for simulations in given.simulations:
                row = run(given, simulator, simulations, seed)
                print(row, flush=True)
                is_new = not given.out.is_file()
                with given.out.open("a", newline="") as file:
                    writer = csv.DictWriter(file, row)
                    if is_new:
                        writer.writeheader()
                    writer.writerow(row)
