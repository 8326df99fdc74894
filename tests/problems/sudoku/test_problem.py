"""Sudoku on the command line: trained, sampled, completed, judged."""

import math
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from support.commands import TINY, answered, printed, refused
from support.puzzles import FORMATS, MALFORMED, digits_of, grids_in, is_grid

from problems.sudoku.files import grid_lines
from problems.sudoku.problem import SudokuProblem
from unn.cli.main import main
from unn.cli.measures import measure
from unn.cli.open import open_trained
from unn.diffusion import SAMPLERS
from unn.extending import DenoiserOptions, SamplingOptions


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_any_number_of_cells_is_given_in_training():
    problem = SudokuProblem()
    observed = problem.observed(problem.config_for(None)(), 8000, generator(0), {})["X"]
    assert observed.shape == (8000, 4, 4)
    counts = observed.flatten(1).sum(1).bincount(minlength=16).double()
    assert len(counts) == 16 and float(((counts - 500) ** 2 / 500).sum()) < 15 + 5 * math.sqrt(30)
    assert (observed.double().mean(0) - 7.5 / 16).abs().max() < 0.03


@pytest.fixture(scope="module")
def grids(runs):
    """A run of sudoku with blocks of 2 x 2 cells."""
    return runs("sudoku")


def test_training_makes_a_run_that_is_evaluated(capsys, tmp_path):
    report = answered(capsys, "train", "sudoku", *TINY, "--folder", tmp_path / "run")
    metrics = {
        "valid",
        "violated_pairs",
        "valid_half_given",
        "violated_pairs_half_given",
        "sbc_p",
        "coverage_50",
        "coverage_90",
        "calibration_error",
    }
    assert report["step"] == 2 and metrics < set(report) and report["folder"] == str(tmp_path / "run")
    assert {"config.json", "metrics.jsonl", "model.safetensors"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert (tmp_path / "run" / "plots" / "metrics.png").stat().st_size > 500
    metrics_by_steps = answered(capsys, "evaluate", tmp_path / "run")
    assert (
        set(metrics_by_steps) == {"2"}
        and set(metrics_by_steps["2"]) == metrics
        and 0 <= metrics_by_steps["2"]["valid"] <= 1
    )
    text = printed(capsys, "evaluate", tmp_path / "run", "--iterations", 1, 2)
    assert (
        "1 sampling steps: valid " in text
        and f"2 sampling steps: valid {metrics_by_steps['2']['valid']:.4g}, " in text
    )


def test_grids_are_sampled_and_judged(grids, capsys):
    text = printed(capsys, "sample", grids, "--count", 3, "--seed", 1)
    sampled_grids = grids_in(text)
    assert len(sampled_grids) == 3 and all(min(grid) >= 1 for grid in sampled_grids)
    data = answered(capsys, "sample", grids, "--count", 3, "--seed", 1)
    X = torch.tensor(data["values"]["X"])
    assert X.shape == (3, 4, 4, 4) and (X.argmax(3) + 1).flatten(1).tolist() == sampled_grids
    valid = [is_grid(grid.tolist(), 2, 2) for grid in X.argmax(3)]
    assert data["valid"] == valid and data["tries"] == [1, 1, 1]
    wrong = ", ".join(str(k + 1) for k in range(3) if not valid[k])
    assert text.splitlines()[-1] == f"{sum(valid)} of 3 grids are valid" + (
        f"; not valid: {wrong}" if wrong else ""
    )
    assert printed(capsys, "sample", grids, "--count", 3, "--seed", 1) == text
    assert len(grids_in(printed(capsys, "sample", grids))) == 1


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_every_sampler_and_number_of_steps_is_offered(grids, capsys, sampler):
    assert sampler in get_args(get_type_hints(DenoiserOptions)["sampler"])
    for steps in (1, 4):
        assert (
            len(
                grids_in(
                    printed(
                        capsys,
                        "sample",
                        grids,
                        "--sampler",
                        sampler,
                        "--steps",
                        steps,
                        "--count",
                        2,
                        "--seed",
                        0,
                    )
                )
            )
            == 2
        )


@pytest.mark.parametrize("how", ["inline", "line", "rows", "CRLF", "byte order mark", "rules"])
def test_a_puzzle_is_completed(grids, capsys, tmp_path, how):
    puzzle = "12...4..........3"[:16]
    rows = [puzzle[k : k + 4] for k in range(0, 16, 4)]
    text = {
        "line": puzzle,
        "rows": "\n".join(rows) + "\n",
        "CRLF": "\r\n".join(rows) + "\r\n",
        "byte order mark": "\ufeff" + "\n".join(rows),
        "rules": "\n".join(grid_lines(digits_of(puzzle), 2, 2)),
    }.get(how)
    where = puzzle
    if text is not None:
        where = tmp_path / "puzzle.txt"
        where.write_bytes(text.encode())
    completions = grids_in(printed(capsys, "sample", grids, "--given", where, "--count", 2, "--seed", 3))
    assert len(completions) == 2
    for grid in completions:
        assert all(d in (0, e) for d, e in zip(digits_of(puzzle), grid, strict=True))
    assert (
        grids_in(printed(capsys, "sample", grids, "--given", puzzle, "--count", 2, "--seed", 3))
        == completions
    )


def test_a_puzzle_without_a_solution_is_completed_and_reported(grids, capsys):
    puzzle = "11.............."
    text = printed(capsys, "sample", grids, "--given", puzzle, "--count", 2, "--seed", 0, "--tries", 3)
    assert (
        all(grid[:2] == [1, 1] for grid in grids_in(text))
        and "0 of 2 grids are valid; not valid: 1, 2" in text
    )
    data = answered(capsys, "sample", grids, "--given", puzzle, "--count", 2, "--seed", 0, "--tries", 3)
    assert data["valid"] == [False, False] and data["tries"] == [3, 3]


def test_a_grid_that_is_given_whole_is_judged(grids, capsys):
    for puzzle, valid in (("1234341221434321", True), ("1234341221434322", False)):
        data = answered(capsys, "sample", grids, "--given", puzzle)
        assert data["valid"] == [valid]
        assert (torch.tensor(data["values"]["X"])[0].argmax(2) + 1).flatten().tolist() == digits_of(puzzle)


def test_puzzles_that_cannot_be_read_are_refused_with_file_line_and_column(grids, capsys, tmp_path):
    path = tmp_path / "puzzle.txt"
    for which in (
        "empty",
        "a digit too large",
        "a short row",
        "after a byte order mark",
        "truncated",
        "CRLF",
    ):
        text, words = MALFORMED[which]
        path.write_bytes(text.encode())
        message = refused(capsys, "sample", grids, "--given", path)
        assert all(word in message for word in (str(path), *words)), (which, message)
    for raw in (b"\xff\xfe1\x00.\x00", "1..4\n.41ü".encode("latin-1")):
        path.write_bytes(raw)
        assert str(path) in refused(capsys, "sample", grids, "--given", path)
    path.write_text(FORMATS["dots"] * 2)
    assert "2 puzzles" in refused(capsys, "sample", grids, "--given", path)
    assert "none.txt" in refused(capsys, "sample", grids, "--given", tmp_path / "none.txt")
    assert str(tmp_path) in refused(capsys, "sample", grids, "--given", tmp_path)


def test_puzzles_on_the_command_line_that_cannot_be_read_are_refused(grids, capsys):
    message = refused(capsys, "sample", grids, "--given", "1..5............")
    assert "--given" in message and "column 4" in message and "'5'" in message
    assert "one puzzle" in refused(capsys, "sample", grids, "--given", "1...............", "2...............")
    assert "X=3" in refused(capsys, "sample", grids, "--given", "X=3")
    assert "--given" in refused(capsys, "sample", grids, "--given", "1..4")
    # too long for the name of a file
    assert "--given" in refused(capsys, "sample", grids, "--given", "." * 300)


def test_sudoku_of_other_blocks_and_of_more_than_nine_digits(runs, capsys, tmp_path, undrawn):
    run = runs("sudoku", "--block-rows", "2", "--block-columns", "3", "--examples", "5")
    puzzle = "12345." + "." * 30
    (grid,) = grids_in(printed(capsys, "sample", run, "--given", puzzle), 2, 3)
    assert grid[:5] == [1, 2, 3, 4, 5]
    run = runs("sudoku", "--block-rows", "2", "--block-columns", "5")
    (tmp_path / "p").write_text(" ".join(["10", "9"] + ["."] * 98))
    (grid,) = grids_in(printed(capsys, "sample", run, "--given", tmp_path / "p"), 2, 5)
    assert grid[:2] == [10, 9] and max(grid) <= 10


def test_a_grid_of_one_cell_is_a_sudoku_too(runs, capsys, undrawn):
    run = runs("sudoku", "--block-rows", "1", "--block-columns", "1")
    assert "1 of 1 grids are valid" in printed(capsys, "sample", run)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--count", "0"], ["--count", "0"]),
        (["--count", "-1"], ["--count", "-1"]),
        (["--steps", "0"], ["--steps", "0"]),
        (["--tries", "0"], ["--tries", "0"]),
        (["--seed", "-1"], ["seed", "-1"]),
    ],
)
def test_numbers_out_of_range_are_refused(grids, capsys, options, words):
    message = refused(capsys, "sample", grids, *options)
    assert all(word in message for word in words)


