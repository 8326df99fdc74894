"""The tracer passed to a program: ``t.sample``, ``t.deterministic`` and ``t.empty``."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Sequence
from typing import overload

import numpy as np

from ..errors import DeclarationError, whole_number
from .arraylike import Parents
from .distributions import Distribution
from .kinds import BINARY, REAL, Kind
from .recording import UNION, Recordable, as_objects, as_value, union_along
from .tape import Recorded, RecordedDraw, Settle, Shape, Statement, Tape
from .values import Entries, Value, bind, singletons


class Tracer:
    """Records one run of a program.

    Attributes:
        tape: tape of the run.
    """

    def __init__(self) -> None:
        self.tape = Tape()

    @overload
    def sample(
        self, name: str, distribution: Distribution, shape: int | Sequence[int] | None = None
    ) -> Value: ...
    @overload
    def sample(self, name: Distribution, *, shape: int | Sequence[int] | None = None) -> Value: ...
    def sample(
        self,
        name: str | Distribution,
        distribution: Distribution | None = None,
        shape: int | Sequence[int] | None = None,
    ) -> Value:
        """Draw a random variable; each of its entries is a node.

        Args:
            name: name of the variable. Without one, assign the value to entries of an array from ``t.empty``.
            distribution: distribution, whose parameters may depend on earlier variables, the parents of the
                entries.
            shape: shape of independent draws; that of the parameters by default. Event axes follow.

        Returns:
            Shape ``(*shape, *event)``; truth values from ``Bernoulli`` and ``Permutation``, integers from
            ``Categorical``, ``Poisson`` and ``Binomial``. A vector that is one node has its entries along a
            last axis.

        Raises:
            DeclarationError: for a name in use or not an identifier, an object that is not a distribution, or
                a shape that does not fit the parameters.
        """
        line = sys._getframe(1).f_lineno
        given, called = (name, None) if isinstance(name, Distribution) else (distribution, name)
        if not isinstance(given, Distribution):
            what = f" of {called!r}" if isinstance(called, str) else ""
            raise DeclarationError(
                f"program: t.sample{what} takes a distribution such as unn.programs.Normal(0, 1), got "
                f"{given!r}."
            )
        parameters = {key: as_value(self.tape, x) for key, x in given.parameters.items()}
        inner = {key: given.axes_of(key) for key in parameters}
        shapes = [value.shape[: max(0, value.ndim - inner[key])] for key, value in parameters.items()]
        title = f"t.sample of {called!r}" if called else "t.sample"
        # constants were checked before; computed parameters have a shape only now
        for key, value in parameters.items():
            wanted = given.parameter_shapes.get(key, ())
            if value.shape[max(0, value.ndim - inner[key]) :] != wanted:
                needed = " x ".join(map(str, wanted))
                raise DeclarationError(
                    f"program: {title}: {needed} {key} are needed along the last axes, got shape "
                    f"{value.shape}."
                )
        requested = None if shape is None else _shape(title, shape)
        try:
            batch = np.broadcast_shapes(*shapes)
            if requested is not None and np.broadcast_shapes(requested, batch) != requested:
                raise ValueError
            batch = batch if requested is None else requested
        except ValueError:
            shapes_text = ", ".join(f"{key} {value.shape}" for key, value in parameters.items())
            raise DeclarationError(
                f"program: {title}: shape {shape} does not fit the parameters of {type(given).__name__}: "
                f"{shapes_text}."
            ) from None
        parents = as_objects(frozenset(), batch)
        for key, value in parameters.items():
            own = value.parents
            for _ in range(inner[key]):
                own = union_along(own, -1)
            parents = as_objects(UNION(parents, own), batch)
        whole: Shape = (*batch, *given.event)
        spread = as_objects(parents.reshape((*batch, *[1] * len(given.event))), whole)
        cliques = tuple(
            (*range(len(batch)), *(len(batch) + axis for axis in family)) for family in given.cliques
        )
        statement = self._statement("sample", line, given.kind, spread, cliques)
        if given.bounds is not None:
            low, high = (np.broadcast_to(bound, whole) for bound in given.bounds)
            statement.bounds = low, high
        widths = tuple(
            int(np.prod(given.parameter_shapes.get(key, ()), dtype=np.int64)) for key in parameters
        )
        draw = RecordedDraw(
            given,
            statement,
            tuple(parameters),
            widths,
            tuple(value.step for value in parameters.values()),
            whole,
        )
        return self._settle(statement, self.tape.add(draw), called)

    def deterministic(self, value: Recordable, name: str | None = None, options: int | None = None) -> Value:
        """Declare a value as a variable: each entry is a node, whose parents are the nodes it was computed
        from.

        Args:
            value: value computed from earlier variables; a list of values is stacked.
            name: name of the variable. Without one, assign the value to entries of an array from ``t.empty``.
            options: number of options of a categorical value, counted from 0. Without it, truth values (of
                comparisons, ``&``, ``|``, ``~``, products of truth values) are binary, and all others real.

        Returns:
            The same value, as a node.

        Raises:
            DeclarationError: for a name in use or not an identifier, or an object that is not a value.
        """
        line = sys._getframe(1).f_lineno
        if isinstance(value, str):
            raise DeclarationError(
                f"program: t.deterministic takes the value first: t.deterministic(value, name={value!r})."
            )
        if options is not None:
            whole_number("program: t.deterministic: the number of options", options, 2)
        source = as_value(self.tape, value)
        kind = Kind("category", options) if options else BINARY if source.dtype == np.bool_ else REAL
        statement = self._statement("deterministic", line, kind, source.parents, ())
        return self._settle(statement, source.step, name)

    def constant(self, value: Recordable) -> Value:
        """Convert a plain array to a value that random variables can index: ``t.constant([1, 2, 4])[z]``; not
        a variable.

        Args:
            value: a number, an array or a list.

        Raises:
            DeclarationError: for any other object.
        """
        return as_value(self.tape, value)

    def empty(self, name: str, shape: int | Sequence[int]) -> Entries:
        """Declare an array whose entries are assigned one by one, or slice by slice: ``C[i, j] =
        t.sample(...)``.

        Args:
            name: name of the variable.
            shape: shape of the array.

        Raises:
            DeclarationError: for a name in use or not an identifier, or an invalid shape.
        """
        return Entries(self.tape, self._variable(name, _shape(f"t.empty of {name!r}", shape)))

    def _variable(self, name: str, shape: Shape) -> Recorded:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise DeclarationError(
                f"program: a variable needs a name that is a Python identifier, got {name!r}; t.empty "
                "declares arrays of statements."
            )
        if name in self.tape.variables:
            raise DeclarationError(
                f"program: the name {name!r} is in use; choose another, or declare an array with "
                f"t.empty({name!r}, shape) and assign its entries."
            )
        recorded = Recorded(name, np.full(shape, -1, dtype=np.int64))
        self.tape.variables[name] = recorded
        return recorded

    def _statement(
        self, what: str, line: int, kind: Kind, parents: Parents, cliques: tuple[tuple[int, ...], ...]
    ) -> Statement:
        first = len(self.tape.parents)
        self.tape.parents.extend(parents.ravel().tolist())
        self.tape.places.extend([None] * parents.size)
        statement = Statement(
            what, line, kind, np.arange(first, first + parents.size).reshape(parents.shape), cliques
        )
        self.tape.statements.append(statement)
        return statement

    def _settle(self, statement: Statement, source: int, name: str | None) -> Value:
        """Record the value of a statement, stored in its variable if it has a name."""
        step = self.tape.add(Settle(statement, (source,)))
        nodes = statement.nodes
        parents = singletons(nodes, statement.kind.features)
        value = Value(self.tape, step, statement.kind.dtype, parents, statement)
        if name is not None:
            recorded = self._variable(name, nodes.shape)
            bind(self.tape, value, recorded, np.arange(nodes.size).reshape(nodes.shape))
        return value


def _shape(title: str, shape: int | Sequence[int]) -> Shape:
    """Convert a shape to a tuple of integers.

    Raises:
        DeclarationError: for an invalid shape, or one with an empty axis.
    """
    sizes = (
        (shape,)
        if isinstance(shape, (int, np.integer))
        else tuple(shape)
        if isinstance(shape, (tuple, list))
        else (shape,)
    )
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise DeclarationError(f"program: {title} needs a shape of whole numbers >= 1, got {shape!r}.")
    return tuple(int(size) for size in sizes)
