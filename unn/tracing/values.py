"""Values inside a program: they look like numpy's numbers and arrays, and record what is done with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Never

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from ..errors import DeclarationError
from .kinds import Array
from .tape import Compute, Constant, Load, Nodes, Recorded, Shape, Statement, Step, Store, Tape, aligned

Parents = NDArray[np.object_]
"""For each entry of a value, the set of nodes it was computed from: the most recent ones on every way back."""

Recordable = Any
"""A number, an array, a value or entries of the program, or nested lists of them."""

NOTHING: frozenset[int] = frozenset()
RULES: dict[Callable[..., Any], Callable[..., Any]] = {}
"""How to record functions of numpy, by function; filled by ``operations``."""

# numpy reads + of two truth values as "or"; Python adds them, and so does a program. These are meant for truth values
_LOGICAL = {
    np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert, np.logical_and, np.logical_or, np.logical_xor, np.logical_not, np.maximum,
    np.minimum, np.multiply, np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.where,
}  # fmt: skip


def _union(one: frozenset[int], other: frozenset[int]) -> frozenset[int]:
    return one if one is other or not other else one | other if one else other


UNION: Any = np.frompyfunc(_union, 2, 1)


class _Arraylike(NDArrayOperatorsMixin):
    """What values and entries have in common: operators, functions of numpy, and what a program must not do with either."""

    shape: Shape
    tape: Tape

    # numpy compares entry by entry, so there is no hash that fits
    __hash__ = None  # type: ignore[assignment]

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many entries."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def T(self) -> Value:
        """With its axes in reverse order."""
        return self._call(np.transpose)

    def sum(self, *args: Any, **options: Any) -> Value:
        """``np.sum``."""
        return self._call(np.sum, *args, **options)

    def prod(self, *args: Any, **options: Any) -> Value:
        """``np.prod``."""
        return self._call(np.prod, *args, **options)

    def mean(self, *args: Any, **options: Any) -> Value:
        """``np.mean``."""
        return self._call(np.mean, *args, **options)

    def max(self, *args: Any, **options: Any) -> Value:
        """``np.max``."""
        return self._call(np.max, *args, **options)

    def min(self, *args: Any, **options: Any) -> Value:
        """``np.min``."""
        return self._call(np.min, *args, **options)

    def any(self, *args: Any, **options: Any) -> Value:
        """``np.any``."""
        return self._call(np.any, *args, **options)

    def all(self, *args: Any, **options: Any) -> Value:
        """``np.all``."""
        return self._call(np.all, *args, **options)

    def cumsum(self, *args: Any, **options: Any) -> Value:
        """``np.cumsum``."""
        return self._call(np.cumsum, *args, **options)

    def reshape(self, *shape: Any) -> Value:
        """``np.reshape``."""
        return self._call(np.reshape, shape[0] if len(shape) == 1 else shape)

    def ravel(self) -> Value:
        """``np.ravel``."""
        return self._call(np.ravel)

    def transpose(self, *axes: Any) -> Value:
        """``np.transpose``."""
        return self._call(np.transpose, (axes[0] if len(axes) == 1 else axes) or None)

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Value:
        found: Value = RULES[function](self.tape, function, self, *args, **options)
        return found

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Value:
        out = options.pop("out", None)
        # x += 1 on a value binds x to a new one
        if out is not None and (method != "__call__" or out[0] is not inputs[0] or not isinstance(out[0], _Arraylike)):
            raise DeclarationError(
                f"program: np.{ufunc.__name__} cannot write a value computed from {self._origin()} into a numpy array; "
                "bind the result to a name, x = x + y, or use t.empty."
            )
        options = {name: x for name, x in options.items() if x is not None}
        if method == "__call__" and ufunc.signature is None and ufunc.nout == 1 and not options:
            return elementwise(self.tape, ufunc, inputs)
        if method == "reduce" and ufunc.nout == 1:
            found: Value = RULES[np.ufunc.reduce](self.tape, ufunc, *inputs, **options)
            return found
        if method == "outer" and len(inputs) == 2 and not options:
            one, other = (as_value(self.tape, x) for x in inputs)
            return elementwise(self.tape, ufunc, (one.reshape((*one.shape, *[1] * other.ndim)), other))
        if ufunc is np.matmul and method == "__call__" and not options:
            matrices: Value = RULES[np.matmul](self.tape, ufunc, *inputs)
            return matrices
        how = "" if method == "__call__" else f".{method}"
        raise DeclarationError(
            f"program: np.{ufunc.__name__}{how} with options {sorted(options)} or several results is not recorded "
            f"(of a value computed from {self._origin()}); write it with plain operators."
        )

    def __array_function__(self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if function not in RULES:
            name = f"{function.__module__}.{function.__name__}".replace("numpy", "np")
            raise DeclarationError(
                f"program: {name} of a value computed from {self._origin()} is not recorded; write it with operators, indexing, ufuncs such as "
                "np.exp, reductions such as np.sum, np.where, np.sort, np.einsum, or functions that move entries such as np.stack."
            )
        return RULES[function](self.tape, function, *args, **options)

    def _origin(self) -> str:
        """The names of some nodes it was computed from."""
        nodes = sorted(frozenset[int]().union(*self._parents().ravel()))
        names = [repr(self.tape.node_name(node)) for node in nodes[:3]]
        more = len(nodes) - len(names)
        return (", ".join(names) or "constants") + (f" and {more} more" if more else "")

    def _parents(self) -> Parents:
        raise NotImplementedError

    # -- what would make the graph depend on the values drawn ------------------------------------------------------------

    def _refuse(self, what: str, remedy: str) -> Never:
        raise DeclarationError(
            f"program: {what} a value computed from {self._origin()}, which is random: the program runs once for all draws, and what it does "
            f"next, and so the graph, would depend on that value. {remedy}"
        )

    def __bool__(self) -> bool:
        self._refuse(
            "a condition (if, while, and, or, not, in, max, sorted, assert) on",
            "Write np.where(condition, a, b) for both cases, & | ~ for and, or, not, np.maximum or np.sort.",
        )

    def __int__(self) -> int:
        self._refuse("int() of", "Use functions of numpy, such as np.floor.")

    def __float__(self) -> float:
        self._refuse(
            "a plain number is made (by float(), a function of math, or an entry of a numpy array) of",
            "Use functions of numpy such as np.exp, np.stack to collect values, and t.empty for arrays of statements.",
        )

    def __complex__(self) -> complex:
        self._refuse("complex() of", "Use real numbers.")

    def __index__(self) -> int:
        self._refuse(
            "a count, a range or an index of a plain array is made of",
            "Let loops run over all cases and select by np.where; to select from an array by a random index use np.take(array, index, axis=0).",
        )

    def __array__(self, *args: Any, **options: Any) -> Never:
        self._refuse("a numpy array is made of", "Collect values by np.stack([...]).")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a value without axes has no len()")
        return self.shape[0]


class Value(_Arraylike):
    """A number or an array inside a program, computed from random variables; immutable.

    It takes part in arithmetic, comparisons, indexing (also by other values), and functions of numpy, all of which give values.

    Attributes:
        tape: of the run.
        step: whose result it is.
        shape: as in numpy; () for a number.
        dtype: truth values, whole numbers or double precision.
        parents: for each entry, the nodes it was computed from, sets in the shape of the value.
        statement: that made it, if it is a node.
    """

    def __init__(self, tape: Tape, step: int, dtype: np.dtype[Any], parents: Parents, statement: Statement | None = None) -> None:
        self.tape = tape
        self.step = step
        self.shape = parents.shape
        self.dtype = dtype
        self.parents = parents
        self.statement = statement
        self._numbers: Nodes | None = None

    def _parents(self) -> Parents:
        return self.parents

    @property
    def numbers(self) -> Nodes:
        """The entries counted from 1, in the shape of the value."""
        if self._numbers is None:
            self._numbers = np.arange(1, self.size + 1).reshape(self.shape)
        return self._numbers

    def __getitem__(self, index: Any) -> Value:
        """Entries as numpy selects them; an index may be computed from random variables.

        Raises:
            DeclarationError: for an index that is out of range or no index.
        """
        index = index if isinstance(index, tuple) else (index,)
        if any(isinstance(k, _Arraylike) for k in index):
            return _selected(self, index)
        return gather(self.tape, [self], chosen(self.numbers, index, repr(self)))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Raises: DeclarationError: always; values cannot be changed."""
        raise DeclarationError(f"program: {self!r} cannot be changed; declare an array with t.empty to assign its entries one by one.")

    def __iter__(self) -> Iterator[Value]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        what = f"array of shape {self.shape}" if self.shape else "value"
        return f"{what} named {self.statement.name!r}" if self.statement and self.statement.name else f"{what} computed from {self._origin()}"


