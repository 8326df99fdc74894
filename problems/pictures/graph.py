"""Declaration of the nonograms of one size, and values of its variables."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

import unn
from factors import Table

from ..nonogram.graph import draw_pictures, hints_of

Runs = tuple[int, ...]
"""Lengths of the runs of black cells of a line."""


def declare(rows: int, columns: int) -> unn.FactorGraph:
    """A colour for each cell, and for each row and column its runs, which its cells must have.

    Args:
        rows, columns: numbers of rows and columns, at most 10: a table has a combination for each line.
    """
    own = {"row": (rows, columns), "column": (columns, rows)}
    sizes = {f"{line}_runs": len(runs_of_lines(length)) for line, (_, length) in own.items()}
    g = unn.FactorGraph("pictures", row=rows, column=columns, colour=2, **sizes)
    X = g.variable("X", "row column | colour", unn.Entropy())
    for line, (_, length) in own.items():
        across = "column" if line == "row" else "row"
        places = [g.index(f"{across}_{k}", "one", [k], into=across).name for k in range(length)]
        runs = g.variable(f"{line}s", f"{line} | {line}_runs", unn.Entropy())
        cells = [
            X[f"i {place}[o] v{k}" if line == "row" else f"{place}[o] i v{k}"]
            for k, place in enumerate(places)
        ]
        numbers = number_of_runs(length).tolist()
        allowed = [(number, *bits) for number, bits in zip(numbers, _lines(length).tolist(), strict=True)]
        g.factor(Table(runs["i r"], *cells, allowed=allowed, name=f"runs of {line}s"))
    return g


def values_of(pictures: Tensor) -> dict[str, Tensor]:
    """Values of all variables, one-hot.

    Args:
        pictures: 1 for black cells, shape ``(batch, rows, columns)``.
    """
    return {"X": F.one_hot(pictures, 2).float(), **given_of(*numbers_of(pictures), *pictures.shape[1:])}


def given_of(row_numbers: Tensor, column_numbers: Tensor, rows: int, columns: int) -> dict[str, Tensor]:
    """Evidence: the runs of the lines, one-hot.

    Args:
        row_numbers: numbers of the runs of each row, shape ``(batch, rows)``.
        column_numbers: those of each column, shape ``(batch, columns)``.
        rows, columns: numbers of rows and columns.
    """
    return {
        "rows": F.one_hot(row_numbers, len(runs_of_lines(columns))).float(),
        "columns": F.one_hot(column_numbers, len(runs_of_lines(rows))).float(),
    }


def numbers_of(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the runs of the rows and of the columns, ``(batch, rows)`` and ``(batch, columns)``.

    Args:
        pictures: 1 for black cells, shape ``(batch, rows, columns)``.
    """
    by_row, by_column = (number_of_runs(pictures.shape[k]) for k in (2, 1))
    return by_row[_codes(pictures)], by_column[_codes(pictures.transpose(1, 2))]


@lru_cache(maxsize=32)
def runs_of_lines(length: int) -> tuple[Runs, ...]:
    """The runs that a line of some cells can have, sorted; their places are their numbers."""
    return tuple(sorted(set(hints_of(_lines(length)))))


@lru_cache(maxsize=32)
def number_of_runs(length: int) -> Tensor:
    """Number of the runs of each line, by its cells as a binary number, shape ``(2 ** length,)``."""
    numbers = {runs: k for k, runs in enumerate(runs_of_lines(length))}
    return torch.tensor([numbers[runs] for runs in hints_of(_lines(length))])


def draw_determined(count: int, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Random pictures that their runs determine line by line, shape ``(count, rows, columns)``."""
    drawn = torch.empty(0, rows, columns, dtype=torch.long)
    while len(drawn) < count:
        pictures = draw_pictures(2 * count, rows, columns, generator)
        drawn = torch.cat([drawn, pictures[determined_line_by_line(pictures)]])
    return drawn[:count]


def move_pictures(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Pictures mirrored at random, and transposed if they are squares, shape ``(batch, rows, columns)``."""
    movements = [lambda x: x.flip(1), lambda x: x.flip(2)]
    if pictures.shape[1] == pictures.shape[2]:
        movements.append(lambda x: x.transpose(1, 2))
    for move in movements:
        chosen = torch.rand(len(pictures), 1, 1, generator=generator) < 0.5
        pictures = torch.where(chosen, move(pictures), pictures)
    return pictures


def determined_line_by_line(pictures: Tensor) -> Tensor:
    """Whether the runs determine each picture line by line, shape ``(batch,)``, boolean.

    A cell of a line is determined where all fillings that have its runs and agree with the cells known so
    far agree in it. A picture that is determined so is the only one with its runs.

    Args:
        pictures: 1 for black cells, shape ``(batch, rows, columns)``.
    """
    numbers = numbers_of(pictures)
    possible = torch.ones(*pictures.shape, 2, dtype=torch.bool)
    while True:
        before = possible
        for axis, own in enumerate(numbers):
            possible = possible.transpose(1, 2) if axis else possible
            possible = _consistent(possible, own)
            possible = possible.transpose(1, 2) if axis else possible
        if possible.equal(before):
            return possible.sum(3).eq(1).all(2).all(1)


def _consistent(possible: Tensor, numbers: Tensor) -> Tensor:
    """Colours that some filling of each line has.

    Args:
        possible: colours of the cells, boolean, shape ``(batch, lines, length, 2)``.
        numbers: numbers of the runs of each line, shape ``(batch, lines)``.
    """
    length = possible.shape[2]
    lines = F.one_hot(_lines(length), 2).bool()
    fits = numbers[..., None] == number_of_runs(length)
    for k in range(length):
        fits = fits & (possible[:, :, k, None] & lines[:, k]).any(-1)
    counts: Tensor = (fits.float() @ lines.flatten(1).float()).unflatten(-1, (length, 2))
    return counts > 0


def _codes(lines: Tensor) -> Tensor:
    """The cells of lines as binary numbers, the first cell most significant, shape ``(..., lines)``."""
    codes: Tensor = (lines * 2 ** torch.arange(lines.shape[-1] - 1, -1, -1)).sum(-1)
    return codes


def _lines(length: int) -> Tensor:
    """All lines of some cells, in the order of their binary numbers, shape ``(2 ** length, length)``."""
    return torch.cartesian_prod(*[torch.tensor([0, 1])] * length).view(-1, length)
