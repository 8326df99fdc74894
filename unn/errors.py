"""Errors and warnings whose messages state the fact, the context and a remedy, and checks that raise them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TypeGuard


class UnnError(Exception):
    """Base class of every error raised by this package."""


class DeclarationError(UnnError, ValueError):
    """Invalid declaration: a name, a pattern, a size or a factor."""


class ArgumentError(UnnError, ValueError):
    """Invalid option or argument: unknown, out of range, or without meaning beside the others."""


class ObservationError(UnnError, ValueError):
    """A run-time value is inconsistent with the declaration: name, shape, dtype, device, domain or NaN."""


class InferenceError(UnnError, ValueError):
    """Invalid inference request: order, iterations, or an unreachable variable."""


class DivergenceError(InferenceError, FloatingPointError):
    """An unrolled network, or chains that sample, computed NaN or infinite values."""


class ConvergenceWarning(UserWarning):
    """An unrolled network ran an update whose inner solver did not reach a minimum."""


class UnknownNameError(UnnError, KeyError):
    """A result has no entry of the requested name."""

    def __str__(self) -> str:
        return str(self.args[0])


class DerivativeError(UnnError, NotImplementedError):
    """A function does not support the requested derivative or transform; the message names a supported
    one."""


class DataError(UnnError, ValueError):
    """A data file is missing, truncated or corrupt."""


class ExchangeabilityWarning(UserWarning):
    """Embeddings are shared along indices that the declaration does not state to be exchangeable."""


_CLOSE = 0.75
"""Least similarity of a suggestion; at 0.7, 'sorting' would be suggested for 'nothing'."""


def _differ_by_one_edit(one: str, other: str) -> bool:
    """Whether two names differ by one inserted letter or, from three letters on, one replacement or adjacent
    exchange."""
    short, long = sorted((one, other), key=len)
    start = next((k for k, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return bool(short) and short[start:] == long[start + 1 :]
    if len(short) < 3:
        return False
    exchanged = short[:start] + short[start : start + 2][::-1] + short[start + 2 :]
    return short[start + 1 :] == long[start + 1 :] or exchanged == long


def suggest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' with the closest known name, ignoring case, or the list of known names."""
    options = sorted(known)
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=_CLOSE)
    if not close:
        by_lower_case = {option.lower(): option for option in options}
        close = [
            by_lower_case[match]
            for match in difflib.get_close_matches(str(name).lower(), by_lower_case, n=1, cutoff=_CLOSE)
        ]
    close = close or [option for option in options if _differ_by_one_edit(str(name), option)]
    if close:
        return f" Did you mean {close[0]!r}?"
    if options:
        return f" Known names: {', '.join(options)}."
    return " Nothing is declared yet."


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """The message for an unknown name of a kind ('variable', 'axis', ...)."""
    return f"unknown {kind} {name!r}.{suggest(str(name), known)}"


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Whether a value is an integer of at least ``least``; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def whole_number(name: str, value: object, least: int, error: type[UnnError] = DeclarationError) -> None:
    """Check that a value is an integer of at least ``least``.

    Args:
        name: argument and its owner, for the message, such as "denoiser: width".
        value: the argument.
        least: smallest valid value.
        error: class of the error.

    Raises:
        UnnError: an error of this class otherwise.
    """
    if not is_whole(value, least):
        raise error(f"{name} must be a whole number >= {least}, got {value!r}.")
