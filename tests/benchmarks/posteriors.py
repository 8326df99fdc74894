"""Posteriors of simulators: two-sample accuracies of trained denoisers against exact conditionals.

    python -m tests.benchmarks.posteriors OUT.csv --simulators tree hmm --seeds 0 1 2

Each cell trains the denoiser of the problem ``simulators`` with the options of ``recipe_of``, and appends one
row for each number of denoising steps: the mean accuracy of the classifiers over queries, as ``unn evaluate
RUN --metric c2st`` has it, the ratio of standard deviations, and the processor time of training. Queries and
reference samples are those of one seed, and are kept in a folder.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from problems.simulators.problem import SimulatorsProblem
from unn import Partial
from unn.cli.measures import ExamplesTask
from unn.cli.references import ask, measured, unobserved_numbers
from unn.diffusion import Diffusion
from unn.diffusion.preconditioning import PRECONDITIONINGS
from unn.ops.seeds import seed_of
from unn.training.loop import fit
from unn.two_sample import CLASSIFIERS, Classifier, c2st

QUERY_SEED = 77
EVALUATIONS = 20
"""Evaluations of the validation loss in a training; the weights of the best are kept."""


class Unmeasured(ExamplesTask):
    """Training without evaluations, so that its time is that of training alone."""

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """No metrics but the validation loss, which selects the best weights with patience."""
        return self.problem.model_metrics(self.config, network, 0, 0)


class OneDraw(SimulatorsProblem):
    """The simulations of one seed, whatever the seed of training, which also draws weights and batches.

    Args:
        seed: seed of the simulations.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def _simulations(self, config: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return super()._simulations(replace(config, training=replace(config.training, seed=self.seed)))


@dataclass(frozen=True)
class Recipe:
    """Options of a cell that differ from the defaults of the problem."""

    steps: int
    width: int = 32
    heads: int = 2
    coordinates: str = "auto"
    noise_mean: float = -0.5
    rate: float = 5e-3
    preconditioning: Literal["auto", "linear", "scalar"] = "auto"


RECIPES = {
    "tree": Recipe(8000),
    "hmm": Recipe(8000),
    "two-moons": Recipe(20_000, noise_mean=-2.0, preconditioning="scalar"),
    "slcp": Recipe(12_000, coordinates="quantiles", noise_mean=-1.0),
}
"""Recipes of the tasks; all others have 5,000 steps and the rest as the tree."""

LONG_RECIPES = {
    "two-moons": replace(RECIPES["two-moons"], steps=60_000, width=64, rate=3e-3, noise_mean=-1.0),
    "slcp": replace(RECIPES["slcp"], steps=40_000, width=64, rate=3e-3),
}
"""Recipes from 10,000 simulations on of the tasks that need more steps."""


def recipe_of(simulator: str, simulations: int) -> Recipe:
    """The recipe of a cell."""
    if simulations >= 10_000 and simulator in LONG_RECIPES:
        return LONG_RECIPES[simulator]
    return RECIPES.get(simulator, Recipe(5000))


def queries(
    problem: SimulatorsProblem, config: Any, count: int, draws: int, folder: Path
) -> list[tuple[dict[str, Partial], dict[str, Tensor]]]:
    """Evidence, and samples of the exact conditionals, which are kept in a folder."""
    file = folder / f"{config.simulator}-{config.query}-{count}-{draws}.pt"
    asked = ask(problem, config, count, seed_of(QUERY_SEED))
    given = [asked.given(slice(k, k + 1)) for k in range(count)]
    if not file.is_file():
        references = [
            problem.reference(config, evidence, draws, seed_of(QUERY_SEED, k))
            for k, evidence in enumerate(given)
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save([{n: x.float() for n, x in r.items()} for r in references], file)
    return list(zip(given, torch.load(file), strict=True))


def measure(
    models: list[Diffusion],
    asked: list[tuple[dict[str, Partial], dict[str, Tensor]]],
    draws: int,
    steps: int,
    classifiers: list[Classifier],
) -> dict[str, float]:
    """Means over queries, of samples of which each model draws an equal share."""
    sums = {**dict.fromkeys(classifiers, 0.0), "spread": 0.0}
    for k, (given, reference) in enumerate(asked):
        shares = [len(share) for share in torch.arange(draws).tensor_split(len(models))]
        # members of equal seeds would draw nearly equal samples
        drawn = [
            model.sample(
                given, share, steps=steps, seed=seed_of(k, member) if member else k, at_once=10_000
            ).values
            for member, (model, share) in enumerate(zip(models, shares, strict=True))
        ]
        samples = {name: torch.cat([part[name] for part in drawn]) for name in drawn[0]}
        one, other = unobserved_numbers(reference, given), unobserved_numbers(samples, given)
        for classifier in classifiers:
            sums[classifier] += c2st(one, other, classifier) / len(asked)
        sums["spread"] += measured("spread", one, other) / len(asked)
    return sums


def own_recipe(arguments: argparse.Namespace, simulator: str, simulations: int) -> Recipe:
    """The recipe of a cell with the options of the command."""
    own = recipe_of(simulator, simulations)
    return replace(
        own,
        steps=arguments.training_steps or own.steps,
        width=arguments.width or own.width,
        rate=arguments.rate or own.rate,
        noise_mean=own.noise_mean if arguments.noise_mean is None else arguments.noise_mean,
        preconditioning=arguments.preconditioning or own.preconditioning,
    )


def config_of(
    arguments: argparse.Namespace, problem: SimulatorsProblem, simulator: str, simulations: int, seed: int
) -> Any:
    """The configuration of a network with a seed of training."""
    own = own_recipe(arguments, simulator, simulations)
    default = problem.config_for("denoiser")()
    training = replace(
        default.training,
        steps=own.steps,
        evaluate_every=own.steps // EVALUATIONS,
        patience=EVALUATIONS,
        rate=own.rate,
        optimizer="adamw" if arguments.weight_decay else default.training.optimizer,
        weight_decay=arguments.weight_decay,
        seed=seed,
        threads=1,
    )
    model = replace(
        default.model,
        width=own.width,
        heads=own.heads,
        coordinates=own.coordinates,
        noise_mean=own.noise_mean,
        preconditioning=own.preconditioning,
        structure=arguments.structure,
        embedding=arguments.embedding,
        dropout=arguments.dropout,
    )
    return replace(
        default,
        simulator=simulator,
        simulations=simulations,
        query=arguments.trained or arguments.query,
        training=training,
        model=model,
    )


def trained(arguments: argparse.Namespace, problem: OneDraw, config: Any) -> tuple[Diffusion, float]:
    """A trained network and the processor seconds of its training, which are kept in a folder."""
    own, training = config.model, config.training
    draw = str(problem.seed) if training.seed == problem.seed else f"{problem.seed}.{training.seed}"
    torch.manual_seed(training.seed)
    torch.set_num_threads(1)
    network = problem.network(config, {})
    problem.prepare(config, network)
    regularised = "".join(
        f"-{name}{value}"
        for name, value in (("dropout", own.dropout), ("decay", training.weight_decay))
        if value
    )
    weights = Path(arguments.weights) / (
        f"{config.simulator}-{config.simulations}-{draw}-{config.query}-{own.structure}-"
        f"{own.embedding}-{own.preconditioning}-{own.width}-{training.steps}-noise{own.noise_mean}"
        f"{regularised}.pt"
    )
    if weights.is_file():
        state = torch.load(weights, map_location="cpu")
        network.load_state_dict(state["weights"])
        model, seconds = network, float(state["seconds"])
    else:
        start = time.process_time()
        fitted = fit(network, Unmeasured(problem, config), training)
        if fitted.interrupted:
            raise SystemExit(
                f"{config.simulator}: interrupted after {fitted.step} steps; nothing is measured."
            )
        model, seconds = fitted.network, time.process_time() - start
        weights.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"weights": model.state_dict(), "seconds": seconds}, weights)
    assert isinstance(model, Diffusion)
    return model.eval(), seconds


