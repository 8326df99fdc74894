"""Coordinate descent as a model: what it learns, its loss, queries in batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Multilinear
from unn.extending import DescentOptions


def test_a_descent_model_learns_each_direction_of_a_linear_map():
    torch.manual_seed(0)
    g = unn.FactorGraph("line", n=2, m=2)
    x, y = g.variable("x", "n", unn.SquaredNorm()), g.variable("y", "m", unn.SquaredNorm())
    W = g.parameter("W", "m n")
    g.factor(Multilinear(y["i"], W["i j"], x["j"]))
    # a rotation is the inverse of its transpose, so that both directions have the same weights
    angle = torch.tensor(0.7)
    R = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    data = torch.randn(256, 2)
    values = {"x": data, "y": data @ R.T}
    model = unn.DescentModel(g, DescentOptions(iterations=1))

    def loss(model, batch):
        every = torch.ones(1, 1, dtype=torch.bool)
        return model.loss(batch, {"x": every}) + model.loss(batch, {"y": every})

    unn.fit(model, values, steps=300, rate=0.05, loss=loss)
    torch.testing.assert_close(g.W.detach(), R, atol=0.02, rtol=0)
    forward = model.infer_values({"x": data}, 256, {})["y"]
    reverse = model.infer_values({"y": values["y"]}, 256, {})["x"]
    torch.testing.assert_close(forward, values["y"], atol=0.1, rtol=0)
    torch.testing.assert_close(reverse, data, atol=0.1, rtol=0)


@pytest.mark.parametrize("observed", ["nothing", "some", "all"])
def test_the_loss_of_a_descent_model_is_the_fenchel_young_loss_of_what_is_not_observed(observed):
    torch.manual_seed(1)
    g = unn.FactorGraph("mlp", pixel=4, hidden=5, label=3)
    X = g.variable("X", "pixel", unn.SignedEntropy())
    H = g.variable("H", "hidden", unn.SignedEntropy())
    Y = g.variable("Y", "label", unn.Entropy())
    g.factor(Multilinear(H["h"], g.parameter("W", "hidden pixel")["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], g.parameter("V", "label hidden")["c h"], H["h"]))
    model = unn.DescentModel(g, DescentOptions(iterations=2))
    labels = torch.eye(3)[[0, 2, 1]]
    values = {"X": torch.rand(3, 4) * 2 - 1, "Y": labels}
    every = torch.ones(1, 4, dtype=torch.bool)
    if observed == "all":
        assert model.loss(values, {"X": every, "Y": torch.ones(1, dtype=torch.bool)}).item() == 0
        return
    if observed == "nothing":
        loss = model.loss(values, {"X": every})
        scores = model.unrolled(["X"], [], ["Y"]).preactivations(values["X"])[0]
        torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(scores, labels.argmax(1)))
        return
    mask = torch.tensor([[True, False, True, True]]).expand(3, 4)
    loss = model.loss(values, {"X": mask, "Y": torch.ones(1, dtype=torch.bool)})
    network = model.unrolled(["Y"], ["X"], [])
    (scores,) = network.preactivations(labels, unn.Partial(values["X"], mask))
    expected = unn.SignedEntropy().loss(scores[:, 1:2], values["X"][:, 1:2]).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert g.W.grad.abs().sum() > 0


def test_the_answer_of_a_descent_model_to_one_query_is_its_row_in_a_batch():
    torch.manual_seed(2)
    g = unn.FactorGraph("ring", n=6)
    X = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Multilinear(g.parameter("w", "", init="ones")[""], X["i"], X["i+1"]))
    model = unn.DescentModel(g, DescentOptions(iterations=3))
    x, mask = torch.rand(5, 6).round(), torch.rand(5, 6) < 0.5
    together = model.infer_values({"X": unn.Partial(x, mask)}, 5, {})["X"]
    for k in range(5):
        alone = model.infer_values({"X": unn.Partial(x[k : k + 1], mask[k : k + 1])}, 1, {})["X"]
        torch.testing.assert_close(alone[0], together[k])
    assert model.infer_values({}, 4, {})["X"].shape == (4, 6)


def chain(**options):
    torch.manual_seed(0)
    g = unn.FactorGraph("chain", n=3)
    A, B, C = (g.variable(name, "n", unn.BinaryEntropy()) for name in "ABC")
    W, V = g.parameter("W", "n", init="normal"), g.parameter("V", "n", init="normal")
    g.factor(Multilinear(W["i"], A["i"], B["i"]))
    g.factor(Multilinear(V["i"], B["i"], C["i"]))
    with torch.no_grad():
        g.W.mul_(3), g.V.mul_(3)
    return unn.DescentModel(g, DescentOptions(**{"iterations": 1, "sweep": "forward", **options})).eval()


def examples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randint(2, (count, 3), generator=generator).float() for name in "ABC"}


def masks(count, seed):
    """Of each variable all nodes, none, or some are observed in each row."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.rand(count, 3, generator=generator) < 0.5
    kind = torch.randint(3, (count, 1), generator=generator)
    return torch.where(kind == 0, False, torch.where(kind == 1, True, mixed))


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_answers_to_queries_do_not_depend_on_the_other_queries_of_the_batch(seed):
    model, values = chain(iterations=2), examples(6, seed)
    given = {name: unn.Partial(values[name], masks(6, seed + k)) for k, name in enumerate("AC")}
    together = model.infer_values(given, 6, {})
    for k in range(6):
        alone = {n: unn.Partial(x.value[k : k + 1], x.mask[k : k + 1]) for n, x in given.items()}
        for name, x in model.infer_values(alone, 1, {}).items():
            torch.testing.assert_close(together[name][k : k + 1], x, rtol=0, atol=1e-6)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_the_loss_of_a_batch_is_the_mean_over_the_unobserved_nodes_of_its_rows(seed):
    model, values = chain(), examples(5, seed)
    del values["B"]
    observed = {"C": masks(5, seed), "A": torch.ones(1, 1, dtype=torch.bool)}
    hidden = (~observed["C"]).sum(1)
    rows = [
        model.loss({n: x[k : k + 1] for n, x in values.items()}, {**observed, "C": observed["C"][k : k + 1]})
        for k in range(5)
    ]
    expected = (torch.stack(rows) * hidden).sum() / hidden.sum().clamp(min=1)
    torch.testing.assert_close(model.loss(values, observed), expected)


