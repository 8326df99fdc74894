"""Token ids: the input of the parser's encoders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unn.errors import DataError

from .conllu.treebank import Sentence

NOTHING, UNKNOWN, ROOT = 0, 1, 2
"""Ids of padding, unknown items and the root; vocabulary items start at 3."""

SPELLED = 20
"""Maximum number of characters per word; longer words keep the first and last ten."""

UNIVERSAL_TAGS = (
    "ADJ",
    "ADP",
    "ADV",
    "AUX",
    "CCONJ",
    "DET",
    "INTJ",
    "NOUN",
    "NUM",
    "PART",
    "PRON",
    "PROPN",
    "PUNCT",
    "SCONJ",
    "SYM",
    "VERB",
    "X",
)


class Reader(ABC):
    """Converts sentences to rows of ids, one for the root and one per word; no row is all zeros."""

    @abstractmethod
    def row(self, sentence: Sentence) -> Tensor:
        """Shape ``(n + 1, features)``, float; the number of features may differ between sentences."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Everything needed to restore the reader, as JSON."""

    def batch(self, sentences: Sequence[Sentence]) -> Tensor:
        """Shape ``(batch, longest + 1, features)``, zeros in padding."""
        rows = [self.row(sentence) for sentence in sentences]
        shape = (len(rows), max(len(row) for row in rows), max(row.shape[1] for row in rows))
        words = torch.zeros(shape)
        for b, row in enumerate(rows):
            words[b, : len(row), : row.shape[1]] = row
        return words


class Vocabulary(Reader):
    """Ids of lower-case forms, universal tags and characters; forms and characters occur at least twice.

    Features are one form, one tag and ``SPELLED`` characters.

    Args:
        forms: known forms, without the root.
        characters: known single characters.
    """

    def __init__(self, forms: Sequence[str], characters: Sequence[str]) -> None:
        self.forms, self.characters = tuple(forms), tuple(characters)
        self._forms = {form: k for k, form in enumerate(self.forms, 3)}
        self._characters = {character: k for k, character in enumerate(self.characters, 3)}
        self._tags = {tag: k for k, tag in enumerate(UNIVERSAL_TAGS, 3)}
        self._known: dict[tuple[str, str], list[int]] = {}

    @classmethod
    def of(cls, sentences: Sequence[Sentence]) -> Vocabulary:
        """Vocabulary of the words of a treebank."""
        forms = Counter(word.form.lower() for sentence in sentences for word in sentence.words)
        characters = Counter(
            character for sentence in sentences for word in sentence.words for character in word.form
        )
        return cls(
            *(sorted(item for item, count in counts.items() if count > 1) for counts in (forms, characters))
        )

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Vocabulary:
        """Vocabulary of a run.

        Raises:
            DataError: if the facts contain no valid vocabulary.
        """
        for items in (facts.get("forms"), facts.get("characters")):
            if (
                not isinstance(items, list)
                or not all(isinstance(item, str) for item in items)
                or len(set(items)) < len(items)
            ):
                raise DataError(
                    "parsing: the run's forms and characters must be lists of distinct strings; its "
                    "config.json has been changed."
                )
        return cls(facts["forms"], facts["characters"])

    def facts(self) -> dict[str, Any]:
        return {"forms": list(self.forms), "characters": list(self.characters)}

    def row(self, sentence: Sentence) -> Tensor:
        rows = [[ROOT, ROOT, ROOT] + [NOTHING] * (SPELLED - 1)]
        for word in sentence.words:
            key = (word.form, word.upos)
            if key not in self._known:
                half = SPELLED // 2
                spelled = word.form if len(word.form) <= SPELLED else word.form[:half] + word.form[-half:]
                numbers = [self._characters.get(character, UNKNOWN) for character in spelled]
                first = [self._forms.get(word.form.lower(), UNKNOWN), self._tags.get(word.upos, UNKNOWN)]
                self._known[key] = first + numbers + [NOTHING] * (SPELLED - len(numbers))
            rows.append(self._known[key])
        return torch.from_numpy(np.array(rows, dtype=np.float32))
