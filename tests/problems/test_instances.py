"""Problems whose instances are files: verified answers by independent checks, files, bad input."""

import itertools
import re
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import answered, printed, refused

import unn
from problems.futoshiki.problem import FutoshikiProblem
from problems.instances import solved
from problems.jigsaw.problem import JigsawProblem
from problems.kenken.graph import combinations_of, has_result
from problems.kenken.problem import KenKenConfig, KenKenProblem
from problems.killer.problem import KillerProblem
from problems.latin.problem import LatinProblem
from problems.nonogram.problem import NonogramProblem
from problems.queens.problem import QueensProblem
from problems.regions import Cage, connected, draw_regions
from unn.errors import DataError
from unn.extending import Answer, DeclaredProblem, SearchOptions

SMALL = {
    LatinProblem: {"size": 5},
    QueensProblem: {"size": 6, "queens": 1},
    JigsawProblem: {"size": 5},
    KillerProblem: {"size": 4},
    FutoshikiProblem: {"size": 4},
    KenKenProblem: {"size": 4},
    NonogramProblem: {"rows": 5, "columns": 6},
}
EVERY = pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.name)


def lines_of(grid):
    return [*grid, *map(list, zip(*grid, strict=True))]


def is_latin(grid):
    return all(sorted(line) == list(range(1, len(grid) + 1)) for line in lines_of(grid))


def is_right(instance, answer):
    """Whether an answer solves an instance, checked from the rules alone."""
    name = type(instance).__name__
    flat = list(itertools.chain.from_iterable(answer)) if isinstance(answer[0], list) else answer
    cells = getattr(instance, "cells", ())
    if not all(given in (0, value) for given, value in zip(cells, flat, strict=False)):
        return False
    if name == "LatinSquare":
        return is_latin(answer)
    if name == "Board":
        places = [(r, c - 1) for r, c in enumerate(answer)]
        apart = all(
            b != d and abs(a - c) != abs(b - d) for (a, b), (c, d) in itertools.combinations(places, 2)
        )
        return apart and all(divmod(q, instance.size) in places for q in instance.queens)
    if name == "Jigsaw":
        parts = [
            [v for v, r in zip(flat, instance.regions, strict=True) if r == k] for k in range(instance.size)
        ]
        return is_latin(answer) and all(sorted(p) == list(range(1, instance.size + 1)) for p in parts)
    if name == "Futoshiki":
        return is_latin(answer) and all(flat[a] < flat[b] for a, b in instance.inequalities)
    if name == "KenKen":
        return is_latin(answer) and all(has_result([flat[k] for k in c.cells], c) for c in instance.cages)
    if name == "Killer":
        rows = instance.block_rows
        columns = instance.size // rows
        blocks = [
            [answer[r + i][c + j] for i in range(rows) for j in range(columns)]
            for r in range(0, instance.size, rows)
            for c in range(0, instance.size, columns)
        ]
        sums = [[flat[k] for k in cage.cells] for cage in instance.cages]
        return (
            is_latin(answer)
            and all(len(set(block)) == instance.size for block in blocks)
            and all(
                sum(x) == c.result and len(set(x)) == len(x)
                for x, c in zip(sums, instance.cages, strict=True)
            )
        )
    assert name == "Nonogram"
    hints = [
        tuple(len(list(run)) for black, run in itertools.groupby(line) if black) for line in lines_of(answer)
    ]
    return tuple(hints) == (*instance.rows, *instance.columns)


def instance_of(kind, seed, **options):
    problem = kind()
    config = replace(problem.config(), puzzle_seed=seed, **{**SMALL[kind], **options})
    return problem, config, problem.instance(config)


def solve(kind, instance, count=1, seed=0):
    problem = kind()
    values = solved(problem.declare_instance(instance), problem.given(instance), count, seed)
    return None if values is None else [_encoded(problem, instance, values, k) for k in range(count)]


def _encoded(problem, instance, values, k):
    flat = values["X"][k]
    if problem.name == "queens":
        return (flat.view(instance.size, -1).argmax(1) + 1).tolist()
    numbers = flat.argmax(-1) + (problem.name != "nonogram")
    height = len(instance.rows) if problem.name == "nonogram" else instance.size
    return numbers.view(height, -1).tolist()


