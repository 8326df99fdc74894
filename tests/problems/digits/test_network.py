"""The digits problem: declaration, losses, baseline, training, command line; real MNIST where it is
present."""

import json
import os
from dataclasses import replace

import pytest
import torch

import unn
from problems.digits.data import Digits, load_digits
from problems.digits.network import (
    accuracy,
    declare,
    label_scores,
    one_hot,
    prototypes,
    recognise,
    spread_ratio,
)
from problems.digits.problem import DigitsProblem, train
from problems.digits.untied import UntiedDigits
from unn.cli.main import main
from unn.errors import DataError
from unn.extending import DescentOptions, Query
from unn.training import TrainingConfig

DESCENT = DigitsProblem().config_for("descent")
OPTIONS = DescentOptions(iterations=2)
SMALL = DESCENT(channels=8, model=OPTIONS, training=TrainingConfig(epochs=6, batch=64, rate=2e-3))


def build(options, channels=8, size=8):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return unn.DescentModel(declare(size, size, channels), options)


def joint_loss(network, images, labels, gamma):
    values = {"image": images, "label": one_hot(labels).to(images)}
    config = replace(SMALL, gamma=gamma)
    queries = DigitsProblem().training_queries(config, DigitsProblem().observed(config, 1, None, {}))
    return sum(weight * network.loss(values, observed) for weight, observed in queries if weight)


@pytest.fixture(scope="module")
def trained():
    return train(SMALL)


def test_the_network_of_the_paper_has_its_sizes_and_parameters():
    g = declare()
    assert sum(p.numel() for p in g.parameters()) == 50_026
    shapes = {name: g.size_table.shape(v, g.size_table.static) for name, v in g.variables.items()}
    assert shapes == {"image": (1, 28, 28), "H1": (32, 12, 12), "H2": (64, 5, 5), "label": (10,)}


@pytest.mark.parametrize("size", [(8, 8), (5, 9), (16, 16), (28, 28), (32, 20), (64, 64)])
def test_sizes_adapt_to_the_images(size):
    g = declare(*size, channels=4)
    out = unn.infer(g, {"image": torch.rand(2, 1, *size) * 2 - 1})
    assert out["label"].shape == (2, 10)
    assert unn.infer(g, {"label": torch.eye(10)})["image"].shape == (10, 1, *size)


def test_images_that_are_too_small_are_refused():
    with pytest.raises(unn.DeclarationError, match="4x8 are too small"):
        declare(4, 8)


@pytest.mark.parametrize("sweep", ["forward", "forward-backward"])
def test_both_directions_share_their_weights_and_their_gradients(sweep):
    network = build(replace(OPTIONS, sweep=sweep))
    images, labels = torch.rand(4, 1, 8, 8) * 2 - 1, torch.tensor([0, 3, 9, 3])
    joint_loss(network, images, labels, 0.5).backward()
    both = network.graph.W1.grad.clone()
    network.zero_grad()
    joint_loss(network, images, labels, 0.0).backward()
    assert not torch.allclose(both, network.graph.W1.grad)
    assert len(list(network.parameters())) == 6


