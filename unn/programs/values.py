"""Values in a program, which record operations on them, and arrays with assigned entries."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import DeclarationError
from .arraylike import RULES, Arraylike, Parents
from .tape import Load, Nodes, Recorded, Shape, Statement, Store, Tape


class Value(Arraylike):
    """An immutable number or array in a program, computed from random variables.

    It supports arithmetic, comparisons, indexing (also by other values) and numpy functions, all of which
    return values.

    Attributes:
        tape: tape of the run.
        step: number of the step that computes it.
        shape: shape as in numpy; () for a number.
        dtype: bool, int64 or float64.
        parents: set of parent nodes of each entry, in the shape of the value.
        statement: statement that created it, if it is a node.
    """

    def __init__(
        self,
        tape: Tape,
        step: int,
        dtype: np.dtype[Any],
        parents: Parents,
        statement: Statement | None = None,
    ) -> None:
        self.tape = tape
        self.step = step
        self.shape = parents.shape
        self.dtype = dtype
        self.parents = parents
        self.statement = statement
        self._numbers: Nodes | None = None

    def all_parents(self) -> Parents:
        return self.parents

    @property
    def numbers(self) -> Nodes:
        """Numbers of the entries, counted from 1, in the shape of the value."""
        if self._numbers is None:
            self._numbers = np.arange(1, self.size + 1).reshape(self.shape)
        return self._numbers

    def __getitem__(self, index: Any) -> Value:
        """Entries as numpy selects them; an index may be computed from random variables.

        Raises:
            DeclarationError: for an invalid index, or one out of range.
        """
        result: Value = RULES[operator.getitem](self, index if isinstance(index, tuple) else (index,))
        return result

    def __setitem__(self, index: Any, value: Any) -> None:
        """Values cannot be changed.

        Raises:
            DeclarationError: always.
        """
        raise DeclarationError(
            f"program: {self!r} cannot be changed; declare an array with t.empty to assign its entries one "
            "by one."
        )

    def __iter__(self) -> Iterator[Value]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        what = f"array of shape {self.shape}" if self.shape else "value"
        return (
            f"{what} named {self.statement.name!r}"
            if self.statement and self.statement.name
            else f"{what} computed from {self.origin()}"
        )


class Entries(Arraylike):
    """An array of a program whose entries are assigned statement by statement: ``C[i, j] =
    t.deterministic(...)``.

    Args:
        tape: tape of the run.
        recorded: the variable.
    """

    def __init__(self, tape: Tape, recorded: Recorded) -> None:
        self.tape = tape
        self.recorded = recorded
        self.shape = recorded.nodes.shape
        self._numbers = np.arange(recorded.nodes.size).reshape(self.shape)

    def all_parents(self) -> Parents:
        return self[...].parents

    def __getitem__(self, index: Any) -> Value:
        """Entries as numpy selects them; an index may be computed from random variables.

        Raises:
            DeclarationError: for entries without a value, or an index that is out of range.
        """
        index = index if isinstance(index, tuple) else (index,)
        if any(isinstance(k, Arraylike) for k in index):
            return self[...][index]
        name = self.recorded.name
        places = select_numbers(self._numbers, index, self)
        nodes = self.recorded.nodes.ravel()[places]
        if (nodes < 0).any():
            missing = self.recorded.entry(int(places[nodes < 0].ravel()[0]))
            raise DeclarationError(
                f"program: {missing!r} is read before it has a value; entries are assigned by {name}[i, j] = "
                "..., all indices at once."
            )
        return Value(
            self.tape,
            self.tape.add(Load(name, places)),
            self.recorded.values.dtype,
            singletons(nodes, self.recorded.values.features),
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        """Assign the value of a statement to entries.

        Raises:
            DeclarationError: for a value that is not from a statement or already has a name, an entry that
                already has a value, another shape, values of different kinds in one array, or a random index.
        """
        recorded, name = self.recorded, self.recorded.name
        index = index if isinstance(index, tuple) else (index,)
        for k in index:
            if isinstance(k, Arraylike):
                k.refuse(f"an entry of {name!r} is assigned at", "Assign all entries, each by np.where.")
        places = select_numbers(self._numbers, index, self)
        entry = recorded.entry(int(places.ravel()[0])) if places.size else name
        if not isinstance(value, Value) or value.statement is None:
            raise DeclarationError(
                f"program: {entry!r} takes what t.sample or t.deterministic returns, got {value!r}; wrap it: "
                "t.deterministic(...)."
            )
        if value.tape is not self.tape:
            raise DeclarationError(
                f"program: {entry!r} takes values of its own run, got {value!r} of another."
            )
        statement = value.statement
        if statement.name is not None:
            raise DeclarationError(
                f"program: {entry!r} is assigned a value that already has the name {statement.name!r}; "
                "for a copy write t.deterministic(...)."
            )
        if places.shape != statement.nodes.shape:
            raise DeclarationError(
                f"program: {entry!r} and what follows have shape {places.shape}, but the value has shape "
                f"{statement.nodes.shape}."
            )
        bind(self.tape, value, recorded, places)

    def __iter__(self) -> Iterator[Value]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"entries of {self.recorded.name!r}, shape {self.shape}"


def singletons(nodes: Nodes, features: Shape = ()) -> Parents:
    """Arrange nodes as singleton sets, each repeated for the features of its node."""
    sets = np.empty(nodes.shape, dtype=object)
    sets.reshape(-1)[:] = [frozenset((node,)) for node in nodes.ravel().tolist()]
    return np.broadcast_to(
        sets.reshape((*nodes.shape, *[1] * len(features))), (*nodes.shape, *features)
    ).copy()


def bind(tape: Tape, value: Value, recorded: Recorded, places: Nodes) -> None:
    """Bind the value of a statement to entries of a variable, given by flat indices in the shape of its
    nodes.

    Raises:
        DeclarationError: for an entry that already has a value, or values of different kinds.
    """
    statement = value.statement
    assert statement is not None
    flat = places.ravel()
    node_of = recorded.nodes.reshape(-1)
    assigned = flat[node_of[flat] >= 0]
    if len(assigned) or len(np.unique(flat)) < len(flat):
        repeated = int(assigned[0]) if len(assigned) else int(flat[0])
        raise DeclarationError(
            f"program: {recorded.entry(repeated)!r} has a value already; a node is assigned once."
        )
    first = recorded.entry(int(flat[0])) if len(flat) < recorded.nodes.size else recorded.name
    kind = statement.kind if recorded.kind is None else recorded.kind.joined(statement.kind)
    if kind is None:
        raise DeclarationError(
            f"program: {first!r} is {statement.kind}, but other entries of {recorded.name!r} are "
            f"{recorded.kind}; use an array for each, or make them alike (x * 1.0 is real, x > 0 is binary)."
        )
    recorded.kind = kind
    statement.name = first
    node_of[flat] = statement.nodes.ravel()
    for node, place in zip(statement.nodes.ravel().tolist(), flat.tolist(), strict=True):
        tape.places[node] = (recorded.name, place)
    tape.add(Store(recorded.name, flat, (value.step,)))


def select_numbers(numbers: Nodes, index: tuple[Any, ...], what: Arraylike) -> Nodes:
    """Select numbers by an index of plain numbers, slices and arrays.

    Raises:
        DeclarationError: for an invalid index, or one out of range.
    """
    try:
        return np.asarray(numbers[index])
    except (IndexError, ValueError, TypeError) as error:
        shown = ", ".join(":" if isinstance(k, slice) and k == slice(None) else repr(k) for k in index)
        raise DeclarationError(f"program: {what!r} cannot be indexed by [{shown}]: {error}.") from None
