"""What attention between latent groups is worth, beside controls of equal width.

    python -m tests.benchmarks.latents OUT.csv --layers 4 8 --seeds 0 1 2 --steps 1200 [--data mnist ...]

Trains images from latent groups without attention, with attention over positions, over layers, or both, and
each of these with gates that stay at zero: the same parameters and time, without attention. Test images are
scored by the evidence lower bound and by importance sampling; ``--paper`` takes the published sizes and
schedule, for a GPU.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import unn
from problems.vae.problem import VAEConfig, VAEProblem
from unn.training import TrainingConfig, fit

FIELDS = (
    "data",
    "layers",
    "attention",
    "seed",
    "steps",
    "parameters",
    "ms per step",
    "bound",
    "log-likelihood",
    "error of the mean",
    "median effective draws",
    "divergences",
    "active units",
    "gate of positions",
    "gate of priors",
    "gate of posteriors",
)
_TEST_SEED = 11


@dataclass(frozen=True)
class Variant:
    """One row of the ablation.

    Attributes:
        attention: attention over layers: "all" or "none".
        spatial: attention over positions.
        frozen: whether gates stay at zero.
    """

    attention: str
    spatial: bool
    frozen: bool


VARIANTS = {
    "none": Variant("none", False, False),
    "positions": Variant("none", True, False),
    "positions, frozen": Variant("none", True, True),
    "layers": Variant("all", False, False),
    "layers, frozen": Variant("all", False, True),
    "both": Variant("all", True, False),
    "both, frozen": Variant("all", True, True),
}


def configure(variant: Variant, layers: int, seed: int, arguments: argparse.Namespace) -> VAEConfig:
    """The configuration of a run."""
    problem = VAEProblem()
    config = problem.config_for("latent")()
    training: TrainingConfig = replace(
        config.training,
        seed=seed,
        steps=arguments.steps,
        evaluate_every=10**9,
        threads=arguments.threads,
        accumulate=arguments.accumulate,
    )
    model = replace(config.model, masked=0.0, width=arguments.width)
    data = arguments.data
    channels, halvings = arguments.latent, 2
    if arguments.paper:
        channels, halvings = 20, 2 if data == "mnist" else 1
        model = replace(model, width=32, cells=2, divergence_warmup=16 * 60_000 // 200)
        training = replace(training, steps=400 * 60_000 // 200, batch=200, rate=0.01, warmup=5 / 400)
    return replace(
        config,
        data=data,
        layers=layers,
        latent=channels,
        halvings=halvings,
        attention=variant.attention,
        spatial=variant.spatial,
        frozen=variant.frozen,
        model=model,
        training=training,
    )


def mean_gate(model: unn.AttentiveVAE, ending: str) -> float:
    """Mean absolute gate of the attentions whose name has a part."""
    gates = [
        abs(float(p)) for name, p in model.named_parameters() if name.endswith("gate") and ending in name
    ]
    return sum(gates) / len(gates) if gates else float("nan")


def run(variant: Variant, layers: int, seed: int, arguments: argparse.Namespace) -> list[object]:
    """Train and score one network."""
    problem = VAEProblem()
    config = configure(variant, layers, seed, arguments)
    problem.check(config)
    torch.manual_seed(seed)
    model = problem.network(config, {})
    problem.prepare(config, model)
    started = time.process_time()
    model = fit(model, problem.task(config), config.training).network
    seconds = time.process_time() - started
    assert isinstance(model, unn.AttentiveVAE)
    x = problem.test_queries(config, arguments.tested, torch.Generator().manual_seed(_TEST_SEED))
    images = {"x": x["upper half given"].truth["x"]}
    generator = torch.Generator().manual_seed(_TEST_SEED)
    summary = model.bound_summary(images, generator=generator)
    estimate = model.log_likelihood(images, arguments.draws, generator=generator)
    deviation = float(estimate.value.std()) / len(estimate.value) ** 0.5
    return [
        sum(p.numel() for p in model.parameters()),
        f"{1000 * seconds / config.training.steps:.1f}",
        f"{summary.bound:.3f}",
        f"{float(estimate.value.mean()):.3f}",
        f"{deviation:.3f}",
        f"{float(estimate.effective.median()):.1f}",
        " ".join(f"{x:.2f}" for x in summary.divergences.tolist()),
        " ".join(f"{x:.2f}" for x in summary.active.tolist()),
        f"{mean_gate(model, 'change'):.4f}",
        f"{mean_gate(model, 'prior_attention'):.4f}",
        f"{mean_gate(model, 'posterior_attention'):.4f}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all variants and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--layers", type=int, nargs="+", default=[4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--latent", type=int, default=8)
    parser.add_argument("--tested", type=int, default=359)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1, help="parts of a batch, to save memory")
    parser.add_argument("--paper", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    new = not options.out.exists()
    with options.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(FIELDS)
        for layers in options.layers:
            for seed in options.seeds:
                for name in options.variants:
                    figures = run(VARIANTS[name], layers, seed, options)
                    writer.writerow([options.data, layers, name, seed, options.steps, *figures])
                    file.flush()


if __name__ == "__main__":
    main()
