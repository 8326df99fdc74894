"""KenKen on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unn.errors import DataError

from ..instances import InstanceConfig, InstanceProblem, cells_given, cells_named, grid_text
from ..regions import Cage, draw_cages, read_cages

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given

_LARGEST = 6
"""Largest number of cells of a cage."""

_MOST_COMBINATIONS = 100_000
"""Largest number of combinations of a cage; larger tables take seconds to list."""


@dataclass(frozen=True)
class KenKenConfig(InstanceConfig):
    """Configuration of a run of the problem KenKen.

    Attributes:
        size: Number of rows, columns and numbers of the random puzzle.
        largest_cage: Largest number of cells of its cages.
    """

    size: int = 4
    largest_cage: int = 3


@dataclass(frozen=True)
class KenKen:
    """A puzzle.

    Attributes:
        size: number of rows.
        cages: the cages.
        cells: numbers from 1, 0 for empty cells, row by row.
    """

    size: int
    cages: tuple[Cage, ...]
    cells: tuple[int, ...]


class KenKenProblem(InstanceProblem):
    """Complete a latin square with results of cages."""

    name = "kenken"
    summary = "KenKen: a latin square in which the numbers of each cage have a given result"
    config = KenKenConfig
    noun = "squares"
    ranges = {"size": (1, 16), "largest_cage": (1, _LARGEST)}

    def parse(self, text: str, source: str) -> KenKen:
        """Rows of the letters of cages, and their results, such as ``a 12x``."""
        from .graph import combinations_of

        size, cages, cells = read_cages(text, source, "+x-/= ")
        for n, cage in enumerate(cages):
            if len(cage.cells) > 1 and cage.operation in ("", "="):
                raise DataError(
                    f"{source}: the result {cage.result} of {len(cage.cells)} cells has no operation; write "
                    "one of + x - / behind it."
                )
            cages[n] = replace(cage, operation=cage.operation or "=")
            if len(cage.cells) > _LARGEST:
                raise DataError(
                    f"{source}: the cage with the result {cage.result} has {len(cage.cells)} cells; at most "
                    f"{_LARGEST} are possible."
                )
            combinations = combinations_of(cages[n], size)
            if len(combinations) > _MOST_COMBINATIONS:
                raise DataError(
                    f"{source}: the cage with the result {cage.result} has {len(combinations):,} "
                    f"combinations of numbers; at most {_MOST_COMBINATIONS:,} are possible."
                )
            if not combinations:
                raise DataError(
                    f"{source}: no numbers from 1 to {size} have the result {cage.result}{cage.operation} in "
                    f"a cage of {len(cage.cells)} cells."
                )
        return KenKen(size, tuple(cages), tuple(cells))

    def draw(self, config: Any, generator: torch.Generator) -> KenKen:
        """Random cages of a random latin square, with random operations."""
        from random import Random

        import torch

        from ..latin.graph import draw_square
        from .graph import has_result

        square = draw_square(config.size, generator)
        random = Random(int(torch.randint(2**31, (), generator=generator)))
        cages = []
        for cells in draw_cages(square, config.largest_cage, random, lambda cage, cell: True):
            own = [square[k] for k in cells]
            signs = "=" if len(own) == 1 else "+x-/" if len(own) == 2 else "+x"
            options = [
                cage
                for sign in signs
                for result in {sum(own), max(own) - min(own), max(own) // min(own), _product(own)}
                if has_result(own, cage := Cage(tuple(cells), result, sign))
            ]
            cages.append(random.choice(options))
        return KenKen(config.size, tuple(cages), (0,) * config.size**2)

    def declare_instance(self, instance: KenKen) -> unn.FactorGraph:
        """The graph of its cages."""
        from .graph import declare

        return declare(instance.size, instance.cages)

    def given(self, instance: KenKen) -> Given:
        """The cells that are not empty."""
        return cells_given(list(instance.cells), instance.size)

    def show(self, instance: KenKen, values: Mapping[str, Tensor]) -> list[str]:
        """The rows."""
        return grid_text((values["X"].argmax(-1) + 1).tolist(), instance.size)

    def explain(self, run: Any, reason: str) -> str:
        """Cells and numbers from 1, such as ``r1c3=5``."""
        return cells_named(reason, self.instance(run.config).size)

    def encode(self, run: Any, values: Mapping[str, Tensor]) -> Any:
        """Rows of numbers from 1."""
        size = self.instance(run.config).size
        return (values["X"].argmax(-1) + 1).view(size, size).tolist()


def _product(numbers: list[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