def test_unknown_samplers_and_missing_runs_are_refused(grids, capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["sample", str(grids), "--sampler", "nope"])
    assert end.value.code == 2
    assert "none" in refused(capsys, "sample", tmp_path / "none")


def test_what_is_drawn_step_by_step_is_the_first_sample_alone(grids, capsys, tmp_path, monkeypatch):
    drawn = []

    def draw_samples(rows, names, *rest, **options):
        from matplotlib.figure import Figure

        drawn.append(names)
        return Figure()

    monkeypatch.setattr("unn.cli.measures.draw_samples", draw_samples)
    # none of these can be valid, so that all are tried again
    printed(
        capsys,
        "sample",
        grids,
        "--given",
        "11..............",
        "--count",
        3,
        "--steps",
        4,
        "--trace",
        tmp_path / "t.png",
        "--tries",
        2,
    )
    assert drawn == [["step 1", "step 2", "step 3", "step 4"]]
    drawn.clear()
    printed(capsys, "sample", grids, "--count", 300, "--steps", 3, "--trace", tmp_path / "t.png")
    assert drawn == [["step 1", "step 2", "step 3"]]


@pytest.mark.parametrize("options", ["--process masked", "--engine regressor", "--engine vaeac"])
def test_pictures_and_samplers_that_a_model_does_not_offer_are_refused(
    runs, capsys, tmp_path, undrawn, options
):
    run = runs("sudoku", *options.split())
    assert "trace" in refused(capsys, "sample", run, "--trace", tmp_path / "t.png")
    assert "sampler" in refused(capsys, "sample", run, "--sampler", "ddim")


