"""Treebanks for the parser, and examples made of their sentences."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unn.errors import DataError
from unn.runs import text_digest
from unn.training import Examples

from .config import ParsingConfig
from .conllu.treebank import Sentence, Treebank, read_conllu
from .toy import generated_treebank
from .vocabulary import Reader


@dataclass(frozen=True)
class Batch:
    """Sentences as tensors.

    Attributes:
        words: token ids of the root and the words, shape ``(batch, n + 1, features)``, zeros in padding.
        lengths: numbers of words, shape ``(batch,)``.
        heads: shape ``(batch, n)``, -1 in padding.
        labels: label ids, shape ``(batch, n)``.
    """

    words: Tensor
    lengths: Tensor
    heads: Tensor
    labels: Tensor


class SentenceExamples(Examples):
    """Sentences with trees, read once.

    Args:
        sentences: sentences of any length; none is omitted.
        reader: converts words to ids.
        labels: arc labels; unknown ones get the id of the first.
    """

    def __init__(self, sentences: Sequence[Sentence], reader: Reader, labels: Sequence[str] = ()) -> None:
        self.sentences = tuple(sentences)
        self.rows = [reader.row(sentence) for sentence in self.sentences]
        numbers = {label: k for k, label in enumerate(labels)}
        self.heads = [torch.tensor(sentence.heads) for sentence in self.sentences]
        self.labels = [
            torch.tensor([numbers.get(word.deprel, 0) for word in sentence.words])
            for sentence in self.sentences
        ]

    def __len__(self) -> int:
        return len(self.sentences)

    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Words, lengths, heads and labels; see ``Batch``."""
        batch = self.of(indices.tolist())
        return batch.words, batch.lengths, batch.heads, batch.labels

    def of(self, numbers: Sequence[int]) -> Batch:
        """Batch of the sentences with these indices."""
        lengths = torch.tensor([len(self.heads[k]) for k in numbers])
        longest = int(lengths.max())
        rows = [self.rows[k] for k in numbers]
        words = torch.zeros(len(rows), longest + 1, max(row.shape[1] for row in rows))
        heads, labels = (
            torch.full((len(rows), longest), -1),
            torch.zeros(len(rows), longest, dtype=torch.int64),
        )
        for b, (k, row) in enumerate(zip(numbers, rows, strict=True)):
            words[b, : len(row), : row.shape[1]] = row
            heads[b, : len(self.heads[k])] = self.heads[k]
            labels[b, : len(self.heads[k])] = self.labels[k]
        return Batch(words, lengths, heads, labels)


@dataclass(frozen=True)
class Treebanks:
    """Three parts of a treebank; ``test`` may be None."""

    train: Treebank
    dev: Treebank
    test: Treebank | None


def checksums(treebanks: Treebanks) -> dict[str, str]:
    """SHA-256 of the training and development sentences, by file."""
    parts = [("", treebanks.train), (" (development part)", treebanks.dev)]
    return {
        f"{treebank.source}{note}": text_digest(
            line for sentence in treebank.sentences for line in (*sentence.lines, "")
        )
        for note, treebank in parts
    }


def list_skipped(treebank: Treebank, fate: str) -> None:
    """List skipped sentences and their fate on standard error, separate from results."""
    # only rank 0 prints
    if not treebank.skipped or os.environ.get("RANK", "0") != "0":
        return
    for skipped in treebank.skipped:
        print(f"unn: {treebank.source}, line {skipped.line}: skipped: {skipped.reason}", file=sys.stderr)
    total = len(treebank.skipped) + len(treebank.sentences)
    print(
        f"unn: {treebank.source}: {len(treebank.skipped)} of {total} sentences skipped, {fate}",
        file=sys.stderr,
    )


def load_treebanks(config: ParsingConfig) -> Treebanks:
    """Read the files of a configuration.

    Raises:
        DataError: for files that are missing or malformed, with the line.
    """
    if not config.data:
        return Treebanks(generated_treebank(300, 0), generated_treebank(60, 1), generated_treebank(60, 2))
    train = Path(config.data)
    first = _read(train, config.skip_bad)
    dev, test = (
        Path(given) if given else _sibling(train, part)
        for given, part in ((config.dev, "dev"), (config.test, "test"))
    )
    if dev is None:
        raise DataError(
            f"{train}: its name does not say 'train', so the development file cannot be inferred. Give it by "
            "--dev."
        )
    second = _read(dev, config.skip_bad)
    if test is None or not (config.test or test.exists()):
        return Treebanks(first, second, None)
    return Treebanks(first, second, _read(test, config.skip_bad))


def load_test(config: ParsingConfig) -> Treebank:
    """The treebank for evaluation.

    Raises:
        DataError: if it is missing, or malformed, with the line.
    """
    if not (config.test or config.data):
        return generated_treebank(60, 2)
    path = Path(config.test) if config.test else _sibling(Path(config.data), "test")
    if path is None or not (config.test or path.exists()):
        raise DataError(
            f"the run has no test trees{'' if path is None else f', and {path} does not exist'}; give them "
            "by --data FILE."
        )
    return _read(path, config.skip_bad)


def _sibling(train: Path, part: str) -> Path | None:
    """af-train.conllu.gz to af-dev.conllu.gz; None if the name does not contain train."""
    name = part.join(train.name.rsplit("train", 1))
    return train.with_name(name) if "train" in train.name else None


def _read(path: Path, skip_bad: bool) -> Treebank:
    treebank = read_conllu(path, trees=True, skip_bad=skip_bad)
    if not treebank.sentences:
        raise DataError(f"{path}: all of its {len(treebank.skipped)} sentences are malformed.")
    return treebank


def by_length(sentences: Sequence[Sentence], batch: int = 64) -> list[list[int]]:
    """Indices of sentences in batches of similar length."""
    ordered = sorted(range(len(sentences)), key=lambda k: len(sentences[k].words))
    return [ordered[start : start + batch] for start in range(0, len(ordered), batch)]
