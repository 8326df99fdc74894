"""Sizes of plates that vary between batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unn.errors import ArgumentError

if TYPE_CHECKING:
    import torch

Plates = Mapping[str, tuple[int, int]]
"""Least and largest size of each plate, by name."""


def random_sizes(plates: Plates, generator: torch.Generator) -> dict[str, int]:
    """Uniform sizes within their ranges."""
    import torch

    return {
        name: int(torch.randint(least, most + 1, (), generator=generator))
        for name, (least, most) in plates.items()
    }


def middle_sizes(plates: Plates) -> dict[str, int]:
    """Sizes in the middle of their ranges."""
    return {name: (least + most) // 2 for name, (least, most) in plates.items()}


def check_sizes(where: str, plates: Plates, sizes: Mapping[str, int]) -> None:
    """Check that the plates of evidence have sizes of training.

    Raises:
        ArgumentError: names the plate with more or fewer entries.
    """
    for name, (least, most) in plates.items():
        if not least <= sizes[name] <= most:
            raise ArgumentError(
                f"{where}: the evidence has {sizes[name]} {name}, and the run was trained on "
                f"{least} to {most}."
            )


def read_plates(where: str, text: str) -> dict[str, tuple[int, int]]:
    """Read plates such as ``points=1-20,groups=2-5``.

    Raises:
        ArgumentError: for another form.
    """
    plates = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, sign, bounds = item.partition("=")
        least, dash, most = bounds.partition("-")
        if not (
            sign
            and dash
            and name.strip().isidentifier()
            and least.strip().isdecimal()
            and most.strip().isdecimal()
        ):
            raise ArgumentError(
                f"{where}: option plates must be comma-separated NAME=LEAST-LARGEST, such as points=1-20, "
                f"got {text!r}."
            )
        if name.strip() in plates:
            raise ArgumentError(f"{where}: option plates names {name.strip()!r} twice.")
        plates[name.strip()] = int(least), int(most)
    return plates
