"""Ranges and choices of options."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

from .errors import ArgumentError, unknown


def check_ranges(where: str, ranges: dict[str, tuple[float, float, float]]) -> None:
    """Check that options lie within their ranges.

    Args:
        where: name of the problem, for messages.
        ranges: value, smallest and largest allowed value, by name.

    Raises:
        ArgumentError: names the first option that is out of range.
    """
    for name, (value, low, high) in ranges.items():
        # written so that NaN fails too
        if not isinstance(value, (int, float)) or not low <= value <= high:
            raise ArgumentError(
                f"{where}: option {name} must lie between {low:g} and {high:g}, got {value!r}."
            )


def check_choices(where: str, options: object) -> None:
    """Check the options whose types name all values that they may have.

    Args:
        where: name of the problem or model, for messages.
        options: a dataclass.

    Raises:
        ArgumentError: names the first option with another value, and the possible ones.
    """
    for name, choices in choices_of(type(options)).items():
        value = getattr(options, name)
        if value not in choices:
            raise ArgumentError(f"{where}: {unknown(name, value, map(str, choices))}")


def check_whole(where: str, options: object) -> None:
    """Check the options whose type is ``int``.

    Args:
        where: name of the problem or model, for messages.
        options: a dataclass.

    Raises:
        ArgumentError: names the first option that is no whole number.
    """
    for name, kind in get_type_hints(type(options)).items():
        value = getattr(options, name)
        if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
            raise ArgumentError(f"{where}: option {name} must be a whole number, got {value!r}.")


def choices_of(options: type) -> dict[str, tuple[Any, ...]]:
    """Possible values of each option of a dataclass whose type is ``Literal``, by name."""
    try:
        hints = get_type_hints(options)
    except NameError:  # a type that is imported for type checkers alone
        return {}
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
