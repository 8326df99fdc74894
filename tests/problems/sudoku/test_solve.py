"""unn solve sudoku: verified grids, several answers, impossible puzzles, other sizes and bad input."""

import re
from dataclasses import asdict

import pytest
from support.commands import answered, printed, refused
from support.puzzles import SEVENTEEN, SOLUTION, is_grid

from problems.sudoku.grids import completions
from problems.sudoku.problem import SudokuProblem
from unn.cli.problem import load_problem

PUZZLE = "1004041001004001"
EMPTY = "." * 16


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A solver of 4 x 4 grids, trained for a few seconds."""
    import contextlib
    import io

    from unn.cli.main import main

    folder = tmp_path_factory.mktemp("runs") / "four"
    arguments = [
        "train", "sudoku", "--engine", "solver", "--width", "16", "--pool", "8", "--oldest", "32",
        "--solving-steps", "64", "--noise", "0",
        "--steps", "200", "--batch", "16", "--rate", "0.01", "--evaluate-every", "200", "--threads", "1",
        "--folder", str(folder),
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(arguments) == 0
    return folder


def grid_of(answer):
    return [[digit - 1 for digit in row] for row in answer]


def test_a_puzzle_is_solved_and_printed(trained, capsys):
    text = printed(capsys, "solve", trained, PUZZLE)
    assert "1 solved of 1" in text and text.startswith("1 2 | 3 4")


def test_files_of_many_puzzles_are_solved_together(trained, capsys, tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("\n".join([PUZZLE] * 30) + "\n")
    answer = answered(capsys, "solve", trained, path)
    assert answer["solved"] == 30 and len(answer["instances"]) == 30
    assert all(is_grid(grid_of(x["answers"][0]), 2, 2) for x in answer["instances"])
    assert "instance" not in printed(capsys, "solve", trained, path)


def test_several_answers_are_different_completions(trained, capsys):
    puzzle = "1..............."
    (instance,) = answered(capsys, "solve", trained, puzzle, "--count", "4", "--tries", "60")["instances"]
    possible = [tuple(grid) for grid in completions([1] + [0] * 15, 2, 2)]
    grids = {tuple(d for row in answer for d in row) for answer in instance["answers"]}
    assert len(grids) == len(instance["answers"]) >= 2 and grids <= set(possible)


def test_contradictory_givens_are_impossible_and_the_rule_is_named(trained, capsys):
    puzzle = "11.............."
    answer = answered(capsys, "solve", trained, puzzle)
    assert answer["impossible"] == 1 and answer["instances"][0]["answers"] == []
    assert answer["instances"][0]["reason"] == "exactly 1 of 'rows': r1c1=1, r1c2=1, r1c3=1, r1c4=1"
    assert "impossible" in printed(capsys, "solve", trained, puzzle)


def test_what_is_unsolved_comes_with_the_best_answer_and_its_violations(trained, capsys):
    answer = answered(capsys, "solve", trained, EMPTY, "--steps", "1", "--tries", "1", "--seed", "1")
    (instance,) = answer["instances"]
    if instance["outcome"] == "unsolved":
        assert set(instance["violations"]) <= {"rows", "columns", "blocks"} and instance["best"]
    else:
        assert is_grid(grid_of(instance["answers"][0]), 2, 2)


def test_the_same_weights_serve_puzzles_of_other_sizes(trained, capsys):
    rows = ["123456", "456123", "231564", "564231", "312645", "6453.."]
    answer = answered(capsys, "solve", trained, "".join(rows))
    assert answer["solved"] == 1
    assert answer["instances"][0]["answers"][0][5] == [6, 4, 5, 3, 1, 2]


def test_a_picture_is_drawn(trained, capsys, tmp_path):
    printed(capsys, "solve", trained, PUZZLE, "--draw", tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 1000


def test_a_run_that_does_not_solve_names_engines_that_do(capsys, tmp_path):
    folder = tmp_path / "descent"
    printed(capsys, "train", "sudoku", "--engine", "descent", "--steps", "1", "--folder", folder)
    assert "solver" in refused(capsys, "solve", folder, PUZZLE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a file"),
        (["1" * 5 + "x"], "6 symbols"),
        (["none.txt"], "No such file"),
        ([PUZZLE, "." * 81], "one size"),
        ([PUZZLE, "--count", "0"], "--count"),
        ([PUZZLE, "--seconds", "0"], "--seconds"),
        ([PUZZLE, "--tries", "0"], "--tries"),
        ([PUZZLE, "--options", "block_rows=0"], "block_rows"),
    ],
)
def test_bad_input_is_refused_in_one_line(trained, capsys, arguments, message):
    assert re.search(message, refused(capsys, "solve", trained, *arguments))


def test_malformed_files_are_refused_with_line_and_column(trained, capsys, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text(f"{PUZZLE}\n10040410010040a1\n")
    assert re.search("line 2, column 15", refused(capsys, "solve", trained, path))
    path.write_text("")
    assert "no puzzle" in refused(capsys, "solve", trained, path)
    path.write_bytes(b"\xff\xfe\x00")
    assert "no puzzle can be read" in refused(capsys, "solve", trained, path)


def test_untrained_problems_say_how_to_train(capsys):
    text = refused(capsys, "solve", "sorting", "1")
    assert "'solver' cannot serve" in text
    able = text.split("Engines that serve it: ")[1].rstrip(".\n").split(", ")
    assert able and "solver" not in able
    for engine in able:
        assert load_problem("sorting").verdicts()[engine]
    text = refused(capsys, "solve", "sudoku", PUZZLE, "--engine", "recurrent")
    assert "unn train sudoku --engine recurrent" in text


def test_the_weights_that_come_with_the_package_solve_a_puzzle_of_seventeen_clues(capsys):
    (instance,) = answered(capsys, "solve", "sudoku", SEVENTEEN)["instances"]
    assert instance["outcome"] == "solved"
    assert "".join(str(d) for row in instance["answers"][0] for d in row) == SOLUTION


def test_the_weights_that_come_with_the_package_serve_six_by_six(capsys):
    rows = ["123456", "456123", "2...64", "56.231", "3.2.45", "645312"]
    (instance,) = answered(capsys, "solve", "sudoku", "".join(rows))["instances"]
    assert instance["outcome"] == "solved" and is_grid(grid_of(instance["answers"][0]), 2, 3)


def test_a_latin_square_is_a_puzzle_whose_blocks_are_its_rows(capsys):
    puzzle = "1.3......4...2.......5............6..........1..."
    options = ["--engine", "search", "--options", "block_rows=1", "block_columns=7"]
    (instance,) = answered(capsys, "solve", "sudoku", puzzle, *options)["instances"]
    (square,) = instance["answers"]
    digits = set(range(1, 8))
    assert all(set(row) == digits for row in square)
    assert all({row[k] for row in square} == digits for k in range(7))
    cells = [digit for row in square for digit in row]
    assert all(clue in (".", str(cell)) for clue, cell in zip(puzzle, cells, strict=True))


def test_a_solver_of_an_earlier_version_opens_as_one_that_does_not_decimate():
    problem = SudokuProblem()
    content = asdict(problem.config_for("solver")())
    assert problem.earlier_config(content) == content
    del content["model"]["decimate_every"]
    assert problem.earlier_config(content)["model"]["decimate_every"] == 0


def test_as_many_rows_as_cells_in_a_row_are_one_square():
    from problems.sudoku.files import digits_of

    row = " ".join(["1", "2", "3", "4", *["."] * 12])
    assert digits_of("\n".join([row, *[" ".join(["."] * 16)] * 15]), 9) == 16
    # sixteen cells in a line are a puzzle of four digits
    assert digits_of("1...............\n...............2\n", 9) == 4
    # the line that is cut off is the malformed one
    assert digits_of("1...............\n........\n", 9) == digits_of("........\n1...............\n", 9) == 4


def test_every_picture_marks_the_given_cells_of_its_own_puzzle(capsys, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("unn.draw.save_figure", lambda figure, file: drawn.append(figure))
    (tmp_path / "two").write_text("1...............\n...............2\n")
    printed(capsys, "solve", "sudoku", str(tmp_path / "two"), "--engine", "search", "--draw", "two.png")
    bold = [
        {
            (round(t.get_position()[1]), round(t.get_position()[0]))
            for t in axes.texts
            if t.get_fontweight() == "bold"
        }
        for axes in drawn[0].axes
        if axes.axison
    ]
    assert bold == [{(0, 0)}, {(3, 3)}]
