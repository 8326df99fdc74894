"""Files of puzzles: all formats are read, and malformed ones refused with their place."""

import gzip
import itertools
import math
import os
import random
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.helpers import says
from support.puzzles import FORMATS, FOUR, MALFORMED, SEVENTEEN, SOLUTION, digits_of, is_grid

import unn
from problems.sudoku import files
from problems.sudoku import grids as sudoku
from problems.sudoku.files import grid_lines, read_puzzles


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("which", FORMATS)
def test_puzzles_are_read_in_all_formats(which):
    assert read_puzzles(FORMATS[which], 2, 2, "p.txt") == [FOUR]


def test_several_puzzles_are_read_a_line_each_or_row_by_row():
    line, rows = FORMATS["dots"], FORMATS["rows"]
    assert read_puzzles(line * 3, 2, 2, "p") == [FOUR] * 3
    assert read_puzzles(f"{rows}\n{line}{rows}", 2, 2, "p") == [FOUR] * 3
    assert read_puzzles(f"{SEVENTEEN},{SOLUTION}\n{SOLUTION}\n", 3, 3, "p") == [
        digits_of(SEVENTEEN),
        digits_of(SOLUTION),
    ]
    assert read_puzzles("1\n.\n", 1, 1, "p") == [[1], [0]]


@pytest.mark.parametrize("which", ["one line", "rows", "rules"])
def test_above_nine_digits_are_numbers_with_spaces(which):
    n = 12
    grid = [(3 * (r % 3) + r + c) % n + 1 if (r + c) % 3 else 0 for r in range(n) for c in range(n)]
    words = [str(d) if d else random.Random(k).choice("0._?xX*") for k, d in enumerate(grid)]
    lines = [" ".join(words[k : k + n]) for k in range(0, n * n, n)]
    ruled = [*lines[:3], "---+---", *(f"| {line} |" for line in lines[3:])]
    text = {"one line": " ".join(words), "rows": "\n".join(lines), "rules": "\n".join(ruled)}[which]
    assert read_puzzles(text, 3, 4, "p") == [grid]
    assert read_puzzles(text.replace("\n", "\r\n") + "\r\n", 3, 4, "p") == [grid]


@pytest.mark.parametrize("which", MALFORMED)
def test_malformed_puzzles_are_refused_with_line_and_column(which):
    text, words = MALFORMED[which]
    with pytest.raises(unn.DataError, match=says("p.txt", *words)):
        read_puzzles(text, 2, 2, "p.txt")


MALFORMED_NUMBERS = {
    "too large": (" ".join(["1"] * 11 + ["13"]), ["line 1", "cell 12", "'13'", "1 to 12"]),
    "negative": (" ".join(["1"] * 4 + ["-1"] + ["."] * 7), ["line 1", "cell 5", "'-1'"]),
    "a word": ("1 2 three" + " ." * 9, ["line 1", "cell 3", "'three'"]),
    "no spaces": ("." * 144, ["line 1"]),
    "two signs for one cell": (" ".join(["1", "._"] + ["."] * 10), ["line 1", "cell 2", "'._'"]),
    "another script": (" ".join(["٣"] + ["."] * 11), ["line 1", "cell 1"]),
    "an endless number": (" ".join(["9" * 5000] + ["."] * 11), ["line 1", "cell 1"]),
    "a short row": ("1 2 3", ["line 1", "3 cells", "12"]),
    "truncated": ("\n".join([" ".join(["."] * 12)] * 11), ["line 11", "11 of 12 rows"]),
}


@pytest.mark.parametrize("which", MALFORMED_NUMBERS)
def test_malformed_puzzles_of_numbers_are_refused_with_line_and_cell(which):
    text, words = MALFORMED_NUMBERS[which]
    with pytest.raises(unn.DataError, match=says("p.txt", *words)):
        read_puzzles(text, 3, 4, "p.txt")


