"""Images of each label that a Boltzmann machine draws, beside its prototypes.

    python -m tests.benchmarks.boltzmann RUN PICTURE.png

Prototypes are fixed points of coordinate descent on the same energy, given the label; samples are states of
Markov chains. Printed is the mean distance of two samples of a label, in pixels that differ, beside that of
two binarised held-out images of it: a machine that draws one image for each label has small ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

import unn
from problems.boltzmann.problem import BoltzmannProblem
from problems.digits.data import Digits, load_digits
from unn.cli.open import open_trained
from unn.draw import draw_images, save_figure
from unn.gibbs import GibbsModel, GibbsOptions, sample

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


def main(run: Path, picture: Path, sweeps: int, seed: int) -> None:
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--sweeps", type=int, default=1000, help="of each chain")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    main(given.run, given.picture, given.sweeps, given.seed)
