"""Models of the field's files, as they were written: names, states and weights without any rounding."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import DataError, ObservationError, suggest
from .elimination import Scope
from .tables import Family, TableEvidence, TableModel

Kind = Literal["MARKOV", "BAYES"]


@dataclass(frozen=True, eq=False)
class ModelFile:
    """The content of a model file.

    Attributes:
        kind: "MARKOV" for any tables, "BAYES" for conditional probabilities, in which the last variable of a
            scope is the child.
        names: names of the variables.
        states: names of the states of each variable.
        scopes: variables of each table.
        weights: nonnegative weights of each table, one axis for each variable of its scope.
        name: name of the file, for messages.
        title: name of the model in the file, if it has one.
        rounded: whether the rows of conditional probabilities are rounded, so that inference divides them by
            their sums.
    """

    kind: Kind
    names: tuple[str, ...]
    states: tuple[tuple[str, ...], ...]
    scopes: tuple[Scope, ...]
    weights: tuple[NDArray[np.float64], ...]
    name: str = "model"
    title: str = "unknown"
    rounded: bool = False
    _models: list[TableModel] = field(default_factory=list, repr=False)

    @property
    def potentials(self) -> list[NDArray[np.float64]]:
        """The weights for inference: those of the file, with rounded rows divided by their sums."""
        if not self.rounded:
            return list(self.weights)
        return [weights / weights.sum(-1, keepdims=True) for weights in self.weights]

    @property
    def model(self) -> TableModel:
        """The tables for inference; made once."""
        if not self._models:
            groups: dict[tuple[int, ...], list[int]] = {}
            potentials = self.potentials
            for number, weights in enumerate(potentials):
                groups.setdefault(weights.shape, []).append(number)
            families = []
            with np.errstate(divide="ignore"):
                for numbers in groups.values():
                    logs = np.log(np.stack([potentials[k] for k in numbers]))
                    scopes = torch.tensor([self.scopes[k] for k in numbers], dtype=torch.long)
                    families.append(Family(scopes.view(len(numbers), -1), torch.from_numpy(logs)[:, None]))
            sizes = tuple(map(len, self.states))
            self._models.append(TableModel(sizes, tuple(families), self.names, self.name))
        return self._models[0]

    def number_of(self, name: str) -> int:
        """Number of a variable.

        Raises:
            ObservationError: for an unknown name, with the closest one.
        """
        if name in self.names:
            return self.names.index(name)
        raise ObservationError(f"{self.name}: unknown variable {name!r}.{suggest(name, self.names)}")

    def evidence(self, given: dict[str, str]) -> TableEvidence:
        """Evidence from the names of variables and states; a number stands for the state of that number.

        Raises:
            ObservationError: for an unknown variable or state, with the closest one.
        """
        observed = {}
        for name, state in given.items():
            variable = self.number_of(name)
            states = self.states[variable]
            if state in states:
                observed[variable] = states.index(state)
            elif state.isascii() and state.isdecimal() and len(state) < 10 and int(state) < len(states):
                observed[variable] = int(state)
            else:
                raise ObservationError(
                    f"{self.name}: variable {name!r} has no state {state!r}.{suggest(state, states)}"
                )
        return TableEvidence.of(self.model, observed)


def read_text(path: Path) -> str:
    """Text of a file, also of one that is compressed by gzip.

    Raises:
        DataError: if it is missing, empty, damaged, or no text.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text.") from None
    if not text.strip():
        raise DataError(f"{path} is empty.")
    return text


def underflows(word: str) -> bool:
    """Whether a number that is read as 0 has another digit than 0, so that a possible state would become
    impossible."""
    return any(digit in word.lower().partition("e")[0] for digit in "123456789")
