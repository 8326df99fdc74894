"""The digits problem on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unn.errors import DataError, ObservationError, suggest
from unn.extending import (
    Answer,
    CanSample,
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    HasDemo,
    Query,
    RegressorOptions,
    Trained,
    TrainingConfig,
    VAEACOptions,
    build_model,
    check_ranges,
)

from .config import DigitsConfig

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    import unn
    from unn.training import Task

    from .data import Digits

LABELS = 10

_STEPS = TrainingConfig(steps=2000, evaluate_every=2000, batch=64, rate=2e-3, clip=1.0, ema=0.99)
"""Training of the engines that sample, a few minutes on one core."""

_IMAGES = {"gamma": 1.0}
"""Weight of images for these engines; with 0.1 the denoiser had not learned them in 1,500 steps."""

_SAMPLED = 256
"""Number of test queries of models that sample."""


class DigitsProblem(DeclaredProblem, HasDemo):
    """Handwritten digits: labels given images, and images given labels.

    Args:
        digits: images; by default loaded according to the configuration.
    """

    name = "digits"
    summary = "handwritten digits: classify images and draw images of classes with the same weights"
    config = DigitsConfig
    noun = "digits"
    monitor, larger_is_better = "test_accuracy", True
    defaults = {
        "descent": Defaults(DescentOptions(), TrainingConfig(epochs=10, batch=64, rate=2e-3)),
        "untied": Defaults(DescentOptions(), TrainingConfig(epochs=10, batch=64, rate=2e-3), {"gamma": 0.0}),
        "denoiser": Defaults(
            DenoiserOptions(depth=4, embedding="array", self_conditioning="none", sampling_steps=50),
            _STEPS,
            _IMAGES,
        ),
        "regressor": Defaults(RegressorOptions(depth=4, embedding="array"), _STEPS, _IMAGES),
        "vaeac": Defaults(VAEACOptions(width=128, depth=3), _STEPS, _IMAGES),
    }

    def __init__(self, digits: Digits | None = None) -> None:
        self._digits = digits

    def images(self, config: DigitsConfig) -> Digits:
        """Images and labels of the configuration.

        Raises:
            DataError: if files are missing or corrupt.
        """
        from .data import load_digits

        return self._digits or load_digits(config.data)

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        ranges: dict[str, tuple[float, float, float]] = {
            "gamma": (config.gamma, 0, 1e6),
            "channels": (config.channels, 1, 100_000),
            "translate": (config.translate, 0, 28),
        }
        check_ranges("digits", ranges)
        super().check(config)

    def earlier_config(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Configurations of runs without engines had the options of coordinate descent among those of the
        problem.

        Raises:
            DataError: for a run in which the label alone began at another value than zero.
        """
        content = {"translate": 0, **content}
        if "engine" in content or "iterations" not in content:
            return super().earlier_config(content)
        initial = content.get("initial", "zero")
        if initial != "zero" and not content.get("untied"):
            raise DataError(
                f"digits: the run has initial={initial!r} for the label alone, as in an earlier version; now "
                f"all variables that are not given begin so. Train again with --initial {initial}, or open "
                "the run with the version that made it."
            )
        own: dict[str, Any] = {
            name: content[name] for name in ("data", "gamma", "channels", "translate") if name in content
        }
        model: dict[str, Any] = {
            name: content[name] for name in ("iterations", "initial", "dropout") if name in content
        }
        model |= {"sweep": content.get("order", "forward-backward"), "penalty": 1.0}
        engine = "untied" if content.get("untied") else "descent"
        training = content.get("training", {})
        return super().earlier_config({**own, "engine": engine, "model": model, "training": training})

    def declare(self, config: DigitsConfig) -> unn.FactorGraph:
        """The graph for images of 8x8 (embedded) or 28x28 pixels (MNIST)."""
        from .network import declare

        size = 28 if config.data == "mnist" else 8
        return declare(size, size, config.channels)

    def network(self, config: Any, facts: Mapping[str, Any]) -> nn.Module:
        """The model of the engine, for images of the size of the data.

        Raises:
            DataError: if the size of the images of the run is not two numbers.
        """
        from .network import declare

        shape = facts.get("image_shape")
        if not (isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) for n in shape)):
            raise DataError(f"digits: the run's image_shape must be [rows, columns], got {shape!r}.")
        engine = self.engine_of(config)
        graph = self.graph_for(declare(shape[0], shape[1], config.channels), config, engine)
        return build_model(engine, graph, config.model, {})

    def observable(self, config: DigitsConfig) -> tuple[str, ...]:
        """Image and label; H1 and H2 are latent."""
        return ("image", "label")

    def task(self, config: Any) -> Task:
        """Training on the training images, with the accuracy on the test images."""
        task = super().task(config)
        digits = self.images(config)
        task.facts = {"image_shape": list(digits.image_shape), "data": digits.checksums(config.data)}
        return task

    def training_set(self, config: DigitsConfig) -> Mapping[str, Tensor]:
        """The training images with their labels."""
        from .network import one_hot

        digits = self.images(config)
        return {"image": digits.train_images, "label": one_hot(digits.train_labels)}

    def augment(
        self,
        config: DigitsConfig,
        values: Mapping[str, Tensor],
        observed: Mapping[str, Tensor],
        generator: torch.Generator,
    ) -> Mapping[str, Tensor]:
        """Images that are given, moved at random; those that are asked for stay where they are."""
        from .data import move

        if not config.translate or "image" not in observed:
            return values
        return {**values, "image": move(values["image"], config.translate, generator)}

    def generate(
        self, config: DigitsConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Random training images with their labels."""
        import torch

        values = self.training_set(config)
        chosen = torch.randint(len(values["label"]), (count,), generator=generator)
        return {name: x[chosen] for name, x in values.items()}

    def observed(
        self, config: DigitsConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """The image."""
        import torch

        return {"image": torch.ones(1, 1, 1, 1, dtype=torch.bool)}

    def training_queries(
        self, config: DigitsConfig, observed: Mapping[str, Tensor]
    ) -> Sequence[tuple[float, Mapping[str, Tensor]]]:
        """The label given the image, and with weight gamma the image given the label."""
        import torch

        return [(1.0, observed), (config.gamma, {"label": torch.ones(1, dtype=torch.bool)})]

    def test_count(self, config: DigitsConfig, network: Any) -> int:
        """All test images, or 256 for models that sample."""
        count = len(self.images(config).test_labels)
        return min(count, _SAMPLED) if isinstance(network, CanSample) else count

    def test_queries(self, config: DigitsConfig, count: int, generator: torch.Generator) -> dict[str, Query]:
        """Labels of test images; and images of labels, ten classes in turn, if that direction is trained."""
        import torch

        from .network import one_hot

        digits = self.images(config)
        chosen = torch.arange(count) % len(digits.test_labels)
        labels = one_hot(digits.test_labels[chosen])
        queries = {"": Query({"image": digits.test_images[chosen]}, {"label": labels})}
        if config.gamma:
            queries["images"] = Query({"label": one_hot(torch.arange(count) % LABELS)})
        return queries

    def metrics(self, config: DigitsConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Accuracy of labels; for images, the share that a support vector machine recognises, and their
        spread.

        The spread within classes is relative to that of test images: one prototype for each class is
        recognised as well as a sample of the class, and has no spread. It is left out where no class has two
        images.
        """
        from .network import classifier_of, spread_ratio

        labels = values["label"].argmax(1)
        if "image" in query.given:
            return {"test_accuracy": float((labels == query.truth["label"].argmax(1)).double().mean())}
        digits = self.images(config)
        # models that do not sample draw one image for each class
        images, rows = values["image"].cpu().flatten(1).unique(dim=0, return_inverse=True)
        predictions = classifier_of(digits).predict(images.numpy())[rows.numpy()]
        recognised = float((predictions == labels.cpu().numpy()).mean())
        if int(labels.bincount().max()) < 2:
            return {"recognised": recognised}
        return {"recognised": recognised, "spread": spread_ratio(values["image"].cpu(), labels.cpu(), digits)}

    def read_value(self, run: Trained, name: str, text: str) -> Tensor | unn.Partial:
        """``label=3``, ``image=test:17`` (an image of the test set) or ``image=FILE.npy`` with pixels in [-1,
        1]."""
        import torch

        if name == "label":
            if text not in [str(k) for k in range(LABELS)]:
                raise ObservationError(f"--given label={text}: a label is a digit from 0 to 9.")
            return torch.eye(LABELS)[int(text)][None]
        if name == "image":
            return _read_image(text, run)
        raise ObservationError(
            f"--given {name}: only image and label can be given here.{suggest(name, ('image', 'label'))}"
        )

    def show_value(self, run: Trained, name: str, value: Tensor) -> str | Figure:
        """The most probable labels, or the image."""
        from unn.draw import draw_images

        if name == "image":
            return draw_images(value)
        if name == "label":
            best = value[0].argsort(descending=True)[:3].tolist()
            return ", ".join(f"{k} ({float(value[0, k]):.1%})" for k in best)
        return super().show_value(run, name, value)

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """The label of a sample."""
        return [f"sample {k + 1}: label {int(values['label'][k].argmax())}"]

    def picture(self, run: Trained, values: Mapping[str, Tensor], given: Any) -> Figure:
        """The images of the samples with their labels."""
        from unn.draw import draw_images

        return draw_images(values["image"], [str(int(label)) for label in values["label"].argmax(1)])

    def evaluate(self, run: Trained, iterations: tuple[int, ...]) -> Answer:
        """For coordinate descent the accuracy, and how many of the ten prototypes are recognised; else the
        metrics."""
        from unn import DescentModel
        from unn.draw import draw_images, save_figure
        from unn.runs import PLOTS, make_folder

        from .network import accuracy, prototypes, recognise
        from .untied import UntiedDigits

        if not isinstance(run.network, DescentModel | UntiedDigits):
            return super().evaluate(run, iterations)
        digits = self.images(run.config)
        trained = run.config.model.iterations
        lines, accuracies = [], {}
        for k in iterations or (trained,):
            accuracies[k] = accuracy(run.network, digits.test_images, digits.test_labels, k)
            lines.append(f"test accuracy {accuracies[k]:.2%} with {k} iterations (trained with {trained})")
        data: dict[str, Any] = {"test_accuracy": accuracies}
        if isinstance(run.network, DescentModel):
            # several numbers are compared by their accuracy alone
            rounds = iterations[0] if iterations and len(iterations) == 1 else trained
            drawn = prototypes(run.network, rounds)
            recognition = recognise(run.network, digits, drawn, rounds)
            picture = run.folder / PLOTS / "prototypes.png"
            lines += _recognition_lines(
                recognition.network, recognition.classifier, recognition.classifier_accuracy
            )
            try:
                make_folder(picture.parent)
                save_figure(draw_images(drawn, [str(k) for k in range(LABELS)]), picture)
                lines.append(f"prototypes drawn in {picture}")
            except DataError as error:
                lines.append(f"prototypes not drawn: {error}")
            data |= {
                "recognised_by_network": recognition.network,
                "recognised_by_classifier": recognition.classifier,
            }
        return Answer(tuple(lines), data)

    def demo(self, folder: Path, progress: bool) -> Answer:
        """Train on the embedded images, classify, draw prototypes."""
        import torch

        import unn
        from unn.draw import draw_energy, draw_graph, draw_images, save_collage, save_figure
        from unn.runs import make_folder

        from .data import load_digits
        from .network import accuracy, prototypes, recognise

        make_folder(folder)
        # images this small gain nothing from more threads, which wait for one another beside other programs
        config: Any = self.config_for("descent")(
            model=DescentOptions(dropout=0.3),
            training=TrainingConfig(epochs=30, batch=64, rate=2e-3, threads=1),
        )
        digits = load_digits(config.data)
        # well under a minute on two cores
        network, _ = train(config, digits, progress)
        assert isinstance(network, unn.DescentModel)
        network.cpu()
        right = accuracy(network, digits.test_images, digits.test_labels)
        drawn = prototypes(network)
        recognition = recognise(network, digits, drawn)
        with torch.no_grad():
            solution = unn.infer(
                network.graph, {"image": digits.test_images[:32]}, order=["H1", "H2", "label"], iterations=8
            )
        assert solution.energy is not None
        pictures = {
            "prototypes.png": draw_images(drawn, [str(k) for k in range(LABELS)]),
            "energy.png": draw_energy(solution.energy, solution.schedule),
            "graph.png": draw_graph(network.graph, given=["image"]),
        }
        for name, figure in pictures.items():
            save_figure(figure, folder / name)
        save_collage(
            [pictures["graph.png"], pictures["prototypes.png"], pictures["energy.png"]],
            folder / "overview.png",
        )
        lines = [
            f"forward: test accuracy {right:.2%} on {len(digits.test_labels)} images of 8x8 pixels",
            *_recognition_lines(recognition.network, recognition.classifier, recognition.classifier_accuracy),
            "pictures: " + ", ".join(str(folder / name) for name in (*pictures, "overview.png")),
        ]
        return Answer(
            tuple(lines),
            {
                "test_accuracy": right,
                "recognised_by_network": recognition.network,
                "recognised_by_classifier": recognition.classifier,
            },
        )


def train(
    config: Any, digits: Digits | None = None, progress: bool = False
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Train from scratch, in memory; deterministic under the seed of the configuration on the CPU.

    Args:
        config: configuration of a run, from ``DigitsProblem().config_for(engine)``.
        digits: images; by default loaded according to the configuration.
        progress: show a progress bar.

    Returns:
        The network and the metrics of each epoch.
    """
    import torch

    from unn.training import fit

    problem = DigitsProblem(digits)
    problem.check(config)
    task = problem.task(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        network = problem.network(config, task.facts)
        problem.prepare(config, network)
    return network, fit(network, task, config.training, progress=progress).history


def _recognition_lines(network: int, classifier: int, real: float) -> list[str]:
    return [
        f"reverse: {network}/10 prototypes recognised by the network itself",
        f"reverse: {classifier}/10 prototypes recognised by a support vector machine trained on the real "
        f"images ({real:.2%} on real test images)",
    ]


def _read_image(text: str, run: Trained) -> Tensor:
    from unn.cli.values import read_array

    from .data import load_digits

    if text.startswith("test:"):
        digits: Digits = load_digits(run.config.data)
        number = text.removeprefix("test:")
        if not (number.isascii() and number.isdecimal() and len(number) < 10) or int(number) >= len(
            digits.test_images
        ):
            raise ObservationError(
                f"--given image={text}: test images go from test:0 to test:{len(digits.test_images) - 1}."
            )
        return digits.test_images[int(number)][None]
    if not text.endswith(".npy"):
        raise ObservationError(
            f"--given image={text}: give test:NUMBER, or a .npy file with an array of pixels in [-1, 1]."
        )
    array = read_array(f"image={text}", text)
    shape = tuple(run.facts["image_shape"])
    if tuple(array.shape) != shape:
        raise ObservationError(f"--given image={text}: shape {tuple(array.shape)}, expected {shape}.")
    return array[None, None]