@pytest.mark.parametrize("initial", ["random", "uniform"])
def test_training_and_inference_begin_at_the_same_values(initial):
    model, values = chain(initial=initial, iterations=1), examples(4)
    torch.manual_seed(3)
    trained = model.unrolled(["A"], [], ["C"])(values["A"])
    torch.manual_seed(3)
    inferred = model.infer_values({"A": values["A"]}, 4, {})["C"]
    torch.testing.assert_close(trained[0] if isinstance(trained, tuple) else trained, inferred)


def test_evidence_without_an_observed_entry_is_no_evidence():
    model = chain()
    empty = unn.Partial(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    for name, x in model.infer_values({}, 2, {}).items():
        torch.testing.assert_close(model.infer_values({"C": empty}, 2, {})[name], x)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda v, o: o.update(C=torch.ones(2, 3, dtype=torch.bool)), r"'C'.*\(2, 3\)"),
        (lambda v, o: o.update(C=torch.ones(5, 3)), "'C'.*float32"),
        (lambda v, o: o.update(C=[True]), "'C'.*True"),
        (lambda v, o: v.update(C=v["C"][:1]), "'C'"),
        (lambda v, o: v.update(C=v["C"] + 2), "'C'.*domain"),
        (lambda v, o: v.update(C=v["C"] * float("nan")), "'C'.*NaN"),
        (lambda v, o: v.update(C=v["C"].tolist()), "'C'.*list"),
        (lambda v, o: o.update(D=torch.ones(1, 1, dtype=torch.bool)), "'D'"),
    ],
)
def test_examples_and_masks_that_do_not_fit_are_refused_by_name(change, facts):
    values, observed = examples(5), {"C": torch.ones(1, 1, dtype=torch.bool)}
    change(values, observed)
    with pytest.raises(unn.ObservationError, match=facts):
        chain().loss(values, observed)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (({"A": torch.zeros(3, 3)}, 2, {}), r"'A'.*2 queries.*\(3, 3\)"),
        (({"A": [0, 1, 0]}, 1, {}), "'A'.*list"),
        (({}, -1, {}), "count.*-1"),
        (({}, 2, {"n": 4}), "'n'.*size 3, not 4"),
        (({}, 2, {}, 0), "iterations"),
    ],
)
def test_evidence_counts_and_sizes_that_do_not_fit_are_refused(arguments, facts):
    with pytest.raises(unn.UnnError, match=facts):
        chain().infer_values(*arguments)


