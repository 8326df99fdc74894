"""Files of sudoku puzzles with their solutions, split into training and held-out ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from unn.errors import DataError

from ..reading import locate, read_text
from .files import read_puzzles
from .grids import completions, violated_pairs

_HELD_OUT = 0.2


@dataclass(frozen=True, eq=False)
class Puzzles:
    """Solved puzzles.

    Attributes:
        grids: solutions, digits from 0, shape ``(count, n, n)``.
        given: mask of given cells, shape ``(count, n, n)``.
    """

    grids: Tensor
    given: Tensor

    def first(self, count: int | None) -> Puzzles:
        """The first puzzles; None for all."""
        return Puzzles(self.grids[:count], self.given[:count])


@dataclass(frozen=True, eq=False)
class Split:
    """Puzzles of one file; a fifth, chosen by the SHA-1 of their text, is held out.

    Attributes:
        training: training puzzles.
        held_out: held-out puzzles, at least one.
    """

    training: Puzzles
    held_out: Puzzles


@lru_cache(maxsize=4)
def load_puzzles(path: str, rows: int, columns: int) -> dict[str, Split]:
    """Puzzles by the name of their file, up to its first dot.

    Each line is a puzzle, optionally followed by a comma and its solution; otherwise the puzzle is solved,
    which is slow for hard ones.

    Args:
        path: file, or folder of ``*.txt``, ``*.csv`` and their ``.gz``; looked up in ``$UNN_DATA`` if
            missing.
        rows, columns: size of a block.

    Raises:
        DataError: for files that are missing or malformed, puzzles without a solution or with several, and
            wrong solutions.
    """
    folder = locate(path)
    files = [folder]
    if folder.is_dir():
        files = sorted(
            file for file in folder.iterdir() if file.name.endswith((".txt", ".csv", ".txt.gz", ".csv.gz"))
        )
    if not files:
        raise DataError(f"{path}: there is no file of puzzles in this folder (.txt, .csv, or .gz of these).")
    return {file.name.split(".")[0]: _split(file, rows, columns) for file in files}


def merge_puzzles(parts: Sequence[Puzzles]) -> Puzzles:
    """Concatenate sets of puzzles."""
    return Puzzles(torch.cat([p.grids for p in parts]), torch.cat([p.given for p in parts]))


def _split(file: Path, rows: int, columns: int) -> Split:
    text = read_text(file, "puzzles")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    # independent of the order of lines in the file
    lines.sort(key=lambda line: hashlib.sha1(line.split(",")[0].encode()).digest())
    if len(lines) < 2:
        raise DataError(
            f"{file}: {len(lines)} puzzles; at least two are needed, one to train on and one to hold out."
        )
    puzzles = read_puzzles("\n".join(line.split(",")[0] for line in lines), rows, columns, str(file))
    if len(puzzles) != len(lines):
        raise DataError(f"{file}: write each puzzle on its own line.")
    solutions = [
        _solution(puzzle, line, rows, columns, file) for puzzle, line in zip(puzzles, lines, strict=True)
    ]
    n = rows * columns
    given = torch.tensor(puzzles).view(-1, n, n) > 0
    grids = torch.tensor(solutions).view(-1, n, n) - 1
    wrong = (violated_pairs(grids, rows, columns) > 0) | (
        given & (torch.tensor(puzzles).view(-1, n, n) - 1 != grids)
    ).flatten(1).any(1)
    if bool(wrong.any()):
        raise DataError(
            f"{file}: the solution of the puzzle {lines[int(wrong.nonzero()[0])].split(',')[0]} breaks a "
            "rule or the puzzle."
        )
    first = len(lines) - max(1, round(_HELD_OUT * len(lines)))
    return Split(Puzzles(grids[:first], given[:first]), Puzzles(grids[first:], given[first:]))


def _solution(puzzle: list[int], line: str, rows: int, columns: int, file: Path) -> list[int]:
    written = line.split(",")[1:]
    if not written:
        solutions = list(islice(completions(puzzle, rows, columns), 2))
        if len(solutions) != 1:
            raise DataError(
                f"{file}: the puzzle {line} has {'no solution' if not solutions else 'several solutions'}."
            )
        return solutions[0]
    solution = read_puzzles(written[0], rows, columns, str(file))[0]
    if 0 in solution:
        raise DataError(f"{file}: the solution of the puzzle {line.split(',')[0]} has empty cells.")
    return solution