@EVERY
@given(seed=st.integers(0, 10**6))
@settings(max_examples=8)
def test_random_instances_have_answers_that_follow_the_rules(kind, seed):
    _, _, instance = instance_of(kind, seed)
    answers = solve(kind, instance, 2, seed)
    assert answers is not None and all(is_right(instance, answer) for answer in answers)


@EVERY
def test_the_command_line_prints_an_answer_that_follows_the_rules(kind, capsys):
    _, _, instance = instance_of(kind, 0)
    options = [f"{name}={value}" for name, value in SMALL[kind].items()]
    data = answered(capsys, "solve", kind.name, "--options", *options)
    assert data["solved"] == 1 and is_right(instance, data["instances"][0]["answers"][0])


@EVERY
def test_the_same_seed_draws_the_same_instance_and_another_seed_another(kind):
    problem, config, instance = instance_of(kind, 1)
    draw = problem.draw
    assert draw(config, torch.Generator().manual_seed(1)) == instance
    assert any(instance_of(kind, seed)[2] != instance for seed in range(2, 6))


LATIN = "# a comment\n1 . .\n. 1 .\n. . .\n"
QUEENS = "Q.....\n......\n......\n......\n......\n......\n"
JIGSAW = "aab\nacb\nccb\n\n1..\n...\n...\n"
KENKEN = "aab\nccb\nddd\n\na 3+\nb 3x\nc 1-\nd 6+\n"
KILLER = "aabb\nccdd\neeff\ngghh\n\n" + "".join(
    f"{c} {s}\n" for c, s in zip("abcdefgh", [3, 7, 7, 3] * 2, strict=True)
)
NONOGRAM = "2\n1\n0\n\n2\n1\n0\n"

FILES = {
    "latin": LATIN,
    "jigsaw": JIGSAW,
    "futoshiki": "1<.<.\n\n. . .\n    ^\n. . .\n",
    "kenken": KENKEN,
    "killer": KILLER,
    "nonogram": NONOGRAM,
}
KINDS = {kind.name: kind for kind in SMALL}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_and_solved(name, tmp_path, capsys):
    path = tmp_path / "puzzle.txt"
    path.write_text(FILES[name])
    instance = KINDS[name]().parse(FILES[name], "puzzle")
    data = answered(capsys, "solve", name, path)
    if name == "nonogram":
        assert data["instances"][0]["answers"] == [[[1, 1, 0], [1, 0, 0], [0, 0, 0]]]
    assert is_right(instance, data["instances"][0]["answers"][0])


@pytest.mark.parametrize("name", [name for name in FILES if name != "futoshiki"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: "# mine\n" + text,
        lambda text: "\n  \n" + text + "\n\n",
        lambda text: text.replace("\n\n", "\n  \n\n# a comment\n"),
    ],
    ids=["mark", "windows", "returns", "comment", "blank", "separators"],
)
def test_line_ends_comments_and_blank_lines_do_not_change_an_instance(name, change):
    problem = KINDS[name]()
    assert problem.parse(change(FILES[name]), "here") == problem.parse(FILES[name], "here")


@pytest.mark.parametrize(
    ("kind", "text"), [(FutoshikiProblem, "1<{}\n\n{} {}\n"), (LatinProblem, "1{}\n{}{}\n")]
)
def test_an_empty_cell_is_written_by_any_of_its_signs(kind, text):
    dots = kind().parse(text.format(*"..."), "here")
    for sign in "0_?x*":
        assert kind().parse(text.format(*sign * 3), "here") == dots


@pytest.mark.parametrize("kind", [KillerProblem, KenKenProblem], ids=lambda kind: kind.name)
def test_an_instance_has_as_many_rows_as_its_file_where_the_last_have_no_cage(kind):
    instance = kind().parse("aa..\n....\n....\n....\n\na 3+\n", "here")
    assert instance.size == 4 and instance.cages[0].cells == (0, 1)
    given = kind().parse("aa..\n....\n....\n....\n\na 3+\n\n....\n....\n....\n...4\n", "here")
    assert given.cells[-1] == 4
    with pytest.raises(DataError, match="line 8: 2 rows of cells, but 4 rows of letters"):
        kind().parse("aa..\n....\n....\n....\n\na 3+\n\n..\n..\n", "here")


