"""The options of the digits problem; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DigitsConfig:
    """Options of the digits problem.

    Attributes:
        data: Images: "embedded" (8x8, inside scikit-learn) or "mnist" (28x28, from $UNN_DATA/mnist).
        gamma: Weight of the loss of the image given its label; 0 trains the classifier only.
        channels: Number of channels of H1; H2 has twice as many.
        translate: Largest number of pixels by which training images that are given are moved along each axis,
            by random numbers for each image and step.
    """

    data: Literal["embedded", "mnist"] = "embedded"
    gamma: float = 0.1
    channels: int = 32
    translate: int = 0
