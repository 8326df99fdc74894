"""Bayesian networks in the Bayesian interchange format (BIF)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, suggest
from .files import ModelFile, read_text, underflows

_TOKEN = re.compile(r'\s+|//[^\n]*|/\*.*?\*/|"[^"\n]*"|(?!/\*)[^\s{}()\[\],;|"]+|[{}()\[\],;|]', re.DOTALL)
_SUM = 1e-3
"""Largest deviation of the sum of a distribution from one, by the root of the number of states; files round
their probabilities."""


@dataclass(frozen=True)
class _Token:
    """A word, sign or quotation.

    Attributes:
        text: without quotation marks.
        line: line of the file.
        is_quoted: whether it is a quotation, which is no sign and no keyword.
    """

    text: str
    line: int
    is_quoted: bool = False


class _Reader:
    """Tokens of a file, read in order; errors name the line."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        self.tokens = list(self._split(text))
        self.position = 0

    def _split(self, text: str) -> Iterator[_Token]:
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise DataError(f"{self.path}, line {line}: a quotation or comment is not closed.")
            word = match.group(0)
            if not word.isspace() and not word.startswith(("//", "/*")):
                yield _Token(word.strip('"'), line, word.startswith('"'))
            line += word.count("\n")
            position = match.end()

    def fail(self, expected: str, token: _Token | None = None) -> NoReturn:
        """Raise the error that something else was expected."""
        token = token or (self.tokens[self.position] if self.position < len(self.tokens) else None)
        if token is None:
            raise DataError(f"{self.path}: the file ends where {expected} is expected.")
        raise DataError(f"{self.path}, line {token.line}: expected {expected}, got {token.text!r}.")

    @property
    def is_at_end(self) -> bool:
        """Whether all tokens are read."""
        return self.position >= len(self.tokens)

    def peek(self) -> str:
        """The next sign or word; empty at the end, and for a quotation."""
        token = None if self.is_at_end else self.tokens[self.position]
        return "" if token is None or token.is_quoted else token.text

    def take(self, expected: str, *allowed: str) -> _Token:
        """The next token, one of those allowed, if any are listed, or a word."""
        if self.is_at_end:
            self.fail(expected)
        token = self.tokens[self.position]
        is_sign = not token.is_quoted and token.text in _SIGNS
        if (allowed and (token.is_quoted or token.text not in allowed)) or (not allowed and is_sign):
            self.fail(expected)
        self.position += 1
        return token

    def words(self, end: str, expected: str) -> list[_Token]:
        """Words up to a sign, separated by commas or spaces."""
        result = []
        while self.peek() != end:
            if self.peek() == ",":
                self.position += 1
                continue
            result.append(self.take(expected))
        self.take(repr(end), end)
        return result

    def skip_property(self) -> None:
        """Skip a property, up to its semicolon."""
        while self.peek() != ";":
            if self.is_at_end:
                self.fail("';' after a property")
            self.position += 1
        self.position += 1


def read_bif(path: Path | str) -> ModelFile:
    """Read a Bayesian network.

    Args:
        path: file, also compressed by gzip.

    Raises:
        DataError: for a file that is missing or malformed, with the line and what was expected; for
            probabilities that do not sum to one, or variables without a distribution.
    """
    path = Path(path)
    reader = _Reader(read_text(path), path)
    states: dict[str, tuple[str, ...]] = {}
    tables: dict[str, tuple[list[str], NDArray[np.float64]]] = {}
    title = "unknown"
    while not reader.is_at_end:
        kind = reader.take("network, variable or probability", "network", "variable", "probability")
        if kind.text == "network":
            title = reader.take("the name of the network").text if reader.peek() != "{" else title
            reader.take("'{'", "{")
            while reader.peek() == "property":
                reader.skip_property()
            reader.take("'}'", "}")
        elif kind.text == "variable":
            name = reader.take("the name of a variable")
            if name.text in states:
                reader.fail(f"each variable once, {name.text!r} was declared before", name)
            states[name.text] = _states(reader)
        else:
            child, parents, table = _distribution(reader, states)
            if child in tables:
                reader.fail(f"one distribution of {child!r}", kind)
            tables[child] = parents, table
    missing = [name for name in states if name not in tables]
    if not states:
        raise DataError(f"{path} declares no variable.")
    if missing:
        raise DataError(f"{path}: variable {missing[0]!r} has no probability block.")
    cycle = _cycle({child: parents for child, (parents, _) in tables.items()})
    if cycle:
        raise DataError(
            f"{path}: variable {cycle!r} is an ancestor of itself, so this is no Bayesian network."
        )
    numbers = {name: k for k, name in enumerate(states)}
    scopes = tuple(tuple(numbers[name] for name in (*tables[child][0], child)) for child in states)
    return ModelFile(
        "BAYES",
        tuple(states),
        tuple(states.values()),
        scopes,
        tuple(tables[c][1] for c in states),
        path.name,
        title,
        rounded=True,
    )


