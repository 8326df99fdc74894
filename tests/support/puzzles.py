"""Puzzles as text, and what a grid must obey, for the tests of sudoku."""

import itertools

from problems.sudoku.files import read_puzzles


def is_grid(grid, rows, columns):
    """Every digit once in each row, column and block; digits from 0."""
    n = rows * columns
    cells = [[int(d) for d in row] for row in grid]
    groups = [*cells, *zip(*cells, strict=True)]
    for top, left in itertools.product(range(0, n, rows), range(0, n, columns)):
        groups.append([cells[r][c] for r in range(top, top + rows) for c in range(left, left + columns)])
    return all(sorted(group) == list(range(n)) for group in groups)


SEVENTEEN = "000000010400000000020000000000050407008000300001090000300400200050100000000806000"
SOLUTION = "693784512487512936125963874932651487568247391741398625319475268856129743274836159"


def digits_of(text):
    return [int(sign) for sign in text.replace(".", "0")]


FOUR = [1, 0, 0, 4, 0, 4, 1, 0, 0, 1, 0, 0, 4, 0, 0, 1]

FORMATS = {
    "a line": "1004041001004001",
    "dots": "1..4.41..1..4..1\n",
    "all signs for empty cells": "1_?4x41X*1.04001",
    "a solution after a comma": "1..4.41..1..4..1,1234341221434321,more",
    "rows": "1..4\n.41.\n.1..\n4..1\n",
    "rows with spaces": "1 . . 4\n . 4 1 .\n. 1\t. .\n4 . . 1   \n",
    "rows and rules": "+----+----+\n| 1 .|. 4 |\n| . 4|1 . |\n|----+----|\n|. 1 |. . |\n|4 . |. 1 "
    "|\n+----+----+\n",
    "other rules": "1 . | . 4\n. 4 | 1 .\n====|====\n. 1 | . .\n4 . | . 1",
    "blank lines and comments": "# easy\n\n1..4\n.41.\n\n  # half\n.1..\n4..1\n\n",
    "CRLF": "1..4\r\n.41.\r\n.1..\r\n4..1\r\n",
    "old Mac": "1..4\r.41.\r.1..\r4..1\r",
    "byte order mark": "\ufeff1..4\n.41.\n.1..\n4..1\n",
    "byte order mark before a line": "\ufeff1004041001004001\r\n",
    "a line with bars": "1..4|.41.|.1..|4..1",
}

MALFORMED = {
    "empty": ("", ["no puzzle", "4 rows of 4 cells", "16 cells"]),
    "blank": (" \n\t\n\r\n", ["no puzzle"]),
    "comments": ("# 1..4\n", ["no puzzle"]),
    "rules": ("----+----\n", ["no puzzle"]),
    "a letter": ("1..4\n.4a.\n.1..\n4..1", ["line 2", "column 3", "'a'", "1 to 4"]),
    "a digit too large": ("1..4\n.41.\n.15.\n4..1", ["line 3", "column 3", "'5'", "1 to 4"]),
    "a digit too large in a line": ("1..4.41..1..4..9", ["line 1", "column 16", "'9'"]),
    "a rule in a row": ("1-.4\n", ["line 1", "column 2", "'-'"]),
    "a digit of another script": ("1..٤\n", ["line 1", "column 4", "'٤'"]),
    "a superscript": ("1..²\n", ["line 1", "column 4", "'²'"]),
    "a control character": ("1..4\n.\x0041\n", ["line 2", "column 2"]),
    "a header": ("puzzle,solution\n1..4.41..1..4..1,1\n", ["line 1", "column 1", "'p'"]),
    "after a byte order mark": ("\ufeff1.a4", ["line 1", "column 3", "'a'"]),
    "a short row": ("1..4\n.41\n.1..\n4..1", ["line 2", "3 cells", "expected 4"]),
    "a long row": ("1..4\n.41..\n.1..\n4..1", ["line 2", "5 cells", "expected 4"]),
    "a short line": ("1..4.41..1..4..", ["line 1", "15 cells", "4", "16"]),
    "a long line": ("1..4.41..1..4..11", ["line 1", "17 cells", "16"]),
    "a line amid rows": ("1..4\n1..4.41..1..4..1\n", ["line 2", "16 cells", "expected 4"]),
    "a comma at the start": (",1..4\n", ["line 1", "0 cells"]),
    "truncated": ("1..4\n.41.\n.1..\n", ["line 3", "3 of 4 rows"]),
    "the second truncated": ("1..4.41..1..4..1\n\n1..4\n# end\n", ["line 3", "1 of 4 rows"]),
    "CRLF": ("1..4\r\n.4!.\r\n", ["line 2", "column 3", "'!'"]),
    "UTF-16": ("1..4".encode("utf-16").decode("latin-1"), ["line 1", "column 1"]),
}


def grids_in(text, rows=2, columns=2):
    """The grids among the lines of an answer."""
    return read_puzzles(
        "\n".join(line for line in text.splitlines() if "grids are valid" not in line),
        rows,
        columns,
        "answer",
    )
