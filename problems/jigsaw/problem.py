"""Jigsaw sudoku on the command line; importing it does not load torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unn.errors import DataError

from ..instances import (
    InstanceConfig,
    InstanceProblem,
    cells_given,
    cells_named,
    grid_text,
    numbers,
    sections,
    solved,
)
from ..regions import areas, draw_regions

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given

_LAYOUTS = 100
"""Number of random regions after which no digits fit any."""


@dataclass(frozen=True)
class JigsawConfig(InstanceConfig):
    """Configuration of a run of the problem of jigsaw sudoku.

    Attributes:
        size: Number of rows, columns and regions of the random puzzle.
        holes: Share of its cells that are empty.
    """

    size: int = 6
    holes: float = 0.6


@dataclass(frozen=True)
class Jigsaw:
    """A puzzle.

    Attributes:
        regions: number of the region of each cell, row by row.
        cells: digits from 1, 0 for empty cells.
    """

    regions: tuple[int, ...]
    cells: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of rows."""
        return math.isqrt(len(self.cells))


class JigsawProblem(InstanceProblem):
    """Complete a sudoku with irregular regions."""

    name = "jigsaw"
    summary = "jigsaw sudoku: each digit once in every row, column and region"
    config = JigsawConfig
    noun = "grids"
    ranges = {"size": (1, 25), "holes": (0, 1)}

    def parse(self, text: str, source: str) -> Jigsaw:
        """Rows of regions (any signs; a row does not begin with #), an empty line, and rows of cells."""
        parts = sections(text, source)
        if len(parts) != 2:
            raise DataError(
                f"{source}: {len(parts)} parts, expected two: rows of regions, an empty line, and rows of "
                "cells."
            )
        regions = areas(parts[0], source)
        size = len(parts[0])
        if len(parts[1]) != size:
            raise DataError(
                f"{source}, line {parts[1][0][0]}: {len(parts[1])} rows of cells, but {size} rows of regions."
            )
        for area in range(max(regions) + 1):
            if regions.count(area) != size:
                r, c = divmod(regions.index(area), size)
                raise DataError(
                    f"{source}, line {parts[0][r][0]}: the region of column {c + 1} has "
                    f"{regions.count(area)} cells, expected {size}."
                )
        return Jigsaw(tuple(regions), tuple(numbers(parts[1], source, size)))

    def draw(self, config: Any, generator: torch.Generator) -> Jigsaw:
        """Random regions, digits by random search, and random holes."""
        from random import Random

        import torch

        from .graph import declare

        for _ in range(_LAYOUTS):
            seed = int(torch.randint(2**31, (), generator=generator))
            regions = draw_regions(config.size, 40 * config.size, Random(seed))
            values = solved(declare(regions), {}, 1, seed)
            if values is not None:
                break
        else:
            raise DataError(f"jigsaw: no digits fit {_LAYOUTS} random regions; try another seed or size.")
        cells = values["X"][0].argmax(-1) + 1
        cells[torch.randperm(len(cells), generator=generator)[: round(config.holes * len(cells))]] = 0
        return Jigsaw(tuple(regions), tuple(cells.tolist()))

    def declare_instance(self, instance: Jigsaw) -> unn.FactorGraph:
        """The graph of its regions."""
        from .graph import declare

        return declare(instance.regions)

    def given(self, instance: Jigsaw) -> Given:
        """The cells that are not empty."""
        return cells_given(list(instance.cells), instance.size)

    def show(self, instance: Jigsaw, values: Mapping[str, Tensor]) -> list[str]:
        """The rows."""
        return grid_text((values["X"].argmax(-1) + 1).tolist(), instance.size)

    def explain(self, run: Any, reason: str) -> str:
        """Cells and digits from 1, such as ``r1c3=5``."""
        return cells_named(reason, self.instance(run.config).size)

    def encode(self, run: Any, values: Mapping[str, Tensor]) -> Any:
        """Rows of digits from 1."""
        size = self.instance(run.config).size
        return (values["X"].argmax(-1) + 1).view(size, size).tolist()
