"""Handwritten digits: classify images and draw prototypes of classes with the same weights.

The convolutional network of "Modeling Structure with Undirected Neural Networks" (Mihaylova, Niculae and Martins, 2022), Section 3
and Appendix F: image X, hidden H1 and H2, label Y; two convolutions and a dense factor; tanh on X, H1, H2 and softmax on Y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unn
from factors import Conv2d, Multilinear
from unn.errors import DeclarationError
from unn.training import Task, TensorExamples, fit

from .config import DigitsConfig, check_config
from .data import Digits, load_digits
from .untied import UntiedDigits

LABELS = 10


def declare(rows: int = 28, columns: int = 28, channels: int = 32) -> unn.FactorGraph:
    """The graph of the paper; kernels of 3 instead of 6 and 4 for images below 20 pixels.

    Raises:
        DeclarationError: for images below 5x5.
    """
    if min(rows, columns) < 5:
        raise DeclarationError(f"digits: images of {rows}x{columns} are too small; at least 5x5 is needed.")
    small = min(rows, columns) < 20
    kernels, stride = ((3, 3), 1) if small else ((6, 4), 2)
    g = unn.FactorGraph(
        "digits", channel=1, row=rows, column=columns, label=LABELS, channel1=channels, channel2=2 * channels,
        kernel1=kernels[0], kernel2=kernels[1],
    )  # fmt: skip
    image = g.variable("image", "channel row column", unn.SignedEntropy())
    H1 = g.variable("H1", "channel1 row1 column1", unn.SignedEntropy())
    H2 = g.variable("H2", "channel2 row2 column2", unn.SignedEntropy())
    label = g.variable("label", "label", unn.Entropy())
    W1 = g.parameter("W1", "channel1 channel kernel1 kernel1")
    W2 = g.parameter("W2", "channel2 channel1 kernel2 kernel2")
    V = g.parameter("V", "label channel2 row2 column2")
    b1, b2, b = g.parameter("b1", "channel1"), g.parameter("b2", "channel2"), g.parameter("b", "label")
    g.factor(Conv2d(H1, W1, image, stride=stride))
    g.factor(Conv2d(H2, W2, H1, stride=stride))
    g.factor(Multilinear(label["y"], V["y c i j"], H2["c i j"]))
    g.factor(Multilinear(b1["c"], H1["c i j"]))
    g.factor(Multilinear(b2["c"], H2["c i j"]))
    g.factor(Multilinear(b["y"], label["y"]))
    return g


class DigitsNetwork(nn.Module):
    """Both directions of the same graph.

    Args:
        graph: graph from ``declare``.
        config: iterations, order, initial values and dropout.
    """

    def __init__(self, graph: unn.FactorGraph, config: DigitsConfig) -> None:
        super().__init__()
        self.graph = graph
        forward, reverse = ["H1", "H2", "label"], ["H2", "H1", "image"]
        dropout = {"H1": config.dropout, "H2": config.dropout}
        self.classifier = unn.Unrolled(
            graph, "image", "label", order=_order(forward, config), iterations=config.iterations,
            initial=None if config.initial == "zero" else {"label": config.initial}, dropout=dropout, check_values=False,
        )  # fmt: skip
        self.generator = unn.Unrolled(
            graph, "label", "image", order=_order(reverse, config), iterations=config.iterations, dropout=dropout, check_values=False
        )

    def logits(self, images: Tensor, iterations: int | None = None) -> Tensor:
        """Pre-activations of the label given images, shape ``(batch, 10)``."""
        return self.classifier.preactivations(images, iterations=iterations)  # type: ignore[return-value]

    def draw(self, labels: Tensor, iterations: int | None = None) -> Tensor:
        """Pre-activations of the image given one-hot labels, ``(batch, 1, rows, columns)``; pixels are their tanh."""
        return self.generator.preactivations(labels, iterations=iterations)  # type: ignore[return-value]


def joint_loss(network: DigitsNetwork | UntiedDigits, images: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Cross-entropy of the label plus gamma times binary cross-entropy of the generated image, mean over pixels (Section 3).

    Both are Fenchel-Young losses of the variables' own regularizers; that of the image takes the mean parameter
    (1 + tanh t) / 2 = sigmoid(2 t) of a pre-activation t (docs/theory.md, errata 5).
    """
    loss = F.cross_entropy(network.logits(images), labels)
    if gamma:
        assert isinstance(network, DigitsNetwork)
        one_hot = F.one_hot(labels, LABELS).to(images.dtype)
        pixels = network.draw(one_hot)
        loss = loss + gamma * F.binary_cross_entropy_with_logits(2 * pixels, (1 + images) / 2)
    return loss