def test_rows_in_which_everything_is_given_are_returned_unchanged_beside_others():
    torch.manual_seed(2)
    g = unn.FactorGraph("line", n=2, m=2)
    x, y = g.variable("x", "n", unn.SignedEntropy()), g.variable("y", "m", unn.SignedEntropy())
    g.factor(Multilinear(y["i"], g.parameter("W", "m n")["i j"], x["j"]))
    model = unn.DescentModel(g, DescentOptions(iterations=2))
    x_values, y_values = torch.rand(2, 2) - 0.5, torch.rand(2, 2) - 0.5
    whole, none = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.bool)
    given = {
        "x": unn.Partial(x_values, torch.cat([whole, whole])),
        "y": unn.Partial(y_values, torch.cat([whole, none])),
    }
    answers = model.infer_values(given, 2, {})
    assert torch.equal(answers["x"], x_values)
    assert torch.equal(answers["y"][0], y_values[0])
    alone = model.infer_values({"x": x_values[1:]}, 1, {})["y"]
    torch.testing.assert_close(answers["y"][1:], alone)


def layered(seed=0, rounds=4, **options):
    torch.manual_seed(seed)
    g = unn.FactorGraph("mlp", pixel=4, hidden=5, label=3)
    X = g.variable("X", "pixel", unn.SignedEntropy())
    H = g.variable("H", "hidden", unn.SignedEntropy())
    Y = g.variable("Y", "label", unn.Entropy())
    g.factor(Multilinear(H["h"], g.parameter("W", "hidden pixel", init=1.0)["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], g.parameter("V", "label hidden", init=1.0)["c h"], H["h"]))
    return unn.DescentModel(g, DescentOptions(iterations=rounds, **options))


EXAMPLES = {"X": torch.linspace(-0.9, 0.9, 12).view(3, 4), "Y": torch.eye(3)}


@pytest.mark.parametrize("given", [("X",), ("Y",)])
@pytest.mark.parametrize("preactivations", [False, True])
def test_every_round_is_what_as_many_rounds_return(given, preactivations):
    (want,) = {"X", "Y"} - set(given)
    network = layered().unrolled(given, [], [want])
    rounds = network.rounds(EXAMPLES[given[0]], preactivations=preactivations)
    assert len(rounds) == 4
    for k, (own,) in enumerate(rounds, 1):
        call = network.preactivations if preactivations else network
        torch.testing.assert_close(own, call(EXAMPLES[given[0]], iterations=k)[0])


@pytest.mark.parametrize("observed", ["X", "Y", "part"])
def test_losses_of_every_round_are_the_mean_of_those_of_each_number_of_rounds(observed):
    part = torch.tensor([[True, False, True, True]])
    masks = {"part": {"X": part}, "X": {"X": part | ~part}, "Y": {"Y": part[:, 0]}}[observed]
    every = layered(round_losses="every")
    every.train()
    singles = [layered(rounds=k).train().loss(EXAMPLES, masks) for k in range(1, 5)]
    loss = every.loss(EXAMPLES, masks)
    torch.testing.assert_close(loss, torch.stack(singles).mean())
    (gradient,) = torch.autograd.grad(loss, every.graph.W)
    assert float(gradient.norm()) > 0
    # evaluation has the loss of the last round, by which runs are compared
    torch.testing.assert_close(every.eval().loss(EXAMPLES, masks), layered().eval().loss(EXAMPLES, masks))


def test_losses_of_every_round_are_refused_with_gradients_of_the_last_ones():
    with pytest.raises(unn.DeclarationError, match="leave out gradient_rounds"):
        DescentOptions(round_losses="every", gradient_rounds=3).check("descent")
    network = unn.Unrolled(layered().graph, "X", "Y", gradient=unn.Truncate(1), iterations=3)
    with pytest.raises(unn.InferenceError, match="gradient=Unroll"):
        network.rounds(EXAMPLES["X"])


def repeated(count):
    """Examples of a chain with two kinds of evidence C, and the masks that give it."""
    values = examples(count)
    values["C"] = values["C"][:2][torch.arange(count) % 2]
    return values, {"C": torch.ones(1, 1, dtype=torch.bool)}


@pytest.mark.parametrize("round_losses", ["last", "every"])
@pytest.mark.parametrize("initial", ["zero", "uniform"])
def test_evidence_that_repeats_has_the_loss_and_the_gradients_of_each_example_alone(round_losses, initial):
    model = chain(iterations=3, round_losses=round_losses, initial=initial).train()
    values, observed = repeated(6)
    rows = [model.loss({n: x[k : k + 1] for n, x in values.items()}, observed) for k in range(6)]
    expected = torch.stack(rows).mean()
    loss = model.loss(values, observed)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, list(model.parameters())),
        torch.autograd.grad(expected, list(model.parameters())),
    )


def rows_of_networks(model, values, observed, monkeypatch):
    """Numbers of rows for which networks run in one loss."""
    counts = []
    preactivations = unn.Unrolled.preactivations

    def count(self, *inputs, **options):
        counts.append(len(inputs[0]))
        return preactivations(self, *inputs, **options)

    monkeypatch.setattr(unn.Unrolled, "preactivations", count)
    model.loss(values, observed)
    return counts


def test_evidence_that_repeats_is_computed_once(monkeypatch):
    assert rows_of_networks(chain().train(), *repeated(6), monkeypatch) == [2]


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"initial": "random"}])
def test_evidence_that_repeats_has_random_numbers_of_its_own_in_each_example(options, monkeypatch):
    assert rows_of_networks(chain(**options).train(), *repeated(6), monkeypatch) == [6]


