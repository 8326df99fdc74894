"""Ranges of options."""

from __future__ import annotations

from .errors import ArgumentError


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