def build(config: DigitsConfig, image_shape: tuple[int, int]) -> DigitsNetwork | UntiedDigits:
    """Build a network with initial weights from the configured seed."""
    if config.untied and config.gamma:
        raise DeclarationError("digits: the untied baseline has no reverse direction; set gamma to 0.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        if config.untied:
            return UntiedDigits(image_shape, config.iterations, config.channels, config.dropout)
        return DigitsNetwork(declare(*image_shape, channels=config.channels), config)


class DigitsTask(Task):
    """Joint loss on the training images, accuracy on the test images.

    Args:
        config: configuration of the run.
        digits: images; by default loaded according to the configuration.
    """

    monitor = "test_accuracy"
    larger_is_better = True

    def __init__(self, config: DigitsConfig, digits: Digits | None = None) -> None:
        self.config = config
        self.digits = digits or load_digits(config.data)
        self.facts = {"image_shape": list(self.digits.image_shape), "data": self.digits.checksums(config.data)}

    def examples(self) -> TensorExamples:
        """Pairs of images and labels."""
        return TensorExamples(self.digits.train_images, self.digits.train_labels)

    def loss(self, network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The joint loss of Section 3."""
        assert isinstance(network, DigitsNetwork | UntiedDigits)
        return joint_loss(network, *batch, self.config.gamma)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Accuracy on the test images."""
        assert isinstance(network, DigitsNetwork | UntiedDigits)
        return {"test_accuracy": accuracy(network, self.digits.test_images, self.digits.test_labels)}


def train(config: DigitsConfig, digits: Digits | None = None, progress: bool = False) -> tuple[DigitsNetwork | UntiedDigits, list[dict[str, Any]]]:
    """Train from scratch, in memory; deterministic under the configuration's seed on CPU.

    Args:
        config: configuration of the run.
        digits: images; by default loaded according to the configuration.
        progress: show a progress bar.

    Returns:
        The network and the metrics of each epoch.
    """
    check_config(config)
    task = DigitsTask(config, digits)
    network = build(config, task.digits.image_shape)
    return network, fit(network, task, config.training, progress=progress).history


@torch.no_grad()
def accuracy(network: DigitsNetwork | UntiedDigits, images: Tensor, labels: Tensor, iterations: int | None = None) -> float:
    """Fraction of images whose most probable label is correct."""
    network.eval()
    device = next(network.parameters()).device
    correct = 0
    for start in range(0, len(images), 500):
        logits = network.logits(images[start : start + 500].to(device), iterations)
        correct += int((logits.argmax(1).cpu() == labels[start : start + 500]).sum())
    return correct / len(images)


@torch.no_grad()
def prototypes(network: DigitsNetwork, iterations: int | None = None) -> Tensor:
    """One image for each label, drawn by reverse inference, shape ``(10, 1, rows, columns)`` in [-1, 1]."""
    network.eval()
    like = next(network.parameters())
    return network.draw(torch.eye(LABELS, dtype=like.dtype, device=like.device), iterations).tanh()


@dataclass(frozen=True)
class Recognition:
    """Number of the ten prototypes recognised as their digit."""

    network: int
    classifier: int
    classifier_accuracy: float


def recognise(network: DigitsNetwork, digits: Digits, images: Tensor) -> Recognition:
    """Classify prototypes by the network itself and by a support vector machine trained on the real images.

    Args:
        network: trained network.
        digits: at most 10,000 training images are used for the classifier.
        images: prototypes, shape ``(10, 1, rows, columns)``.
    """
    from sklearn.svm import SVC

    own = accuracy(network, images, torch.arange(LABELS))
    count = min(10_000, len(digits.train_labels))
    classifier = SVC(C=10.0).fit(digits.train_images[:count].flatten(1).numpy(), digits.train_labels[:count].numpy())
    predictions = classifier.predict(images.cpu().flatten(1).numpy())
    real = classifier.score(digits.test_images.flatten(1).numpy(), digits.test_labels.numpy())
    return Recognition(round(own * LABELS), int((predictions == torch.arange(LABELS).numpy()).sum()), float(real))


def _order(names: list[str], config: DigitsConfig) -> unn.Order | list[str]:
    return unn.ForwardBackward(names) if config.order == "forward-backward" else names
