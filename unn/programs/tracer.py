"""What a program is given: ``t.sample``, ``t.deterministic`` and ``t.empty``."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Sequence
from typing import overload

import numpy as np

from ..errors import DeclarationError
from .arraylike import Parents
from .distributions import Distribution
from .kinds import BINARY, REAL, Kind
from .recording import UNION, Recordable, as_objects, as_value, union_along
from .tape import Draw, Recorded, Settle, Shape, Statement, Tape
from .values import Entries, Value, bind, themselves


class Tracer:
    """Records one run of a program.

    Attributes:
        tape: the record.
    """

    def __init__(self) -> None:
        self.tape = Tape()

    @overload
    def sample(self, name: str, distribution: Distribution, shape: int | Sequence[int] | None = None) -> Value: ...
    @overload
    def sample(self, name: Distribution, *, shape: int | Sequence[int] | None = None) -> Value: ...
    def sample(self, name: str | Distribution, distribution: Distribution | None = None, shape: int | Sequence[int] | None = None) -> Value:
        """Draw a random variable; each of its entries is a node.

        Args:
            name: of the variable. Without one, assign the value to entries of an array from ``t.empty``.
            distribution: its parameters may be computed from earlier variables, which become the parents of the entries.
            shape: of an array of independent draws; by default that of the parameters. Axes of the distribution itself follow.

        Returns:
            Shape ``(*shape, *event)``; truth values from ``Bernoulli`` and ``Permutation``, whole numbers from ``Categorical``.

        Raises:
            DeclarationError: for a name in use or that is no identifier, something that is no distribution, or a shape that does not fit its
                parameters.
        """
        line = sys._getframe(1).f_lineno
        given, called = (name, None) if isinstance(name, Distribution) else (distribution, name)
        if not isinstance(given, Distribution):
            what = f" of {called!r}" if isinstance(called, str) else ""
            raise DeclarationError(f"program: t.sample{what} takes a distribution such as unn.programs.Normal(0, 1), got {given!r}.")
        parameters = {key: as_value(self.tape, x) for key, x in given.parameters.items()}
        inner = {key: given.parameter_axes.get(key, 0) for key in parameters}
        shapes = [value.shape[: max(0, value.ndim - inner[key])] for key, value in parameters.items()]
        title = f"t.sample of {called!r}" if called else "t.sample"
        # of constants this is known; of computed parameters only now
        for key, value in parameters.items():
            if inner[key] and (not value.ndim or value.shape[-1] != given.kind.options):
                raise DeclarationError(f"program: {title}: {given.kind.options} {key} are needed along the last axis, got shape {value.shape}.")
        wanted = None if shape is None else _shape(title, shape)
        try:
            batch = np.broadcast_shapes(*shapes)
            if wanted is not None and np.broadcast_shapes(wanted, batch) != wanted:
                raise ValueError
            batch = batch if wanted is None else wanted
        except ValueError:
            found = ", ".join(f"{key} {value.shape}" for key, value in parameters.items())
            raise DeclarationError(f"program: {title}: shape {shape} does not fit the parameters of {type(given).__name__}: {found}.") from None
        parents = as_objects(frozenset(), batch)
        for key, value in parameters.items():
            own = union_along(value.parents, -1) if inner[key] else value.parents
            parents = as_objects(UNION(parents, own), batch)
        whole: Shape = (*batch, *given.event)
        spread = as_objects(parents.reshape((*batch, *[1] * len(given.event))), whole)
        cliques = tuple((*range(len(batch)), len(batch) + axis) for axis in given.cliques)
        statement = self._statement("sample", line, given.kind, spread, cliques)
        widths = tuple(int(np.prod(value.shape[max(0, value.ndim - inner[key]) :])) for key, value in parameters.items())
        draw = Draw(given, statement, tuple(parameters), widths, tuple(value.step for value in parameters.values()), whole)
        return self._settled(statement, self.tape.add(draw), called)

    def deterministic(self, value: Recordable, name: str | None = None, options: int | None = None) -> Value:
        """Make a value a variable: each of its entries is a node, whose parents are the nodes it was computed from.

        Args:
            value: computed from earlier variables; a list of values is stacked.
            name: of the variable. Without one, assign the value to entries of an array from ``t.empty``.
            options: the value is one of so many options, counted from 0. Otherwise truth values (of comparisons, ``&``, ``|``, ``~``, products of
                truth values) are binary, and all others real.

        Returns:
            The same value, as a node.

        Raises:
            DeclarationError: for a name in use or that is no identifier, or something that is no value.
        """
        line = sys._getframe(1).f_lineno
        if isinstance(value, str):
            raise DeclarationError(f"program: t.deterministic takes the value first: t.deterministic(value, name={value!r}).")
        if options is not None and (isinstance(options, bool) or not isinstance(options, int) or options < 2):
            raise DeclarationError(f"program: t.deterministic takes a number of options that is a whole number >= 2, got {options!r}.")
        source = as_value(self.tape, value)
        kind = Kind("category", options) if options else BINARY if source.dtype == np.bool_ else REAL
        statement = self._statement("deterministic", line, kind, source.parents, ())
        return self._settled(statement, source.step, name)

    def constant(self, value: Recordable) -> Value:
        """A plain array as a value, to be indexed by random variables: ``t.constant([1, 2, 4])[z]``. It is no variable.

        Args:
            value: a number, an array or a list.

        Raises:
            DeclarationError: if it is none.
        """
        return as_value(self.tape, value)

    def empty(self, name: str, shape: int | Sequence[int]) -> Entries:
        """An array whose entries are assigned one by one, or slice by slice: ``C[i, j] = t.sample(...)``.

        Args:
            name: of the variable.
            shape: of the array.

        Raises:
            DeclarationError: for a name in use or that is no identifier, or something that is no shape.
        """
        return Entries(self.tape, self._variable(name, _shape(f"t.empty of {name!r}", shape)))

    def _variable(self, name: str, shape: Shape) -> Recorded:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise DeclarationError(
                f"program: a variable needs a name that is a Python identifier, got {name!r}; t.empty declares arrays of statements."
            )
        if name in self.tape.variables:
            raise DeclarationError(
                f"program: the name {name!r} is in use; choose another, or declare an array with t.empty({name!r}, shape) and assign its entries."
            )
        recorded = Recorded(name, np.full(shape, -1, dtype=np.int64))
        self.tape.variables[name] = recorded
        return recorded

    def _statement(self, what: str, line: int, kind: Kind, parents: Parents, cliques: tuple[tuple[int, ...], ...]) -> Statement:
        first = len(self.tape.parents)
        self.tape.parents.extend(parents.ravel().tolist())
        self.tape.places.extend([None] * parents.size)
        statement = Statement(what, line, kind, np.arange(first, first + parents.size).reshape(parents.shape), cliques)
        self.tape.statements.append(statement)
        return statement

    def _settled(self, statement: Statement, source: int, name: str | None) -> Value:
        """The value of a statement, in its variable if it has a name."""
        step = self.tape.add(Settle(statement, (source,)))
        value = Value(self.tape, step, statement.kind.dtype, themselves(statement.nodes), statement)
        if name is not None:
            recorded = self._variable(name, value.shape)
            bind(self.tape, value, recorded, np.arange(value.size).reshape(value.shape))
        return value


def _shape(title: str, shape: int | Sequence[int]) -> Shape:
    """A shape as whole numbers.

    Raises:
        DeclarationError: if it is none, or has an axis without entries.
    """
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise DeclarationError(f"program: {title} needs a shape of whole numbers >= 1, got {shape!r}.")
    return tuple(int(size) for size in sizes)
