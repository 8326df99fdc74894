"""Reading and printing sudoku grids."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from unn.errors import DataError

_EMPTY = "0._?xX*"
_RULES = set("|+-= \t")
_LEAST_DIGITS = 4
"""Smallest number of digits at which lines that could be rows are taken for whole puzzles."""


def read_puzzles(text: str, rows: int, columns: int, source: str) -> list[list[int]]:
    """Puzzles, digits from 1 and 0 for empty cells, row by row.

    Either one puzzle per line, as consecutive cells (anything after a comma is ignored), or one row per line,
    ignoring spaces and rules of ``| + -``. Digits above 9 are numbers separated by spaces. Empty cells are
    any of ``0 . _ ? x *``.

    Args:
        text: contents of the file.
        rows, columns: size of a block.
        source: name of the source for error messages.

    Raises:
        DataError: for malformed puzzles, with line, column and reason.
    """
    n = rows * columns
    lines = _lines(text)
    if not lines:
        raise DataError(
            f"{source}: it contains no puzzle; write {n} rows of {n} cells, or all {n * n} cells in one line."
        )
    puzzles: list[list[int]] = []
    grid: list[int] = []
    for number, line in lines:
        cells = _cells(line.split(",")[0], n, f"{source}, line {number}")
        if len(cells) == n * n and not grid:
            puzzles.append(cells)
        elif len(cells) == n:
            grid += cells
            if len(grid) == n * n:
                puzzles.append(grid)
                grid = []
        else:
            expected = f"{n} for a row" + ("" if grid else f", or {n * n} for a whole puzzle")
            raise DataError(f"{source}, line {number}: {len(cells)} cells, expected {expected}.")
    if grid:
        raise DataError(
            f"{source}, line {lines[-1][0]}: the last puzzle ends after {len(grid) // n} of {n} rows."
        )
    return puzzles


def digits_of(text: str, usual: int) -> int:
    """Number of digits of the puzzles of a file, by the number of their cells.

    Args:
        text: contents of the file.
        usual: number of digits that is taken where it is possible, or nothing else is.
    """
    counts = Counter(len(_signs(line)) for _, line in _lines(text))
    if not counts:
        return usual
    # the most frequent length tells the size
    count = max(counts, key=lambda length: (counts[length], length))
    lines = [line for _, line in _lines(text) if len(_signs(line)) == count]
    rows = [_signs(line) for line in lines]
    digits = [int(sign) for row in rows for sign in row if sign.isascii() and sign.isdecimal()]
    highest = max(digits, default=0)
    if len(counts) > 1:
        # of those that are not all alike, lines of whole puzzles alone tell a size
        is_size = math.isqrt(count) ** 2 == count and highest <= math.isqrt(count) >= _LEAST_DIGITS
        return math.isqrt(count) if is_size else usual
    is_usual = count in (usual, usual**2)
    if is_usual and highest <= usual:
        return usual
    root = math.isqrt(count)
    is_whole_puzzle = root**2 == count and highest <= root
    # as many rows as cells in a row: one square, though its rows may be whole puzzles of fewer digits; where
    # it has more than nine, its cells are apart
    is_apart = all(len(_words(line)) == count for line in lines)
    is_square = len(rows) == count and root >= _LEAST_DIGITS and is_apart
    if is_whole_puzzle and not is_square and root >= _LEAST_DIGITS:
        return root
    if len(rows) % count == 0 or (highest > usual and not is_usual):
        return count
    return root if is_whole_puzzle else usual


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines with cells, by number, without comments and rules."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    return [
        (number, line.rstrip())
        for number, line in enumerate(plain.split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#") and not set(line) <= _RULES
    ]


def _words(line: str) -> list[str]:
    """What spaces and rules of a line separate."""
    return line.split(",")[0].replace("|", " ").replace("+", " ").split()


def _signs(line: str) -> list[str]:
    """Cells of a line for an unknown number of digits: numbers between spaces, or single signs."""
    words = _words(line)
    are_numbers = len(words) > 9 and all(len(word) <= 2 for word in words)
    return words if are_numbers else list("".join(words))


def _cells(line: str, n: int, where: str) -> list[int]:
    if n > 9:
        cells = []
        for place, word in enumerate(line.replace("|", " ").split(), 1):
            if len(word) == 1 and word in _EMPTY:
                cells.append(0)
                continue
            if not word.isascii() or not word.isdecimal() or len(word) > 9 or not 0 <= int(word) <= n:
                raise DataError(
                    f"{where}, cell {place}: {word!r} is neither a number from 1 to {n} nor an empty cell "
                    f"({' '.join(_EMPTY)})."
                )
            cells.append(int(word))
        return cells
    cells = []
    for column, sign in enumerate(line, 1):
        if sign in _EMPTY:
            cells.append(0)
        elif sign in "|+ \t":
            continue
        elif sign in "123456789" and int(sign) <= n:
            cells.append(int(sign))
        else:
            raise DataError(
                f"{where}, column {column}: {sign!r} is neither a digit from 1 to {n} nor an empty cell "
                f"({' '.join(_EMPTY)})."
            )
    return cells


def grid_lines(grid: Sequence[int], rows: int, columns: int) -> list[str]:
    """A grid as text, with rules between blocks; 0 is printed as a dot."""
    n = rows * columns
    wide = len(str(n))
    lines = []
    for r in range(n):
        cells = [str(d) if d else "." for d in grid[r * n : (r + 1) * n]]
        parts = [" ".join(cell.rjust(wide) for cell in cells[c : c + columns]) for c in range(0, n, columns)]
        if r and r % rows == 0:
            lines.append("-+-".join("-" * len(part) for part in parts))
        lines.append(" | ".join(parts))
    return lines
