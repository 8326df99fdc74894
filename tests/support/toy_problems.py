"""Two small problems without files, for the tests of the command line; importing them does not load torch.

They are installed wherever a folder that ``write_distribution`` filled is on the path.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unn.errors import DeclarationError
from unn.extending import (
    Answer,
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    HasDemo,
    Query,
    TrainingConfig,
    check_ranges,
)

SIZE, LABELS, TRAIN, TEST = 8, 10, 1440, 60


def write_distribution(folder):
    """Write the metadata of a distribution with these problems into a folder."""
    metadata = Path(folder) / "toy_problems-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-problems\nVersion: 0.1\n")
    kinds = (PatternsProblem, SumsProblem)
    lines = [f"{kind.name} = support.toy_problems:{kind.__name__}" for kind in kinds]
    (metadata / "entry_points.txt").write_text("\n".join(["[unn.problems]", *lines, ""]))
    return folder


# -- pictures and their labels, by coordinate descent --------------------------------------------------------


@dataclass(frozen=True)
class PatternsConfig:
    """Options of the problem of patterns.

    Attributes:
        data: Pictures: "stripes" or "checks".
        gamma: Weight of the loss of the picture given its label; 0 trains the classifier only.
        channels: Number of hidden units.
    """

    data: Literal["stripes", "checks"] = "stripes"
    gamma: float = 0.1
    channels: int = 8


class PatternsProblem(DeclaredProblem, HasDemo):
    """Ten patterns with noise: labels given pictures, and pictures given labels."""

    name = "patterns"
    summary = "ten noisy patterns: classify pictures and draw pictures of classes"
    config = PatternsConfig
    noun = "pictures"
    defaults = {
        "descent": Defaults(DescentOptions(), TrainingConfig(epochs=10, batch=64, rate=2e-3)),
        "denoiser": Defaults(DenoiserOptions(width=8, depth=2, heads=2, embedding="array")),
    }

    def check(self, config):
        check_ranges(self.name, {"gamma": (config.gamma, 0, 1e6), "channels": (config.channels, 1, 1000)})
        super().check(config)

    def declare(self, config):
        import unn
        from factors import Multilinear

        g = unn.FactorGraph("patterns", row=SIZE, column=SIZE, hidden=config.channels, label=LABELS)
        image = g.variable("image", "row column", unn.SignedEntropy())
        H1 = g.variable("H1", "hidden", unn.SignedEntropy())
        label = g.variable("label", "label", unn.Entropy())
        W, V = g.parameter("W", "hidden row column"), g.parameter("V", "label hidden")
        b, c = g.parameter("b", "label"), g.parameter("c", "hidden")
        g.factor(Multilinear(H1["h"], W["h i j"], image["i j"]))
        g.factor(Multilinear(label["y"], V["y h"], H1["h"]))
        g.factor(Multilinear(b["y"], label["y"]))
        g.factor(Multilinear(c["h"], H1["h"]))
        return g

    def observable(self, config):
        return ("image", "label")

    def pictures(self, config, count, generator):
        import torch

        i, j = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        phase = torch.arange(LABELS).view(-1, 1, 1)
        wave = i * phase if config.data == "stripes" else (i + j) * phase
        patterns = 0.8 * torch.cos(wave * 0.6 + phase)
        labels = torch.randint(LABELS, (count,), generator=generator)
        noise = 0.2 * torch.rand(count, SIZE, SIZE, generator=generator) - 0.1
        return {"image": patterns[labels] + noise, "label": torch.eye(LABELS)[labels]}

    def generate(self, config, count, generator, sizes):
        return self.pictures(config, count, generator)

    def training_set(self, config):
        import torch

        return self.pictures(config, TRAIN, torch.Generator().manual_seed(0))

    def task(self, config):
        from unn.runs import tensor_digest

        task = super().task(config)
        data = {name: tensor_digest(x) for name, x in self.training_set(config).items()}
        task.facts = {"image_shape": [SIZE, SIZE], "data": data}
        return task

    def observed(self, config, count, generator, sizes):
        import torch

        return {"image": torch.ones(1, 1, 1, dtype=torch.bool)}

    def training_queries(self, config, observed):
        import torch

        return [(1.0, observed), (config.gamma, {"label": torch.ones(1, dtype=torch.bool)})]

    def test_count(self, config, network):
        return TEST

    def test_queries(self, config, count, generator):
        values = self.pictures(config, count, generator)
        return {"": Query({"image": values["image"]}, values)}

    def metrics(self, config, query, values):
        right = values["label"].argmax(1) == query.truth["label"].argmax(1)
        return {"test_accuracy": float(right.double().mean())}

    def show_value(self, run, name, value):
        from unn.draw import draw_images

        return draw_images(value[:, None]) if name == "image" else super().show_value(run, name, value)

    def demo(self, folder, progress):
        return Answer(("nothing to see",), {})


# -- running sums, by a denoiser -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SumsConfig:
    """Options of the sums problem.

    Attributes:
        length: Number of terms.
        intermediate: Declare the largest term so far as a variable.
        order: Interactions of the sums: "chain" or "none".
        observe: Observed in training: "u", the terms, or "any" entries.
        examples: Number of training examples; 0 for an infinite stream.
    """

    length: int = 5
    intermediate: bool = True
    order: Literal["chain", "none"] = "chain"
    observe: str = "u"
    examples: int = 0


class SumsProblem(DeclaredProblem):
    """The running sums of a list of numbers."""

    name = "sums"
    summary = "the running sums of a list"
    config = SumsConfig
    noun = "lists"
    defaults = {
        "denoiser": Defaults(
            DenoiserOptions(prediction="x0", noise="linear"),
            TrainingConfig(steps=2000, evaluate_every=2000, batch=16, rate=2e-3, clip=1.0, ema=0.99),
        )
    }

    def check(self, config):
        check_ranges(self.name, {"length": (config.length, 1, 1000), "examples": (config.examples, 0, 10**9)})
        if config.observe not in ("u", "any"):
            raise DeclarationError(f"sums: observe is u or any, got {config.observe!r}.")
        super().check(config)

    def declare(self, config):
        import unn
        from factors import Clique, Depends

        g = unn.FactorGraph("sums", n=config.length)
        u, s = g.variable("u", "n", unn.SquaredNorm()), g.variable("s", "n", unn.SquaredNorm())
        g.factor(Depends(s["i"], u["j"], ordered="i j"))
        if config.intermediate:
            g.factor(Depends(g.variable("m", "n", unn.SquaredNorm())["i"], u["j"], ordered="i j"))
        if config.order == "chain":
            g.factor(Clique(s["i+1"], s["i"], each="i", ordered="i"))
        return g

    def generate(self, config, count, generator, sizes):
        import torch

        u = torch.randn(count, config.length, generator=generator)
        values = {"u": u, "s": u.cumsum(1)}
        return values | ({"m": u.cummax(1).values} if config.intermediate else {})

    def observed(self, config, count, generator, sizes):
        import torch

        if config.observe == "u":
            return {"u": torch.ones(1, 1, dtype=torch.bool)}
        names = self.declare(config).variables
        return {name: torch.rand(count, config.length, generator=generator) < 0.5 for name in names}

    def metrics(self, config, query, values):
        return {"rmse": float((values["s"] - values["u"].cumsum(1)).square().mean().sqrt())}