class Entries(_Arraylike):
    """An array of a program whose entries are assigned statement by statement: ``C[i, j] = t.deterministic(...)``.

    Args:
        tape: of the run.
        recorded: the variable.
    """

    def __init__(self, tape: Tape, recorded: Recorded) -> None:
        self.tape = tape
        self.recorded = recorded
        self.shape = recorded.nodes.shape
        self._numbers = np.arange(recorded.nodes.size).reshape(self.shape)

    def _parents(self) -> Parents:
        return self[...].parents

    def __getitem__(self, index: Any) -> Value:
        """Entries as numpy selects them; an index may be computed from random variables.

        Raises:
            DeclarationError: for entries without a value, or an index that is out of range.
        """
        index = index if isinstance(index, tuple) else (index,)
        if any(isinstance(k, _Arraylike) for k in index):
            return self[...][index]
        name = self.recorded.name
        places = chosen(self._numbers, index, f"{name!r} of shape {self.shape}")
        nodes = self.recorded.nodes.ravel()[places]
        if (nodes < 0).any():
            missing = self.recorded.entry(int(places[nodes < 0].ravel()[0]))
            raise DeclarationError(f"program: {missing!r} is read before it has a value; entries are assigned by {name}[i, j] = ..., all indices at once.")
        assert self.recorded.kind is not None
        parents = np.empty(nodes.shape, dtype=object)
        parents.ravel()[:] = [frozenset((node,)) for node in nodes.ravel().tolist()]
        return Value(self.tape, self.tape.add(Load(name, places)), self.recorded.kind.dtype, parents)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Give entries the value of a statement, one entry each.

        Raises:
            DeclarationError: for a value that no statement made or that has a name already, an entry that has a value already, a shape
                that differs, or values of different kinds in one array.
        """
        recorded, name = self.recorded, self.recorded.name
        index = index if isinstance(index, tuple) else (index,)
        for k in index:
            if isinstance(k, _Arraylike):
                k._refuse(f"an entry of {name!r} is assigned at", "Assign all entries, each by np.where.")
        places = chosen(self._numbers, index, f"{name!r} of shape {self.shape}")
        entry = recorded.entry(int(places.ravel()[0])) if places.size else name
        if not isinstance(value, Value) or value.statement is None:
            raise DeclarationError(f"program: {entry!r} takes what t.sample or t.deterministic returns, got {value!r}; wrap it: t.deterministic(...).")
        if value.tape is not self.tape:
            raise DeclarationError(f"program: {entry!r} takes values of its own run, got {value!r} of another.")
        statement = value.statement
        if statement.name is not None:
            raise DeclarationError(f"program: {entry!r} is given {statement.name!r}, which has that name; for a copy write t.deterministic(...).")
        if places.shape != value.shape:
            raise DeclarationError(f"program: {entry!r} and what follows have shape {places.shape}, but the value has shape {value.shape}.")
        bind(self.tape, value, recorded, places)

    def __iter__(self) -> Iterator[Value]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"entries of {self.recorded.name!r}, shape {self.shape}"


# -- recording -----------------------------------------------------------------------------------------------------------


def bind(tape: Tape, value: Value, recorded: Recorded, places: Nodes) -> None:
    """Let the value of a statement be these entries of a variable, flat indices in the shape of the value.

    Raises:
        DeclarationError: for an entry that has a value already, or values of different kinds.
    """
    statement = value.statement
    assert statement is not None
    flat = places.ravel()
    held = recorded.nodes.reshape(-1)
    taken = flat[held[flat] >= 0]
    if len(taken) or len(np.unique(flat)) < len(flat):
        again = int(taken[0]) if len(taken) else int(flat[0])
        raise DeclarationError(f"program: {recorded.entry(again)!r} has a value already; a node is assigned once.")
    first = recorded.entry(int(flat[0])) if len(flat) < recorded.nodes.size else recorded.name
    if recorded.kind not in (None, statement.kind):
        raise DeclarationError(
            f"program: {first!r} is {statement.kind}, but other entries of {recorded.name!r} are {recorded.kind}; use an array for each, "
            "or make them alike (x * 1.0 is real, x > 0 is binary)."
        )
    recorded.kind = statement.kind
    statement.name = first
    held[flat] = statement.nodes.ravel()
    for node, place in zip(statement.nodes.ravel().tolist(), flat.tolist(), strict=True):
        tape.places[node] = (recorded.name, place)
    tape.add(Store(recorded.name, flat, (value.step,)))


def holds_values(x: Recordable) -> bool:
    """Is something a value of a program, or a list that holds one?"""
    return isinstance(x, _Arraylike) or (isinstance(x, (list, tuple)) and any(holds_values(y) for y in x))


def plain_array(x: Recordable, what: str) -> Array:
    """A plain number, array or nested list as truth values, whole numbers or double precision.

    Raises:
        DeclarationError: if it is none.
    """
    try:
        array = np.asarray(x)
    except (TypeError, ValueError):
        array = np.asarray(None)
    dtypes = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
    if array.dtype.kind not in dtypes:
        raise DeclarationError(f"{what} is a number, an array or a value of the program, got {x!r}.")
    return array.astype(dtypes[array.dtype.kind])


def as_value(tape: Tape, x: Recordable) -> Value:
    """Anything that a program computes with, as a value.

    Raises:
        DeclarationError: for something else, or a value of another run.
    """
    if isinstance(x, Entries):
        x = x[...]
    if isinstance(x, Value):
        if x.tape is not tape:
            raise DeclarationError(f"program: {x!r} belongs to another run; a program uses its own values only.")
        return x
    if holds_values(x):
        stacked: Value = RULES[np.stack](tape, np.stack, [as_value(tape, y) for y in x])
        return stacked
    array = plain_array(x, "program: what values are combined with")
    parents = np.full(array.shape, NOTHING, dtype=object)
    return Value(tape, tape.add(Constant(array)), array.dtype, parents)


def record(tape: Tape, function: Callable[..., Array], sources: Sequence[Value], parents: Parents, dtype: np.dtype[Any] | None = None) -> Value:
    """A value computed by a function of batches.

    Args:
        tape: to record on.
        function: of arrays of shape ``(batch, *shape)`` each, gives shape ``(batch, *parents.shape)``.
        sources: its arguments.
        parents: for each entry of the result.
        dtype: of the result; found by a trial if left out.

    Raises:
        DeclarationError: if the trial fails.
    """
    if dtype is None:
        try:
            with np.errstate(all="ignore"):
                trial = np.asarray(function(*(np.ones((1, *source.shape), source.dtype) for source in sources)))
        except (TypeError, ValueError) as error:
            raise DeclarationError(f"program: values computed from {' and '.join(x._origin() for x in sources)} do not go together: {error}") from None
        assert trial.shape == (1, *parents.shape), (trial.shape, parents.shape)
        dtype = plain_array(trial, "program: the result of a function").dtype
    step: Step = Compute(function, tuple(source.step for source in sources))
    return Value(tape, tape.add(step), dtype, parents)


def elementwise(tape: Tape, function: Callable[..., Any], inputs: Sequence[Recordable], **options: Any) -> Value:
    """The same function of each entry.

    Raises:
        DeclarationError: for shapes that do not broadcast.
    """
    sources = [as_value(tape, x) for x in inputs]
    try:
        shape = np.broadcast_shapes(*(source.shape for source in sources))
    except ValueError:
        shapes = " and ".join(f"{source.shape} (from {source._origin()})" for source in sources)
        raise DeclarationError(f"program: {function.__name__} takes shapes that broadcast, got {shapes}.") from None
    parents = sources[0].parents
    for source in sources[1:]:
        parents = UNION(parents, source.parents)
    counted = function not in _LOGICAL

    def run(*batches: Array) -> Array:
        found: Array = function(*(aligned(as_counts(x) if counted else x, len(shape)) for x in batches), **options)
        return found

    return record(tape, run, sources, as_objects(parents, shape))


def gather(tape: Tape, sources: Sequence[Value], numbers: Nodes) -> Value:
    """Entries of some values, by number when those of all values are counted one after another from 1; 0 for a zero.

    Args:
        tape: to record on.
        sources: the values.
        numbers: in the shape of the result.
    """
    whole = np.concatenate([as_objects(NOTHING, (1,)), *(source.parents.ravel() for source in sources)])
    flat = numbers.ravel()

    def run(*batches: Array) -> Array:
        count = max(len(x) for x in batches)
        columns = [np.broadcast_to(x.reshape(len(x), -1), (count, x[0].size)) for x in batches]
        joined = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        # where there are no entries at all, everything is zero
        found = joined[:, np.maximum(flat - 1, 0)] if joined.shape[1] else np.zeros((count, len(flat)), joined.dtype)
        return np.where(flat > 0, found, np.zeros((), found.dtype)).reshape(count, *numbers.shape)

    dtype = np.result_type(*(source.dtype for source in sources))
    return record(tape, run, sources, whole[flat].reshape(numbers.shape), dtype)


def select(source: Value, axis: int, index: Value) -> Value:
    """Entries at a random index along one axis, which the axes of the index replace; they depend on all that might be selected.

    Raises:
        DeclarationError: for an index that is no whole number; in a draw, for one outside the axis.
    """
    if index.dtype.kind == "f":
        raise DeclarationError(f"program: an index must be a whole number, but one computed from {index._origin()} is real.")
    size, name = source.shape[axis], index._origin()
    before, after = source.shape[:axis], source.shape[axis + 1 :]
    options = as_objects(UNION.reduce(source.parents, axis=axis), (*before, *after)).reshape(*before, *[1] * index.ndim, *after)
    shape = (*before, *index.shape, *after)
    parents = as_objects(UNION(options, index.parents.reshape(*index.shape, *[1] * len(after))), shape)

    def run(x: Array, at: Array) -> Array:
        at = as_counts(at)
        if ((at < 0) | (at >= size)).any():
            worst = int(at[(at < 0) | (at >= size)].ravel()[0])
            raise DeclarationError(f"program: an index computed from {name} is {worst} in a draw, but it selects from {size} entries, counted from 0.")
        count = max(len(x), len(at))
        batch = np.arange(count).reshape(count, *[1] * index.ndim)
        x = np.broadcast_to(np.moveaxis(x, axis + 1, 1), (count, size, *before, *after))
        found = x[batch, np.broadcast_to(at, (count, *index.shape))]
        # (batch, *index, *before, *after) to (batch, *before, *index, *after)
        k, b = index.ndim, len(before)
        order = [0, *range(1 + k, 1 + k + b), *range(1, 1 + k), *range(1 + k + b, found.ndim)]
        return found.transpose(order)

    return record(source.tape, run, [source, index], parents, source.dtype)


def _selected(source: Value, index: tuple[Any, ...]) -> Value:
    """Select by an index that holds values: first by its plain parts, then by each value along its axis."""
    plain = tuple(slice(None) if isinstance(k, _Arraylike) else k for k in index)
    if any(not (k is None or k is Ellipsis or isinstance(k, (int, np.integer, slice))) for k in plain):
        raise DeclarationError(f"program: {source!r} is indexed by values and by a list or an array; apply one after the other.")
    used = sum(1 for k in plain if k is not None and k is not Ellipsis)
    found = source[plain]
    axis, past = 0, False
    values: list[tuple[int, Value]] = []
    for k in index:
        if isinstance(k, _Arraylike):
            # counted from the end where an ellipsis of unknown length comes before
            values.append((axis, as_value(source.tape, k)))
            axis += 1
        elif k is Ellipsis:
            axis, past = axis + source.ndim - used, True
        elif not isinstance(k, (int, np.integer)):
            axis += 1
    assert past or axis <= found.ndim
    if sum(value.ndim > 0 for _, value in values) > 1:
        raise DeclarationError(f"program: {source!r} is indexed by several arrays of values; index one axis at a time.")
    # from the last, so that the axes before stay where they are
    for axis, value in reversed(values):
        found = select(found, axis, value)
    return found


def chosen(numbers: Nodes, index: tuple[Any, ...], what: str) -> Nodes:
    """The numbers that an index of plain numbers, slices and arrays selects.

    Raises:
        DeclarationError: for an index that is out of range or no index.
    """
    try:
        return np.asarray(numbers[index])
    except (IndexError, ValueError, TypeError) as error:
        shown = ", ".join(":" if k == slice(None) else repr(k) for k in index)
        raise DeclarationError(f"program: {what} cannot be indexed by [{shown}]: {error}.") from None


def as_counts(x: Array) -> Array:
    """Truth values as 0 and 1."""
    return x.astype(np.int64) if x.dtype == np.bool_ else x


def as_objects(parents: Any, shape: Shape) -> Parents:
    """An array of sets, also where numpy gave a bare one or left out axes to broadcast along."""
    found = np.empty(shape, dtype=object)
    found[...] = parents
    return found


def children_of(parents: Mapping[int, frozenset[int]]) -> dict[int, list[int]]:
    """Turned round."""
    found: dict[int, list[int]] = {}
    for child, group in parents.items():
        for parent in group:
            found.setdefault(parent, []).append(child)
    return found
