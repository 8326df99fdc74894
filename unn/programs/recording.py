"""Recording of computations on values: elementwise functions, gathers, and selection by random indices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import DeclarationError
from .arraylike import RULES, Arraylike, Parents
from .kinds import Array
from .tape import Compute, Nodes, RecordedConstant, Select, Shape, Tape, aligned
from .values import Entries, Value, select_numbers

Recordable = Any
"""A number, an array, a value or entries of the program, or nested lists of them."""

NOTHING: frozenset[int] = frozenset()

# numpy adds truth values by "or"; Python and programs add them as numbers. These functions keep truth values
_LOGICAL = {
    np.bitwise_and,
    np.bitwise_or,
    np.bitwise_xor,
    np.invert,
    np.logical_and,
    np.logical_or,
    np.logical_xor,
    np.logical_not,
    np.maximum,
    np.minimum,
    np.multiply,
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
    np.where,
}


def _union(one: frozenset[int], other: frozenset[int]) -> frozenset[int]:
    return one if one is other or not other else one | other if one else other


UNION: Any = np.frompyfunc(_union, 2, 1)


def holds_values(x: Recordable) -> bool:
    """Whether an object is a value of a program, or a list with one."""
    return isinstance(x, Arraylike) or (isinstance(x, (list, tuple)) and any(holds_values(y) for y in x))


def plain_array(x: Recordable, what: str) -> Array:
    """Convert a plain number, array, tensor or nested list to truth values, integers or double precision.

    A program has no derivatives, so that a tensor with a gradient counts as constant.

    Raises:
        DeclarationError: for any other object.
    """
    try:
        array = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
    except (TypeError, ValueError):
        array = np.asarray(None)
    dtypes = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
    if array.dtype.kind not in dtypes:
        raise DeclarationError(f"{what} is a number, an array or a value of the program, got {x!r}.")
    return array.astype(dtypes[array.dtype.kind])


def as_value(tape: Tape, x: Recordable) -> Value:
    """Convert an operand of a program to a value.

    Raises:
        DeclarationError: for an unsupported object, or a value of another run.
    """
    if isinstance(x, Entries):
        x = x[...]
    if isinstance(x, Value):
        if x.tape is not tape:
            raise DeclarationError(f"program: {x!r} belongs to another run; use only values of the same run.")
        return x
    if holds_values(x):
        stacked: Value = RULES[np.stack](tape, np.stack, [as_value(tape, y) for y in x])
        return stacked
    array = plain_array(x, "program: an operand")
    parents = np.full(array.shape, NOTHING, dtype=object)
    return Value(tape, tape.add(RecordedConstant(array)), array.dtype, parents)


def as_objects(parents: Any, shape: Shape) -> Parents:
    """Broadcast a set or an array of sets to an object array of the given shape."""
    result = np.empty(shape, dtype=object)
    result[...] = parents
    return result


_PRODUCTS = (np.multiply, np.power, np.square, np.prod, np.cumprod, np.multiply.reduce)
_SUMS = (np.add, np.subtract, np.sum, np.cumsum, np.add.reduce, np.matmul, np.einsum)
_SMALL_COUNT = 2.0**20
"""Sums, also of products of two, of at most four million whole numbers below this stay below the next."""
_LARGEST_COUNT = 2.0**62
"""Whole numbers below this have no rounding error in 64 bits, nor do their doubles overflow."""


def record(
    tape: Tape,
    function: Callable[..., Array],
    sources: Sequence[Value],
    parents: Parents,
    dtype: np.dtype[Any] | None = None,
) -> Value:
    """Record a value computed by a function of batches.

    Args:
        tape: tape of the run.
        function: function of arrays of shape ``(batch, *shape)``; returns shape ``(batch, *parents.shape)``.
        sources: arguments of the function.
        parents: parent sets of the entries of the result.
        dtype: dtype of the result; determined by a trial call if left out.

    Raises:
        DeclarationError: if the trial fails.
    """
    if dtype is None:
        try:
            with np.errstate(all="ignore"):
                trial = np.asarray(
                    function(*(np.ones((1, *source.shape), source.dtype) for source in sources))
                )
        except (TypeError, ValueError) as error:
            raise DeclarationError(
                f"program: values computed from {' and '.join(x.origin() for x in sources)} do not go "
                f"together: {error}"
            ) from None
        assert trial.shape == (1, *parents.shape), (trial.shape, parents.shape)
        dtype = plain_array(trial, "program: the result of a function").dtype
    return Value(tape, tape.add(Compute(function, tuple(source.step for source in sources))), dtype, parents)


def elementwise(
    tape: Tape, function: Callable[..., Any], inputs: Sequence[Recordable], **options: Any
) -> Value:
    """Record an elementwise function.

    Raises:
        DeclarationError: for shapes that do not broadcast.
    """
    if function is np.power and (holds_values(inputs[1]) or bool(np.any(np.asarray(inputs[1]) < 0))):
        # powers of whole numbers are not whole where exponents are negative, and too large where they are not
        function = np.float_power
    sources = [as_value(tape, x) for x in inputs]
    try:
        shape = np.broadcast_shapes(*(source.shape for source in sources))
    except ValueError:
        shapes = " and ".join(f"{source.shape} (from {source.origin()})" for source in sources)
        raise DeclarationError(
            f"program: {function.__name__} takes shapes that broadcast, got {shapes}."
        ) from None
    parents = sources[0].parents
    for source in sources[1:]:
        parents = UNION(parents, source.parents)
    as_numbers = function not in _LOGICAL

    def run(*batches: Array) -> Array:
        arrays = [aligned(as_counts(x) if as_numbers else x, len(shape)) for x in batches]
        return without_overflow(function, *arrays, **options)

    return record(tape, run, sources, as_objects(parents, shape))


def gather(tape: Tape, sources: Sequence[Value], numbers: Nodes) -> Value:
    """Record a gather of entries of several values.

    Args:
        tape: tape of the run.
        sources: the values.
        numbers: numbers of the entries in the concatenation of all values, counted from 1, in the shape of
            the result; 0 gives a zero.
    """
    flat = numbers.ravel()
    filled = bool((flat == 0).any())
    if len(sources) == 1 and not filled:
        parents = sources[0].parents.ravel()[flat - 1]
    else:
        parents = np.concatenate(
            [as_objects(NOTHING, (1,)), *(source.parents.ravel() for source in sources)]
        )[flat]

    def run(*batches: Array) -> Array:
        count = max(len(x) for x in batches)
        columns = [np.broadcast_to(x.reshape(len(x), -1), (count, x[0].size)) for x in batches]
        joined = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        if filled:
            joined = np.concatenate([np.zeros((count, 1), joined.dtype), joined], axis=1)
        return joined[:, flat if filled else flat - 1].reshape(count, *numbers.shape)

    dtype = np.result_type(*(source.dtype for source in sources))
    return record(tape, run, sources, as_objects(parents.reshape(numbers.shape), numbers.shape), dtype)


def select(source: Value, axis: int, index: Value) -> Value:
    """Record the entries at a random index along one axis, which the axes of the index replace.

    Each result depends on all entries that can be selected.

    Raises:
        DeclarationError: for an index that is not an integer, or is a mask of the entries; in a draw, for an
            index out of bounds.
    """
    if index.dtype.kind == "f":
        raise DeclarationError(
            f"program: an index must be a whole number, but one computed from {index.origin()} is real."
        )
    if index.dtype == np.bool_ and index.ndim and source.shape[axis : axis + index.ndim] == index.shape:
        raise DeclarationError(
            f"program: truth values computed from {index.origin()} would select a random number of entries "
            f"of {source!r}; write np.where(mask, x, 0), or 1 * mask to take entries 0 and 1."
        )
    size = source.shape[axis]
    before, after = source.shape[:axis], source.shape[axis + 1 :]
    options = union_along(source.parents, axis).reshape((*before, *[1] * index.ndim, *after))
    shape = (*before, *index.shape, *after)
    parents = as_objects(UNION(options, index.parents.reshape((*index.shape, *[1] * len(after)))), shape)

    def run(x: Array, at: Array) -> Array:
        count = max(len(x), len(at))
        batch = np.arange(count).reshape(count, *[1] * index.ndim)
        x = np.broadcast_to(np.moveaxis(x, axis + 1, 1), (count, size, *before, *after))
        selected = x[batch, np.broadcast_to(at, (count, *index.shape))]
        # (batch, *index, *before, *after) to (batch, *before, *index, *after)
        k, b = index.ndim, len(before)
        order = [0, *range(1 + k, 1 + k + b), *range(1, 1 + k), *range(1 + k + b, selected.ndim)]
        return np.transpose(selected, order)

    step = Select(run, (source.step, index.step), size, index.origin())
    return Value(source.tape, source.tape.add(step), source.dtype, parents)


def _random_index(source: Value, index: tuple[Any, ...]) -> Value:
    """Select by an index with random parts: first by its plain parts, then by each random one along its
    axis."""
    plain = tuple(slice(None) if isinstance(k, Arraylike) else k for k in index)
    if any(
        isinstance(k, bool) or not (k is None or k is Ellipsis or isinstance(k, (int, np.integer, slice)))
        for k in plain
    ):
        raise DeclarationError(
            f"program: {source!r} is indexed by values and by a list or an array; apply one after the other."
        )
    _check_order(source, index)
    used = sum(1 for k in plain if k is not None and k is not Ellipsis)
    result = source[plain]
    axis = 0
    values: list[tuple[int, Value]] = []
    for k in index:
        if isinstance(k, Arraylike):
            values.append((axis, as_value(source.tape, k)))
        if k is Ellipsis:
            axis += source.ndim - used
        elif not isinstance(k, (int, np.integer)):
            axis += 1
    if sum(value.ndim > 0 for _, value in values) > 1:
        raise DeclarationError(
            f"program: {source!r} is indexed by several arrays of values; index one axis at a time."
        )
    # from the last, so that the positions of earlier axes remain valid
    for axis, value in reversed(values):
        result = select(result, axis, value)
    return result


def _check_order(source: Value, index: tuple[Any, ...]) -> None:
    """Check that numpy would not move axes of a selection to the front.

    Raises:
        DeclarationError: for an array of values and other numbers with a slice between them.
    """
    numbers = [place for place, k in enumerate(index) if isinstance(k, (int, np.integer, Arraylike))]
    arrays = [k for k in index if isinstance(k, Arraylike) and as_value(source.tape, k).ndim]
    if arrays and numbers[-1] - numbers[0] >= len(numbers):
        raise DeclarationError(
            f"program: {source!r} is indexed by an array of values and by other numbers with a slice between "
            "them, whose axes numpy would move to the front; index one axis at a time."
        )


def without_overflow(function: Callable[..., Any], *arrays: Array | str, **options: Any) -> Array:
    """The result of a function; of sums and products of whole numbers that 64 bits do not hold, as real
    numbers.

    Args:
        function: function of arrays.
        arrays: its arguments; an argument of another type, such as a formula, is passed on.
        options: further arguments.
    """
    result: Array = function(*arrays, **options)
    is_sum, is_product = function in _SUMS, function in _PRODUCTS
    if not (is_sum or is_product) or result.dtype.kind not in "iu" or not result.size:
        return result
    numbers = [x for x in arrays if isinstance(x, np.ndarray)]
    if is_sum and len(numbers) <= 2 and all(np.abs(x).max(initial=0) < _SMALL_COUNT for x in numbers):
        return result
    real: Array = function(
        *(x.astype(np.float64) if isinstance(x, np.ndarray) else x for x in arrays), **options
    )
    return real if np.abs(real).max() >= _LARGEST_COUNT else result


def as_counts(x: Array) -> Array:
    """Truth values as 0 and 1."""
    return x.astype(np.int64) if x.dtype == np.bool_ else x


def union_along(parents: Parents, axis: int, keepdims: bool = False) -> Parents:
    """The union of sets along an axis; empty if the axis is."""
    shape = list(parents.shape)
    shape[axis] = 1
    union = UNION.reduce(parents, axis=axis, keepdims=True) if parents.shape[axis] else NOTHING
    sets = as_objects(union, tuple(shape))
    return sets if keepdims else sets.squeeze(axis)


def _index(source: Value, index: tuple[Any, ...]) -> Value:
    """Entries of a value."""
    if any(isinstance(k, Arraylike) for k in index):
        return _random_index(source, index)
    return gather(source.tape, [source], select_numbers(source.numbers, index, source))


RULES[operator.getitem] = _index
