"""Latin squares with holes on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..instances import (
    InstanceConfig,
    InstanceProblem,
    cells_given,
    cells_named,
    grid_text,
    numbers,
    only_section,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given


@dataclass(frozen=True)
class LatinConfig(InstanceConfig):
    """Configuration of a run of the problem of latin squares.

    Attributes:
        size: Number of rows, columns and numbers of the random square.
        holes: Share of its cells that are empty. Near 0.42 large squares are hardest.
    """

    size: int = 7
    holes: float = 0.5


@dataclass(frozen=True)
class LatinSquare:
    """A partial square.

    Attributes:
        size: number of rows.
        cells: numbers from 1, 0 for empty cells, row by row.
    """

    size: int
    cells: tuple[int, ...]


class LatinProblem(InstanceProblem):
    """Complete a latin square."""

    name = "latin"
    summary = "latin squares with holes: the numbers of each row and column differ"
    config = LatinConfig
    noun = "squares"
    ranges = {"size": (1, 64), "holes": (0, 1)}

    def parse(self, text: str, source: str) -> LatinSquare:
        """A row per line."""
        lines = only_section(text, source)
        return LatinSquare(len(lines), tuple(numbers(lines, source, len(lines))))

    def draw(self, config: Any, generator: torch.Generator) -> LatinSquare:
        """A square by random search, with random holes."""
        import torch

        from .graph import draw_square

        cells = torch.tensor(draw_square(config.size, generator))
        holes = torch.randperm(len(cells), generator=generator)[: round(config.holes * len(cells))]
        cells[holes] = 0
        return LatinSquare(config.size, tuple(cells.tolist()))

    def declare_instance(self, instance: LatinSquare) -> unn.FactorGraph:
        """The graph of its size."""
        from .graph import declare

        return declare(instance.size)

    def given(self, instance: LatinSquare) -> Given:
        """The cells that are not empty."""
        import unn

        (x,) = cells_given(list(instance.cells), instance.size).values()
        assert isinstance(x, unn.Partial)
        square = (1, instance.size, instance.size)
        return {"X": unn.Partial(x.value.view(*square, instance.size), x.mask.view(square))}

    def show(self, instance: LatinSquare, values: Mapping[str, Tensor]) -> list[str]:
        """The rows."""
        return grid_text((values["X"].argmax(-1) + 1).flatten().tolist(), instance.size)

    def explain(self, run: Any, reason: str) -> str:
        """Cells and numbers from 1, such as ``r1c3=5``."""
        return cells_named(reason)

    def encode(self, run: Any, values: Mapping[str, Tensor]) -> Any:
        """Rows of numbers from 1."""
        return (values["X"].argmax(-1) + 1).tolist()
