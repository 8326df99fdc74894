"""The options of the parsing problem; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unn.training.options import TrainingConfig, check_ranges


@dataclass(frozen=True)
class ParsingConfig:
    """Configuration of a run of the parsing problem.

    Attributes:
        data: Training trees, a CoNLL-U file (.gz too); empty for the sentences of a small generated language.
        dev: Trees for choosing the best epoch; if empty, the file of the same name with "dev" for "train".
        test: Trees for ``unn evaluate``; if empty, the file of the same name with "test" for "train".
        skip_bad: List and omit malformed sentences of these files, instead of refusing the file.
        iterations: Number of rounds of coordinate descent (k); 1 is the biaffine parser, which was as good or
            better here (docs/results/parsing.md).
        activation: Activation of heads and modifiers: "relu" as in the paper, whose energy is unbounded below
            for some weights; "tanh" or "ball", whose energy is always bounded.
        hidden: Size of heads and modifiers.
        dropout: Dropout probability for heads and modifiers, one mask for all iterations.
        encoder: "bilstm" or "transformer", trained from scratch, or the folder of a Hugging Face encoder.
        width: Width of the encoder's output; half of it for each direction of a BiLSTM.
        layers: Number of layers of the encoder.
        characters: Embed the characters of words in addition to their forms.
        tags: Use part-of-speech tags (UPOS) of the file as input.
        labels: Also learn the labels of arcs.
        input_dropout: Dropout probability for the encoder's input and output.
        training: Options of training.
    """

    data: str = ""
    dev: str = ""
    test: str = ""
    skip_bad: bool = False
    iterations: int = 1
    activation: Literal["relu", "tanh", "ball"] = "relu"
    hidden: int = 400
    dropout: float = 0.3
    encoder: str = "bilstm"
    width: int = 256
    layers: int = 1
    characters: bool = True
    tags: bool = False
    labels: bool = False
    input_dropout: float = 0.3
    training: TrainingConfig = TrainingConfig(epochs=30, batch=32, rate=5e-3, clip=5.0, patience=5)


def check_config(config: ParsingConfig) -> None:
    """Check the options of a run.

    Raises:
        DeclarationError: for an option that is out of range, with its name.
    """
    check_ranges(
        "parsing",
        {
            "iterations": (config.iterations, 1, 1000),
            "hidden": (config.hidden, 1, 100_000),
            "dropout": (config.dropout, 0, 0.999),
            "width": (config.width, 8, 100_000),
            "layers": (config.layers, 1, 100),
            "input_dropout": (config.input_dropout, 0, 0.999),
        },
    )
    config.training.check()
