"""Handwritten digits: classify images and draw prototypes of classes with the same weights.

The convolutional network of "Modeling Structure with Undirected Neural Networks" (Mihaylova, Niculae and Martins, 2022), Section 3
and Appendix F: image X, hidden H1 and H2, label Y; two convolutions and a dense factor; tanh on X, H1, H2 and softmax on Y.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unn
from factors import Conv2d, Multilinear
from unn.errors import DeclarationError

from .digits_data import Digits, load_digits
from .digits_untied import UntiedDigits

LABELS = 10


@dataclass(frozen=True)
class DigitsConfig:
    """All that a run of the digits problem depends on.

    Attributes:
        data: "embedded" (8x8, inside scikit-learn) or "mnist" (28x28, from $UNN_DATA/mnist).
        iterations: k, rounds of coordinate descent in training and evaluation.
        gamma: weight of the loss of the image generated from the label; 0 trains the classifier only.
        order: "forward-backward" (H1, H2, Y, H2; reverse H2, H1, X, H1) or "forward" (H1, H2, Y; reverse H2, H1, X).
        initial: first value of the label when it is inferred: "zero", "random" or "uniform" (Table 5).
        dropout: probability for H1 and H2 in training, one mask for all iterations; the paper has 0.3, which spoils the prototypes here
            (docs/results/digits.md).
        untied: train the baseline of Table 3 instead: separate weights for each iteration, about as many parameters in all.
        channels: of H1; H2 has twice as many.
        epochs: passes over the training images.
        batch: images in a step.
        rate: learning rate of Adam.
        schedule: "constant" (the paper) or "cosine" (down to 0, after a warm-up of 5% of the steps).
        seed: of weights, shuffling, dropout and initial values.
        threads: CPU threads of torch; 0 leaves its default.
    """

    data: Literal["embedded", "mnist"] = "embedded"
    iterations: int = 3
    gamma: float = 0.1
    order: Literal["forward-backward", "forward"] = "forward-backward"
    initial: Literal["zero", "random", "uniform"] = "zero"
    dropout: float = 0.0
    untied: bool = False
    channels: int = 32
    epochs: int = 10
    batch: int = 64
    rate: float = 2e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    seed: int = 0
    threads: int = 0


def check_config(config: DigitsConfig) -> None:
    """Check the options of a run.

    Raises:
        DeclarationError: names the first option that is out of range.
    """
    ranges = {
        "iterations": (config.iterations, 1, 10_000),
        "gamma": (config.gamma, 0, 1e6),
        "dropout": (config.dropout, 0, 0.999),
        "channels": (config.channels, 1, 100_000),
        "epochs": (config.epochs, 1, 1_000_000),
        "batch": (config.batch, 1, 10_000_000),
        "rate": (config.rate, 1e-12, 1e6),
        "threads": (config.threads, 0, 4096),
    }
    for name, (value, low, high) in ranges.items():
        if not isinstance(value, (int, float)) or not low <= value <= high:
            raise DeclarationError(f"digits: option {name} must lie between {low:g} and {high:g}, got {value!r}.")


def declare(rows: int = 28, columns: int = 28, channels: int = 32) -> unn.FactorGraph:
    """The graph of the paper for images of any size; kernels of 3 instead of 6 and 4 where an image is smaller than 20 pixels.

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
        graph: from ``declare``.
        config: says iterations, order, initial values and dropout.
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
        """Pre-activations of the image given labels (one-hot), shape ``(batch, 1, rows, columns)``; tanh makes them pixels."""
        return self.generator.preactivations(labels, iterations=iterations)  # type: ignore[return-value]


