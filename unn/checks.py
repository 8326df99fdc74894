"""Checks of numbers that users pass as arguments."""

from __future__ import annotations

from typing import TypeGuard

from .errors import DeclarationError, UnnError


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Whether a value is an integer of at least ``least``; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def whole_number(what: str, value: object, least: int, error: type[UnnError] = DeclarationError) -> None:
    """Check that a value is an integer of at least ``least``.

    Args:
        what: argument and its owner, for the message, such as "denoiser: width".
        value: the argument.
        least: smallest valid value.
        error: class of the error.

    Raises:
        UnnError: an error of this class otherwise.
    """
    if not is_whole(value, least):
        raise error(f"{what} must be a whole number >= {least}, got {value!r}.")