@pytest.mark.parametrize(("kind", "text"), [(LatinProblem, "12\n21\n"), (QueensProblem, "Q\n")])
def test_a_second_part_of_a_file_with_one_instance_is_refused(kind, text):
    with pytest.raises(DataError, match="another part begins"):
        kind().parse(text + "\n" + text, "here")


def test_files_share_the_time_limit(tmp_path, capsys, monkeypatch):
    limits = []

    def solve(self, run, request):
        limits.append(request.solving.seconds)
        time.sleep(0.02)
        return Answer((), {})

    monkeypatch.setattr(DeclaredProblem, "solve", solve)
    for name in "abc":
        (tmp_path / name).write_text("1\n")
    files = [tmp_path / name for name in "abc"]
    printed(capsys, "solve", "latin", *files, "--seconds", 0.03)
    assert limits[0] <= 0.03 and limits[1] <= 0.01 and 0 < limits[2] < 1e-6
    limits.clear()
    printed(capsys, "solve", "latin", *files)
    assert limits == [None] * 3


def test_a_corner_queen_on_six_rows_is_impossible(tmp_path, capsys):
    path = tmp_path / "board.txt"
    path.write_text(QUEENS)
    data = answered(capsys, "solve", "queens", path)
    assert data["impossible"] == 1
    assert "the search visited every case" in printed(capsys, "solve", "queens", path)


def test_several_files_are_solved_one_after_the_other(tmp_path, capsys):
    paths = []
    for k, size in enumerate((3, 4)):
        paths.append(tmp_path / f"{k}.txt")
        paths[-1].write_text("\n".join(["." * size] * size))
    data = answered(capsys, "solve", "latin", *paths)
    assert data["solved"] == 2 and [len(x["answers"][0]) for x in data["instances"]] == [3, 4]


def test_contradictory_cells_are_impossible_with_the_group(tmp_path, capsys):
    path = tmp_path / "puzzle.txt"
    path.write_text("1 1 .\n. . .\n. . .\n")
    data = answered(capsys, "solve", "latin", path)
    assert data["impossible"] == 1 and "rows" in data["instances"][0]["reason"]


@given(st.integers(2, 4), st.integers(1, 4), st.integers(0, 30), st.sampled_from("+x-/="), st.data())
@settings(max_examples=40)
def test_combinations_of_a_cage_are_those_with_its_result_and_no_number_twice_in_a_line(
    size, count, result, operation, data
):
    everything = [divmod(cell, size) for cell in range(size * size)]
    places = data.draw(st.permutations(everything))[:count]
    cage = Cage(tuple(r * size + c for r, c in places), result, operation)
    expected = [
        tuple(x - 1 for x in numbers)
        for numbers in itertools.product(range(1, size + 1), repeat=len(places))
        if has_result(numbers, cage)
        and all(
            a != b
            for (p, a), (q, b) in itertools.combinations(zip(places, numbers, strict=True), 2)
            if p[0] == q[0] or p[1] == q[1]
        )
    ]
    assert combinations_of(cage, size) == expected


