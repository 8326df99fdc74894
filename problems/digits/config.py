"""The options of the digits problem; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unn.training.options import TrainingConfig, check_ranges


@dataclass(frozen=True)
class DigitsConfig:
    """Configuration of a run of the digits problem.

    Attributes:
        data: Images: "embedded" (8x8, inside scikit-learn) or "mnist" (28x28, from $UNN_DATA/mnist).
        iterations: Number of rounds of coordinate descent in training and evaluation (k).
        gamma: Weight of the loss of the image generated from the label; 0 trains the classifier only.
        order: Order of updates: "forward-backward" (H1, H2, Y, H2; reverse H2, H1, X, H1) or "forward" (H1, H2, Y; reverse H2, H1, X).
        initial: Initial value of the label when it is inferred: "zero", "random" or "uniform" (Table 5).
        dropout: Dropout probability for H1 and H2 in training, one mask for all iterations; the paper uses 0.3, which degrades
            the prototypes here (docs/results/digits.md).
        untied: Train the baseline of Table 3 instead: separate weights for each iteration, about as many parameters in total.
        channels: Number of channels of H1; H2 has twice as many.
        training: Options of training.
    """

    data: Literal["embedded", "mnist"] = "embedded"
    iterations: int = 3
    gamma: float = 0.1
    order: Literal["forward-backward", "forward"] = "forward-backward"
    initial: Literal["zero", "random", "uniform"] = "zero"
    dropout: float = 0.0
    untied: bool = False
    channels: int = 32
    training: TrainingConfig = TrainingConfig(epochs=10, batch=64, rate=2e-3)


def check_config(config: DigitsConfig) -> None:
    """Check the options of a run.

    Raises:
        DeclarationError: for an option that is out of range, with its name.
    """
    check_ranges(
        "digits",
        {
            "iterations": (config.iterations, 1, 10_000),
            "gamma": (config.gamma, 0, 1e6),
            "dropout": (config.dropout, 0, 0.999),
            "channels": (config.channels, 1, 100_000),
        },
    )
    config.training.check()
