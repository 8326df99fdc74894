"""Base class of numbers and arrays in a program: they support numpy arithmetic and refuse conversion to plain
numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from ..errors import DeclarationError
from . import torch_functions
from .tape import Shape, Tape

if TYPE_CHECKING:
    from .values import Value

Parents = NDArray[np.object_]
"""Set of parent nodes of each entry of a value: the most recent node on every path to it."""

RULES: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Recording rules by function; filled by ``recording`` and ``operations``, which cannot be imported here
(cycle)."""


class Arraylike(NDArrayOperatorsMixin):
    """A value or an array of entries: operators, numpy functions, and refusals of unsupported uses.

    Attributes:
        shape: shape as in numpy; () for a number.
        tape: tape of the run.
    """

    shape: Shape
    tape: Tape

    def __hash__(self) -> int:
        # == is elementwise as in numpy, so no hash is consistent with it
        raise DeclarationError(
            f"program: a value computed from {self.origin()} is no key of a dictionary and no member of a "
            "set, since it is random; index an array, as in t.constant(array)[index]."
        )

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def T(self) -> Value:  # noqa: N802
        """The value with its axes reversed."""
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

    def std(self, *args: Any, **options: Any) -> Value:
        """``np.std``."""
        return self._call(np.std, *args, **options)

    def var(self, *args: Any, **options: Any) -> Value:
        """``np.var``."""
        return self._call(np.var, *args, **options)

    def argmax(self, *args: Any, **options: Any) -> Value:
        """``np.argmax``."""
        return self._call(np.argmax, *args, **options)

    def argmin(self, *args: Any, **options: Any) -> Value:
        """``np.argmin``."""
        return self._call(np.argmin, *args, **options)

    def any(self, *args: Any, **options: Any) -> Value:
        """``np.any``."""
        return self._call(np.any, *args, **options)

    def all(self, *args: Any, **options: Any) -> Value:
        """``np.all``."""
        return self._call(np.all, *args, **options)

    def cumsum(self, *args: Any, **options: Any) -> Value:
        """``np.cumsum``."""
        return self._call(np.cumsum, *args, **options)

    def cumprod(self, *args: Any, **options: Any) -> Value:
        """``np.cumprod``."""
        return self._call(np.cumprod, *args, **options)

    def clip(self, *args: Any, **options: Any) -> Value:
        """``np.clip``."""
        return self._call(np.clip, *args, **options)

    def round(self, *args: Any, **options: Any) -> Value:
        """``np.round``."""
        return self._call(np.round, *args, **options)

    def dot(self, *args: Any, **options: Any) -> Value:
        """``np.dot``."""
        return self._call(np.dot, *args, **options)

    def repeat(self, *args: Any, **options: Any) -> Value:
        """``np.repeat``."""
        return self._call(np.repeat, *args, **options)

    def squeeze(self, *args: Any, **options: Any) -> Value:
        """``np.squeeze``."""
        return self._call(np.squeeze, *args, **options)

    def swapaxes(self, *args: Any, **options: Any) -> Value:
        """``np.swapaxes``."""
        return self._call(np.swapaxes, *args, **options)

    def take(self, *args: Any, **options: Any) -> Value:
        """``np.take``."""
        return self._call(np.take, *args, **options)

    def reshape(self, *shape: Any) -> Value:
        """``np.reshape``."""
        return self._call(np.reshape, shape[0] if len(shape) == 1 else shape)

    def ravel(self) -> Value:
        """``np.ravel``."""
        return self._call(np.ravel)

    def flatten(self) -> Value:
        """``np.ravel``."""
        return self._call(np.ravel)

    def transpose(self, *axes: Any) -> Value:
        """``np.transpose``."""
        return self._call(np.transpose, (axes[0] if len(axes) == 1 else axes) or None)

    def astype(self, dtype: Any) -> Value:
        """The value as numbers of another type.

        Raises:
            DeclarationError: for real numbers as whole ones, and types other than bool, int and float.
        """
        wanted, value = np.dtype(dtype), self[...]
        converted: Value
        if wanted.kind == "f":
            converted = value * 1.0
        elif wanted.kind == "b":
            converted = value != 0
        elif wanted.kind in "iu" and value.dtype.kind != "f":
            converted = value * 1
        else:
            raise DeclarationError(
                f"program: astype({wanted}) of a value computed from {self.origin()} is not recorded; write "
                "np.floor, np.round or np.trunc for whole numbers."
            )
        return converted

    def __round__(self, digits: int | None = None) -> Value:
        return self._call(np.round, digits or 0)

    def __getitem__(self, index: Any) -> Value:
        """Entries as numpy selects them."""
        raise NotImplementedError

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Value:
        result: Value = self.__array_function__(function, (), (self, *args), options)
        return result

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Value:
        result: Value = RULES[np.ufunc](self.tape, self, ufunc, method, inputs, options)
        return result

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if function not in RULES:
            name = f"{function.__module__}.{function.__name__}".replace("numpy", "np")
            raise DeclarationError(
                f"program: {name} of a value computed from {self.origin()} is not recorded; write it with "
                "operators, indexing, ufuncs such as np.exp, reductions such as np.sum, np.where, np.sort, "
                "np.einsum, or functions that move entries such as np.stack."
            )
        rule = RULES[function]
        try:
            inspect.signature(rule).bind(self.tape, function, *args, **options)
        except TypeError as error:
            raise DeclarationError(
                f"program: np.{function.__name__} of a value computed from {self.origin()} is not recorded "
                f"with these arguments: {error}."
            ) from None
        return rule(self.tape, function, *args, **options)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
    ) -> Any:
        return torch_functions.call(function, args, options or {})

    def origin(self) -> str:
        """Names of up to three parent nodes, for messages."""
        nodes = sorted(frozenset[int]().union(*self.all_parents().ravel()))
        names = [repr(self.tape.node_name(node)) for node in nodes[:3]]
        more = len(nodes) - len(names)
        return (", ".join(names) or "constants") + (f" and {more} more" if more else "")

    def all_parents(self) -> Parents:
        """The set of parent nodes of each entry."""
        raise NotImplementedError

    # -- uses that would make the graph depend on the drawn values -------------------------------------------

    def refuse(self, what: str, remedy: str) -> Never:
        """Refuse an operation on a random value.

        Raises:
            DeclarationError: always.
        """
        raise DeclarationError(
            f"program: {what} a value computed from {self.origin()}, which is random: the program runs once "
            f"for all draws, and what it does next, and so the graph, would depend on that value. {remedy}"
        )

    def __bool__(self) -> bool:
        self.refuse(
            "a condition (if, while, and, or, not, in, max, sorted, assert) on",
            "Write np.where(condition, a, b) for both cases, & | ~ for and, or, not, np.maximum or np.sort.",
        )

    def __int__(self) -> int:
        self.refuse("int() of", "Use functions of numpy, such as np.floor.")

    def __float__(self) -> float:
        self.refuse(
            "a plain number is made (by float(), a function of math, or an entry of a numpy array) of",
            "Use functions of numpy such as np.exp, np.stack to collect values, and t.empty for arrays of "
            "statements.",
        )

    def __complex__(self) -> complex:
        self.refuse("complex() of", "Use real numbers.")

    def __index__(self) -> int:
        self.refuse(
            "a count, a range or an index of a plain array is made of",
            "Let loops run over all cases and select by np.where; to select from a plain array by a random "
            "index write t.constant(array)[index].",
        )

    def __array__(self, *args: Any, **options: Any) -> Never:
        self.refuse(
            "a numpy array is made of",
            "Collect values by np.stack([...]); to select from a plain array by a random index write "
            "t.constant(array)[index].",
        )

    def __format__(self, how: str) -> str:
        if how:
            self.refuse(f"a text (with the format {how!r}) is made of", "Print values after they are drawn.")
        return str(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(
                "a value of a program without axes has no len(); to make a tensor of values, collect them by "
                "np.stack([...]) instead"
            )
        return self.shape[0]