def _cycle(parents: dict[str, list[str]]) -> str:
    """A variable that is an ancestor of itself; empty if there is none."""
    waiting = {name: set(own) for name, own in parents.items()}
    while waiting:
        done = [name for name, own in waiting.items() if not own & waiting.keys()]
        if not done:
            return next(iter(waiting))
        for name in done:
            del waiting[name]
    return ""


def _states(reader: _Reader) -> tuple[str, ...]:
    """States of a variable, from its block."""
    reader.take("'{'", "{")
    states: tuple[str, ...] = ()
    while reader.peek() != "}":
        if reader.peek() == "property":
            reader.skip_property()
            continue
        if states:
            reader.fail("one type of each variable")
        reader.take("type, property or '}'", "type")
        reader.take("discrete: only such variables have tables", "discrete")
        reader.take("'['", "[")
        count = reader.take("the number of states")
        reader.take("']'", "]")
        reader.take("'{'", "{")
        words = reader.words("}", "the name of a state")
        states = tuple(word.text for word in words)
        if count.text != str(len(states)):
            reader.fail(f"{len(states)}, the number of states that are listed", count)
        if len(set(states)) < len(states) or not states:
            reader.fail("states with different names", count)
        reader.take("';'", ";")
    reader.take("'}'", "}")
    if not states:
        reader.fail("a block with the type of the variable")
    return states


def _distribution(
    reader: _Reader, states: dict[str, tuple[str, ...]]
) -> tuple[str, list[str], NDArray[np.float64]]:
    """Child, parents and conditional probabilities, the child as the last axis, from a block."""
    reader.take("'('", "(")
    child = _variable(reader, states)
    parents: list[str] = []
    if reader.peek() == "|":
        reader.position += 1
        while True:
            name = _variable(reader, states)
            if name in (*parents, child):
                reader.fail(f"each variable once, {name!r} occurs twice")
            parents.append(name)
            if reader.take("',' or ')'", ",", ")").text == ")":
                break
    else:
        reader.take("'|' or ')'", ")")
    opened = reader.take("'{'", "{")
    size = len(states[child])
    table = np.full([*(len(states[p]) for p in parents), size], np.nan)
    default: NDArray[np.float64] | None = None
    while reader.peek() != "}":
        expected = "a row of probabilities, table, default or '}'"
        word = reader.take(expected, "table", "default", "(", "property")
        if word.text == "property":
            reader.position -= 1
            reader.skip_property()
        elif word.text == "(":
            config = reader.words(")", "the state of a parent")
            if len(config) != len(parents):
                reader.fail(f"the states of {len(parents)} parents of {child!r}", word)
            index = []
            for state, parent in zip(config, parents, strict=True):
                if state.text not in states[parent]:
                    reader.fail(f"a state of {parent!r}: {', '.join(states[parent])}", state)
                index.append(states[parent].index(state.text))
            if not np.isnan(table[tuple(index)]).all():
                reader.fail(f"each configuration of the parents of {child!r} once", word)
            table[tuple(index)] = _row(reader, size, child, word)
        elif word.text == "default":
            if default is not None:
                reader.fail(f"one default of {child!r}", word)
            default = _row(reader, size, child, word)
        elif parents:
            reader.fail(
                f"a row for each configuration of the parents of {child!r}; the order of entries of a table "
                "with parents differs between programs",
                word,
            )
        else:
            if not np.isnan(table).all():
                reader.fail(f"one table of {child!r}", word)
            table[:] = _row(reader, size, child, word)
    reader.take("'}'", "}")
    if default is not None:
        table = np.where(np.isnan(table), default, table)
    if np.isnan(table).any():
        count = table.size // size
        reader.fail(f"probabilities for all {count} configurations of the parents of {child!r}", opened)
    return child, parents, table