def test_the_loss_is_cross_entropy_of_the_label_and_of_the_pixels():
    network = build(OPTIONS).double()
    images, labels = torch.rand(4, 1, 8, 8, dtype=torch.float64) * 2 - 1, torch.tensor([0, 3, 9, 3])
    expected = torch.nn.functional.cross_entropy(label_scores(network, images), labels)
    (scores,) = network.unrolled(["label"], [], ["image"]).preactivations(one_hot(labels).double())
    pixels = (1 + images) / 2
    # the mean parameter of tanh(t) is sigmoid(2 t); a Fenchel-Young loss also has the negative entropy of the
    # target
    entropy = unn.BinaryEntropy().value(pixels).mean() / 64
    cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits(2 * scores, pixels)
    expected = expected + 0.1 * (cross_entropy + entropy)
    torch.testing.assert_close(joint_loss(network, images, labels, 0.1), expected)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_the_untied_baseline_has_as_many_parameters_in_all(k):
    network = UntiedDigits((28, 28), k, 32, 0.3)
    count = sum(p.numel() for p in network.parameters())
    assert abs(count - 50_026) / 50_026 < 0.08
    assert network.logits(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_one_round_of_the_untied_baseline_is_the_tied_network():
    tied, untied = build(replace(OPTIONS, iterations=1)), UntiedDigits((8, 8), 1, 8, 0.0)
    with torch.no_grad():
        for name, parameter in untied.rounds[0].items():
            parameter.copy_(getattr(tied.graph, name))
    images = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(label_scores(tied.eval(), images), untied.logits(images))


@pytest.mark.parametrize("initial", ["zero", "random", "uniform"])
def test_every_initialisation_trains(initial):
    digits = load_digits()
    few = Digits(
        digits.train_images[:64], digits.train_labels[:64], digits.test_images[:32], digits.test_labels[:32]
    )
    _, history = train(
        replace(
            SMALL,
            model=replace(OPTIONS, initial=initial),
            training=TrainingConfig(epochs=8, batch=16, rate=2e-3),
        ),
        few,
    )
    assert history[-1]["loss"] < history[0]["loss"]


@pytest.mark.slow
def test_training_is_deterministic_under_its_seed(trained):
    _, again = train(SMALL)
    assert [entry["loss"] for entry in again] == [entry["loss"] for entry in trained[1]]
    _, other = train(replace(SMALL, training=replace(SMALL.training, seed=1)))
    assert other[0]["loss"] != trained[1][0]["loss"]


@pytest.mark.slow
def test_training_on_moved_images_leaves_the_test_images_where_they_are_and_is_deterministic(trained):
    moved = replace(SMALL, translate=1, training=replace(SMALL.training, epochs=1))
    network, history = train(moved)
    assert history[0]["loss"] == train(moved)[1][0]["loss"] != trained[1][0]["loss"]
    digits = load_digits()
    right = accuracy(network, digits.test_images, digits.test_labels)
    assert history[0]["test_accuracy"] == pytest.approx(right)


def test_images_are_moved_as_evidence_and_stay_where_they_are_as_targets():
    from unn.cli.measures import ProblemExamples

    examples = ProblemExamples(DigitsProblem(), replace(SMALL, translate=2))
    _, queries = examples.batch(torch.arange(50), torch.Generator().manual_seed(0))
    images = load_digits().train_images[:50]
    for weight, values, observed in queries:
        assert torch.equal(values["image"], images) is ("image" not in observed)
        assert weight == (1.0 if "image" in observed else SMALL.gamma)


def test_a_small_network_classifies_and_draws_recognisable_prototypes(trained):
    digits, network = load_digits(), trained[0]
    assert accuracy(network, digits.test_images, digits.test_labels) > 0.9
    drawn = prototypes(network)
    assert drawn.shape == (10, 1, 8, 8) and drawn.abs().max() <= 1
    assert recognise(network, digits, drawn).network >= 8


@pytest.mark.slow
def test_prototypes_are_drawn_and_read_with_the_rounds_of_training_or_those_asked_for_alone(
    tmp_path, capsys, monkeypatch
):
    run = str(tmp_path / "run")
    options = ["--epochs", "1", "--channels", "4", "--iterations", "2", "--folder", run]
    assert main(["train", "digits", *options]) == 0
    rounds = []

    def drawn(network, iterations=None):
        rounds.append(("drawn", iterations))
        return prototypes(network, iterations)

    def read(network, digits, images, iterations=None):
        rounds.append(("read", iterations))
        return recognise(network, digits, images, iterations)

    monkeypatch.setattr("problems.digits.network.prototypes", drawn)
    monkeypatch.setattr("problems.digits.network.recognise", read)
    for asked, k in (([], 2), (["--iterations", "1", "3"], 2), (["--iterations", "5"], 5)):
        rounds.clear()
        assert main(["evaluate", run, *asked]) == 0
        assert rounds == [("drawn", k), ("read", k)]


def test_the_command_line_trains_evaluates_and_infers(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--epochs", "2", "--channels", "4", "--iterations", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    run = tmp_path / report["folder"]
    assert {p.name for p in run.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "checkpoints",
        "plots",
        "lock",
    }
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert main(["evaluate", str(run), "--iterations", "1", "2", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["test_accuracy"]["2"] == report["test_accuracy"]
    assert (
        main(
            ["infer", str(run), "--given", "label=3", "--want", "image", "--out", str(tmp_path / "three.png")]
        )
        == 0
    )
    assert "energy" in capsys.readouterr().out and (tmp_path / "three.png").stat().st_size > 500
    assert main(["infer", str(run), "--given", "image=test:17", "--want", "label", "H1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sum(answer["label"]) == pytest.approx(1, abs=1e-5)
    assert main(["infer", str(run), "--given", "label=11", "--want", "image"]) == 2
    assert "digit from 0 to 9" in capsys.readouterr().err
    for option, words in (
        (["--tries", "2"], "draws no samples"),
        (["--data", "x"], "leave out --data"),
    ):
        assert main(["evaluate", str(run), *option]) == 2
        assert words in capsys.readouterr().err


def test_prototypes_have_no_spread_and_data_have_all_of_it():
    digits = load_digits()
    labels = torch.arange(100) % 10
    one_each = digits.train_images[:10].repeat(10, 1, 1, 1)
    assert spread_ratio(one_each, labels, digits) == pytest.approx(0, abs=1e-6)
    assert spread_ratio(digits.train_images, digits.train_labels, digits) == pytest.approx(1, abs=0.1)


def test_one_image_of_each_class_has_no_spread_to_measure():
    problem = DigitsProblem()
    config = problem.config_for("descent")()
    label = torch.eye(10)
    values = {"label": label, "image": torch.zeros(10, 1, 8, 8)}
    assert set(problem.metrics(config, Query({"label": label}), values)) == {"recognised"}
    both = {name: x.repeat(2, *[1] * (x.ndim - 1)) for name, x in values.items()}
    assert problem.metrics(config, Query({"label": both["label"]}), both)["spread"] == 0


def test_runs_made_before_engines_open(tmp_path):
    problem = DigitsProblem()
    earlier = {
        "data": "embedded",
        "iterations": 3,
        "gamma": 0.0,
        "order": "forward",
        "initial": "random",
        "dropout": 0.3,
        "untied": True,
        "channels": 16,
        "training": {},
    }
    now = problem.earlier_config(earlier)
    assert now["engine"] == "untied" and now["channels"] == 16
    assert problem.config_for("untied")().model.__class__(**now["model"]) == DescentOptions(
        iterations=3, sweep="forward", initial="random", dropout=0.3
    )
    assert problem.earlier_config(now) == now
    fewer = {name: value for name, value in now["model"].items() if name not in ("rounds", "contraction")}
    assert problem.earlier_config({**now, "model": fewer}) == now
    assert now["translate"] == 0
    assert problem.earlier_config({name: x for name, x in now.items() if name != "translate"}) == now
    with pytest.raises(DataError, match="initial='random'.*--initial random"):
        problem.earlier_config({**earlier, "untied": False})


def test_the_weights_of_one_network_are_refused_by_another(tmp_path):
    from unn.runs import load_weights, save_weights

    save_weights(tmp_path, build(OPTIONS))
    with pytest.raises(unn.DataError, match="shape"):
        load_weights(tmp_path, build(OPTIONS, channels=4))


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("UNN_DATA", ""), "mnist")),
    reason="no MNIST under $UNN_DATA",
)
def test_mnist_is_read_whole_and_learned_from():
    digits = load_digits("mnist")
    assert digits.train_images.shape == (60_000, 1, 28, 28) and digits.test_images.shape == (
        10_000,
        1,
        28,
        28,
    )
    assert torch.bincount(digits.train_labels).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert digits.train_images.min() == -1 and digits.train_images.max() == 1
    few = Digits(
        digits.train_images[:4000],
        digits.train_labels[:4000],
        digits.test_images[:1000],
        digits.test_labels[:1000],
    )
    config = DESCENT(
        data="mnist", channels=16, model=OPTIONS, training=TrainingConfig(epochs=2, batch=64, rate=2e-3)
    )
    network, _ = train(config, few)
    assert accuracy(network, few.test_images, few.test_labels) > 0.85