@pytest.mark.parametrize("engine", ["regressor", "vaeac"])
def test_numbers_of_steps_of_models_without_steps_are_refused(runs, capsys, undrawn, engine):
    run = runs("sudoku", "--engine", engine)
    assert "leave out steps" in refused(capsys, "sample", run, "--steps", 3)
    assert "--iterations" in refused(capsys, "evaluate", run, "--iterations", 3)
    assert "steps" not in printed(capsys, "evaluate", run)


def test_longer_chains_fill_more_of_small_grids(capsys):
    short, long = (
        answered(capsys, "baselines", "sudoku", "--count", 40, "--chain-steps", n)["Metropolis-Hastings"]
        for n in (10, 3000)
    )
    assert (
        long["violated_pairs_half_given"] < 0.3 * short["violated_pairs_half_given"]
        and long["valid_half_given"] > 0.5
    )


@pytest.mark.slow
# the puzzles that it was trained on do not come with the package
@pytest.mark.filterwarnings("ignore:sudoku. the puzzles of the run:UserWarning")
def test_the_model_that_comes_with_sudoku_fills_grids_of_which_half_is_given():
    problem, run = open_trained(Path("sudoku"))
    metrics = measure(problem, run.config, run.network, 12, SamplingOptions(steps=20, seed=0), most=0)
    assert metrics["valid_half_given"] >= 0.9 and metrics["violated_pairs_half_given"] < 0.5


@pytest.mark.parametrize("text", ["12", "1" * 80, "1" * 82, ".", "1" * 300])
def test_a_puzzle_in_a_line_needs_as_many_symbols_as_cells(capsys, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, "sample", "sudoku", "--given", text)
    assert f"{len(text)} symbols" in message and "has 81" in message
    assert "nowhere.txt" in refused(capsys, "sample", "sudoku", "--given", "nowhere.txt")
