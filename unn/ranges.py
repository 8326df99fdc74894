"""Ranges and choices of options."""

from __future__ import annotations

from dataclasses import fields
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
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            raise ArgumentError(
                f"{where}: option {name} must lie between {low:g} and {high:g}, got {value!r}."
            )


def check_kinds(where: str, options: object) -> None:
    """Check the options whose type is ``int``, and those whose type names all values that they may have.

    Args:
        where: name of the problem or model, for messages.
        options: a dataclass.

    Raises:
        ArgumentError: names the first option that is no whole number, or has another value, with the
            possible ones.
    """
    for name, kind in _hints_of(type(options)).items():
        value = getattr(options, name)
        if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
            raise ArgumentError(f"{where}: option {name} must be a whole number, got {value!r}.")
    for name, choices in choices_of(type(options)).items():
        value = getattr(options, name)
        if value not in choices:
            raise ArgumentError(f"{where}: {unknown(name, value, map(str, choices))}")


def choices_of(options: type) -> dict[str, tuple[Any, ...]]:
    """Possible values of each option of a dataclass whose type is ``Literal``, by name."""
    return {name: get_args(hint) for name, hint in _hints_of(options).items() if get_origin(hint) is Literal}


def _hints_of(options: type) -> dict[str, Any]:
    """Types of the options of a dataclass, by name; none if one is imported for type checkers alone."""
    try:
        hints = get_type_hints(options)
    except NameError:
        return {}
    return {field.name: hints[field.name] for field in fields(options)}
