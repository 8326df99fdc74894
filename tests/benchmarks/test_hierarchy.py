"""The experiments on filtered trees: the staircase of a file, and networks that were not kept."""

import csv
import sys

import pytest

from tests.benchmarks import hierarchy

ROWS = [
    # task, levels, filtering, grammar, step, data, oracle, measure, value
    ["root", 3, 0, 7, 10, 0, 1, "divergence", 0.4],
    ["root", 3, 0, 7, 20, 0, 1, "divergence", 0.2],
    ["root", 3, 0, 7, 30, 0, 1, "divergence", 0.3],
    ["root", 3, 0, 7, 10, 0, 0, "divergence", 0.9],
    ["root", 3, 0, 7, 20, 0, 0, "divergence", 0.5],
    ["root", 3, 0, 7, 30, 0, 0, "divergence", 0.1],
    ["root", 3, 0, 7, 30, 0, 0, "match", 0.01],  # another measure
    ["root", 3, 0, 7, 30, 1, 0, "divergence", 0.01],  # other data
    ["root", 3, 1, 7, 30, 1, 1, "divergence", 0.01],  # a network of filtered data
]


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hierarchy", *map(str, arguments)])
    hierarchy.main()


def test_the_staircase_is_the_smallest_divergence_on_unfiltered_data_from_each_oracle(tmp_path, monkeypatch):
    curves, out = tmp_path / "curves.csv", tmp_path / "out.csv"
    with curves.open("w", newline="") as file:
        csv.writer(file).writerows([hierarchy.FIELDS, *ROWS])
    run(monkeypatch, "staircase", out, "--agreement", curves)
    with out.open(newline="") as file:
        rows = [(r["grammar"], r["oracle"], r["step"], r["divergence"]) for r in csv.DictReader(file)]
    assert rows == [("7", "1", "20", "0.200"), ("7", "0", "30", "0.100")]


def test_a_staircase_without_its_file_says_which_one_is_missing(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="--agreement is missing"):
        run(monkeypatch, "staircase", tmp_path / "out.csv")


@pytest.mark.parametrize("weights", [[], ["--weights"]])
def test_networks_that_were_not_kept_are_said_with_the_command_that_trains_them(
    tmp_path, monkeypatch, weights
):
    folder = [tmp_path] if weights else []
    with pytest.raises(SystemExit, match="agreement .*--weights"):
        run(monkeypatch, "probes", tmp_path / "out.csv", "--grammars", 3, *weights, *folder)
