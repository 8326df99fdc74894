"""The digits problem on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import unn
from unn import runs
from unn.collage import save_collage
from unn.draw import draw_energy, draw_graph, draw_images
from unn.errors import DataError, ObservationError, suggest
from unn.problem import Answer, Problem

from .digits import (
    LABELS,
    DigitsConfig,
    DigitsNetwork,
    Epoch,
    accuracy,
    build,
    check_config,
    prototypes,
    recognise,
    train,
)
from .digits_data import Digits, load_digits
from .digits_untied import UntiedDigits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# well under a minute on two cores
DEMO = DigitsConfig(epochs=30, dropout=0.3)


class DigitsTask(Problem):
    """Handwritten digits: classify images, draw prototypes of labels."""

    name = "digits"
    summary = "handwritten digits: classify images and draw prototypes of classes with the same weights"
    config = DigitsConfig

    def train(self, config: DigitsConfig, folder: Path, progress: bool) -> Answer:
        check_config(config)
        digits = load_digits(config.data)
        runs.write_config(folder, self.name, config, {"image_shape": list(digits.image_shape)})

        def report(entry: Epoch) -> None:
            runs.append_metrics(folder, {"epoch": entry.epoch, "loss": entry.loss, "test_accuracy": entry.test_accuracy, "seconds": entry.seconds})

        trained = train(config, digits, report, progress)
        runs.save_weights(folder, trained.network)
        last = trained.history[-1]
        seconds = sum(entry.seconds for entry in trained.history)
        lines = [
            f"trained {config.epochs} epochs in {seconds:.0f} s of training steps: loss {last.loss:.4f}",
            f"test accuracy {last.test_accuracy:.2%}",
            f"run folder {folder}",
        ]
        return Answer(tuple(lines), {"folder": str(folder), "loss": last.loss, "test_accuracy": last.test_accuracy, "seconds": seconds})

    def evaluate(self, folder: Path, iterations: Sequence[int]) -> Answer:
        network, config, digits = _load(folder)
        lines, found = [], {}
        for k in iterations or [config.iterations]:
            found[k] = accuracy(network, digits.test_images, digits.test_labels, k)
            lines.append(f"test accuracy {found[k]:.2%} with {k} iterations (trained with {config.iterations})")
        data: dict[str, Any] = {"test_accuracy": found}
        if isinstance(network, DigitsNetwork):
            drawn = prototypes(network)
            seen = recognise(network, digits, drawn)
            draw_images(drawn, [str(k) for k in range(LABELS)]).savefig(folder / "prototypes.png", dpi=120)
            lines += _recognition_lines(seen.network, seen.classifier, seen.classifier_accuracy)
            lines.append(f"prototypes drawn in {folder / 'prototypes.png'}")
            data |= {"recognised_by_network": seen.network, "recognised_by_classifier": seen.classifier}
        return Answer(tuple(lines), data)

    def infer(self, folder: Path, given: Mapping[str, str], want: Sequence[str], iterations: int | None, out: Path | None) -> Answer:
        network, config, digits = _load(folder)
        if not isinstance(network, DigitsNetwork):
            raise ObservationError(f"{folder} holds the untied baseline, which has one direction only; use unn evaluate.")
        graph = network.graph
        observed = {name: _read_value(graph, name, text, digits) for name, text in given.items()}
        order = _order_for(given, config)
        found = unn.infer(graph, observed, order=order, iterations=iterations or config.iterations, want=want)
        assert found.energy is not None
        lines = [f"{found.message}", f"energy {float(found.energy[-1, 0]):.4f} after {found.updates} updates"]
        data: dict[str, Any] = {"status": found.status.value, "energy": found.energy[:, 0].tolist()}
        for name in want:
            value = found[name].detach()
            data[name] = value[0].tolist()
            if name == "label":
                best = value[0].argsort(descending=True)[:3].tolist()
                lines.append("label: " + ", ".join(f"{k} ({float(value[0, k]):.1%})" for k in best))
            elif name == "image":
                path = out or folder / f"image-{'-'.join(f'{n}-{Path(t).name}' for n, t in given.items())}.png"
                _save(draw_images(value), path)
                lines.append(f"image: drawn in {path}")
            else:
                lines.append(f"{name}: shape {tuple(value.shape[1:])}, from {float(value.min()):.3f} to {float(value.max()):.3f}")
        return Answer(tuple(lines), data)

    def demo(self, folder: Path, progress: bool) -> Answer:
        folder.mkdir(parents=True, exist_ok=True)
        digits = load_digits(DEMO.data)
        network = train(DEMO, digits, progress=progress).network
        assert isinstance(network, DigitsNetwork)
        right = accuracy(network, digits.test_images, digits.test_labels)
        drawn = prototypes(network)
        seen = recognise(network, digits, drawn)
        with torch.no_grad():
            found = unn.infer(network.graph, {"image": digits.test_images[:32]}, order=["H1", "H2", "label"], iterations=8)
        assert found.energy is not None
        pictures = {
            "prototypes.png": draw_images(drawn, [str(k) for k in range(LABELS)]),
            "energy.png": draw_energy(found.energy, found.schedule),
            "graph.png": draw_graph(network.graph, given=["image"]),
        }
        for name, figure in pictures.items():
            figure.savefig(folder / name, dpi=120)
        save_collage([pictures["graph.png"], pictures["prototypes.png"], pictures["energy.png"]], folder / "overview.png")
        lines = [
            f"forward: test accuracy {right:.2%} on {len(digits.test_labels)} images of 8x8 pixels",
            *_recognition_lines(seen.network, seen.classifier, seen.classifier_accuracy),
            "pictures: " + ", ".join(str(folder / name) for name in (*pictures, "overview.png")),
        ]
        return Answer(
            tuple(lines),
            {"test_accuracy": right, "recognised_by_network": seen.network, "recognised_by_classifier": seen.classifier},
        )


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise DataError(f"the picture {path} cannot be written: {error}.") from None


def _recognition_lines(network: int, classifier: int, real: float) -> list[str]:
    return [
        f"reverse: {network}/10 prototypes recognised by the network itself",
        f"reverse: {classifier}/10 prototypes recognised by a support vector machine trained on the real images ({real:.2%} on real test images)",
    ]


def _load(folder: Path) -> tuple[DigitsNetwork | UntiedDigits, DigitsConfig, Digits]:
    _, config, facts = runs.read_config(folder, DigitsConfig)
    shape = facts.get("image_shape")
    if not (isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) for n in shape)):
        raise DataError(f"{folder / runs.CONFIG}: image_shape must be [rows, columns], got {shape!r}.")
    check_config(config)
    network = build(config, (shape[0], shape[1]))
    runs.load_weights(folder, network)
    network.eval()
    return network, config, load_digits(config.data)


def _order_for(given: Mapping[str, str], config: DigitsConfig) -> unn.Order | list[str]:
    names = [name for name in (["H1", "H2", "label", "image"] if "image" in given else ["H2", "H1", "image", "label"]) if name not in given]
    return unn.ForwardBackward(names) if config.order == "forward-backward" and len(names) > 2 else names


def _read_value(graph: unn.FactorGraph, name: str, text: str, digits: Digits) -> Tensor:
    """A value from the command line: ``label=3``, ``image=test:17`` (an image of the test set) or ``image=FILE.npy`` in [-1, 1]."""
    if name == "label":
        if text not in [str(k) for k in range(LABELS)]:
            raise ObservationError(f"--given label={text}: a label is a digit from 0 to 9.")
        return torch.eye(LABELS)[int(text)][None]
    if name == "image":
        return _read_image(text, digits)
    raise ObservationError(f"--given {name}: only image and label can be given here.{suggest(name, graph.variables)}")


def _read_image(text: str, digits: Digits) -> Tensor:
    if text.startswith("test:"):
        number = text.removeprefix("test:")
        if not (number.isascii() and number.isdecimal() and len(number) < 10) or int(number) >= len(digits.test_images):
            raise ObservationError(f"--given image={text}: test images go from test:0 to test:{len(digits.test_images) - 1}.")
        return digits.test_images[int(number)][None]
    import numpy as np

    try:
        array = np.load(text, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"--given image={text}: not a readable .npy file ({error}); give test:NUMBER or an array of pixels in [-1, 1].") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise DataError(f"--given image={text}: holds no array of numbers.")
    if tuple(array.shape) != digits.image_shape:
        raise ObservationError(f"--given image={text}: shape {tuple(array.shape)}, expected {digits.image_shape}.")
    return torch.as_tensor(array, dtype=torch.float32)[None, None]
