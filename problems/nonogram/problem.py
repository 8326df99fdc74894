"""Nonograms on the command line; importing it does not load torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unn.errors import DataError
from unn.extending import Defaults, DescentOptions

from ..instances import InstanceConfig, InstanceProblem, Line, few_steps, sections

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given


@dataclass(frozen=True)
class NonogramConfig(InstanceConfig):
    """Configuration of a run of the problem of nonograms.

    Attributes:
        rows: Rows of the random picture.
        columns: Columns of the random picture.
    """

    rows: int = 7
    columns: int = 7


@dataclass(frozen=True)
class Nonogram:
    """A puzzle.

    Attributes:
        rows: lengths of the runs of black cells of each row.
        columns: the same of each column.
    """

    rows: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[int, ...], ...]


class NonogramProblem(InstanceProblem):
    """Paint a picture from the lengths of its runs."""

    name = "nonogram"
    summary = "nonograms: a picture from the lengths of the runs of black cells in rows and columns"
    config = NonogramConfig
    defaults = {
        **InstanceProblem.defaults,
        "descent": Defaults(
            DescentOptions(iterations=10, initial="random"), few_steps(steps=8, batch=16, rate=2e-2)
        ),
    }
    noun = "pictures"
    ranges = {"rows": (1, 100), "columns": (1, 100)}

    def parse(self, text: str, source: str) -> Nonogram:
        """The lengths of the runs of each row, a line each, an empty line, and those of each column; 0 for no
        run."""
        parts = sections(text, source)
        if len(parts) != 2:
            raise DataError(
                f"{source}: {len(parts)} parts, expected two: the runs of each row, an empty line, and the "
                "runs of each column."
            )
        rows, columns = parts
        by_row = tuple(_lengths(line, source, len(columns), "columns") for line in rows)
        by_column = tuple(_lengths(line, source, len(rows), "rows") for line in columns)
        black = sum(map(sum, by_row)), sum(map(sum, by_column))
        if black[0] != black[1]:
            raise DataError(
                f"{source}: the rows have {black[0]} black cells, but the columns {black[1]}; the lengths "
                "contradict each other."
            )
        return Nonogram(by_row, by_column)

    def draw(self, config: Any, generator: torch.Generator) -> Nonogram:
        """The runs of a random picture."""
        from .graph import draw_pictures, hints_of

        picture = draw_pictures(1, config.rows, config.columns, generator)[0]
        return Nonogram(tuple(hints_of(picture)), tuple(hints_of(picture.T)))

    def declare_instance(self, instance: Nonogram) -> unn.FactorGraph:
        """The graph of its runs."""
        from .graph import declare

        return declare(instance.rows, instance.columns)

    def given(self, instance: Nonogram) -> Given:
        """Nothing beside the runs."""
        import torch

        import unn

        cells = torch.zeros(1, len(instance.rows) * len(instance.columns), 2)
        return {"X": unn.Partial(cells, torch.zeros(cells.shape[:2], dtype=torch.bool))}

    def show(self, instance: Nonogram, values: Mapping[str, Tensor]) -> list[str]:
        """The picture, black cells as #."""
        width = len(instance.columns)
        signs = "".join("#" if x else "." for x in values["X"].argmax(-1).tolist())
        return [signs[k : k + width] for k in range(0, len(signs), width)]

    def columns_of(self, instance: Nonogram, cells: int) -> int:
        """The columns of the picture."""
        return len(instance.columns)

    def explain(self, run: Any, reason: str) -> str:
        """Cells and runs from 1, such as ``r1c3 black`` and ``run 2 of row 1 at 4``."""
        from .graph import runs_of

        instance = self.instance(run.config)
        width, height = len(instance.columns), len(instance.rows)
        runs = {"Row": runs_of(instance.rows, width), "Column": runs_of(instance.columns, height)}

        def cell(match: re.Match[str]) -> str:
            row, column = divmod(int(match[1]), width)
            return f"r{row + 1}c{column + 1}" + {None: "", "0": " white", "1": " black"}[match[2]]

        def start(match: re.Match[str]) -> str:
            lines = [own.line for own in runs[match[1]]]
            number = int(match[2])
            line = lines[number]
            place = "" if match[3] is None else f" at {int(match[3]) + 1}"
            return f"run {number - lines.index(line) + 1} of {match[1].lower()} {line + 1}{place}"

        reason = re.sub(r"X\[(\d+)\](?: = ([01]))?", cell, reason)
        return re.sub(r"(Row|Column)s\[(\d+)\](?: = (\d+))?", start, reason)

    def first_numbers(self, config: Any) -> dict[str, int]:
        """White cells are 0, black cells 1."""
        return {"X": 0}

    def encode(self, run: Any, values: Mapping[str, Tensor]) -> Any:
        """Rows of cells, 1 for black ones."""
        instance = self.instance(run.config)
        return values["X"].argmax(-1).view(len(instance.rows), len(instance.columns)).tolist()


def _lengths(line: Line, source: str, size: int, what: str) -> tuple[int, ...]:
    number, text = line
    lengths = []
    for word in text.replace(",", " ").split():
        if not word.isascii() or not word.isdecimal() or len(word) > 6:
            raise DataError(f"{source}, line {number}: {word!r} is not the length of a run.")
        lengths.append(int(word))
    if lengths == [0]:
        return ()
    if 0 in lengths:
        raise DataError(f"{source}, line {number}: a run has at least one cell; write 0 alone for no run.")
    needed = sum(lengths) + len(lengths) - 1
    if needed > size:
        raise DataError(
            f"{source}, line {number}: these runs need {needed} cells, but there are {size} {what}."
        )
    return tuple(lengths)