def test_cages_of_five_cells_on_nine_rows_are_searched_in_few_nodes():
    problem = KenKenProblem()
    config = KenKenConfig(size=9, largest_cage=5)
    square = problem.draw(config, torch.Generator().manual_seed(0))
    assert max(len(cage.cells) for cage in square.cages) == 5
    search = unn.Search(problem.declare_instance(square), SearchOptions(mode="depth-first"))
    options = unn.SolvingOptions(steps=100, tries=1)
    assert unn.solve(search, dict(problem.given(square)), options=options).outcomes == ("solved",)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("latin", "1 1 .\n. . .\n. . .\n", "r1c1=1, r1c2=1, r1c3=1"),
        ("jigsaw", "abb\naab\nccc\n\n...\n1.1\n...\n", "r2c1=1, r2c2=1, r2c3=1"),
        ("futoshiki", "1 1 .\n\n. . .\n\n. . .\n", "r1c1=1, r1c2=1, r1c3=1"),
        ("kenken", "aab\nccb\ndde\n\na 3+\nb 4+\nc 4+\nd 5+\ne 1\n", "r2c1=2, r2c2=2, r2c3=2"),
        ("killer", KILLER.replace("a 3", "a 8"), "r1c1 + r1c2 of nothing"),
        ("queens", "Q..\n...\n...\n", "a queen at r2c3, a queen at r3c2"),
        # tables name cells without a number
        ("kenken", "aa\nbc\n\na 3+\nb 1\nc 2\n\n. .\n. 1\n", "cage 3': r2c2"),
        ("futoshiki", ".<1\n   \n. .\n", "inequalities': r1c1, r1c2"),
        ("nonogram", "2\n0\n1\n\n1\n2\n", "run 1 of column 2 at 1, run 1 of column 2 at 2"),
    ],
)
def test_reasons_name_cells_by_rows_and_columns(name, text, reason, tmp_path, capsys):
    path = tmp_path / "puzzle.txt"
    path.write_text(text)
    assert reason in answered(capsys, "solve", name, path)["instances"][0]["reason"]


def test_a_killer_sum_that_no_digits_have_is_impossible(tmp_path, capsys):
    path = tmp_path / "puzzle.txt"
    path.write_text(KILLER.replace("a 3", "a 8"))
    assert answered(capsys, "solve", "killer", path)["impossible"] == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("latin", "", "no content"),
        ("latin", "12\n1\n", "line 2: 1 cells, expected 2"),
        ("latin", "12\n13\n", "line 2, cell 2: '3' is neither a number from 1 to 2"),
        ("queens", "Q.\n.b\n", "line 2, column 2: 'b' is neither a queen"),
        ("jigsaw", "ab\nab\n", "1 parts, expected two"),
        ("jigsaw", "ab\nbb\n\n..\n..\n", "line 1: the region of column 1 has 1 cells, expected 2"),
        ("jigsaw", "ab\nab\n\n..\n..\n..\n", "line 4: 3 rows of cells"),
        ("futoshiki", ". .\n. .\n", "2 lines, expected an odd number"),
        ("futoshiki", ".x.\n\n. .\n", "line 1, column 2: 'x' is not an inequality"),
        ("futoshiki", ".<.\n <\n. .\n", "line 2, column 2: '<' is not an inequality"),
        ("futoshiki", "3 .\n\n. .\n", "line 1, column 1: '3' is neither a number from 1 to 2"),
        ("futoshiki", ". . .\n\n. .\n", "line 1: 5 columns, expected 3"),
        ("futoshiki", "1....\n.....\n....3\n.....\n.....\n", "nothing is between the cells"),
        ("kenken", "aa\nbb\n", "1 parts, expected two or three"),
        ("kenken", "aa\nbb\n\na 3+\n", "cage 'b' has no result"),
        ("kenken", "aab\nccb\ndde\n\na 0/\nb 3+\nc 3+\nd 5+\ne 1\n", "have the result 0/"),
        ("kenken", "aa\nbb\n\na 3+\nb ?\n", "line 5: 'b \\?' is not the letter"),
        ("kenken", "aa\nbb\n\na 3+\na 3+\n", "line 5: cage 'a' has a result already"),
        ("kenken", "aa\nbb\n\na 3+\nc 3+\n", "line 5: no cell belongs to cage 'c'"),
        ("kenken", "aa\na.\n\na 3-\n", "'-' takes two cells, but cage 'a' has 3"),
        ("kenken", "aa\nbb\n\na 3\nb 3+\n", "has no operation"),
        ("kenken", "aa\nbb\n\na 9+\nb 3+\n", "no numbers from 1 to 2"),
        ("killer", "aa\nbb\n\na 3x\nb 3\n", "line 4: 'a 3x' is not the letter"),
        ("nonogram", "1\n", "1 parts, expected two"),
        ("nonogram", "1\n2\n\n1\n1\n", "the rows have 3 black cells, but the columns 2"),
        ("nonogram", "1 1\n1\n\n1\n1\n", "line 1: these runs need 3 cells, but there are 2 columns"),
        ("nonogram", "a\n\n1\n", "line 1: 'a' is not the length of a run"),
        ("nonogram", "1 0\n\n1\n0\n", "line 1: a run has at least one cell"),
    ],
)
def test_malformed_files_are_refused_with_the_line_and_the_reason(name, text, message, tmp_path, capsys):
    path = tmp_path / "puzzle.txt"
    path.write_text(text)
    error = refused(capsys, "solve", name, path)
    assert re.search(message, error) and "puzzle.txt" in error


