"""Recording rules of numpy functions: each runs on batches, batch axis first, and on the parent sets of its
arguments.

Three kinds cover most of numpy. Functions that move entries (``reshape``, ``stack``) run once on the numbers
of the entries, and the result is used to gather. Functions along axes (``sum``, ``sort``) have their axes
shifted by one. Elementwise functions (ufuncs, ``where``) broadcast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ..errors import DeclarationError
from .arraylike import RULES, Arraylike, Parents
from .kinds import Array
from .recording import (
    UNION,
    Recordable,
    as_counts,
    as_objects,
    as_value,
    elementwise,
    gather,
    holds_values,
    record,
    select,
    union_along,
    without_overflow,
)
from .tape import Tape, aligned
from .values import Value

Function = Callable[..., Any]
R = TypeVar("R", bound=Function)

_MOVING_ONE: Sequence[Function] = (
    np.reshape,
    np.ravel,
    np.transpose,
    np.swapaxes,
    np.moveaxis,
    np.rollaxis,
    np.expand_dims,
    np.squeeze,
    np.broadcast_to,
    np.flip,
    np.fliplr,
    np.flipud,
    np.roll,
    np.rot90,
    np.repeat,
    np.tile,
    np.diagonal,
    np.diag,
    np.diagflat,
    np.tril,
    np.triu,
    np.copy,
    np.resize,
    np.delete,
)
_MOVING_MANY: Sequence[Function] = (
    np.concatenate,
    np.stack,
    np.vstack,
    np.hstack,
    np.dstack,
    np.column_stack,
    np.block,
)
_ALONG_AXES: Sequence[Function] = (
    np.sum,
    np.prod,
    np.mean,
    np.max,
    np.min,
    np.amax,
    np.amin,
    np.any,
    np.all,
    np.std,
    np.var,
    np.median,
    np.argmax,
    np.argmin,
    np.ptp,
    np.count_nonzero,
)
_SCANS: Sequence[Function] = (np.cumsum, np.cumprod)
_ORDERINGS: Sequence[Function] = (np.sort, np.argsort)
# of truth values, these compute truth values
_TRUTHS: Sequence[Function] = (np.any, np.all, np.max, np.min, np.amax, np.amin)


def _rule(*functions: Function) -> Callable[[R], R]:
    """Record these functions of numpy by calling ``rule(tape, function, *args, **options)``."""

    def register(rule: R) -> R:
        for function in functions:
            RULES[function] = rule
        return rule

    return register


@_rule(np.ufunc)
def _ufunc(
    tape: Tape,
    value: Arraylike,
    ufunc: np.ufunc,
    method: str,
    inputs: tuple[Any, ...],
    options: dict[str, Any],
) -> Value:
    """An elementwise ufunc, or one of its methods."""
    out = options.pop("out", None)
    # x += 1 on a value binds x to a new one
    if out is not None and (
        method != "__call__" or out[0] is not inputs[0] or not isinstance(out[0], Arraylike)
    ):
        raise DeclarationError(
            f"program: np.{ufunc.__name__} cannot write a value computed from {value.origin()} into a numpy "
            "array; bind the result to a name, x = x + y, or use t.empty."
        )
    # the axis None of a reduction stands for all axes; None elsewhere is an option that was left out
    meant = {"axis"} if method == "reduce" else set()
    options = {name: x for name, x in options.items() if x is not None or name in meant}
    if method == "__call__" and ufunc.signature is None and ufunc.nout == 1 and not options:
        return elementwise(tape, ufunc, inputs)
    if method == "reduce" and ufunc.nout == 1:
        return _reduce(tape, ufunc, *inputs, **options)
    if method == "outer" and len(inputs) == 2 and not options:
        left, right = (as_value(tape, x) for x in inputs)
        return elementwise(tape, ufunc, (left.reshape((*left.shape, *[1] * right.ndim)), right))
    if ufunc is np.matmul and method == "__call__" and not options:
        return _product(tape, np.matmul, *inputs)
    how = "" if method == "__call__" else f".{method}"
    raise DeclarationError(
        f"program: np.{ufunc.__name__}{how} with options {sorted(options)} or several results is not "
        f"recorded (of a value computed from {value.origin()}); write it with plain operators."
    )


@_rule(*_MOVING_ONE)
def _move(tape: Tape, function: Function, array: Recordable, *args: Any, **options: Any) -> Value:
    """A function that moves the entries of an array, and fills with zeros."""
    source = as_value(tape, array)
    return gather(tape, [source], _call(function, source.numbers, *args, **options))


@_rule(*_MOVING_MANY)
def _join(tape: Tape, function: Function, arrays: Recordable, *args: Any, **options: Any) -> Value:
    """A function that joins several arrays."""
    sources: list[Value] = []
    starts = [0]

    def numbered(x: Recordable) -> Any:
        # np.block takes nested lists
        if isinstance(x, (list, tuple)):
            return [numbered(y) for y in x]
        sources.append(as_value(tape, x))
        starts.append(starts[-1] + sources[-1].size)
        return sources[-1].numbers + starts[-2]

    numbers = numbered(list(arrays))
    return gather(tape, sources, _call(function, numbers, *args, **options))


@_rule(*_ALONG_AXES)
def _along_axes(tape: Tape, function: Function, array: Recordable, *args: Any, **options: Any) -> Value:
    """A function that reduces axes."""
    return _reduce_axes(tape, function, as_value(tape, array), _options(function, args, options), None)


def _reduce(tape: Tape, ufunc: np.ufunc, array: Recordable, **options: Any) -> Value:
    """The reduction of a ufunc, such as ``np.logaddexp.reduce``."""
    for name in set(options) - {"axis", "keepdims"}:
        raise DeclarationError(f"program: np.{ufunc.__name__}.reduce with option {name!r} is not recorded.")
    return _reduce_axes(tape, ufunc.reduce, as_value(tape, array), options, 0)


def _reduce_axes(tape: Tape, function: Function, source: Value, options: dict[str, Any], axis: Any) -> Value:
    axis, keepdims = options.pop("axis", axis), bool(options.pop("keepdims", False))
    if not source.shape:
        source, axis, keepdims = source.reshape(1), 0, False
    elif axis is None and function in (np.argmax, np.argmin):
        flat = _reduce_axes(tape, function, source.ravel(), options, 0)
        return flat.reshape((1,) * len(source.shape)) if keepdims else flat
    axes = _axes(source, axis, function)
    parents = source.parents
    for k in sorted(axes, reverse=True):
        parents = union_along(parents, k, keepdims)
    moved: Any = tuple(k + 1 for k in axes)
    counted = function not in _TRUTHS
    if keepdims:
        options["keepdims"] = True

    def run(x: Array) -> Array:
        axis = moved[0] if len(moved) == 1 else moved
        return without_overflow(function, as_counts(x) if counted else x, axis=axis, **options)

    return record(tape, run, [source], parents)


@_rule(*_SCANS)
def _scan(tape: Tape, function: Function, array: Recordable, *args: Any, **options: Any) -> Value:
    """A function whose entries depend on the preceding ones along an axis."""
    source, axis, options = _one_axis(tape, function, array, args, options)
    parents = UNION.accumulate(source.parents, axis=axis)

    def run(x: Array) -> Array:
        return without_overflow(function, as_counts(x), axis=axis + 1, **options)

    return record(tape, run, [source], parents)


@_rule(*_ORDERINGS)
def _order(tape: Tape, function: Function, array: Recordable, *args: Any, **options: Any) -> Value:
    """A function whose entries depend on all entries along an axis."""
    source, axis, options = _one_axis(
        tape, function, array, args, {"axis": -1, **options} if not args else options
    )
    parents = as_objects(union_along(source.parents, axis, keepdims=True), source.shape)
    return record(tape, lambda x: function(x, axis=axis + 1, **options), [source], parents)


@_rule(np.where)
def _where(tape: Tape, function: Function, condition: Recordable, *cases: Recordable) -> Value:
    if len(cases) != 2:
        raise DeclarationError(
            "program: np.where takes a condition and two cases; the positions of true entries are random."
        )
    return elementwise(tape, function, (condition, *cases))


@_rule(np.clip)
def _clip(
    tape: Tape,
    function: Function,
    array: Recordable,
    low: Recordable = None,
    high: Recordable = None,
    /,
    **named: Recordable,
) -> Value:
    # numpy has two names for each of the bounds
    bounds = {"a_min": low, "a_max": high}
    for name, bound in named.items():
        longer = {"min": "a_min", "max": "a_max"}.get(name, name)
        if longer not in bounds or bounds[longer] is not None:
            origin = as_value(tape, array).origin()
            raise DeclarationError(
                f"program: np.clip of a value computed from {origin} is not recorded with these arguments: "
                f"unexpected argument {name!r}."
            )
        bounds[longer] = bound
    low, high = bounds.values()
    value = as_value(tape, array)
    value = value if low is None else elementwise(tape, np.maximum, (value, low))
    return value if high is None else elementwise(tape, np.minimum, (value, high))


@_rule(np.round, np.around)
def _round(tape: Tape, function: Function, array: Recordable, decimals: int = 0) -> Value:
    return elementwise(tape, function, (array,), decimals=decimals)


@_rule(np.diff)
def _diff(tape: Tape, function: Function, array: Recordable, n: int = 1, axis: int = -1) -> Value:
    value = as_value(tape, array)
    (k,) = _axes(value, axis, function)
    for _ in range(n):
        before = (slice(None),) * k
        value = elementwise(
            tape, np.subtract, (value[(*before, slice(1, None))], value[(*before, slice(None, -1))])
        )
    return value


@_rule(np.take)
def _take(
    tape: Tape, function: Function, array: Recordable, indices: Recordable, axis: int | None = None
) -> Value:
    """The entries at some indices, which may be random."""
    source = as_value(tape, array)
    if not holds_values(indices):
        return gather(tape, [source], _call(function, source.numbers, indices, axis))
    source = source.ravel() if axis is None else source
    (k,) = _axes(source, axis or 0, function)
    return select(source, k, as_value(tape, indices))


@_rule(np.outer)
def _outer(tape: Tape, function: Function, one: Recordable, other: Recordable) -> Value:
    return elementwise(
        tape, np.multiply, (as_value(tape, one).ravel()[:, None], as_value(tape, other).ravel())
    )


@_rule(np.dot, np.matmul, np.inner, np.vdot)
def _product(tape: Tape, function: Function, one: Recordable, other: Recordable) -> Value:
    """Products of matrices and vectors; of stacks only with ``@``."""
    a, b = as_value(tape, one), as_value(tape, other)
    max_ndim = 2 if function is np.dot else 1
    if function is not np.matmul:
        if function is not np.vdot and not (a.ndim and b.ndim):
            return elementwise(tape, np.multiply, (a, b))
        if max(a.ndim, b.ndim) > max_ndim:
            raise DeclarationError(
                f"program: np.{function.__name__} of shapes {a.shape} and {b.shape} is not recorded; write "
                "it with np.einsum."
            )
    if not (a.ndim and b.ndim) or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise DeclarationError(
            f"program: a product of shapes {a.shape} (from {a.origin()}) and {b.shape} (from {b.origin()}) "
            "needs as many columns as rows."
        )
    matrix_a = a.parents[None] if a.ndim == 1 else a.parents
    matrix_b = b.parents[:, None] if b.ndim == 1 else b.parents
    columns, rows = union_along(matrix_a, -1, keepdims=True), union_along(matrix_b, -2, keepdims=True)
    parents = as_objects(UNION(columns, rows), np.broadcast_shapes(columns.shape, rows.shape))
    drop = ((-2,) if a.ndim == 1 else ()) + ((-1,) if b.ndim == 1 else ())
    axes = max(matrix_a.ndim, matrix_b.ndim)

    def run(x: Array, y: Array) -> Array:
        x, y = as_counts(x), as_counts(y)
        x = x[:, None] if a.ndim == 1 else x
        y = y[:, :, None] if b.ndim == 1 else y
        return without_overflow(np.matmul, aligned(x, axes), aligned(y, axes)).squeeze(drop)

    return record(
        tape, run, [a, b], as_objects(np.squeeze(parents, drop), tuple(np.squeeze(parents, drop).shape))
    )


@_rule(np.einsum)
def _einsum(tape: Tape, function: Function, formula: str, *arrays: Recordable) -> Value:
    """Sums of products by a formula such as ``"ik,kj->ij"``."""
    if not isinstance(formula, str) or "." in formula:
        raise DeclarationError(
            f"program: np.einsum takes a formula of letters such as 'ik,kj->ij', got {formula!r}."
        )
    sources = [as_value(tape, x) for x in arrays]
    left, arrow, right = formula.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        right = "".join(sorted(x for x in set(left) - {","} if left.count(x) == 1))
    sizes: dict[str, int] = {}
    fits = len(terms) == len(sources) and set(right) <= set(left) and len(set(right)) == len(right)
    for term, source in zip(terms, sources):
        fits &= len(term) == source.ndim and all(
            sizes.setdefault(x, size) == size for x, size in zip(term, source.shape)
        )
    if not fits:
        raise DeclarationError(
            f"program: np.einsum({formula!r}) does not fit shapes {', '.join(str(x.shape) for x in sources)}."
        )
    parents: Any = as_objects(frozenset(), tuple(sizes[x] for x in right))
    for term, source in zip(terms, sources):
        parents = UNION(parents, _spread(source.parents, term, right))
    # a letter for the batch that the formula does not use
    batch = next(x for x in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if x not in formula)
    batched = f"{','.join(batch + term for term in terms)}->{batch}{right}"

    def run(*batches: Array) -> Array:
        count = max(len(x) for x in batches)
        arrays = (np.broadcast_to(as_counts(x), (count, *x.shape[1:])) for x in batches)
        return np.asarray(without_overflow(np.einsum, batched, *arrays))

    return record(tape, run, sources, as_objects(parents, tuple(sizes[x] for x in right)))


@_rule(np.zeros_like, np.ones_like)
def _filled(tape: Tape, function: Function, array: Recordable) -> Array:
    return (
        np.zeros(as_value(tape, array).shape)
        if function is np.zeros_like
        else np.ones(as_value(tape, array).shape)
    )


@_rule(np.shape, np.ndim, np.size)
def _extent(tape: Tape, function: Function, array: Recordable) -> Any:
    value = as_value(tape, array)
    return {np.shape: value.shape, np.ndim: value.ndim, np.size: value.size}[function]


def _spread(parents: Parents, term: str, right: str) -> Parents:
    """Parent sets of an operand along the letters of the result, with size one along missing letters."""
    letters = list(term)
    for letter in sorted(set(term)):
        while letters.count(letter) > 1:
            first, second = (k for k, x in enumerate(letters) if x == letter and letters[:k].count(x) < 2)
            # numpy puts the diagonal last
            parents = np.diagonal(parents, axis1=first, axis2=second)
            del letters[second], letters[first]
            letters.append(letter)
    for letter in [x for x in letters if x not in right]:
        parents = union_along(parents, letters.index(letter))
        letters.remove(letter)
    parents = parents.transpose([letters.index(x) for x in right if x in letters])
    return parents[tuple(slice(None) if x in letters else None for x in right)]


def _one_axis(
    tape: Tape, function: Function, array: Recordable, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Value, int, dict[str, Any]]:
    """The array, the axis of the function, and the other options; the array is flattened if no axis is
    given."""
    source = as_value(tape, array)
    named = _options(function, args, options)
    axis = named.pop("axis", None)
    if axis is None:
        source, axis = source.ravel(), 0
    (k,) = _axes(source, axis, function)
    return source, k, named


def _options(function: Function, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The options of a function other than its array, by name.

    Raises:
        DeclarationError: for options that are not supported.
    """
    try:
        bound = inspect.signature(function).bind(None, *args, **options).arguments
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"program: np.{function.__name__}: {error}.") from None
    named = dict(list(bound.items())[1:])
    for name in set(named) - {"axis", "keepdims", "ddof"}:
        raise DeclarationError(f"program: np.{function.__name__} with option {name!r} is not recorded.")
    return named


def _axes(source: Value, axis: Any, function: Function) -> tuple[int, ...]:
    """Axes counted from the front.

    Raises:
        DeclarationError: for an axis out of bounds.
    """
    axes = tuple(range(source.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    for k in axes:
        if not isinstance(k, (int, np.integer)) or not -source.ndim <= k < source.ndim:
            raise DeclarationError(
                f"program: {function.__name__}: axis {k!r} is out of bounds for shape {source.shape}."
            )
    return tuple(int(k) % source.ndim for k in axes)


def _call(function: Function, *args: Any, **options: Any) -> Array:
    """Call a function on numbers of entries.

    Raises:
        DeclarationError: if numpy rejects its arguments.
    """
    try:
        return np.asarray(function(*args, **options))
    except (TypeError, ValueError, IndexError) as error:
        raise DeclarationError(f"program: np.{function.__name__}: {error}.") from None
