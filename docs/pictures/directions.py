"""Draw the picture of the README: a trained denoiser of the digits, run in both directions.

unn train digits --engine denoiser
python docs/pictures/directions.py runs/digits-001 docs/pictures/readme.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch
from torch import Tensor

import unn
from unn.cli.open import open_trained
from unn.draw import LIGHT, save_figure

CLASSES, SAMPLES, PITCH = 10, 3, 1.12
NODES = ("image", "H1", "H2", "label")


def main(run: Path, out: Path) -> None:
    problem, trained = open_trained(run)
    network = cast(unn.Diffusion, trained.network)
    digits = cast(Any, problem).images(trained.config)
    shown = [int((digits.test_labels == k).nonzero()[0]) for k in range(CLASSES)]
    images = digits.test_images[shown]
    labels = network.sample({"image": images}, CLASSES, seed=0)["label"].argmax(1)
    given = torch.eye(CLASSES).repeat(SAMPLES, 1)
    samples = network.sample({"label": given}, len(given), seed=0)["image"].unflatten(0, (SAMPLES, CLASSES))
    save_figure(picture(images, labels, samples), out)


def picture(images: Tensor, labels: Tensor, samples: Tensor) -> Figure:
    """The graph above both directions.

    Args:
        images: given images, shape ``(10, 1, rows, columns)``.
        labels: inferred labels, shape ``(10,)``.
        samples: images sampled given each label, shape ``(samples, 10, 1, rows, columns)``.
    """
    figure = Figure(figsize=(12.0, 6.6), facecolor=LIGHT.background)
    axes = figure.add_axes((0, 0, 1, 1))
    width = 4 + CLASSES * PITCH
    axes.set(xlim=(0, width), ylim=(-0.2, width * 6.6 / 12.0 - 0.2), aspect="equal")
    axes.axis("off")
    rows = samples.shape[0] * PITCH
    _row(axes, rows + 3.5, "one declaration:", "one set of weights")
    _graph(axes, 3.7 + CLASSES * PITCH / 2, rows + 3.85)
    _row(axes, rows + 1.75, "given an image:", "its label")
    for k in range(CLASSES):
        x = 3.7 + k * PITCH
        _image(axes, images[k], x, rows + 1.75, "given")
        _arrow(axes, (x + 0.5, rows + 1.7), (x + 0.5, rows + 1.25))
        label = str(int(labels[k]))
        axes.text(x + 0.5, rows + 0.97, label, ha="center", va="center", fontsize=15, weight="bold")
    _row(axes, rows / 2 - 0.45, "given a label:", "images of it")
    for k in range(CLASSES):
        x = 3.7 + k * PITCH
        for row in range(samples.shape[0]):
            _image(axes, samples[row, k], x, (samples.shape[0] - 1 - row) * PITCH, "sampled")
        _arrow(axes, (x + 0.5, rows + 0.72), (x + 0.5, rows + 0.02))
    return figure


def _row(axes: Axes, y: float, first: str, second: str) -> None:
    axes.text(0.35, y + 0.62, first, fontsize=14, color=LIGHT.foreground, va="center")
    axes.text(0.35, y + 0.12, second, fontsize=14, color=LIGHT.foreground, va="center", weight="bold")


def _image(axes: Axes, image: Tensor, x: float, y: float, kind: str) -> None:
    colour = LIGHT.cycle[0] if kind == "sampled" else LIGHT.foreground
    axes.imshow(image.squeeze().numpy(), extent=(x, x + 1, y, y + 1), cmap="gray", vmin=-1, vmax=1, zorder=2)
    axes.plot([x, x + 1, x + 1, x, x], [y, y, y + 1, y + 1, y], color=colour, linewidth=1.6, zorder=3)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=LIGHT.cycle[0], linewidth=1.4)
    )


def _graph(axes: Axes, centre: float, y: float) -> None:
    positions = [centre + (k - 1.5) * 2.3 for k in range(len(NODES))]
    axes.plot([positions[0], positions[-1]], [y, y], color=LIGHT.foreground, linewidth=1.2, zorder=1)
    for name, x in zip(NODES, positions, strict=True):
        face, edge = LIGHT.background, LIGHT.cycle[0]
        axes.add_patch(Circle((x, y), 0.52, facecolor=face, edgecolor=edge, linewidth=2, zorder=2))
        axes.text(x, y, name, ha="center", va="center", fontsize=12, color=LIGHT.foreground, zorder=3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