@EVERY
@given(text=st.text(alphabet="abAB123.^v<>x+-= \n", max_size=60))
@settings(max_examples=40)
def test_any_text_is_read_or_refused_by_a_data_error(kind, text):
    try:
        instance = kind().parse(text, "file")
    except DataError as error:
        message = str(error)
    else:
        message = "file" if kind().declare_instance(instance).constraints else ""
    assert message.startswith("file")


@EVERY
def test_a_missing_file_is_refused_by_name(kind, capsys):
    assert "none.txt" in refused(capsys, "solve", kind.name, "none.txt")


@EVERY
def test_options_out_of_range_are_refused_by_name(kind, capsys):
    name = next(iter(kind.ranges))
    assert name in refused(capsys, "solve", kind.name, "--options", f"{name}=-1")


def test_more_queens_than_rows_are_refused(capsys):
    assert "9 queens" in refused(capsys, "solve", "queens", "--options", "queens=9")


@given(st.integers(2, 7), st.integers(0, 2**16))
@settings(max_examples=20)
def test_random_regions_are_connected_and_of_equal_sizes(size, seed):
    from random import Random

    regions = draw_regions(size, 10 * size, Random(seed))
    for area in range(size):
        cells = [k for k, x in enumerate(regions) if x == area]
        assert len(cells) == size and connected(cells, size)


def test_cells_may_be_separated_by_tabs(tmp_path, capsys):
    path = tmp_path / "square.txt"
    path.write_text("1\t.\t.\n.\t.\t.\n.\t.\t2\n")
    assert answered(capsys, "solve", "latin", path)["solved"] == 1


def test_each_of_several_files_has_a_picture_of_its_own(tmp_path, capsys):
    paths = []
    for number in range(2):
        paths.append(tmp_path / f"square{number}.txt")
        paths[-1].write_text(f"{number + 1}..\n...\n...\n")
    text = printed(capsys, "solve", "latin", *paths, "--draw", tmp_path / "answer.png")
    for number in (1, 2):
        assert (tmp_path / f"answer-{number}.png").stat().st_size > 1000
        assert f"answer-{number}.png" in text


@pytest.fixture
def without_search(monkeypatch):
    """A search is a failure; of sudoku, whose declaration draws no instance, as drawing one is a search."""
    monkeypatch.setattr("unn.solver.solve.solve", lambda *_, **__: pytest.fail("the search began"))


@pytest.mark.usefixtures("without_search")
def test_a_picture_that_cannot_be_written_is_refused_before_the_search(capsys, tmp_path):
    assert ".xyz" in refused(capsys, "solve", "sudoku", "--draw", str(tmp_path / "d.xyz"))
    assert "no folder" in refused(capsys, "solve", "sudoku", "--draw", str(tmp_path / "none" / "d.png"))


@pytest.mark.usefixtures("without_search")
def test_a_file_that_cannot_be_read_is_refused_before_others_are_solved(capsys, tmp_path):
    (tmp_path / "good").write_text("." * 81)
    (tmp_path / "empty").write_text("")
    assert "empty" in refused(capsys, "solve", "sudoku", str(tmp_path / "good"), str(tmp_path / "empty"))


def test_a_sum_of_several_cells_needs_its_sign():
    text = "aab\nccb\ndde\n\na 3=\nb 5+\nc 3x\nd 5+\ne 1\n"
    with pytest.raises(DataError, match="the result 3 of 2 cells has no operation; write one of"):
        KenKenProblem().parse(text, "k")
    assert KenKenProblem().parse(text.replace("3=", "3+").replace("e 1", "e 1="), "k").size == 3


