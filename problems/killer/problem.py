"""Killer sudoku on the command line; importing it does not load torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unn.extending import Defaults, DenoiserOptions, DescentOptions, RegressorOptions, SolverOptions

from ..instances import InstanceConfig, InstanceProblem, cells_given, cells_named, few_steps
from ..regions import Cage, draw_cages, read_cages

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given


@dataclass(frozen=True)
class KillerConfig(InstanceConfig):
    """Configuration of a run of the problem of killer sudoku.

    Attributes:
        size: Number of rows of the random puzzle; blocks are as square as possible.
        largest_cage: Largest number of cells of its cages.
        cells_given: Number of its cells that are given.
    """

    size: int = 9
    largest_cage: int = 3
    cells_given: int = 0


@dataclass(frozen=True)
class Killer:
    """A puzzle.

    Attributes:
        size: number of rows.
        cages: the cages.
        cells: digits from 1, 0 for empty cells, row by row.
    """

    size: int
    cages: tuple[Cage, ...]
    cells: tuple[int, ...]

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return max(k for k in range(1, int(self.size**0.5) + 1) if self.size % k == 0)


class KillerProblem(InstanceProblem):
    """Complete a sudoku with sums of cages."""

    name = "killer"
    summary = "killer sudoku: the digits of each cage differ and have a given sum"
    config = KillerConfig
    # the sums of the cages make its networks large
    defaults = {
        **InstanceProblem.defaults,
        "solver": Defaults(SolverOptions(), few_steps(steps=100)),
        "denoiser": Defaults(DenoiserOptions(sampling_steps=20), few_steps(steps=200, batch=16)),
        "descent": Defaults(
            DescentOptions(iterations=10, initial="random"), few_steps(steps=8, batch=16, rate=2e-2)
        ),
        "regressor": Defaults(RegressorOptions(), few_steps(steps=200, batch=16)),
    }
    noun = "grids"
    ranges = {"size": (4, 16), "largest_cage": (1, 16), "cells_given": (0, 256)}

    def parse(self, text: str, source: str) -> Killer:
        """Rows of the letters of cages, and their sums, such as ``a 12``."""
        size, cages, cells = read_cages(text, source, "+ ")
        return Killer(size, tuple(cages), tuple(cells))

    def draw(self, config: Any, generator: torch.Generator) -> Killer:
        """Random cages of a random grid."""
        from random import Random

        import torch

        from ..sudoku.grids import draw_grids

        empty = Killer(config.size, (), ())
        rows = empty.block_rows
        grid = (draw_grids(1, rows, config.size // rows, generator)[0] + 1).flatten().tolist()
        random = Random(int(torch.randint(2**31, (), generator=generator)))

        def differs(cage: list[int], cell: int) -> bool:
            return grid[cell] not in [grid[k] for k in cage]

        cages = [
            Cage(tuple(cells), sum(grid[k] for k in cells), "+")
            for cells in draw_cages(grid, config.largest_cage, random, differs)
        ]
        given = set(torch.randperm(len(grid), generator=generator)[: config.cells_given].tolist())
        return Killer(config.size, tuple(cages), tuple(x if k in given else 0 for k, x in enumerate(grid)))

    def declare_instance(self, instance: Killer) -> unn.FactorGraph:
        """The graph of its cages."""
        from .graph import declare

        return declare(instance.block_rows, instance.size // instance.block_rows, instance.cages)

    def given(self, instance: Killer) -> Given:
        """The cells that are not empty."""
        return cells_given(list(instance.cells), instance.size)

    def show(self, instance: Killer, values: Mapping[str, Tensor]) -> list[str]:
        """The rows, with rules between blocks."""
        from ..sudoku.files import grid_lines

        rows = instance.block_rows
        return grid_lines((values["X"].argmax(-1) + 1).tolist(), rows, instance.size // rows)

    def explain(self, run: Any, reason: str) -> str:
        """Cells and digits from 1, such as ``r1c3=5``, and sets of digits of cages, such as ``r1c1 + r1c2 of
        2 and 7``."""
        from .graph import sets_of

        instance = self.instance(run.config)

        def named(match: re.Match[str]) -> str:
            cage, choice = (int(group) for group in match.groups())
            cells = [divmod(k, instance.size) for k in instance.cages[cage].cells]
            sets = sets_of(instance.cages[cage], instance.size)
            # cages with fewer sets than others have choices that are excluded
            digits = (
                " and ".join(str(digit + 1) for digit in sets[choice]) if choice < len(sets) else "nothing"
            )
            return f"{' + '.join(f'r{r + 1}c{c + 1}' for r, c in cells)} of {digits}"

        return cells_named(re.sub(r"S\[(\d+)\] = (\d+)", named, reason), instance.size)

    def encode(self, run: Any, values: Mapping[str, Tensor]) -> Any:
        """Rows of digits from 1."""
        size = self.instance(run.config).size
        return (values["X"].argmax(-1) + 1).view(size, size).tolist()
