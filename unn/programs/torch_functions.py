"""Elementwise torch functions in programs, recorded as numpy functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DeclarationError


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    return np.clip(x, min, max)


# torch.equal, which returns one truth value for whole arrays, is not among them
_SAME_NAME = (
    "abs", "absolute", "add", "arctan2", "bitwise_and", "bitwise_or", "bitwise_xor", "ceil", "cos",
    "cosh", "divide", "exp", "exp2", "expm1", "floor", "floor_divide", "fmod", "greater",
    "greater_equal", "hypot", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp",
    "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "maximum",
    "minimum", "multiply", "negative", "not_equal", "reciprocal", "remainder", "round", "sign", "sin",
    "sinh", "sqrt", "square", "subtract", "tan", "tanh", "true_divide", "trunc", "where",
)  # fmt: skip

_OTHER_NAME: Mapping[str, Callable[..., Any]] = {
    "acos": np.arccos, "acosh": np.arccosh, "arccos": np.arccos, "arccosh": np.arccosh, "asin": np.arcsin,
    "asinh": np.arcsinh, "arcsin": np.arcsin, "arcsinh": np.arcsinh, "atan": np.arctan, "atanh": np.arctanh,
    "arctan": np.arctan, "arctanh": np.arctanh, "atan2": np.arctan2, "div": np.divide, "eq": np.equal,
    "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less, "mul": np.multiply,
    "ne": np.not_equal, "neg": np.negative, "pow": np.power, "rsub": lambda x, y: y - x, "sub": np.subtract,
    "relu": lambda x: np.maximum(x, 0), "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(x, 0), "special_expit": _sigmoid, "clamp": _clamp, "clip": _clamp,
}  # fmt: skip

_FUNCTIONS = {name: getattr(np, name) for name in _SAME_NAME} | dict(_OTHER_NAME)


def call(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Record a torch function whose arguments include values of a program.

    Raises:
        DeclarationError: for a function or an option that is not recorded.
    """
    name = getattr(function, "__name__", str(function))
    given_options = {key: x for key, x in options.items() if x is not None and x is not False}
    value = next((x for x in (*args, *options.values()) if hasattr(x, "origin")), None)
    if name not in _FUNCTIONS or (given_options and name not in ("clamp", "clip")):
        origin = f"a value computed from {value.origin()}" if value is not None else "values of a program"
        how = f" with option {next(iter(given_options))!r}" if name in _FUNCTIONS else ""
        raise DeclarationError(
            f"program: torch.{name} of {origin} is not recorded{how}; only elementwise functions of torch "
            "are, such as torch.exp. Write it with operators and functions of numpy, such as np.sum(x, "
            "axis=0), np.sort, np.einsum, np.stack."
        )
    try:
        return _FUNCTIONS[name](
            *(_plain(x) for x in args), **{key: _plain(x) for key, x in given_options.items()}
        )
    except TypeError as error:
        raise DeclarationError(
            f"program: torch.{name} with these arguments is not recorded: {error}."
        ) from None


def _plain(x: Any) -> Any:
    """Convert a tensor to an array."""
    return x.detach().cpu().numpy() if hasattr(x, "detach") else x
