"""Completion of queens on a chessboard on the command line; importing it does not load torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unn.errors import DataError

from ..instances import InstanceConfig, InstanceProblem, only_section, solved, square

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given

_QUEEN = "Qq1"
_EMPTY = ".0_?x*"


@dataclass(frozen=True)
class QueensConfig(InstanceConfig):
    """Configuration of a run of the problem of queens.

    Attributes:
        size: Number of rows and columns of the random board, at least 4.
        queens: Number of queens that are placed already, at random places of a solution.
    """

    size: int = 8
    queens: int = 2


@dataclass(frozen=True)
class Board:
    """A board with some queens.

    Attributes:
        size: number of rows and columns.
        queens: squares with a queen, row by row from 0.
    """

    size: int
    queens: tuple[int, ...]


class QueensProblem(InstanceProblem):
    """Place queens so that none attacks another."""

    name = "queens"
    summary = "completion of queens: place as many queens as rows so that none attacks another"
    config = QueensConfig
    noun = "boards"
    ranges = {"size": (4, 64), "queens": (0, 64)}

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        super().check(config)
        if config.queens > config.size:
            raise DataError(f"queens: {config.queens} queens do not fit a board of {config.size} rows.")

    def parse(self, text: str, source: str) -> Board:
        """A row per line; queens are Q."""
        lines = only_section(text, source)
        queens = []
        for r, ((number, _), row) in enumerate(zip(lines, square(lines, source), strict=True)):
            for c, sign in enumerate(row):
                if sign not in {*_QUEEN, *_EMPTY}:
                    raise DataError(
                        f"{source}, line {number}, column {c + 1}: {sign!r} is neither a queen (Q) nor an "
                        "empty square (.)."
                    )
                if sign in _QUEEN:
                    queens.append(r * len(lines) + c)
        return Board(len(lines), tuple(queens))

    def draw(self, config: Any, generator: torch.Generator) -> Board:
        """Some queens of a solution that a random search draws."""
        import torch

        from .graph import declare

        seed = int(torch.randint(2**31, (), generator=generator))
        values = solved(declare(config.size), {}, 1, seed)
        if values is None:
            raise DataError(
                f"queens: the search ended without a board of {config.size} rows; try another seed."
            )
        places = values["X"][0].nonzero()[:, 0]
        chosen = places[torch.randperm(len(places), generator=generator)[: config.queens]]
        return Board(config.size, tuple(sorted(chosen.tolist())))

    def declare_instance(self, instance: Board) -> unn.FactorGraph:
        """The graph of its size."""
        from .graph import declare

        return declare(instance.size)

    def given(self, instance: Board) -> Given:
        """The queens that are placed already."""
        import torch

        import unn

        queens = torch.zeros(1, instance.size**2)
        queens[0, list(instance.queens)] = 1
        return {"X": unn.Partial(queens, queens == 1)}

    def show(self, instance: Board, values: Mapping[str, Tensor]) -> list[str]:
        """The rows."""
        signs = ["Q" if x else "." for x in values["X"].tolist()]
        return [" ".join(signs[k : k + instance.size]) for k in range(0, len(signs), instance.size)]

    def explain(self, run: Any, reason: str) -> str:
        """Squares by row and column from 1, and whether they have a queen."""
        size = self.instance(run.config).size

        def named(match: re.Match[str]) -> str:
            row, column = divmod(int(match.group(1)), size)
            return f"{'a queen' if match.group(2) == '1' else 'no queen'} at r{row + 1}c{column + 1}"

        return re.sub(r"X\[(\d+)\] = ([01])", named, reason)

    def encode(self, run: Any, values: Mapping[str, Tensor]) -> Any:
        """The column of the queen of each row, from 1; None for a row without one, or with several."""
        size = self.instance(run.config).size
        rows = values["X"].view(size, size) > 0.5
        return [int(row.nonzero()[0]) + 1 if int(row.sum()) == 1 else None for row in rows]
