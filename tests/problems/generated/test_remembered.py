"""Reference posteriors drawn before are read from files, which belong to one program and evidence."""

import pytest
import torch

import unn
from problems.generated import remembered
from unn.programs import Normal

GIVEN = {"x": torch.tensor([[1.0, 0.5]], dtype=torch.float64)}


def traced_with(deviation):
    def program(t):
        mean = t.sample("mean", Normal(0.0, 1.0))
        t.sample("x", Normal(mean, deviation), 2)

    return unn.trace(program)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("UNN_CACHE", str(tmp_path))
    return tmp_path / "posteriors"


@pytest.fixture
def counted(monkeypatch):
    drawn = []
    draw = unn.programs.Traced.posterior

    def posterior(self, given, count, *, seed):
        drawn.append(count)
        return draw(self, given, count, seed=seed)

    monkeypatch.setattr(unn.programs.Traced, "posterior", posterior)
    return drawn


def test_the_second_call_reads_what_the_first_one_drew(folder, counted):
    traced = traced_with(1.0)
    one = remembered.posterior(traced, "a", GIVEN, 50, 0)
    again = remembered.posterior(traced_with(1.0), "a", GIVEN, 50, 0)
    assert counted == [50] and len(list(folder.iterdir())) == 1
    assert set(one) == {"mean", "x"} and all(torch.equal(one[name], again[name]) for name in one)
    expected = traced.posterior(GIVEN, 50, seed=0).values
    assert all(torch.equal(one[name], expected[name]) for name in one)


def test_variables_come_back_in_the_order_of_the_program(folder, counted):
    def program(t):
        slope = t.sample("slope", Normal(0.0, 1.0))
        t.sample("intercept", Normal(slope, 1.0))

    first, second = (remembered.posterior(unn.trace(program), "a", {}, 50, 0) for _ in range(2))
    assert counted == [50] and list(first) == list(second) == ["slope", "intercept"]


def test_another_program_evidence_number_or_seed_has_another_file(folder, counted):
    remembered.posterior(traced_with(1.0), "a", GIVEN, 50, 0)
    remembered.posterior(traced_with(1.1), "a", GIVEN, 50, 0)
    remembered.posterior(traced_with(1.0), "a", {"x": GIVEN["x"] + 1}, 50, 0)
    remembered.posterior(traced_with(1.0), "a", GIVEN, 60, 0)
    remembered.posterior(traced_with(1.0), "a", GIVEN, 50, 1)
    part = unn.Partial(GIVEN["x"], torch.tensor([[True, False]]))
    remembered.posterior(traced_with(1.0), "a", {"x": part}, 50, 0)
    remembered.posterior(traced_with(1.0), "b", GIVEN, 50, 0)
    assert len(counted) == 7 and len(list(folder.iterdir())) == 7
    # what is not given does not matter
    other = unn.Partial(torch.tensor([[1.0, float("nan")]]).double(), torch.tensor([[True, False]]))
    remembered.posterior(traced_with(1.0), "a", {"x": other}, 50, 0)
    assert len(counted) == 7


def test_a_damaged_file_is_drawn_again(folder, counted):
    one = remembered.posterior(traced_with(1.0), "a", GIVEN, 50, 0)
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    again = remembered.posterior(traced_with(1.0), "a", GIVEN, 50, 0)
    assert counted == [50, 50] and torch.equal(one["mean"], again["mean"])
    remembered.posterior(traced_with(1.0), "a", GIVEN, 50, 0)
    assert counted == [50, 50]


def test_a_folder_that_cannot_be_made_costs_nothing_but_time(tmp_path, monkeypatch, counted):
    (tmp_path / "posteriors").write_text("a file in place of the folder")
    monkeypatch.setenv("UNN_CACHE", str(tmp_path))
    for _ in range(2):
        assert len(remembered.posterior(traced_with(1.0), "a", GIVEN, 50, 0)["mean"]) == 50
    assert counted == [50, 50]


def test_the_oldest_files_are_forgotten_beyond_the_total_size(folder, monkeypatch):
    remembered.posterior(traced_with(1.0), "a", GIVEN, 50, 0)
    (first,) = folder.iterdir()
    monkeypatch.setattr(remembered, "MOST_BYTES", int(2.5 * first.stat().st_size))
    for seed in range(1, 4):
        remembered.posterior(traced_with(1.0), "a", GIVEN, 50, seed)
    assert len(list(folder.iterdir())) == 2 and not first.exists()
