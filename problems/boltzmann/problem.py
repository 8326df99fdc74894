"""Boltzmann machines on the command line; importing it does not load torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unn.belief import BeliefOptions
from unn.extending import (
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    EncoderOptions,
    GibbsOptions,
    Query,
    RegressorOptions,
    TrainingConfig,
    VAEACOptions,
    check_ranges,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    import unn
    from unn.cli.problem import Trained

    from ..digits.data import Digits

_SIDES = {"embedded": 8, "mnist": 28}
_SHORT = TrainingConfig(steps=500, evaluate_every=500, batch=32, rate=2e-3, clip=1.0, ema=0.99)


@dataclass(frozen=True)
class BoltzmannConfig:
    """Options of Boltzmann machines.

    Attributes:
        data: Images and labels, "embedded" (8 x 8) or "mnist" (28 x 28, under $UNN_DATA). Their intensities
            are probabilities, from which binary pixels are drawn anew at every access.
        units: Units of a hidden layer.
        layers: Number of hidden layers; 1 for a restricted machine.
        centred: Units that weights couple less their mean at the start of training, so that several layers
            can be trained at once: "all", "hidden" ones and labels, or "none".
        annealing_steps: Steps of the annealed importance sampling that estimates log-likelihoods.
    """

    data: Literal["embedded", "mnist"] = "embedded"
    units: int = 64
    layers: int = 1
    centred: Literal["all", "hidden", "none"] = "all"
    annealing_steps: int = 1000


class BoltzmannProblem(DeclaredProblem):
    """Learn the joint distribution of images and labels with hidden binary units."""

    name = "boltzmann"
    summary = "Boltzmann machines of images and labels: labels from images, and images from labels"
    config = BoltzmannConfig
    noun = "images"
    defaults = {
        "gibbs": Defaults(
            GibbsOptions(chains=100, burn_in=200, chain_draws=50, learning_sweeps=5),
            TrainingConfig(steps=4000, evaluate_every=2000, batch=100, rate=1e-2, ema=0.999),
        ),
        "belief": Defaults(
            BeliefOptions(rounds=20), TrainingConfig(steps=20, evaluate_every=20, batch=32, rate=2e-2)
        ),
        "denoiser": Defaults(
            DenoiserOptions(width=32, depth=4, heads=2, embedding="independent", sampling_steps=20), _SHORT
        ),
        "encoder": Defaults(EncoderOptions(width=64, blocks=2, hidden=128), _SHORT),
        "regressor": Defaults(RegressorOptions(width=32, depth=4, heads=2, embedding="independent"), _SHORT),
        "vaeac": Defaults(
            VAEACOptions(width=128, depth=3),
            TrainingConfig(steps=1000, evaluate_every=1000, batch=64, rate=1e-3, clip=1.0, ema=0.99),
        ),
        "descent": Defaults(
            DescentOptions(iterations=3),
            TrainingConfig(steps=1000, evaluate_every=1000, batch=100, rate=5e-3, clip=1.0),
        ),
    }

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        ranges: dict[str, tuple[float, float, float]] = {
            "units": (config.units, 1, 100_000),
            "layers": (config.layers, 1, 100),
            "annealing_steps": (config.annealing_steps, 1, 10**7),
        }
        check_ranges(self.name, ranges)
        super().check(config)

    def earlier_config(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Machines of runs of earlier versions were not centred, or those of hidden units and labels were."""
        content = {"centred": False, **super().earlier_config(content)}
        if isinstance(content["centred"], bool):
            content = {**content, "centred": "hidden" if content["centred"] else "none"}
        return content

    def declare(self, config: BoltzmannConfig) -> unn.FactorGraph:
        """The graph."""
        from .graph import declare

        side = _SIDES[config.data]
        return declare(side, side, config.units, config.layers, config.centred)

    def prepare(self, config: Any, network: nn.Module) -> None:
        """Centre pixels at the mean intensities of the training images."""
        from .graph import centre_pixels

        graph = self.graph(network)
        if "less_mean" in graph.arrays:
            centre_pixels(graph, (self._digits(config).train_images[:, 0].mean(0) + 1) / 2)
        super().prepare(config, network)

    def observable(self, config: BoltzmannConfig) -> tuple[str, ...]:
        """Pixels and labels."""
        return ("x", "y")

    def generate(
        self, config: BoltzmannConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Random training images, binarised, and their labels."""
        import torch

        digits = self._digits(config)
        rows = torch.randint(len(digits.train_images), (count,), generator=generator)
        return _examples(digits.train_images[rows], digits.train_labels[rows], generator)

    def observed(
        self, config: BoltzmannConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """The image or the label."""
        import torch

        is_image = torch.rand(count, generator=generator) < 0.5
        side = _SIDES[config.data]
        return {"x": is_image.view(-1, 1, 1).expand(count, side, side), "y": ~is_image}

    def test_queries(
        self, config: BoltzmannConfig, count: int, generator: torch.Generator
    ) -> dict[str, Query]:
        """The label of held-out images, images of all labels, and nothing given."""
        import torch

        digits = self._digits(config)
        rows = torch.randperm(len(digits.test_images), generator=generator)[:count]
        values = _examples(digits.test_images[rows], digits.test_labels[rows], generator)
        labels = torch.eye(10)[torch.arange(len(rows)) % 10]
        return {
            "label of image": Query({"x": values["x"]}, {"y": values["y"]}),
            "image of label": Query({"y": labels}),
            "": Query({}),
        }

    def compared_variables(self, config: BoltzmannConfig) -> tuple[str, ...]:
        """Pixels and labels."""
        return ("x", "y")

    def metrics(
        self, config: BoltzmannConfig, query: Query, values: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Accuracy of labels; mean intensity of samples less that of the test images; and for images of
        labels the share whose nearest mean image of the training set is that of the label."""
        import torch

        if query.truth:
            right = values["y"].argmax(1) == query.truth["y"].argmax(1)
            return {"accuracy": float(right.double().mean())}
        digits = self._digits(config)
        intensity = float((digits.test_images.double().mean() + 1) / 2)
        figures = {"excess_intensity": float(values["x"].double().mean()) - intensity}
        if "y" in query.given:
            images = ((digits.train_images + 1) / 2).flatten(1)
            means = torch.stack([images[digits.train_labels == k].mean(0) for k in range(10)])
            nearest = torch.cdist(values["x"].flatten(1).float(), means).argmin(1)
            figures["nearest_mean"] = float((nearest == values["y"].argmax(1)).double().mean())
        return figures

    def model_metrics(
        self, config: BoltzmannConfig, network: nn.Module, count: int, seed: int
    ) -> dict[str, float]:
        """Log-likelihood of held-out binarised images without their labels in nats, by annealed importance
        sampling, with the bounds of the log-partition that it rests on."""
        import torch

        from unn.gibbs import GibbsModel, log_partition

        if not isinstance(network, GibbsModel):
            return {}
        generator = torch.Generator().manual_seed(seed)
        digits = self._digits(config)
        rows = torch.randperm(len(digits.test_images), generator=generator)[:count]
        x = _examples(digits.test_images[rows], digits.test_labels[rows], generator)["x"]
        x = x.to(next(network.parameters()).device)
        steps = config.annealing_steps
        whole = log_partition(network.graph, steps=steps, options=network.options, generator=generator)
        clamped = log_partition(
            network.graph,
            {"x": x},
            steps=max(1, steps // 10),
            options=network.options,
            generator=generator,
        )
        value = clamped.value - whole.value
        return {
            "log_likelihood": float(value.mean()),
            "log_likelihood_error": float(value.std(correction=0)) / len(x) ** 0.5,
            "log_partition_error": float(whole.error),
            "gap_of_bounds": float(whole.upper - whole.lower),
        }

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """An image as text, dark pixels as dark characters, and its label."""
        shades = " .:-=+*#%@"
        rows = values["x"][k].clamp(0, 1)
        lines = ["".join(shades[round(float(pixel) * 9)] * 2 for pixel in row) for row in rows]
        return [f"label {int(values['y'][k].argmax())}", *lines]

    def _digits(self, config: BoltzmannConfig) -> Digits:
        return _digits(config.data, os.environ.get("UNN_DATA"))


@lru_cache(maxsize=1)
def _digits(data: Literal["embedded", "mnist"], root: str | None) -> Digits:
    """Images and labels, which are read once, since every batch draws from them."""
    from ..digits.data import load_digits

    return load_digits(data, None if root is None else Path(root) / "mnist")


def _examples(images: Tensor, labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Binary pixels drawn from intensities, shape ``(batch, height, width)``, and one-hot labels."""
    import torch

    intensity = (images[:, 0] + 1) / 2
    x = (torch.rand(intensity.shape, generator=generator) < intensity).float()
    return {"x": x, "y": torch.nn.functional.one_hot(labels.long(), 10).float()}
