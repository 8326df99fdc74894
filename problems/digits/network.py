"""Handwritten digits: classify images and draw prototypes of classes with the same weights.

The convolutional network of "Modeling Structure with Undirected Neural Networks" (Mihaylova, Niculae and
Martins, 2022), Section 3 and Appendix F: image X, hidden H1 and H2, label Y; two convolutions and a dense
factor; tanh on X, H1, H2 and softmax on Y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unn
from factors import Conv2d, Multilinear
from unn.errors import DeclarationError

from .data import Digits
from .untied import UntiedDigits

if TYPE_CHECKING:
    from sklearn.svm import SVC

LABELS = 10

_MOST_CLASSIFIED = 10_000
"""Maximum number of images on which the support vector machine is trained."""


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


@torch.no_grad()
def label_scores(network: nn.Module, images: Tensor, iterations: int | None = None) -> Tensor:
    """Pre-activations of the label given images, shape ``(batch, 10)``.

    Args:
        network: a ``unn.DescentModel`` of the graph, or the untied baseline.
        images: shape ``(batch, 1, rows, columns)``, in [-1, 1].
        iterations: number of rounds; that of training by default.
    """
    if isinstance(network, UntiedDigits):
        return network.logits(images, iterations)
    assert isinstance(network, unn.DescentModel)
    (scores,) = network.unrolled(["image"], [], ["label"]).preactivations(images, iterations=iterations)
    return scores


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor, iterations: int | None = None) -> float:
    """Fraction of images whose most probable label is correct."""
    network.eval()
    device = next(network.parameters()).device
    correct = 0
    for start in range(0, len(images), 500):
        scores = label_scores(network, images[start : start + 500].to(device), iterations)
        correct += int((scores.argmax(1).cpu() == labels[start : start + 500]).sum())
    return correct / len(images)


@torch.no_grad()
def prototypes(network: unn.DescentModel, iterations: int | None = None) -> Tensor:
    """One image for each label, drawn by reverse inference, shape ``(10, 1, rows, columns)`` in [-1, 1]."""
    network.eval()
    like = next(network.parameters())
    labels = torch.eye(LABELS, dtype=like.dtype, device=like.device)
    images: Tensor
    (images,) = network.unrolled(["label"], [], ["image"])(labels, iterations=iterations)
    return images


@dataclass(frozen=True)
class Recognition:
    """Number of the ten prototypes recognised as their digit."""

    network: int
    classifier: int
    classifier_accuracy: float


def recognise(
    network: nn.Module, digits: Digits, images: Tensor, iterations: int | None = None
) -> Recognition:
    """Classify prototypes by the network itself and by a support vector machine trained on the real images.

    Args:
        network: trained network.
        digits: real images.
        images: prototypes, shape ``(10, 1, rows, columns)``.
        iterations: number of rounds of the network; that of training by default.
    """
    own = accuracy(network, images, torch.arange(LABELS), iterations)
    classifier = classifier_of(digits)
    predictions = classifier.predict(images.cpu().flatten(1).numpy())
    real = classifier.score(digits.test_images.flatten(1).numpy(), digits.test_labels.numpy())
    return Recognition(
        round(own * LABELS), int((predictions == torch.arange(LABELS).numpy()).sum()), float(real)
    )


@lru_cache(maxsize=2)
def classifier_of(digits: Digits) -> SVC:
    """A support vector machine trained on at most 10,000 of the training images."""
    from sklearn.svm import SVC

    count = min(_MOST_CLASSIFIED, len(digits.train_labels))
    return SVC(C=10.0).fit(
        digits.train_images[:count].flatten(1).numpy(), digits.train_labels[:count].numpy()
    )


def one_hot(labels: Tensor) -> Tensor:
    """One-hot labels, float32, shape ``(batch, 10)``."""
    return F.one_hot(labels, LABELS).float()


def spread_ratio(images: Tensor, labels: Tensor, digits: Digits) -> float:
    """Spread of images within classes, relative to that of the test images; 1 for the distribution of the
    data.

    The spread is the mean over classes and pixels of the variance; at least two images of a class are needed.
    """

    def spread(x: Tensor, y: Tensor) -> float:
        classes = [x[y == k].double() for k in range(LABELS) if int((y == k).sum()) > 1]
        return float(torch.stack([c.var(0).mean() for c in classes]).mean()) if classes else float("nan")

    real = spread(digits.test_images, digits.test_labels)
    return math.sqrt(spread(images, labels) / real)
