"""Posteriors of a linear regression at several numbers of points, against the closed form.

    python -m tests.benchmarks.regression RUN [--points 1 3 10 20] [--sets 20] [--samples 4000]

RUN is a folder of ``unn train simulators --simulator linear-regression --query posterior``. Data sets are
drawn from the model, each number of points with its own seed. Prints the errors of the posterior means in
exact deviations, over the data sets and both parameters, and the ratios of deviations.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unn.diffusion import Diffusion
from unn.extending import open_trained

NOISE = 0.5
"""Standard deviation of the heights around the line."""


@dataclass(frozen=True)
class Accuracy:
    """How near samples are to the exact posterior.

    Attributes:
        errors: means less exact ones, in exact deviations, shape ``(sets, 2)``.
        ratios: deviations divided by exact ones, shape ``(sets, 2)``.
    """

    errors: Tensor
    ratios: Tensor

    def __str__(self) -> str:
        size, ratios = self.errors.abs(), self.ratios
        return (
            f"means {size.mean():.3f} (root mean square {size.square().mean().sqrt():.3f}, largest "
            f"{size.max():.2f}), deviations {ratios.mean():.3f} ({ratios.min():.2f} to {ratios.max():.2f})"
        )


def closed_form(place: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of slope and intercept under standard normal priors, shapes ``(sets, 2)`` and
    ``(sets, 2, 2)``; arguments of shape ``(sets, points)``."""
    design = torch.stack([place, torch.ones_like(place)], -1).double()
    covariance = torch.linalg.inv(torch.eye(2).double() + design.mT @ design / NOISE**2)
    mean = covariance @ (design.mT @ y.double()[..., None]) / NOISE**2
    return mean[..., 0], covariance


def accuracy(model: Diffusion, points: int, sets: int, samples: int) -> Accuracy:
    """Sample the posterior of some data sets, and compare."""
    generator = torch.Generator().manual_seed(points)
    slope, intercept = (torch.randn(sets, generator=generator)[:, None] for _ in range(2))
    place = torch.randn(sets, points, generator=generator)
    y = intercept + slope * place + NOISE * torch.randn(sets, points, generator=generator)
    mean, covariance = closed_form(place, y)
    given = {"place": place.repeat_interleave(samples, 0), "y": y.repeat_interleave(samples, 0)}
    drawn = model.sample(given, sets * samples, seed=0, at_once=2000)
    w = torch.stack([drawn["slope"], drawn["intercept"]], -1).reshape(sets, samples, 2).double()
    deviation = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    return Accuracy((w.mean(1) - mean) / deviation, w.std(1) / deviation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--points", type=int, nargs="+", default=[1, 3, 10, 20])
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--samples", type=int, default=4000)
    arguments = parser.parse_args()
    _, run = open_trained(arguments.run)
    model = run.network.eval()
    assert isinstance(model, Diffusion)
    for points in arguments.points:
        print(f"{points} points: {accuracy(model, points, arguments.sets, arguments.samples)}", flush=True)


if __name__ == "__main__":
    main()
