"""Training and evaluation of the parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unn.errors import DataError, DivergenceError
from unn.training import Task

from .config import ParsingConfig
from .conllu.treebank import Sentence
from .data import SentenceExamples, Treebanks, by_length, checksums, load_treebanks
from .encoders.scratch import BiLSTM, Transformer, WordEmbedding
from .metrics.attachment import Attachment, measure
from .network import ParsingNetwork
from .vocabulary import Reader, Vocabulary

PARTS, LEAST = 4, 8
"""Maximum number of parts of similar length per batch, and minimum number of sentences per part."""


class ParsingTask(Task):
    """Training on a treebank; selects the network with the best attachment on the development part.

    Args:
        config: configuration of the run.
        treebanks: treebanks; by default read according to the configuration.
    """

    monitor = "dev_uas"
    larger_is_better = True

    def __init__(self, config: ParsingConfig, treebanks: Treebanks | None = None) -> None:
        self.config = config
        self.treebanks = treebanks or load_treebanks(config)
        train = self.treebanks.train.sentences
        self.reader = reader_of(config, train)
        self.labels = (
            sorted({word.deprel for sentence in train for word in sentence.words}) if config.labels else []
        )
        self.facts: dict[str, Any] = {
            **self.reader.facts(),
            "labels": self.labels,
            "data": checksums(self.treebanks),
        }
        self._examples = SentenceExamples(train, self.reader, self.labels)
        self._dev = SentenceExamples(self.treebanks.dev.sentences, self.reader, self.labels)

    def examples(self) -> SentenceExamples:
        """All sentences of the training part."""
        return self._examples

    def loss(self, network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Mean of -log p(gold tree) over sentences, in parts of similar length to limit padding."""
        assert isinstance(network, ParsingNetwork)
        words, lengths, heads, labels = batch
        total = words.new_zeros(())
        for rows in lengths.argsort().chunk(max(1, min(PARTS, len(lengths) // LEAST))):
            longest = int(lengths[rows].max())
            own = labels[rows, :longest] if self.labels else None
            total = total + len(rows) * network.loss(
                words[rows, : longest + 1], lengths[rows], heads[rows, :longest], own
            )
        return total / len(words)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Attachment, modifier lists and exact match on the development part."""
        assert isinstance(network, ParsingNetwork)
        attachment = evaluate(network, self._dev, self.labels)
        metrics = {"dev_uas": attachment.uas, "dev_exact_match": attachment.exact_match}
        if attachment.modifier_lists is not None:
            metrics["dev_modifier_lists"] = attachment.modifier_lists
        return metrics if attachment.las is None else {**metrics, "dev_las": attachment.las}


def reader_of(config: ParsingConfig, sentences: Sequence[Sentence]) -> Reader:
    """Reader for the encoder of a configuration."""
    if config.encoder in ("bilstm", "transformer"):
        return Vocabulary.of(sentences)
    from .encoders.pretrained import Pieces

    return Pieces(Path(config.encoder))


def reader_of_run(config: ParsingConfig, facts: Mapping[str, Any]) -> Reader:
    """Reader of a trained run.

    Raises:
        DataError: for invalid facts.
    """
    if config.encoder in ("bilstm", "transformer"):
        return Vocabulary.from_facts(facts)
    from .encoders.pretrained import Pieces

    pieces = Pieces(Path(config.encoder))
    pieces.check_facts(facts)
    return pieces


def labels_of_run(facts: Mapping[str, Any]) -> list[str]:
    """Arc labels of a run; empty if they were not learned.

    Raises:
        DataError: for invalid facts.
    """
    labels = facts.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DataError(
            f"parsing: the run's labels must be a list of strings, got {labels!r}; its config.json has been "
            "changed."
        )
    return labels


def build(config: ParsingConfig, facts: Mapping[str, Any]) -> ParsingNetwork:
    """Build the network with initial weights.

    Raises:
        DataError: for invalid facts, or an encoder that cannot be loaded.
    """
    reader = reader_of_run(config, facts)
    encoder: nn.Module
    if isinstance(reader, Vocabulary):
        embedding = WordEmbedding(reader, config.characters, config.tags, config.input_dropout)
        kind = BiLSTM if config.encoder == "bilstm" else Transformer
        encoder = kind(embedding, config.width, config.layers, config.input_dropout)
    else:
        from .encoders.pretrained import PretrainedEncoder

        encoder = PretrainedEncoder(Path(config.encoder), config.width, config.input_dropout)
    labels = labels_of_run(facts)
    return ParsingNetwork(config, encoder, len(labels), labels.index("root") if "root" in labels else None)


def divergence(where: str, iterations: int | None, config: ParsingConfig) -> DivergenceError:
    """Error for non-finite arc scores although all weights are finite."""
    return DivergenceError(
        f"{where}: after {iterations or config.iterations} iterations the scores of arcs are NaN or "
        f"infinite, since the energy is unbounded below for these weights. Use fewer --iterations (the run "
        f"was trained with {config.iterations}), or train with --activation tanh or ball."
    )


@torch.no_grad()
def predict(
    network: ParsingNetwork, examples: SentenceExamples, iterations: int | None = None
) -> tuple[list[list[int]], list[list[int]]]:
    """Heads and label ids of all sentences, in order; label lists are empty without labels."""
    was_training = network.training
    network.eval()
    device = next(network.parameters()).device
    heads: list[list[int]] = [[] for _ in range(len(examples))]
    labels: list[list[int]] = [[] for _ in range(len(examples))]
    for numbers in by_length(examples.sentences):
        batch = examples.of(numbers)
        parse = network.parse(batch.words.to(device), batch.lengths.to(device), iterations)
        for row, number in enumerate(numbers):
            length = int(batch.lengths[row])
            heads[number] = parse.heads[row, :length].tolist()
            if parse.labels is not None:
                labels[number] = parse.labels[row, :length].tolist()
    network.train(was_training)
    return heads, labels


def evaluate(
    network: ParsingNetwork, examples: SentenceExamples, labels: Sequence[str], iterations: int | None = None
) -> Attachment:
    """Attachment metrics of a network on sentences with gold trees."""
    heads, numbers = predict(network, examples, iterations)
    return measure(
        [sentence.heads for sentence in examples.sentences],
        heads,
        punctuation=[[word.upos == "PUNCT" for word in sentence.words] for sentence in examples.sentences],
        gold_labels=[[word.deprel for word in sentence.words] for sentence in examples.sentences]
        if labels
        else None,
        predicted_labels=[[labels[k] for k in row] for row in numbers] if labels else None,
    )