def test_fewer_answers_than_were_asked_for_are_said_so(capsys, tmp_path):
    (tmp_path / "c.col").write_text("p edge 4 3\ne 1 2\ne 2 3\ne 3 4\n")
    text = printed(capsys, "solve", "colouring", str(tmp_path / "c.col"), "--count", "24", "--tries", "2")
    assert "2 of the 24 answers that were asked for" in text


def test_a_row_without_a_queen_has_no_column(capsys):
    run = answered(
        capsys, "solve", "queens", "--options", "size=20", "queens=0", "--steps", "1", "--tries", "1"
    )
    (instance,) = run["instances"]
    assert instance["outcome"] == "unsolved" and None in instance["best"]


def test_nothing_is_made_up_without_time_for_a_try(capsys, tmp_path):
    (tmp_path / "l").write_text("1 . .\n. 2 .\n. . .\n")
    (tmp_path / "wrong").write_text("1 1 .\n. 2 .\n. . .\n")
    run = answered(capsys, "solve", "latin", str(tmp_path / "l"), "--seconds", "1e-9")
    assert run["instances"][0]["best"] is None and run["instances"][0]["violations"] == {}
    assert "no complete answer within the limits" in printed(
        capsys, "solve", "latin", str(tmp_path / "l"), "--seconds", "1e-9"
    )
    file = tmp_path / "d.png"
    assert "nothing is drawn" in printed(
        capsys, "solve", "latin", str(tmp_path / "wrong"), "--draw", str(file)
    )
    assert not file.exists()


def test_pictures_of_cells_have_their_rows_and_columns(capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr("unn.draw.save_figure", lambda figure, file: drawn.append(figure))
    printed(capsys, "solve", "nonogram", "--options", "rows=4", "columns=5", "--draw", "n.png")
    (axes,) = [axes for axes in drawn[0].axes if axes.axison]
    places = {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in axes.texts}
    assert places.keys() == set(itertools.product(range(4), range(5)))
    assert set(places.values()) <= {"0", "1"}


def test_a_file_and_an_option_that_names_another_one_are_refused(tmp_path, capsys):
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    for path in (one, other):
        path.write_text("1 .\n. .\n")
    message = refused(capsys, "solve", "latin", one, "--options", f"puzzle={other}")
    assert "one.txt" in message and "other.txt" in message
    assert "1 solved of 1" in printed(capsys, "solve", "latin", one, "--options", f"puzzle={one}")


def test_an_option_that_is_given_twice_is_refused(capsys):
    message = refused(capsys, "solve", "latin", "--options", "size=3", "size=4")
    assert "size=4: size has another value already" in message


def test_a_run_is_not_solved_by_another_engine(tmp_path, capsys):
    run = tmp_path / "run"
    short = ["--steps", "1", "--batch", "2", "--examples", "4", "--size", "3", "--quiet"]
    printed(capsys, "train", "latin", "--engine", "solver", *short, "--folder", run)
    for engine in ("search", "nonsense"):
        message = refused(capsys, "solve", run, "--engine", engine)
        assert "engine 'solver'" in message and repr(engine) in message
    assert "1 solved of 1" in printed(capsys, "solve", run, "--engine", "solver")


def test_weights_of_a_run_serve_puzzles_whose_kinds_of_groups_they_have(tmp_path, capsys):
    run = tmp_path / "run"
    short = ["--steps", "1", "--batch", "2", "--examples", "4", "--folder", str(run), "--quiet"]
    printed(capsys, "train", "kenken", "--engine", "solver", *short)
    # trained: cages in which a number occurs once or twice; here once, and then up to four times
    (tmp_path / "pairs.txt").write_text("ab\nab\n\na 3+\nb 3+\n")
    assert "1 solved of 1" in printed(capsys, "solve", run, tmp_path / "pairs.txt")
    (tmp_path / "squares.txt").write_text("aaab\naaab\nddee\nffgg\n\na 13+\nb 7+\nd 7+\ne 3+\nf 7+\ng 3+\n")
    message = refused(capsys, "solve", run, tmp_path / "squares.txt")
    assert "and none for 0 to 4, which this graph has" in message
