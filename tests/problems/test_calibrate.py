"""Comparison of engines with exact answers: scores, controls, and what cannot be compared."""

import json
import math

import pytest
import torch
from support.commands import printed, refused

import unn
from factors import Multilinear
from problems.ising.grids import conditional, declare_coupled
from unn.cli.truth.answers import Moments
from unn.cli.truth.discrete import discrete_truth, score_probabilities
from unn.cli.truth.normal import normal_truth, score_normals
from unn.errors import UnnError


def test_scores_of_the_exact_probabilities_are_perfect():
    p = torch.tensor([[0.2, 0.8], [1.0, 0.0]], dtype=torch.float64)
    perfect = score_probabilities(p, p, 0.1)
    assert perfect.figures["kl"] == pytest.approx(0, abs=1e-9) and perfect.figures["total_variation"] == 0
    assert perfect.figures["calibration_error"] == pytest.approx(0) and perfect.figures["argmax_match"] == 1
    assert perfect.figures["log_score"] == pytest.approx((0.2 * math.log(0.2) + 0.8 * math.log(0.8)) / 2)


def test_scores_of_other_probabilities_are_those_by_hand():
    p = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    q = torch.tensor([[0.65, 0.35]], dtype=torch.float64)
    other = score_probabilities(p, q, 0.0)
    assert other.figures["kl"] == pytest.approx(0.25 * math.log(0.25 / 0.65) + 0.75 * math.log(0.75 / 0.35))
    assert other.figures["total_variation"] == pytest.approx(0.4) and other.figures["argmax_match"] == 0
    assert other.figures["calibration_error"] == pytest.approx(0.4)
    assert other.bins == ((pytest.approx(0.35), 0.75), (pytest.approx(0.65), 0.25))


def test_tied_estimates_name_each_of_their_values_equally_often():
    tied = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    for exact in ([[0.2, 0.8]], [[0.8, 0.2]]):
        figures = score_probabilities(torch.tensor(exact, dtype=torch.float64), tied, 0.0).figures
        assert figures["argmax_match"] == 0.5
    assert score_probabilities(tied, torch.tensor([[0.1, 0.9]]).double(), 0.0).figures["argmax_match"] == 1


def test_samples_of_a_node_score_the_same_whatever_states_other_nodes_have():
    def truth(other):
        g = unn.FactorGraph("mixed", a=3, big=20)
        b = g.variable("b", "a", unn.BinaryEntropy())
        g.factor(Multilinear(g.constant("h", "a", torch.tensor([0.0, 1.0, -2.0]))["i"], b["i"]))
        if other:
            c = g.variable("c", "| big", unn.Entropy())
            g.factor(Multilinear(g.constant("J", "a big", torch.zeros(3, 20))["i k"], b["i"], c["k"]))
        return discrete_truth(g, {}, ["b"], 200, {})

    means = truth(False).nodes.graph
    exact = unn.exact.marginals(means)["b"].expand(200, -1)
    for draws in (10, 1000):
        answer = Moments({"b": exact}, None, draws)
        one, other = (truth(is_mixed).scores_of(answer, 0.0).figures for is_mixed in (False, True))
        assert one == pytest.approx(other)
    one, other = (truth(is_mixed).scores_of_samples(100, 0.0).figures for is_mixed in (False, True))
    assert other["kl"] == pytest.approx(one["kl"], rel=0.3) and one["kl"] < 0.01