def _variable(reader: _Reader, states: dict[str, tuple[str, ...]]) -> str:
    token = reader.take("the name of a variable")
    if token.text not in states:
        reader.fail(f"a variable that is declared above.{suggest(token.text, states)} Instead", token)
    return token.text


def _row(reader: _Reader, size: int, child: str, word: _Token) -> NDArray[np.float64]:
    """One distribution, up to its semicolon."""
    tokens = reader.words(";", f"a probability of {child!r}")
    values = []
    for token in tokens:
        try:
            # numbers of Python may have underscores, those of files have none
            value = math.nan if "_" in token.text else float(token.text)
        except ValueError:
            value = math.nan
        if value == 0 and underflows(token.text):
            reader.fail(
                f"a probability of {child!r} which is 0 or at least 5e-324, the smallest number", token
            )
        if not 0 <= value <= 1 + _SUM:
            reader.fail(f"a probability of {child!r}", token)
        values.append(value)
    if len(values) != size:
        reader.fail(f"{size} probabilities, one for each state of {child!r}, instead of {len(values)}", word)
    if abs(sum(values) - 1) > _SUM * math.sqrt(size):
        reader.fail(f"probabilities of {child!r} that sum to one, not to {sum(values):.6g}", word)
    return np.array(values)


_SIGNS = "{}()[],;|"
"""Signs of the format; some readers take them as such in quotes, too."""


def write_bif(model: ModelFile) -> str:
    """The text of a Bayesian network; what is read from it is the same network, to the last bit.

    Raises:
        DataError: for a model whose tables are not conditional probabilities of one variable each, or names
            that the format cannot have.
    """
    if model.kind != "BAYES" or sorted(scope[-1] for scope in model.scopes) != list(range(len(model.names))):
        raise DataError(
            f"{model.name} is no Bayesian network with one distribution for each variable; write it as UAI."
        )
    texts = [*model.names, *(state for states in model.states for state in states), model.title]
    odd = next((x for x in texts if x in _SIGNS or '"' in x or len(x.splitlines()) != 1), None)
    if odd is not None:
        raise DataError(f"{model.name}: the format has no way to write the name {odd!r}; choose another.")
    repeated = next((x for x in model.names if model.names.count(x) > 1), None)
    if repeated is not None:
        raise DataError(f"{model.name}: two variables are named {repeated!r}; rename one.")
    lines = [f"network {_word(model.title)} {{", "}"]
    for name, states in zip(model.names, model.states, strict=True):
        listed = ", ".join(map(_word, states))
        lines += [f"variable {_word(name)} {{", f"  type discrete [ {len(states)} ] {{ {listed} }};", "}"]
    for child in range(len(model.names)):
        number = next(k for k, scope in enumerate(model.scopes) if scope[-1] == child)
        parents, table = model.scopes[number][:-1], model.weights[number]
        head = _word(model.names[child])
        if parents:
            head += f" | {', '.join(_word(model.names[p]) for p in parents)}"
        lines.append(f"probability ( {head} ) {{")
        for index in np.ndindex(*table.shape[:-1]):
            row = ", ".join(repr(float(x)) for x in table[index])
            config = ", ".join(_word(model.states[p][k]) for p, k in zip(parents, index, strict=True))
            lines.append(f"  ({config}) {row};" if parents else f"  table {row};")
        lines.append("}")
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    """A name, in quotes if it has other signs than words have."""
    return text if re.fullmatch(r'[^\s{}()\[\],;|"/]+', text) else f'"{text}"'
