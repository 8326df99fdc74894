"""The tables of the digits: cells of equal budgets, and files that are continued."""

import csv
import sys

from tests.benchmarks import digits


def test_cells_differ_in_what_the_tables_vary_and_share_their_budget():
    configs = {
        name: digits.config_of(setting, 4, 1, "embedded", 2) for name, setting in digits.SETTINGS.items()
    }
    assert {config.training for config in configs.values()} == {configs["gamma 0"].training}
    assert configs["gamma 0"].gamma == configs["separate weights"].gamma == 0
    assert configs["random initial values"].model.initial == "random"
    assert {config.model.iterations for config in configs.values()} == {4}


def test_a_file_is_continued_where_it_stopped(tmp_path, monkeypatch):
    measured = []

    def measure(setting, k, seed, data, epochs, device):
        measured.append((setting.table, k, seed))
        return {"accuracy": "99.00", "minutes": "0.1", "device": device}

    monkeypatch.setattr(digits, "measure", measure)
    path = tmp_path / "digits.csv"
    for seeds in (["0"], ["0", "1"]):
        monkeypatch.setattr(
            sys, "argv", ["digits", str(path), "--settings", "gamma 0", "--rounds", "1", "--seeds", *seeds]
        )
        digits.main()
    assert measured == [(6, 1, 0), (6, 1, 1)]
    with path.open(newline="") as file:
        assert [(row["setting"], row["k"], row["seed"]) for row in csv.DictReader(file)] == [
            ("gamma 0", "1", "0"),
            ("gamma 0", "1", "1"),
        ]