def test_the_graph_of_ising_grids_with_its_coupling_has_the_marginals_of_the_examples():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(2, (5, 4, 3), generator=generator).float()
    seen = torch.rand(5, 4, 3, generator=generator) < 0.4
    _, expected = conditional(0.35, x, seen, generator)
    means = unn.exact.marginals(declare_coupled(4, 3, 0.35), {"X": unn.Partial(x, seen)})["X"]
    torch.testing.assert_close(means.float(), expected, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    from unn.cli.main import main

    shape = ["--rows", "2", "--columns", "2"]
    for name, engine, options in (
        ("exact", "exact", ["--steps", "60"]),
        ("belief", "belief", ["--steps", "2"]),
        ("denoiser", "denoiser", ["--steps", "2", "--width", "8", "--depth", "1", "--heads", "2"]),
    ):
        command = ["train", "ising", "--engine", engine, *shape, *options, "--quiet"]
        assert main([*command, "--folder", str(folder / name)]) == 0
    other = [
        "train",
        "ising",
        "--engine",
        "exact",
        "--rows",
        "3",
        "--columns",
        "2",
        "--steps",
        "1",
        "--quiet",
    ]
    assert main([*other, "--folder", str(folder / "other")]) == 0
    return folder


@pytest.mark.slow
def test_runs_of_all_engines_are_scored_on_the_same_queries(runs, capsys, tmp_path):
    folders = [runs / name for name in ("exact", "belief", "denoiser")]
    options = ["--count", 16, "--draws", 20, "--draw", tmp_path / "reliability.png"]
    data = json.loads(printed(capsys, "calibrate", *folders, *options, "--json"))
    assert set(data) == {"", "half given"}
    for rows in data.values():
        assert rows["exact"]["kl"] == pytest.approx(0, abs=1e-6)
        assert 0 < rows["exact, 20 samples"]["kl"] < 0.2
        # 60 steps of maximum likelihood of a grid of four spins
        assert rows["exact (exact)"]["kl"] < 0.1
        assert all(math.isfinite(x) for row in rows.values() for x in row.values())
    assert (tmp_path / "reliability.png").stat().st_size > 1000
    text = printed(capsys, "calibrate", runs / "exact", "--count", 8)
    assert "ising, half given" in text and "exact (exact)" in text


def test_what_cannot_be_compared_is_refused_by_name(runs, capsys, tmp_path):
    assert "other options" in refused(capsys, "calibrate", runs / "exact", runs / "other")
    assert "at least one run" in refused(capsys, "calibrate")
    assert "--count" in refused(capsys, "calibrate", runs / "exact", "--count", 0)
    from unn.cli.main import main

    train = ["train", "hopfield", "--units", "4", "--engine", "exact", "--steps", "1", "--quiet"]
    assert main([*train, "--folder", str(tmp_path / "hopfield")]) == 0
    capsys.readouterr()
    assert "not that of its declaration" in refused(capsys, "calibrate", tmp_path / "hopfield")


@pytest.mark.slow
def test_a_problem_is_calibrated_by_training_its_engines_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["calibrate", "tables", "--engines", "exact", "belief", "--count", 8, "--json"]
    data = json.loads(printed(capsys, *command))
    assert set(data) == {"", "half given"}
    for rows in data.values():
        assert {"exact (exact)", "belief (belief)"} < set(rows)
        # a chain is a tree
        assert rows["belief (belief)"]["kl"] == pytest.approx(0, abs=1e-6)
    folder = tmp_path / "runs" / "calibrate-tables"
    assert sorted(path.name for path in folder.iterdir()) == ["belief", "exact"]
    again = json.loads(printed(capsys, *command))
    assert again["half given"]["exact (exact)"]["kl"] == data["half given"]["exact (exact)"]["kl"]


def test_problems_and_engines_without_answers_are_refused_before_anything_is_trained(
    tmp_path, capsys, monkeypatch, runs
):
    monkeypatch.chdir(tmp_path)
    assert "distribution of its examples" in refused(capsys, "calibrate", "digits")
    assert "network of its own" in refused(capsys, "calibrate", "parsing")
    assert "search" in refused(capsys, "calibrate", "sudoku", "--engines", "search")
    assert "belief" in refused(capsys, "calibrate", "tables", "--engines", "beleif")
    assert "no exact answer" in refused(capsys, "calibrate", "latin")
    assert "--engines" in refused(capsys, "calibrate", runs / "exact", "--engines", "exact")
    assert not (tmp_path / "runs").exists()


def test_runs_of_the_same_file_are_compared_though_each_has_its_copy(tmp_path, capsys):
    model = "MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 2 3 4\n"
    folders = []
    for name, engine, text in (
        ("a", "exact", model),
        ("b", "belief", model),
        ("c", "belief", model.replace("3 4", "3 9")),
    ):
        path = tmp_path / "model.uai"
        path.write_text(text)
        folders.append(tmp_path / name)
        printed(capsys, "train", "tables", "--engine", engine, "--file", path, "--folder", folders[-1])
    data = json.loads(printed(capsys, "calibrate", *folders[:2], "--count", 4, "--json"))
    assert data[""]["belief (b)"]["kl"] == pytest.approx(0, abs=1e-6)
    assert "other options" in refused(capsys, "calibrate", *folders[1:])


def test_a_folder_with_another_run_is_refused(tmp_path, capsys):
    small = ["--nodes", 2, "--states", 2]
    printed(capsys, "train", "tables", "--engine", "exact", *small, "--folder", tmp_path / "exact")
    for name in ("tables", "ising"):
        message = refused(capsys, "calibrate", name, "--engines", "exact", "--folder", tmp_path)
        assert "holds another run" in message and str(tmp_path / "exact") in message


def test_a_query_that_leaves_nothing_open_is_said_so(tmp_path, capsys):
    path = tmp_path / "one.uai"
    path.write_text("MARKOV\n1\n2\n1\n1 0\n2\n1 3\n")
    printed(capsys, "train", "tables", "--engine", "exact", "--file", path, "--folder", tmp_path / "run")
    texts = [printed(capsys, "calibrate", tmp_path / "run", "--count", 1)]
    assert "nan" not in texts[0]
    data = json.loads(printed(capsys, "calibrate", tmp_path / "run", "--count", 1, "--json"))
    assert "" in data


def test_scores_of_normal_distributions_are_those_by_hand():
    mean, deviation = torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    perfect = score_normals(mean, deviation, mean, deviation, 0.1)
    assert perfect.figures == pytest.approx(
        {"mean_error": 0, "largest_mean_error": 0, "kl": 0, "deviation_ratio": 1, "coverage_error": 0},
        abs=1e-12,
    )
    other = score_normals(mean, deviation, torch.tensor([0.5, 0.0]), 2 * deviation, 0.0)
    assert other.figures["mean_error"] == pytest.approx(0.25) and other.figures["deviation_ratio"] == 2
    assert other.figures["largest_mean_error"] == pytest.approx(0.5)
    assert other.figures["kl"] == pytest.approx(math.log(2) + (1 + 0.125) / 8 - 0.5)
    # the central half of a normal of twice the deviation
    inside = math.erf(2 * 0.6744897501960817 / 2**0.5)
    wide = score_normals(mean, deviation, mean, 2 * deviation, 0.0)
    assert wide.bins[4] == (0.5, pytest.approx(inside))
    assert score_normals(mean, deviation, mean, None, 0.0).figures == {
        "mean_error": 0,
        "largest_mean_error": 0,
    }


@pytest.mark.slow
def test_moments_of_gaussian_fields_are_scored_and_best_values_have_no_deviations(tmp_path, capsys):
    folders = []
    for engine, options in (
        ("exact", ["--steps", 60, "--rate", 0.02]),
        ("descent", ["--steps", 2]),
        ("gibbs", ["--steps", 2]),
        ("denoiser", ["--steps", 2, "--width", 8, "--depth", 1, "--heads", 2]),
    ):
        folders.append(tmp_path / engine)
        shape = ["--rows", 2, "--columns", 2, "--quiet", "--folder", folders[-1]]
        printed(capsys, "train", "gaussian", "--engine", engine, *options, *shape)
    command = ["calibrate", *folders, "--count", 12, "--draws", 20]
    data = json.loads(printed(capsys, *command, "--draw", tmp_path / "reliability.png", "--json"))
    assert set(data) == {"", "half given"}
    for rows in data.values():
        assert rows["exact"]["kl"] == pytest.approx(0, abs=1e-12)
        assert 0.01 < rows["exact, 20 samples"]["kl"] < 0.2
        assert rows["exact (exact)"]["kl"] < 0.05
        assert set(rows["descent (descent)"]) == {"mean_error", "largest_mean_error", "seconds"}
        assert rows["gibbs (gibbs)"]["deviation_ratio"] == pytest.approx(1, abs=0.5)
        assert all(math.isfinite(x) for row in rows.values() for x in row.values())
    assert (tmp_path / "reliability.png").stat().st_size > 1000
    text = printed(capsys, *command)
    line = next(line for line in text.splitlines() if line.startswith("descent"))
    assert line.split().count("-") == 3
    assert "--draws" in refused(capsys, "calibrate", folders[0], "--draws", 1)
    folders.append(tmp_path / "regressor")
    small = ["--steps", 2, "--width", 8, "--depth", 1, "--heads", 2, "--rows", 2, "--columns", 2, "--quiet"]
    printed(capsys, "train", "gaussian", "--engine", "regressor", *small, "--folder", folders[-1])
    data = json.loads(printed(capsys, "calibrate", folders[-1], "--count", 4, "--draws", 3, "--json"))
    # estimates without noise are no distribution of zero deviation
    estimates = data["half given"]["regressor (regressor)"]
    assert set(estimates) == {"mean_error", "largest_mean_error", "seconds"}


def test_graphs_of_both_kinds_have_no_normal_distributions():
    g = unn.FactorGraph("both", k=2)
    g.variable("z", "| k", unn.Entropy())
    g.variable("x", "", unn.SquaredNorm())
    with pytest.raises(UnnError, match="'z'"):
        normal_truth(g, {}, ("x",), 1, {})
    alone = unn.FactorGraph("alone")
    alone.variable("x", "", unn.SquaredNorm())
    assert normal_truth(alone, {}, (), 1, {}) is None
    assert normal_truth(alone, {"x": torch.zeros(1)}, ("x",), 1, {}) is None
