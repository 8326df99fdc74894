"""The file formats of the UAI competitions: models, evidence and results.

A model has ``MARKOV`` or ``BAYES``, the number of variables, their numbers of states, the number of
tables, the scope of each, and for each table its number of entries and the entries, the last variable
of the scope fastest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError
from .files import ModelFile, read_text, underflows
from .tables import TableEvidence, TableModel

_MOST = 10**9
_MOST_STATES = 10**7
"""Largest number of states of all variables together."""
_MOST_AXES = 48
"""Largest number of variables of one table."""


class _Tokens:
    """Words of a file, read in order; errors name the line."""

    def __init__(self, text: str, path: Path) -> None:
        # some programs write comments behind the scopes
        self.text, self.path = re.sub(r"#[^\r\n]*", "", text), path
        self.words = self.text.split()
        self.position = 0

    def error(self, position: int, expected: str) -> DataError:
        """The error that something else was expected at a word."""
        if position >= len(self.words):
            return DataError(f"{self.path}: the file ends where {expected} is expected.")
        for number, match in enumerate(re.finditer(r"\S+", self.text)):
            if number == position:
                line = self.text.count("\n", 0, match.start()) + 1
                word = match.group(0)
                shown = word if len(word) < 40 else f"{word[:40]}..."
                return DataError(f"{self.path}, line {line}: expected {expected}, got {shown!r}.")
        raise AssertionError("a word of the file")

    def integer(self, least: int, most: int, expected: str) -> int:
        """The next word as an integer within bounds."""
        position = self.position
        self.position += 1
        word = self.words[position] if position < len(self.words) else ""
        if not re.fullmatch(r"-?\d{1,18}", word) or not least <= int(word) <= most:
            raise self.error(position, expected)
        return int(word)

    def weights(self, count: int, expected: str) -> NDArray[np.float64]:
        """The next words as finite nonnegative numbers."""
        words = self.words[self.position : self.position + count]
        try:
            # numbers of Python may have underscores, those of files have none
            if any("_" in word for word in words):
                raise ValueError
            values = np.array(words, dtype=np.float64)
        except ValueError:
            values = np.array([_number(word) for word in words])
        for offset in np.flatnonzero(values == 0).tolist():
            if underflows(words[offset]):
                raise self.error(
                    self.position + offset, f"{expected}, which is 0 or at least 5e-324, the smallest number"
                )
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(wrong) or len(words) < count:
            offset = int(wrong[0]) if len(wrong) else len(words)
            raise self.error(self.position + offset, expected)
        self.position += count
        return values

    def end(self) -> None:
        """Check that no word is left."""
        if self.position < len(self.words):
            raise self.error(self.position, "the end of the file")


def _number(word: str) -> float:
    try:
        return math.nan if "_" in word else float(word)
    except ValueError:
        return math.nan


def read_uai(path: Path | str) -> ModelFile:
    """Read a model.

    Args:
        path: file, also compressed by gzip.

    Raises:
        DataError: for a file that is missing or malformed, with the line and what was expected.
    """
    path = Path(path)
    tokens = _Tokens(read_text(path), path)
    kind = tokens.words[0]
    if kind not in ("MARKOV", "BAYES"):
        raise tokens.error(0, "MARKOV or BAYES")
    tokens.position = 1
    count = tokens.integer(1, _MOST, "the number of variables")
    if count > len(tokens.words):
        raise tokens.error(1, "the number of variables, each with its number of states below")
    sizes = [tokens.integer(1, _MOST, f"the number of states of variable {v}") for v in range(count)]
    if sum(sizes) > _MOST_STATES:
        raise tokens.error(2, f"at most {_MOST_STATES:,} states in all")
    tables = tokens.integer(0, _MOST, "the number of tables")
    scopes = []
    for number in range(tables):
        most = min(count, _MOST_AXES)
        length = tokens.integer(0, most, f"the number of variables of table {number}, at most {most}")
        scope: list[int] = []
        for _ in range(length):
            position = tokens.position
            variable = tokens.integer(0, count - 1, f"a variable from 0 to {count - 1} (table {number})")
            if variable in scope:
                raise tokens.error(position, f"each variable once in the scope of table {number}")
            scope.append(variable)
        scopes.append(tuple(scope))
    weights = []
    for number, variables in enumerate(scopes):
        shape = [sizes[v] for v in variables]
        entries = math.prod(shape)
        tokens.integer(entries, entries, f"{entries}, the number of entries of table {number}")
        weights.append(tokens.weights(entries, f"a finite number >= 0 in table {number}").reshape(shape))
    tokens.end()
    return ModelFile(
        "MARKOV" if kind == "MARKOV" else "BAYES",
        tuple(map(str, range(count))),
        tuple(tuple(map(str, range(size))) for size in sizes),
        tuple(scopes),
        tuple(weights),
        path.name,
    )


def write_uai(model: ModelFile) -> str:
    """The text of a model; what is read from it is the same model, to the last bit."""
    lines = [model.kind, str(len(model.names)), " ".join(str(len(s)) for s in model.states)]
    lines.append(str(len(model.scopes)))
    lines += [" ".join(map(str, (len(scope), *scope))) for scope in model.scopes]
    for weights in model.weights:
        lines += ["", str(weights.size)]
        rows = weights.reshape(-1, weights.shape[-1] if weights.ndim else 1)
        lines += [" ".join(repr(float(x)) for x in row) for row in rows]
    return "\n".join(lines) + "\n"


def read_uai_evidence(path: Path | str, model: TableModel) -> TableEvidence:
    """Read evidence: the number of observed variables, then each with its state.

    Older files have the number of samples first, and then the evidence of each.

    Args:
        path: file, also compressed by gzip.
        model: the model that it belongs to.

    Raises:
        DataError: for a file that is missing or malformed, with the line and what was expected.
    """
    path = Path(path)
    tokens = _Tokens(read_text(path), path)
    first = tokens.integer(0, _MOST, "the number of observed variables")
    if len(tokens.words) != 1 + 2 * first or _has_line_per_sample(tokens):
        return _samples(tokens, first, model)
    tokens.position = 0
    return _samples(tokens, 1, model)


def _has_line_per_sample(tokens: _Tokens) -> bool:
    """Whether the first line is a number of samples alone, and each sample has a line of its own."""
    first, *others = filter(None, map(str.split, tokens.text.splitlines()))
    return first == [str(len(others))] and all(
        line[0].isdecimal() and len(line) == 1 + 2 * int(line[0]) for line in others
    )


def _samples(tokens: _Tokens, samples: int, model: TableModel) -> TableEvidence:
    """Evidence of some samples, up to the end of a file."""
    count = len(model.states)
    left = len(tokens.words) - tokens.position
    if samples > left:
        raise tokens.error(
            len(tokens.words), f"one of {samples:,} samples, with at least the number of observed variables,"
        )
    rows = torch.full((max(1, samples), count), -1)
    for row in range(samples):
        for _ in range(tokens.integer(0, count, "the number of observed variables")):
            position = tokens.position
            variable = tokens.integer(0, count - 1, f"a variable from 0 to {count - 1}")
            if rows[row, variable] >= 0:
                raise tokens.error(position, "each variable once")
            states = model.states[variable]
            rows[row, variable] = tokens.integer(
                0, states - 1, f"a state of variable {variable} from 0 to {states - 1}"
            )
    tokens.end()
    return TableEvidence(rows)


def write_uai_evidence(evidence: TableEvidence) -> str:
    """The text of evidence; of several rows in the older form."""
    lines = []
    for row in evidence.values.tolist():
        pairs = [f"{v} {state}" for v, state in enumerate(row) if state >= 0]
        lines.append(" ".join([str(len(pairs)), *pairs]))
    return "\n".join([str(len(lines)), *lines] if len(lines) > 1 else lines) + "\n"


def partition_result(log_partition: float) -> str:
    """The log-partition in the format of results, to the base 10."""
    return f"PR\n{log_partition / math.log(10)!r}\n"


def marginals_result(probabilities: Tensor, states: Sequence[int]) -> str:
    """Marginals in the format of results.

    Args:
        probabilities: shape ``(variables, most states)``.
        states: number of states of each variable.
    """
    words = [str(len(states))]
    for row, size in zip(probabilities.tolist(), states, strict=True):
        words += [str(size), *(repr(x) for x in row[:size])]
    return f"MAR\n{' '.join(words)}\n"


def best_values_result(values: Sequence[int]) -> str:
    """The most probable values in the format of results."""
    return f"MPE\n{' '.join(map(str, (len(values), *values)))}\n"