@given(text=st.text(alphabet="01234.x_,|+- \n\r\t#5a\ufeff", max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text):
    try:
        puzzles = read_puzzles(text, 2, 2, "p")
    except unn.DataError:
        return
    assert puzzles and all(len(grid) == 16 and set(grid) <= set(range(5)) for grid in puzzles)


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_printed_grids_are_read_again(rows, columns, seed):
    n = rows * columns
    grid = torch.randint(n + 1, (n * n,), generator=generator(seed)).tolist()
    lines = grid_lines(grid, rows, columns)
    assert read_puzzles("\n".join(lines), rows, columns, "p") == [grid]
    assert len({len(line) for line in lines}) == 1 and len(lines) == n + n // rows - 1


@example(shape=(2, 3), count=36, layout="line", mark=False, seed=0)
@example(shape=(4, 4), count=1, layout="rows", mark=False, seed=0)
@given(
    shape=st.sampled_from([(2, 2), (2, 3), (2, 4), (3, 3), (2, 5), (3, 4), (4, 4), (5, 5)]),
    count=st.integers(1, 40),
    layout=st.sampled_from(["line", "rows", "printed", "ruled"]),
    mark=st.booleans(),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=150, deadline=None)
def test_the_size_of_puzzles_is_recognised_from_any_layout_and_number_of_them(
    shape, count, layout, mark, seed
):
    n = math.prod(shape)
    lines = []
    for k in range(count):
        grid = torch.randint(n + 1, (n * n,), generator=generator(seed + k)).tolist()
        grid[:n] = range(1, n + 1)
        words = [str(x) if x else "." for x in grid]
        separator = " " if n > 9 else ""
        if layout == "line":
            lines.append(separator.join(words))
        elif layout == "rows":
            lines += [separator.join(words[r * n : (r + 1) * n]) for r in range(n)]
        else:
            lines += ["+---+---+"] * (layout == "ruled") + grid_lines(grid, *shape)
    text = "\ufeff" * mark + "\n".join(lines)
    assert files.digits_of(text, 9) == n
    assert len(read_puzzles(text, *shape, "p")) == count


def test_what_has_no_size_is_read_as_usual_so_that_the_fault_is_named():
    for text in ("", "# nothing", "123\n12", "12345678\n" * 8 + "1", "." * 80, "1" * 81 + "\n123"):
        assert files.digits_of(text, 9) == 9


def test_a_printed_grid_has_rules_between_its_blocks():
    assert grid_lines(FOUR, 2, 2) == ["1 . | . 4", ". 4 | 1 .", "----+----", ". 1 | . .", "4 . | . 1"]
    assert grid_lines([1, 2, 3, 0, 1, 2, 2, 3, 1], 1, 3) == ["1 2 3", "-----", ". 1 2", "-----", "2 3 1"]
    wide = grid_lines([10, *[0] * 99], 2, 5)
    assert wide[0].startswith("10  .  .") and wide[1].startswith(" .  .")


EASY = Path(os.environ.get("UNN_DATA", "")) / "sudoku" / "easy_18to36clues.txt.gz"


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("UNN_DATA") or not EASY.is_file(), reason="no sudoku under $UNN_DATA")
def test_real_puzzles_have_the_one_solution_that_is_given():
    with gzip.open(EASY, "rt", encoding="utf-8") as file:
        lines = list(itertools.islice(file, 20))
    puzzles = read_puzzles("".join(lines), 3, 3, EASY.name)
    solutions = read_puzzles("".join(line.split(",")[1] for line in lines), 3, 3, EASY.name)
    assert len(puzzles) == len(solutions) == 20
    for puzzle, solution in zip(puzzles, solutions, strict=True):
        assert is_grid((torch.tensor(solution).view(9, 9) - 1).tolist(), 3, 3)
        assert list(itertools.islice(sudoku.completions(puzzle, 3, 3), 2)) == [solution]
