"""Images from latent groups on the command line; importing it does not load torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unn.errors import ArgumentError, UnnError, suggest
from unn.extending import (
    Answer,
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    EncoderOptions,
    LatentOptions,
    Query,
    RegressorOptions,
    SamplingOptions,
    TrainingConfig,
    VAEACOptions,
    check_ranges,
)

from ..generated.observations import any_nodes
from .verb import TEMPERATURES, DrawImages, DrawsLatents

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    import unn
    from unn.cli.problem import Trained
    from unn.training import Task

    from .graph import Shape
    from .images import Images

_SIZES = {"digits": (8, 8, 1), "mnist": (28, 28, 1), "omniglot": (28, 28, 1)}
_DATA = (*_SIZES, "folder")
_SPANS = ("none", "neighbours", "all")
_BINARISED_SEED = 20_231
_SHORT = TrainingConfig(steps=500, evaluate_every=500, batch=32, rate=2e-3, clip=1.0, ema=0.99)
_DRAWS = 20
"""Draws for each image of the importance-sampled log-likelihood."""


@dataclass(frozen=True)
class VAEConfig:
    """Options of images from latent groups.

    Attributes:
        data: Images: "digits" (8 x 8, embedded), "mnist" or "omniglot" (28 x 28, under $UNN_DATA), or
            "folder".
        images: Folder of image files of one size, for "folder".
        pixels: "binary" takes intensities as probabilities of black; "levels" are 8-bit channels (with
            --model.reals levels).
        binarisation: "dynamic" draws binary pixels anew at every access; "static" once.
        layers: Number of latent groups.
        latent: Channels of a group.
        halvings: How often the sides of images are halved to those of a group.
        attention: Which layers priors and posteriors attend to: "all", "neighbours", or "none" for networks
            without queries and keys.
        spatial: Attention between the positions of a group.
        frozen: Keep all gates of attention at zero: the control of equal width.
        draws: Draws of the importance-sampled log-likelihood for each test image.
    """

    data: Literal["digits", "mnist", "omniglot", "folder"] = "digits"
    images: str = ""
    pixels: Literal["binary", "levels"] = "binary"
    binarisation: Literal["dynamic", "static"] = "dynamic"
    layers: int = 4
    latent: int = 8
    halvings: int = 2
    attention: Literal["all", "neighbours", "none"] = "all"
    spatial: bool = True
    frozen: bool = False
    draws: int = _DRAWS


class VAEProblem(DeclaredProblem, DrawsLatents):
    """Learn images with latent groups, and complete images of which any pixels are given."""

    name = "vae"
    summary = (
        "images from latent groups with attention over layers: sample, complete, and bound the likelihood"
    )
    config = VAEConfig
    noun = "images"
    defaults = {
        "latent": Defaults(
            LatentOptions(divergence_warmup=500, masked=0.5),
            TrainingConfig(
                steps=2000,
                evaluate_every=1000,
                batch=64,
                rate=1e-2,
                clip=100.0,
                ema=0.995,
                optimizer="adamax",
                floor=0.01,
            ),
        ),
        "denoiser": Defaults(
            DenoiserOptions(width=32, depth=4, heads=2, embedding="independent", sampling_steps=20),
            _SHORT,
        ),
        "encoder": Defaults(EncoderOptions(width=64, blocks=2, hidden=128), _SHORT),
        "regressor": Defaults(RegressorOptions(width=32, depth=4, heads=2, embedding="independent"), _SHORT),
        "vaeac": Defaults(
            VAEACOptions(width=128, depth=3),
            TrainingConfig(steps=1000, evaluate_every=1000, batch=64, rate=1e-3, clip=1.0, ema=0.99),
        ),
    }

    def check(self, config: Any) -> None:
        """Check the ranges of all options, and that the distribution of pixels fits them."""
        ranges: dict[str, tuple[float, float, float]] = {
            "layers": (config.layers, 1, 1000),
            "latent": (config.latent, 1, 16384),
            "halvings": (config.halvings, 0, 20),
            "draws": (config.draws, 1, 10**6),
        }
        check_ranges(self.name, ranges)
        for option, choices in (("data", _DATA), ("attention", _SPANS)):
            value = getattr(config, option)
            if value not in choices:
                raise ArgumentError(f"vae: {option}={value!r} is unknown.{suggest(str(value), choices)}")
        height, width, _ = _SIZES.get(config.data, (2**20, 2**20, 1))
        most = math.floor(math.log2(max(height, width)))
        if config.halvings > most:
            raise ArgumentError(
                f"vae: option halvings must be at most {most} for images of {height} x {width}, got "
                f"{config.halvings}."
            )
        if (config.data == "folder") != bool(config.images):
            raise ArgumentError("vae: --images names the folder of --data folder; give both, or neither.")
        if (
            isinstance(config.model, LatentOptions)
            and config.pixels == "binary"
            and config.model.reals == "levels"
        ):
            raise ArgumentError("vae: --model.reals levels is for --pixels levels; the pixels are binary.")
        super().check(config)

    def declare(self, config: VAEConfig) -> unn.FactorGraph:
        """The graph."""
        from .graph import declare

        attention = None if config.attention == "none" else config.attention
        return declare(self._shape(config), attention=attention, spatial=config.spatial, frozen=config.frozen)

    def observable(self, config: VAEConfig) -> tuple[str, ...]:
        """The pixels."""
        return ("x",)

    def generate(
        self, config: VAEConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Random training images, binarised."""
        import torch

        images = self._images(config).train
        rows = torch.randint(len(images), (count,), generator=generator)
        return {"x": self._pixels(config, images, rows, generator)}

    def observed(
        self, config: VAEConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Any subset of the pixels, or all rows above some one."""
        import torch

        graph = self.declare(config)
        anything = any_nodes(graph, count, generator, sizes)["x"]
        height = anything.shape[1]
        rows = torch.randint(height, (count, 1, 1), generator=generator)
        upper = (torch.arange(height)[None, :, None] < rows).expand(anything.shape)
        is_upper = torch.rand(count, 1, 1, generator=generator) < 0.5
        return {"x": torch.where(is_upper, upper, anything)}

    def test_queries(self, config: VAEConfig, count: int, generator: torch.Generator) -> dict[str, Query]:
        """No pixel given; and the upper half of held-out images."""
        import torch

        from unn import Partial

        images = self._images(config).test
        rows = torch.randperm(len(images), generator=generator)[:count]
        rows = rows.repeat(math.ceil(count / len(rows)))[:count]
        x = self._pixels(config, images, rows, generator, is_test=True)
        mask = torch.zeros(x.shape[:3], dtype=torch.bool)
        mask[:, : x.shape[1] // 2] = True
        return {"": Query({}), "upper half given": Query({"x": Partial(x, mask)}, {"x": x})}

    def metrics(self, config: VAEConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean absolute error of the pixels that are not given, and mean intensity of samples against that of
        the test images."""
        from unn import Partial

        x = values["x"]
        if query.truth:
            given = query.given["x"]
            assert isinstance(given, Partial)
            hidden = ~given.mask.expand(x.shape[:3])
            error = (x - query.truth["x"]).abs()[hidden]
            return {"error": float(error.double().mean())}
        test = self._images(config).test
        intensity = float(test.double().mean() / 255)
        mean = float(x.double().mean()) if config.pixels == "binary" else float((x.double().mean() + 1) / 2)
        return {"excess_intensity": mean - intensity}

    def model_metrics(self, config: VAEConfig, network: nn.Module, count: int, seed: int) -> dict[str, float]:
        """The evidence lower bound and the importance-sampled log-likelihood of held-out images in nats (with
        levels also in bits for each channel), and divergence and active units of each layer."""
        import torch

        import unn

        if not isinstance(network, unn.AttentiveVAE):
            return {}
        images = self._images(config).test
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(images), generator=generator)[:count]
        x = self._pixels(config, images, rows, generator, is_test=True)
        summary = network.bound_summary({"x": x}, generator=generator)
        estimate = network.log_likelihood({"x": x}, config.draws, generator=generator)
        value = float(estimate.value.mean())
        spread = float(estimate.value.std(correction=0)) / len(x) ** 0.5
        figures = {"bound": summary.bound, "log_likelihood": value}
        if len(x) > 1:
            # of a single image it is unknown
            figures["log_likelihood_error"] = spread
        if network.observed.levels:
            # a density of normal numbers is no probability of levels
            figures["bits_per_dimension"] = -value / math.log(2) / x[0].numel()
        for layer, (divergence, active) in enumerate(zip(summary.divergences, summary.active, strict=True)):
            figures[f"divergence_{layer + 1}"] = float(divergence)
            figures[f"active_{layer + 1}"] = float(active)
        return figures

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """An image as text, dark pixels as dark characters."""
        x = values["x"][k]
        grey = x if run.config.pixels == "binary" else (x.mean(-1) + 1) / 2
        shades = " .:-=+*#%@"
        grey = grey.clamp(0, 1)
        return ["".join(shades[round(float(pixel) * 9)] * 2 for pixel in row) for row in grey]

    def draw_latents(self, run: Trained, request: DrawImages) -> Answer:
        """Draw reconstructions, completions, samples, interpolations or attention of a run."""
        import torch

        import unn
        from unn.draw import save_figure

        from . import pictures

        model = run.network
        if not isinstance(model, unn.AttentiveVAE):
            raise UnnError(f"engine {run.config.engine!r} of this run has no latent groups to draw.")
        generator = torch.Generator().manual_seed(request.seed)
        count = request.count
        SamplingOptions(seed=request.seed).check()
        query = self.test_queries(run.config, 2 * count, generator)["upper half given"]
        x, given = query.truth["x"], query.given["x"]
        assert isinstance(given, unn.Partial)
        if request.of == "reconstructions":
            figure = pictures.reconstructions(model, x[:count])
        elif request.of == "completions":
            part = unn.Partial(given.value[:count], given.mask[:count])
            figure = pictures.completions(model, part, 3, request.seed)
        elif request.of == "temperatures":
            temperatures = request.temperatures or TEMPERATURES
            figure = pictures.temperatures(model, temperatures, count, request.seed)
        elif request.of == "interpolations":
            pairs = min(4, count)
            figure = pictures.interpolations(model, x[:pairs], x[pairs : 2 * pairs], count)
        elif request.of == "attention":
            figure = pictures.attention(model, x)
        else:
            figure = pictures.divergences(model, x, request.seed)
        save_figure(figure, request.draw)
        return Answer((f"{request.of} drawn in {request.draw}",), {"drawn": str(request.draw)})

    def task(self, config: VAEConfig) -> Task:
        """Images of the data; checksums detect a folder that has changed since a run was made."""
        from unn.runs import tensor_digest

        task = super().task(config)
        images = self._images(config)
        task.facts = {
            "data": {
                "training images": tensor_digest(images.train),
                "test images": tensor_digest(images.test),
            }
        }
        return task

    def _images(self, config: VAEConfig) -> Images:
        from .images import load_images

        return load_images(config.data, config.images)

    def _shape(self, config: VAEConfig) -> Shape:
        from .graph import Shape

        size = _SIZES.get(config.data) or self._images(config).size
        channels = 0 if config.pixels == "binary" else size[2]
        return Shape(size[0], size[1], channels, config.layers, config.latent, config.halvings)

    def _pixels(
        self,
        config: VAEConfig,
        images: Tensor,
        rows: Tensor,
        generator: torch.Generator,
        is_test: bool = False,
    ) -> Tensor:
        """Pixels of some images, shape ``(count, height, width)``, with levels also channels."""
        import torch

        x = images[rows]
        if config.pixels == "levels":
            return x / 127.5 - 1
        intensity = x.mean(-1) / 255
        if config.binarisation == "dynamic":
            return (torch.rand(intensity.shape, generator=generator) < intensity).float()
        thresholds = _fixed_thresholds(tuple(images.shape[:3]), _BINARISED_SEED + is_test)
        return (thresholds[rows] < intensity).float()


@functools.lru_cache(4)
def _fixed_thresholds(shape: tuple[int, ...], seed: int) -> Tensor:
    """Thresholds of static binarisation."""
    import torch

    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))