def run(
    arguments: argparse.Namespace, simulator: str, simulations: int, seed: int
) -> list[dict[str, object]]:
    """Train the networks of one cell and measure them."""
    problem = OneDraw(seed)
    configs = [
        config_of(arguments, problem, simulator, simulations, seed + 1000 * member)
        for member in range(arguments.ensemble)
    ]
    models, seconds = zip(*(trained(arguments, problem, config) for config in configs), strict=True)
    config = configs[0]
    validation = problem.model_metrics(config, models[0], 0, 0)["validation_loss"]
    asked = queries(
        problem,
        replace(config, query=arguments.query),
        arguments.queries,
        arguments.draws,
        Path(arguments.references),
    )
    rows = []
    for steps in arguments.sampling_steps:
        figures = measure(list(models), asked, arguments.draws, steps, arguments.classifiers)
        rows.append(
            {
                "simulator": simulator,
                "simulations": simulations,
                "seed": seed,
                "query": arguments.query,
                "trained": config.query,
                "structure": arguments.structure,
                "embedding": arguments.embedding,
                "preconditioning": config.model.preconditioning,
                "noise_mean": config.model.noise_mean,
                "width": config.model.width,
                "training_steps": config.training.steps,
                "dropout": arguments.dropout,
                "weight_decay": arguments.weight_decay,
                "networks": arguments.ensemble,
                "cpu_seconds": round(sum(seconds)),
                "validation_loss": round(validation, 4),
                "sampling_steps": steps,
                "queries": arguments.queries,
                "draws": arguments.draws,
                **{name: round(value, 4) for name, value in figures.items()},
            }
        )
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--simulators", nargs="+", default=["tree", "hmm", "two-moons", "slcp"])
    parser.add_argument("--simulations", nargs="+", type=int, default=[1000, 10_000])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--query", choices=["any", "posterior"], default="any")
    parser.add_argument(
        "--trained", choices=["any", "posterior"], help="queries of training; those of --query by default"
    )
    parser.add_argument("--preconditioning", choices=PRECONDITIONINGS, help="that of the recipe by default")
    parser.add_argument("--structure", default="graph")
    parser.add_argument("--embedding", default="exchangeable")
    parser.add_argument("--sampling-steps", nargs="+", type=int, default=[20, 50])
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--training-steps", type=int, default=0, help="0 for those of the recipe")
    parser.add_argument("--width", type=int, default=0, help="0 for that of the recipe")
    parser.add_argument("--rate", type=float, default=0.0, help="0 for that of the recipe")
    parser.add_argument("--noise-mean", type=float, help="mean logarithm of the levels; that of the recipe")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--weight-decay", type=float, default=0.0, help="that of AdamW")
    parser.add_argument(
        "--ensemble",
        type=int,
        default=1,
        help="networks that differ by weights and batches and draw equal shares",
    )
    parser.add_argument("--classifiers", nargs="+", choices=CLASSIFIERS, default=["forest"])
    parser.add_argument("--references", default="references")
    parser.add_argument(
        "--weights", default="weights", help="folder of trained weights, which are used again"
    )
    given = parser.parse_args()
    for seed in given.seeds:
        for simulator in given.simulators:
            for simulations in given.simulations:
                rows = run(given, simulator, simulations, seed)
                is_new = not given.out.is_file()
                with given.out.open("a", newline="") as file:
                    writer = csv.DictWriter(file, rows[0])
                    if is_new:
                        writer.writeheader()
                    writer.writerows(rows)
