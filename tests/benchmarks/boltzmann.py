"""Images of each label that a Boltzmann machine draws, beside its prototypes.

    python -m tests.benchmarks.boltzmann RUN PICTURE.png [--annealing-steps 10000]

Prototypes are fixed points of coordinate descent on the same energy, given the label; samples are states of
Markov chains. Printed is the mean distance of two samples of a label, in pixels that differ, beside that of
two binarised held-out images of it: a machine that draws one image for each label has small ones.

With annealing steps it also prints the log-likelihood of all test images, binarised once, without labels:
exact free energies of a machine with one hidden layer, less the logarithm of the partition function by
annealed importance sampling, with its bounds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import softplus

import unn
from problems.boltzmann.problem import BoltzmannProblem
from problems.digits.data import Digits, load_digits
from unn.cli.open import open_trained
from unn.draw import draw_images, save_figure
from unn.gibbs import GibbsModel, GibbsOptions, log_partition, sample

SAMPLES = 50
"""Samples of each label."""
SHOWN = 4
"""Of which the picture has this many."""


def prototypes(graph: unn.FactorGraph, layers: int) -> Tensor:
    """Images at fixed points given each label, shape ``(10, height, width)``."""
    hidden = [f"h{layer}" for layer in range(layers, 0, -1)]
    with torch.no_grad():
        out = unn.infer(graph, {"y": torch.eye(10)}, order=[*hidden, "x"], iterations=500, until=1e-4)
    return out["x"]


def draws(graph: unn.FactorGraph, sweeps: int, seed: int) -> Tensor:
    """Images of each label, shape ``(10, samples, height, width)``."""
    options = GibbsOptions(chains=SAMPLES, burn_in=sweeps, chain_draws=1)
    generator = torch.Generator().manual_seed(seed)
    return sample(graph, {"y": torch.eye(10)}, options=options, generator=generator)["x"][:, :, 0]


def held_out(digits: Digits, seed: int) -> list[Tensor]:
    """Binarised held-out images of each label, shape ``(images, height, width)`` each."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for label in range(10):
        images = digits.test_images[digits.test_labels == label][:SAMPLES, 0]
        intensity = (images + 1) / 2
        rows.append((torch.rand(intensity.shape, generator=generator) < intensity).float())
    return rows


def distance(images: Tensor) -> float:
    """Mean number of pixels in which two images differ.

    Args:
        images: binary, shape ``(images, height, width)``.
    """
    flat, count = images.flatten(1), len(images)
    return float(torch.cdist(flat, flat, p=1).sum()) / (count * (count - 1))


def mean_free_log(graph: unn.FactorGraph, digits: Digits, seed: int) -> float:
    """Mean over the test images of the logarithm of the sum of exp(-E) over all states but the pixels.

    Given the pixels and the label the units of one hidden layer are independent.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {name: p.detach().double() for name, p in graph.named_parameters()}
    if "less_half" in graph.arrays:
        # the same machine that is not centred
        weights["b"] = weights["b"] - weights["W1"].sum(2) / 2
        weights["c1"] = weights["c1"] - weights["U"].sum(1) / 10
        weights["d"] = weights["d"] - weights["U"].sum(0) / 2
    if "less_mean" in graph.arrays:
        less = graph.fixed_values()["less_mean"].double()
        weights["c1"] = weights["c1"] + (less[..., None] * weights["W1"]).sum((0, 1))
    total = 0.0
    for images in digits.test_images.split(500):
        intensity = (images[:, 0] + 1) / 2
        x = (torch.rand(intensity.shape, generator=generator) < intensity).double().flatten(1)
        scores = x @ weights["W1"].flatten(0, 1) + weights["c1"]
        by_label = torch.stack(
            [softplus(scores + weights["U"][:, k]).sum(1) + weights["d"][k] for k in range(10)], 1
        )
        total += float((by_label.logsumexp(1) + x @ weights["b"].flatten()).sum())
    return total / len(digits.test_images)


def print_likelihood(network: GibbsModel, digits: Digits, steps: int, seed: int) -> None:
    """Print the mean log-likelihood of the test images and its bounds."""
    if "h2" in network.graph.variables:
        raise SystemExit(
            "boltzmann: the likelihood of machines with several hidden layers has no closed form."
        )
    options = replace(network.options, chains=100, burn_in=1000)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        estimate = log_partition(network.graph, steps=steps, options=options, generator=generator)
    free = mean_free_log(network.graph, digits, seed)
    print(
        f"log-likelihood of {len(digits.test_images)} test images: {free - float(estimate.value):.1f} nats, "
        f"between {free - float(estimate.upper):.1f} and {free - float(estimate.lower):.1f} by the bounds; "
        f"{float(estimate.effective):.0f} effective chains of 100"
    )


def main(run: Path, picture: Path, sweeps: int, seed: int, annealing_steps: int) -> None:
    """Print the distances and draw the picture."""
    problem, trained = open_trained(run)
    network, config = trained.network, trained.config
    assert isinstance(problem, BoltzmannProblem) and isinstance(network, GibbsModel)
    graph = network.graph
    images = draws(graph, sweeps, seed)
    own = [distance(x) for x in images]
    theirs = [distance(x) for x in held_out(load_digits(config.data), seed)]
    print(f"mean distance of two samples {sum(own) / 10:.1f}, of two held-out images {sum(theirs) / 10:.1f}")
    print("ratio by label:", " ".join(f"{x / y:.2f}" for x, y in zip(own, theirs, strict=True)))
    rows = [prototypes(graph, config.layers), *images[:, :SHOWN].unbind(1)]
    names = [str(label) for label in range(10)] + [""] * (10 * SHOWN)
    save_figure(draw_images(torch.cat(rows)[:, None], names, columns=10, low=0.0), picture)
    if annealing_steps:
        print_likelihood(network, load_digits(config.data), annealing_steps, seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--sweeps", type=int, default=1000, help="of each chain")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--annealing-steps", type=int, default=0, help="of the partition function; 0 for no likelihood"
    )
    given = parser.parse_args()
    main(given.run, given.picture, given.sweeps, given.seed, given.annealing_steps)
