"""Futoshiki on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unn.errors import DataError

from ..instances import InstanceConfig, InstanceProblem, cells_given, cells_named, sections

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given

_EMPTY = ".0_?x*"


@dataclass(frozen=True)
class FutoshikiConfig(InstanceConfig):
    """Configuration of a run of the problem of futoshiki.

    Attributes:
        size: Number of rows, columns and numbers of the random puzzle.
        inequalities: Share of its pairs of adjacent cells with an inequality.
        cells_given: Number of its cells that are given.
    """

    size: int = 5
    inequalities: float = 0.4
    cells_given: int = 2


@dataclass(frozen=True)
class Futoshiki:
    """A puzzle.

    Attributes:
        size: number of rows.
        cells: numbers from 1, 0 for empty cells, row by row.
        inequalities: pairs of cells, the lesser one first.
    """

    size: int
    cells: tuple[int, ...]
    inequalities: tuple[tuple[int, int], ...]


class FutoshikiProblem(InstanceProblem):
    """Complete a latin square with inequalities."""

    name = "futoshiki"
    summary = "futoshiki: a latin square in which some cells are less than their neighbours"
    config = FutoshikiConfig
    noun = "squares"
    ranges = {"size": (2, 25), "inequalities": (0, 1), "cells_given": (0, 625)}

    def parse(self, text: str, source: str) -> Futoshiki:
        """Lines of cells with < and > between them, and between these lines ^ and v below the cells."""
        sections(text, source)  # refuses an empty file
        lines = [
            (number, line)
            for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1)
            if not line.lstrip().startswith("#")
        ]
        while not lines[0][1].strip():
            lines.pop(0)
        while not lines[-1][1].strip():
            lines.pop()
        if len(lines) % 2 == 0:
            raise DataError(
                f"{source}: {len(lines)} lines, expected an odd number: rows of cells, and between them "
                "lines of ^ and v (which may be empty)."
            )
        if all(line.strip() and not set(line) & set(" <>^vV") for _, line in lines):
            # a grid whose cells are not apart would be read as one of half the size
            raise DataError(f"{source}: nothing is between the cells; write signs or spaces there.")
        size = (len(lines) + 1) // 2
        cells: list[int] = []
        pairs: list[tuple[int, int]] = []
        for k, (number, line) in enumerate(lines):
            signs = line.rstrip().ljust(2 * size - 1)
            if len(signs) > 2 * size - 1:
                raise DataError(
                    f"{source}, line {number}: {len(signs)} columns, expected {2 * size - 1}: {size} cells "
                    "and one sign or space between two of them."
                )
            for column, sign in enumerate(signs):
                where = f"{source}, line {number}, column {column + 1}: {sign!r}"
                cell = k // 2 * size + column // 2
                if k % 2 == 0 and column % 2 == 0:
                    cells.append(_number(sign, size, where))
                elif sign in {" ", "."}:
                    continue
                elif k % 2 == 0 and sign in "<>":
                    pairs.append((cell, cell + 1) if sign == "<" else (cell + 1, cell))
                elif k % 2 == 1 and column % 2 == 0 and sign in "^vV":
                    pairs.append((cell, cell + size) if sign == "^" else (cell + size, cell))
                else:
                    expected = "< or >" if k % 2 == 0 else "^ or v below a cell"
                    raise DataError(f"{where} is not an inequality ({expected}) or a space.")
        return Futoshiki(size, tuple(cells), tuple(pairs))

    def draw(self, config: Any, generator: torch.Generator) -> Futoshiki:
        """Inequalities and cells of a random latin square."""
        import torch

        from ..latin.graph import draw_square

        n = config.size
        square = draw_square(n, generator)
        pairs = [(k, k + 1) for k in range(n * n) if (k + 1) % n] + [(k, k + n) for k in range(n * (n - 1))]
        order = torch.randperm(len(pairs), generator=generator)[: round(config.inequalities * len(pairs))]
        ordered = [pairs[k] if square[pairs[k][0]] < square[pairs[k][1]] else pairs[k][::-1] for k in order]
        given = set(torch.randperm(n * n, generator=generator)[: config.cells_given].tolist())
        cells = [value if k in given else 0 for k, value in enumerate(square)]
        return Futoshiki(n, tuple(cells), tuple(sorted((a, b) for a, b in ordered)))

    def declare_instance(self, instance: Futoshiki) -> unn.FactorGraph:
        """The graph of its inequalities."""
        from .graph import declare

        return declare(instance.size, instance.inequalities)

    def given(self, instance: Futoshiki) -> Given:
        """The cells that are not empty."""
        return cells_given(list(instance.cells), instance.size)

    def show(self, instance: Futoshiki, values: Mapping[str, Tensor]) -> list[str]:
        """The rows, with the inequalities."""
        n = instance.size
        cells = (values["X"].argmax(-1) + 1).tolist()
        wide = len(str(n))
        lines = []
        for r in range(n):
            row = list(range(r * n, (r + 1) * n))
            text = str(cells[row[0]]).rjust(wide)
            for k in row[1:]:
                text += f" {_sign(instance, k - 1, k, '<', '>')} {str(cells[k]).rjust(wide)}"
            lines.append(text)
            if r + 1 < n:
                signs = [_sign(instance, k, k + n, "^", "v").rjust(wide) for k in row]
                lines.append("   ".join(signs).rstrip())
        return lines

    def explain(self, run: Any, reason: str) -> str:
        """Cells and numbers from 1, such as ``r1c3=5``."""
        return cells_named(reason, self.instance(run.config).size)

    def encode(self, run: Any, values: Mapping[str, Tensor]) -> Any:
        """Rows of numbers from 1."""
        size = self.instance(run.config).size
        return (values["X"].argmax(-1) + 1).view(size, size).tolist()


def _number(sign: str, size: int, where: str) -> int:
    if sign in _EMPTY or sign == " ":
        return 0
    value = int(sign, 36) if sign.isascii() and sign.isalnum() else 0
    if not 1 <= value <= size:
        raise DataError(
            f"{where} is neither a number from 1 to {size} (a, b, ... from 10 on) nor an empty cell (.)."
        )
    return value


def _sign(instance: Futoshiki, a: int, b: int, less: str, greater: str) -> str:
    if (a, b) in instance.inequalities:
        return less
    return greater if (b, a) in instance.inequalities else " "
