"""Errors that a person can act on: what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnnError(Exception):
    """Base class of every error raised by this package."""


class DeclarationError(UnnError, ValueError):
    """The declared graph is wrong: a name, a pattern, a size or a factor does not fit."""


class ObservationError(UnnError, ValueError):
    """A value passed at run time does not fit the declaration: name, shape, dtype, device, domain or NaN."""


class InferenceError(UnnError, ValueError):
    """What was asked of the engine cannot be done: order, iterations, an unreachable variable."""


class DivergenceError(InferenceError, FloatingPointError):
    """An unrolled network computed NaN or infinite values."""


class ConvergenceWarning(UserWarning):
    """An unrolled network ran an update whose inner solver did not reach a minimum."""


class UnknownNameError(UnnError, KeyError):
    """A result was looked up under a name that it does not hold."""

    def __str__(self) -> str:
        return str(self.args[0])


class DerivativeError(UnnError, NotImplementedError):
    """A derivative or a transform was asked for that a function does not have; the message names one that it has."""


class DataError(UnnError, ValueError):
    """A data file is missing, truncated or corrupt."""


class ExchangeabilityWarning(UserWarning):
    """Embeddings are shared along indices of which the declaration does not say that their values are interchangeable."""


_CLOSE = 0.75
"""Least similarity of a suggestion; at 0.7 'nothing' would still mean 'sorting'."""


def _one_slip_apart(one: str, other: str) -> bool:
    """Whether one letter was left out or added; or, in names of three letters or more, replaced or exchanged with its neighbour."""
    short, long = sorted((one, other), key=len)
    start = next((k for k, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return bool(short) and short[start:] == long[start + 1 :]
    if len(short) < 3:
        return False
    exchanged = short[:start] + short[start : start + 2][::-1] + short[start + 2 :]
    return short[start + 1 :] == long[start + 1 :] or exchanged == long


def suggest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' with the closest known name, upper and lower case being alike, or the list of known names."""
    options = sorted(known)
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=_CLOSE)
    if not close:
        lower = {option.lower(): option for option in options}
        close = [lower[match] for match in difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=_CLOSE)]
    close = close or [option for option in options if _one_slip_apart(str(name), option)]
    if close:
        return f" Did you mean {close[0]!r}?"
    if options:
        return f" Known names: {', '.join(options)}."
    return " Nothing is declared yet."


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """A whole message for an unknown name of one kind ('variable', 'axis', ...)."""
    return f"unknown {kind} {name!r}.{suggest(str(name), known)}"
