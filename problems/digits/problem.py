"""The digits problem on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unn.errors import DataError, DeclarationError, ObservationError, suggest
from unn.extending import Answer, HasDemo, Problem, Trained
from unn.training.options import TrainingConfig

from .config import DigitsConfig, check_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    import unn

    from .data import Digits
    from .network import DigitsTask

LABELS = 10
# well under a minute on two cores
DEMO = DigitsConfig(dropout=0.3, training=TrainingConfig(epochs=30, batch=64, rate=2e-3))


class DigitsProblem(Problem, HasDemo):
    """Handwritten digits: classify images, draw prototypes of labels."""

    name = "digits"
    summary = "handwritten digits: classify images and draw prototypes of classes with the same weights"
    config = DigitsConfig

    def check(self, config: DigitsConfig) -> None:
        """Check the ranges of all options."""
        check_config(config)
        if config.untied and config.gamma:
            raise DeclarationError("digits: the untied baseline has no reverse direction; set gamma to 0.")

    def declare(self, config: DigitsConfig) -> unn.FactorGraph:
        """The graph for images of 8x8 (embedded) or 28x28 pixels (MNIST)."""
        from .network import declare

        size = 28 if config.data == "mnist" else 8
        return declare(size, size, config.channels)

    def task(self, config: DigitsConfig) -> DigitsTask:
        """Load the images."""
        from .network import DigitsTask

        return DigitsTask(config)

    def network(self, config: DigitsConfig, facts: Mapping[str, Any]) -> nn.Module:
        """Both directions of one graph, or the untied baseline."""
        from .network import build

        shape = facts.get("image_shape")
        if not (isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) for n in shape)):
            raise DataError(f"digits: the run's image_shape must be [rows, columns], got {shape!r}.")
        return build(config, (shape[0], shape[1]))

    def iterations(self, run: Trained) -> int:
        """Number of rounds in training."""
        return int(run.config.iterations)

    def order(self, run: Trained, given: Mapping[str, str]) -> unn.Order | list[str]:
        """Order away from the given variable, and back if the network was trained with forward-backward."""
        import unn

        names = [name for name in (["H1", "H2", "label", "image"] if "image" in given else ["H2", "H1", "image", "label"]) if name not in given]
        return unn.ForwardBackward(names) if run.config.order == "forward-backward" and len(names) > 2 else names

    def read_value(self, run: Trained, name: str, text: str) -> Tensor:
        """``label=3``, ``image=test:17`` (an image of the test set) or ``image=FILE.npy`` with pixels in [-1, 1]."""
        import torch

        if name == "label":
            if text not in [str(k) for k in range(LABELS)]:
                raise ObservationError(f"--given label={text}: a label is a digit from 0 to 9.")
            return torch.eye(LABELS)[int(text)][None]
        if name == "image":
            return _read_image(text, run)
        raise ObservationError(f"--given {name}: only image and label can be given here.{suggest(name, self.graph(run.network).variables)}")

    def show_value(self, run: Trained, name: str, value: Tensor) -> str | Figure:
        """The most probable labels, or the image."""
        from unn.draw import draw_images

        if name == "image":
            return draw_images(value)
        if name == "label":
            best = value[0].argsort(descending=True)[:3].tolist()
            return ", ".join(f"{k} ({float(value[0, k]):.1%})" for k in best)
        return super().show_value(run, name, value)

    def graph(self, network: nn.Module) -> unn.FactorGraph:
        """Graph of both directions."""
        from .network import DigitsNetwork

        if not isinstance(network, DigitsNetwork):
            raise ObservationError("this run contains the untied baseline, which has one direction only; use unn evaluate.")
        return network.graph

    def evaluate(self, run: Trained, iterations: tuple[int, ...]) -> Answer:
        """Accuracy, and how many of the ten prototypes are recognised."""
        from unn.draw import draw_images, save_figure
        from unn.runs import PLOTS, make_folder

        from .network import DigitsNetwork, DigitsTask, accuracy, prototypes, recognise

        digits = DigitsTask(run.config).digits
        network: Any = run.network
        lines, accuracies = [], {}
        for k in iterations or (run.config.iterations,):
            accuracies[k] = accuracy(network, digits.test_images, digits.test_labels, k)
            lines.append(f"test accuracy {accuracies[k]:.2%} with {k} iterations (trained with {run.config.iterations})")
        data: dict[str, Any] = {"test_accuracy": accuracies}
        if isinstance(network, DigitsNetwork):
            drawn = prototypes(network)
            recognition = recognise(network, digits, drawn)
            picture = run.folder / PLOTS / "prototypes.png"
            lines += _recognition_lines(recognition.network, recognition.classifier, recognition.classifier_accuracy)
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
        from .network import DigitsNetwork, accuracy, prototypes, recognise, train

        make_folder(folder)
        digits = load_digits(DEMO.data)
        network, _ = train(DEMO, digits, progress)
        assert isinstance(network, DigitsNetwork)
        network.cpu()
        right = accuracy(network, digits.test_images, digits.test_labels)
        drawn = prototypes(network)
        recognition = recognise(network, digits, drawn)
        with torch.no_grad():
            solution = unn.infer(network.graph, {"image": digits.test_images[:32]}, order=["H1", "H2", "label"], iterations=8)
        assert solution.energy is not None
        pictures = {
            "prototypes.png": draw_images(drawn, [str(k) for k in range(LABELS)]),
            "energy.png": draw_energy(solution.energy, solution.schedule),
            "graph.png": draw_graph(network.graph, given=["image"]),
        }
        for name, figure in pictures.items():
            save_figure(figure, folder / name)
        save_collage([pictures["graph.png"], pictures["prototypes.png"], pictures["energy.png"]], folder / "overview.png")
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


def _recognition_lines(network: int, classifier: int, real: float) -> list[str]:
    return [
        f"reverse: {network}/10 prototypes recognised by the network itself",
        f"reverse: {classifier}/10 prototypes recognised by a support vector machine trained on the real images ({real:.2%} on real test images)",
    ]


def _read_image(text: str, run: Trained) -> Tensor:
    from unn.cli.values import read_array

    from .data import load_digits

    if text.startswith("test:"):
        digits: Digits = load_digits(run.config.data)
        number = text.removeprefix("test:")
        if not (number.isascii() and number.isdecimal() and len(number) < 10) or int(number) >= len(digits.test_images):
            raise ObservationError(f"--given image={text}: test images go from test:0 to test:{len(digits.test_images) - 1}.")
        return digits.test_images[int(number)][None]
    if not text.endswith(".npy"):
        raise ObservationError(f"--given image={text}: give test:NUMBER, or a .npy file with an array of pixels in [-1, 1].")
    array = read_array(f"image={text}", text)
    shape = tuple(run.facts["image_shape"])
    if tuple(array.shape) != shape:
        raise ObservationError(f"--given image={text}: shape {tuple(array.shape)}, expected {shape}.")
    return array[None, None]
