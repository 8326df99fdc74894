"""The options of the parsing problem; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unn.training.options import TrainingConfig, check_ranges


@dataclass(frozen=True)
class ParsingConfig:
    """All that a run of the parsing problem depends on.

    Attributes:
        data: training trees, a CoNLL-U file (.gz too); empty for the sentences of a small generated language.
        dev: trees on which the best epoch is chosen; if empty, the file of the same name with "dev" for "train".
        test: trees to measure with ``unn evaluate``; if empty, the file of the same name with "test" for "train".
        skip_bad: leave out malformed sentences of these files, and say which, instead of refusing the file.
        iterations: k, rounds of coordinate descent; 1 is the biaffine parser, which was as good or better here (docs/results/parsing.md).
        activation: of heads and modifiers: "relu" as in the paper, whose energy is not bounded below for all weights; "tanh" or "ball", with which
            it is.
        hidden: size of heads and modifiers.
        dropout: probability for heads and modifiers, one mask for all iterations.
        encoder: "bilstm" or "transformer", trained from scratch, or the folder of a Hugging Face encoder.
        width: of the encoder's output, in each direction of a BiLSTM one half of it.
        layers: of the encoder.
        characters: spell words, beside looking them up.
        tags: take part-of-speech tags (UPOS) of the file as input.
        labels: learn the labels of arcs too.
        input_dropout: probability for the encoder's input and output.
        training: how it is trained.
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
        DeclarationError: names the first option that is out of range.
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