def joint_loss(network: DigitsNetwork | UntiedDigits, images: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Cross-entropy of the label plus gamma times binary cross-entropy of the generated image, mean over pixels (Section 3).

    Both are Fenchel-Young losses of the variables' own regularizers; that of the image takes the mean parameter
    (1 + tanh t) / 2 = sigmoid(2 t) of a pre-activation t (errata 7 of the digest).
    """
    loss = F.cross_entropy(network.logits(images), labels)
    if gamma:
        assert isinstance(network, DigitsNetwork)
        one_hot = F.one_hot(labels, LABELS).to(images.dtype)
        pixels = network.draw(one_hot)
        loss = loss + gamma * F.binary_cross_entropy_with_logits(2 * pixels, (1 + images) / 2)
    return loss


@dataclass
class Epoch:
    """What one epoch of training measured."""

    epoch: int
    loss: float
    test_accuracy: float
    seconds: float


@dataclass
class Trained:
    """A trained network and its history."""

    network: DigitsNetwork | UntiedDigits
    history: list[Epoch] = field(default_factory=list)


def build(config: DigitsConfig, image_shape: tuple[int, int]) -> DigitsNetwork | UntiedDigits:
    """A network with fresh weights, from the config's seed."""
    torch.manual_seed(config.seed)
    if config.untied:
        if config.gamma:
            raise DeclarationError("digits: the untied baseline has no reverse direction; set gamma to 0.")
        return UntiedDigits(image_shape, config.iterations, config.channels, config.dropout)
    return DigitsNetwork(declare(*image_shape, channels=config.channels), config)


def train(config: DigitsConfig, digits: Digits | None = None, report: Callable[[Epoch], None] | None = None, progress: bool = False) -> Trained:
    """Train from scratch; deterministic under the config's seed on CPU.

    Args:
        config: of the run.
        digits: the images; loaded as the config says if left out.
        report: called after each epoch.
        progress: show a bar.
    """
    from tqdm import tqdm

    if config.threads:
        torch.set_num_threads(config.threads)
    digits = digits or load_digits(config.data)
    network = build(config, digits.image_shape)
    optimiser = torch.optim.Adam(network.parameters(), lr=config.rate)
    total = config.epochs * -(-len(digits.train_labels) // config.batch)
    warm = max(1, total // 20)

    def factor(step: int) -> float:
        if config.schedule == "constant":
            return 1.0
        ramp = min(1.0, (step + 1) / warm)
        return ramp * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * step / total))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
    trained = Trained(network)
    with tqdm(total=total, desc="training", unit="step", disable=not progress, leave=False) as bar:
        for epoch in range(1, config.epochs + 1):
            start, losses = time.perf_counter(), []
            network.train()
            for images, labels in _batches(digits, config.batch):
                loss = joint_loss(network, images, labels, config.gamma)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
                losses.append(float(loss.detach()))
                bar.update()
            mean = sum(losses) / len(losses)
            seconds = time.perf_counter() - start
            entry = Epoch(epoch, mean, accuracy(network, digits.test_images, digits.test_labels), seconds)
            trained.history.append(entry)
            bar.set_postfix(loss=f"{mean:.4f}", accuracy=f"{entry.test_accuracy:.2%}")
            if report is not None:
                report(entry)
    return trained


@torch.no_grad()
def accuracy(network: DigitsNetwork | UntiedDigits, images: Tensor, labels: Tensor, iterations: int | None = None) -> float:
    """The share of images whose most probable label is right."""
    network.eval()
    right = 0
    for start in range(0, len(images), 500):
        logits = network.logits(images[start : start + 500], iterations)
        right += int((logits.argmax(1) == labels[start : start + 500]).sum())
    return right / len(images)


@torch.no_grad()
def prototypes(network: DigitsNetwork, iterations: int | None = None) -> Tensor:
    """One image for each label, drawn by reverse inference, shape ``(10, 1, rows, columns)`` in [-1, 1]."""
    network.eval()
    like = next(network.parameters())
    return network.draw(torch.eye(LABELS, dtype=like.dtype, device=like.device), iterations).tanh()


@dataclass(frozen=True)
class Recognition:
    """How many of the ten prototypes are taken for the digit that they stand for."""

    network: int
    classifier: int
    classifier_accuracy: float


def recognise(network: DigitsNetwork, digits: Digits, images: Tensor) -> Recognition:
    """Show prototypes to the network itself and to a support vector machine trained on the real images alone.

    Args:
        network: trained.
        digits: at most 10,000 training images are used for the classifier.
        images: prototypes, shape ``(10, 1, rows, columns)``.
    """
    from sklearn.svm import SVC

    own = accuracy(network, images, torch.arange(LABELS))
    count = min(10_000, len(digits.train_labels))
    classifier = SVC(C=10.0).fit(digits.train_images[:count].flatten(1).numpy(), digits.train_labels[:count].numpy())
    found = classifier.predict(images.flatten(1).numpy())
    real = classifier.score(digits.test_images.flatten(1).numpy(), digits.test_labels.numpy())
    return Recognition(round(own * LABELS), int((found == torch.arange(LABELS).numpy()).sum()), float(real))


def _order(names: list[str], config: DigitsConfig) -> unn.Order | list[str]:
    return unn.ForwardBackward(names) if config.order == "forward-backward" else names


def _batches(digits: Digits, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(digits.train_labels))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield digits.train_images[chosen], digits.train_labels[chosen]