def test_evidence_that_is_differentiated_has_the_gradient_of_each_example():
    model = chain(iterations=2)
    values, observed = repeated(6)
    values["C"] = values["C"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.loss(values, observed), [values["C"]])
    assert (gradient.abs().sum(1) > 0).all()


def test_evidence_that_follows_from_what_is_given_is_held_trained_through_and_has_no_loss():
    def hidden_from_pixels(graph, given):
        if "X" not in given:
            return {}
        h = (given["X"] @ graph.W.T).tanh() / 2
        return {"H": unn.Partial(h, torch.ones_like(h, dtype=torch.bool))}

    model = layered().train()
    model.derived = hidden_from_pixels
    rows = torch.tensor([0, 1, 0, 2, 1])
    values = {name: x[rows] for name, x in EXAMPLES.items()}
    everything = {"X": torch.ones(1, 1, dtype=torch.bool)}
    loss = model.loss(values, everything)
    weights = list(model.graph.parameters())
    scores = (values["X"] @ model.graph.W.T).tanh() / 2 @ model.graph.V.T
    expected = torch.nn.functional.cross_entropy(scores, rows)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, weights), torch.autograd.grad(expected, weights))
    answer = model.infer_values({"X": values["X"]}, 5, {})
    torch.testing.assert_close(answer["H"], (values["X"] @ model.graph.W.T).tanh() / 2)
    torch.testing.assert_close(answer["Y"], scores.softmax(-1))
    # nothing follows from labels
    reverse = {"Y": torch.ones(1, dtype=torch.bool)}
    torch.testing.assert_close(model.loss(values, reverse), layered().train().loss(values, reverse))
