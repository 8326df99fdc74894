"""Perception: exact most probable answers, labels by constraints, refusals and bad input."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import unn
from factors import Cardinality, Depends, Different, Table
from unn.errors import ObservationError
from unn.extending import load_engine
from unn.perception.model import possible_values
from unn.perception.network import Reader, shifted

SMALL = unn.PerceptionOptions(filters=2, hidden=8, dropout=0.0)


def permutations(n, features=None):
    """Cells with different values, each seen through features."""
    g = unn.FactorGraph("permutation", cell=n, value=n, feature=features or n)
    X = g.variable("X", "cell | value", unn.Entropy())
    seen = g.variable("seen", "cell | feature", unn.SquaredNorm())
    g.factor(Cardinality(X["c v"], each="v", equals=1, name="each value once"))
    g.factor(Depends(seen["c f"], X["c v"]))
    return g


def reading_its_features(graph, **options):
    """A model whose features are the log-probabilities."""
    model = unn.Perception(graph, unn.PerceptionOptions(hidden=8, **options))
    for reader in model.readers.values():
        reader.layers = nn.Sequential(nn.Identity(), nn.Identity())
    # a parameter tells the device
    model.register_parameter("none", nn.Parameter(torch.zeros(1)))
    return model


def random_logs(count, n, seed):
    random = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(count, n, n, generator=random)).log_softmax(-1)


@given(st.integers(1, 5), st.integers(0, 2**16))
@settings(max_examples=25, deadline=None)
def test_the_answer_is_the_most_probable_one_of_all_that_meet_the_constraints(n, seed):
    logs = random_logs(3, n, seed)
    model = reading_its_features(permutations(n), readings=n**n)
    solutions = unn.solve(model, {"seen": logs}, options=unn.SolvingOptions(tries=1))
    assert solutions.outcomes == ("solved",) * 3
    for k in range(3):
        best = max(
            float(sum(logs[k, c, v] for c, v in enumerate(p))) for p in itertools.permutations(range(n))
        )
        assert float((solutions["X"][k] * logs[k]).sum()) == pytest.approx(best, abs=1e-4)


def shown_permutations(n):
    """Cells with different values, of which some are shown: sign 0 shows nothing, sign k shows value k."""
    g = unn.FactorGraph("shown", cell=n, value=n, sign=n + 1, feature=n + 1)
    X = g.variable("X", "cell | value", unn.Entropy())
    S = g.variable("S", "cell | sign", unn.Entropy())
    seen = g.variable("seen", "cell | feature", unn.SquaredNorm())
    g.factor(Cardinality(X["c v"], each="v", equals=1, name="each value once"))
    signs = [(0, v) for v in range(n)] + [(v + 1, v) for v in range(n)]
    g.factor(Table(S["c s"], X["c v"], allowed=signs))
    g.factor(Depends(seen["c f"], S["c s"]))
    return g


def completions(signs):
    """Permutations that agree with signs."""
    every = itertools.permutations(range(len(signs)))
    return [p for p in every if all(sign in (0, value + 1) for sign, value in zip(signs, p, strict=True))]


@pytest.mark.parametrize("unique", [False, True])
@given(n=st.integers(1, 3), seed=st.integers(0, 2**16), blank=st.floats(-3, 6))
@settings(max_examples=25, deadline=None)
def test_the_reading_is_the_most_probable_one_with_an_answer_or_with_one_answer_if_any(
    unique, n, seed, blank
):
    random = torch.Generator().manual_seed(seed)
    logs = 2 * torch.randn(4, n, n + 1, generator=random)
    logs[..., 0] += blank
    logs = logs.log_softmax(-1)
    model = reading_its_features(shown_permutations(n), readings=(n + 1) ** n, unique=unique)
    solutions = unn.solve(model, {"seen": logs}, options=unn.SolvingOptions(tries=1))
    assert solutions.outcomes == ("solved",) * 4
    for k in range(4):
        total = {
            signs: float(sum(logs[k, c, s] for c, s in enumerate(signs)))
            for signs in itertools.product(range(n + 1), repeat=n)
            if completions(signs)
        }
        single = {signs: x for signs, x in total.items() if len(completions(signs)) == 1}
        expected = max((single if unique else total).values())
        read = tuple(solutions["S"][k].argmax(-1).tolist())
        assert total[read] == pytest.approx(expected, abs=1e-4)
        assert tuple(solutions["X"][k].argmax(-1).tolist()) in completions(read)


def test_where_no_reading_leaves_one_answer_the_first_answer_is_given():
    known = torch.full((1, 3, 4), -50.0)
    known[..., 0] = 0.0
    model = reading_its_features(shown_permutations(3), readings=1, unique=True)
    solutions = unn.solve(model, {"seen": known}, options=unn.SolvingOptions(tries=1))
    assert solutions.outcomes == ("solved",) and solutions["S"].argmax(-1).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("unique", [False, True])
def test_several_answers_are_different_and_meet_the_constraints(unique):
    logs = random_logs(1, 4, 0)[:, :3]
    logs = torch.nn.functional.pad(logs, (1, 0), value=-9.0)[..., :4]
    g = shown_permutations(3)
    model = reading_its_features(g, unique=unique)
    solutions = unn.solve(model, {"seen": logs}, options=unn.SolvingOptions(count=3, tries=4))
    answers = solutions.answers[0]
    rows = {
        tuple(x.argmax(-1).tolist() + s.argmax(-1).tolist())
        for x, s in zip(answers["X"], answers["S"], strict=True)
    }
    assert len(rows) == len(answers["X"]) == 3
    for constraint in g.constraints:
        assert not constraint.violations_of(answers).any()


def test_evidence_on_values_and_on_features_is_combined():
    logs = torch.full((1, 3, 3), -5.0)
    logs[0, :, 0] = -0.1
    logs[0, 1, 2] = -2.0
    model = reading_its_features(permutations(3))
    known = unn.Partial(torch.eye(3)[[1, 0, 0]][None], torch.tensor([[True, False, False]]))
    seen = unn.Partial(logs, torch.tensor([[True, True, False]]))
    answer = unn.solve(model, {"X": known, "seen": seen})["X"][0].argmax(-1).tolist()
    # without the last cell's features, only those of the second decide
    assert answer == [1, 0, 2]
    assert unn.solve(model, {"X": known}).outcomes == ("solved",)


def test_a_batch_has_the_answers_of_its_instances_alone():
    logs = random_logs(8, 4, 0)
    model = reading_its_features(permutations(4))
    together = unn.solve(model, {"seen": logs})["X"]
    assert all(
        torch.equal(unn.solve(model, {"seen": logs[k : k + 1]})["X"][0], together[k]) for k in range(8)
    )


def test_a_later_try_continues_with_less_probable_readings():
    logs = torch.tensor([[[-0.1, -3.0], [-0.1, -2.0]]])
    model = reading_its_features(permutations(2), readings=1)
    outcome = {
        tries: unn.solve(model, {"seen": logs}, options=unn.SolvingOptions(tries=tries)).outcomes[0]
        for tries in (1, 2)
    }
    assert outcome == {1: "unsolved", 2: "solved"}


def test_evidence_that_contradicts_the_constraints_is_impossible():
    model = reading_its_features(permutations(3))
    known = unn.Partial(torch.eye(3)[[1, 1, 0]][None], torch.tensor([[True, True, False]]))
    solutions = unn.solve(model, {"X": known, "seen": random_logs(1, 3, 0)})
    assert solutions.outcomes == ("impossible",) and "each value once" in solutions.reasons[0]


def test_the_loss_of_labels_is_the_cross_entropy():
    torch.manual_seed(0)
    model = unn.Perception(permutations(4), SMALL).eval()
    labels = torch.stack([torch.randperm(4) for _ in range(5)])
    seen = torch.randn(5, 4, 4)
    expected = F.cross_entropy(model.readers["seen"](seen.flatten(0, 1)), labels.flatten())
    assert torch.allclose(model.loss({"X": F.one_hot(labels, 4).float(), "seen": seen}, {}), expected)


def test_a_node_without_a_label_learns_what_the_labels_of_the_others_imply():
    torch.manual_seed(0)
    model = unn.Perception(permutations(4), SMALL).eval()
    X, seen = torch.eye(4)[None].clone(), torch.randn(1, 4, 4)
    complete = model.loss({"X": X, "seen": seen}, {})
    X[0, 2] = 1
    assert torch.equal(model.loss({"X": X, "seen": seen}, {}), complete)
    X[0, 3] = 1
    logs = model.readers["seen"](seen[0]).log_softmax(1)
    either = [logs[0, 0], logs[1, 1], logs[2, 2:].logsumexp(0), logs[3, 2:].logsumexp(0)]
    assert torch.allclose(model.loss({"X": X, "seen": seen}, {}), -torch.stack(either).mean())
    # without any label there is nothing to learn
    loss = model.loss({"X": torch.ones(1, 4, 4), "seen": seen}, {})
    loss.backward()
    assert loss.item() == 0 and all(not p.grad.any() for p in model.parameters())


def test_features_are_learned_without_a_label_of_a_node_that_is_seen():
    torch.manual_seed(0)
    n = 3
    g = unn.FactorGraph("pairs", cell=2, value=n, symbol=n + 1, feature=2)
    X = g.variable("X", "cell | value", unn.Entropy())
    S = g.variable("S", "cell | symbol", unn.Entropy())
    seen = g.variable("seen", "cell | feature", unn.SquaredNorm())
    g.factor(Cardinality(X["c v"], each="v", at_most=1))
    signs = [(0, v) for v in range(n)] + [(v + 1, v) for v in range(n)]
    g.factor(Table(S["c s"], X["c v"], allowed=signs))
    g.factor(Depends(seen["c f"], S["c s"]))
    places = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0], [3.0, 3.0]])

    def examples(count):
        values = torch.stack([torch.randperm(n)[:2] for _ in range(count)])
        # the first cell shows its value and has no label, the second one shows nothing and has a label
        signs = torch.stack([values[:, 0] + 1, torch.zeros(count, dtype=torch.long)], 1)
        return values, signs, places[signs] + 0.3 * torch.randn(count, 2, 2)

    model = unn.Perception(g, unn.PerceptionOptions(hidden=32, dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        values, signs, features = examples(64)
        labels = F.one_hot(values, n).float()
        labels[:, 0] = 1
        symbols = F.one_hot(signs, n + 1).float()
        symbols[:, 0] = torch.tensor([0.0, 1, 1, 1])
        loss = model.loss({"X": labels, "S": symbols, "seen": features}, {})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    values, signs, features = examples(200)
    read = unn.solve(model.eval(), {"seen": features})["S"].argmax(-1)
    assert (read == signs).float().mean() > 0.97


def test_labels_that_contradict_each_other_are_refused_with_the_group():
    model = unn.Perception(permutations(3), SMALL)
    X = torch.eye(3)[[0, 0, 1]][None]
    with pytest.raises(ObservationError, match="example 0.*each value once"):
        model.loss({"X": X, "seen": torch.zeros(1, 3, 3)}, {})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"X": torch.eye(3)[None]}, "seen"),
        ({"seen": torch.zeros(1, 3, 3)}, "X"),
        ({"X": torch.eye(3)[None], "seen": torch.zeros(1, 3, 2)}, "seen"),
        ({"X": torch.ones(1, 3), "seen": torch.zeros(1, 3, 3)}, "X"),
        ({"X": torch.eye(3)[None], "seen": torch.full((1, 3, 3), torch.nan)}, "seen.*NaN"),
        ({"X": torch.zeros(1, 3, 3), "seen": torch.zeros(1, 3, 3)}, "X"),
        ({"X": torch.eye(3)[None], "seen": torch.zeros(2, 3, 3)}, "batch sizes: 2 of continuous"),
    ],
)
def test_examples_that_do_not_fit_are_refused_with_the_variable(values, words):
    with pytest.raises(ObservationError, match=words):
        unn.Perception(permutations(3), SMALL).loss(values, {})


@pytest.mark.parametrize(
    ("given_values", "words"),
    [
        ({"seen": torch.zeros(1, 3, 2)}, "seen"),
        ({"seen": torch.full((1, 3, 3), torch.nan)}, "seen.*NaN"),
        ({"sen": torch.zeros(1, 3, 3)}, "seen"),
        ({"X": torch.full((1, 3, 3), 0.5)}, "X"),
    ],
)
def test_evidence_that_does_not_fit_is_refused_with_the_variable(given_values, words):
    with pytest.raises(ObservationError, match=words):
        unn.solve(unn.Perception(permutations(3), SMALL), given_values)


def test_graphs_that_cannot_be_perceived_are_refused_with_the_reason():
    engine = load_engine("perception")
    assert engine.serves(permutations(3), "solve") and not engine.serves(permutations(3), "sample")

    def reason(change):
        g = unn.FactorGraph("g", cell=3, value=3, feature=2)
        X = g.variable("X", "cell | value", unn.Entropy())
        Y = g.variable("Y", "cell | value", unn.Entropy())
        seen = g.variable("seen", "cell | feature", unn.SquaredNorm())
        change(g, X, Y, seen)
        return engine.refusal(g)

    def counted(g, X):
        g.factor(Different(X["c v"], X["c+1 v"]))

    assert "'seen' is continuous, and no" in reason(lambda g, X, Y, seen: counted(g, X))
    assert "'seen' is continuous, and no" in reason(
        lambda g, X, Y, seen: (counted(g, X), g.factor(Depends(seen["c f"], X["c+1 v"])))
    )
    assert "'seen' is continuous, and 2" in reason(
        lambda g, X, Y, seen: (
            counted(g, X),
            g.factor(Depends(seen["c f"], X["c v"])),
            g.factor(Depends(Y["c v"], seen["c f"])),
        )
    )
    assert "no constraints" in reason(lambda g, X, Y, seen: g.factor(Depends(seen["c f"], X["c v"])))
    without = unn.FactorGraph("g", cell=3, value=3)
    counted(without, without.variable("X", "cell | value", unn.Entropy()))
    assert "no continuous variable" in engine.refusal(without)


def test_two_views_of_a_node_are_combined():
    n = 3
    g = permutations(n)
    other = g.variable("other", "cell | feature", unn.SquaredNorm())
    g.factor(Depends(g["X"]["c v"], other["c f"]))
    model = reading_its_features(g)
    one, two = random_logs(1, n, 0), random_logs(1, n, 1)
    both = unn.solve(model, {"seen": one, "other": two})["X"]
    alone = unn.solve(reading_its_features(permutations(n)), {"seen": (one + two).log_softmax(-1)})["X"]
    assert torch.equal(both, alone)


def test_binary_nodes_are_read():
    g = unn.FactorGraph("bits", bit=4, feature=2)
    x = g.variable("x", "bit", unn.BinaryEntropy())
    seen = g.variable("seen", "bit | feature", unn.SquaredNorm())
    g.factor(Cardinality(x["b"], each="", equals=2))
    g.factor(Depends(seen["b f"], x["b"]))
    ones = torch.tensor([-0.1, -0.2, -0.3, -0.4])
    logs = torch.stack([torch.log(1 - ones.exp()), ones], -1)[None]
    assert unn.solve(reading_its_features(g), {"seen": logs})["x"].tolist() == [[1, 1, 0, 0]]
    model = unn.Perception(g, SMALL)
    unknown = torch.tensor([[1.0, 1.0, 0.5, 0.5]])
    layout, _ = model.layouts({})
    possible = possible_values(layout, {"x": unknown}).view(4, 2)
    # two ones are known, so the others are zeros
    assert possible.tolist() == [[False, True], [False, True], [True, False], [True, False]]


def test_sizes_of_axes_may_differ_between_calls():
    g = unn.FactorGraph("free", value=5, feature=5)
    X = g.variable("X", "cell | value", unn.Entropy())
    seen = g.variable("seen", "cell | feature", unn.SquaredNorm())
    g.factor(Cardinality(X["c v"], each="v", at_most=1))
    g.factor(Depends(seen["c f"], X["c v"]))
    model = reading_its_features(g)
    for cells in (1, 3, 5):
        logs = torch.randn(2, cells, 5, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
        assert unn.solve(model, {"seen": logs}, sizes={"cell": cells}).outcomes == ("solved",) * 2


@pytest.mark.parametrize("shape", [(28, 28), (3, 8, 8), (5, 7), (1, 1), (2,), ()])
def test_a_reader_reads_features_of_any_shape(shape):
    reader = Reader(shape, 4, SMALL)
    for training in (True, False):
        assert reader.train(training)(torch.randn(3, *shape)).shape == (3, 4)


@given(st.integers(1, 3), st.integers(0, 100))
@settings(max_examples=20)
def test_a_shift_is_one_of_whole_pixels_with_the_border_repeated(most, seed):
    torch.manual_seed(seed)
    images = torch.randn(4, 2, 5, 6)
    padded = F.pad(images, (most,) * 4, mode="replicate")
    for image, result in zip(padded, shifted(images, most), strict=True):
        crops = [image[:, r : r + 5, c : c + 6] for r in range(2 * most + 1) for c in range(2 * most + 1)]
        assert any(torch.equal(crop, result) for crop in crops)


def test_features_are_standardised_by_the_examples():
    model = unn.Perception(permutations(3), SMALL)
    seen = 100 + 7 * torch.randn(50, 3, 3, generator=torch.Generator().manual_seed(0))
    model.prepare({"X": torch.zeros(50, 3, 3), "seen": seen})
    reader = model.readers["seen"]
    assert float(reader.center) == pytest.approx(100, abs=2) and float(reader.scale) == pytest.approx(
        7, abs=1
    )
    again = unn.Perception(permutations(3), SMALL)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.readers["seen"].center, reader.center)


def test_a_model_can_be_copied_after_use():
    model = reading_its_features(permutations(3))
    logs = random_logs(1, 3, 0)
    answer = unn.solve(model, {"seen": logs})["X"]
    assert torch.equal(unn.solve(copy.deepcopy(model), {"seen": logs})["X"], answer)


@pytest.mark.parametrize("own", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_features_and_networks_of_every_type_have_losses_and_answers(own, dtype):
    torch.manual_seed(0)
    model = unn.Perception(permutations(3), SMALL).to(own)
    seen = (4 * torch.eye(3)[torch.tensor([[0, 1, 2], [2, 0, 1]])]).to(dtype)
    labels = torch.eye(3)[torch.tensor([[0, 1, 2], [2, 0, 1]])]
    model.prepare({"seen": seen, "X": labels})
    assert float(next(iter(model.readers.values())).center) == pytest.approx(4 / 3)
    loss = model.loss({"seen": seen, "X": labels}, {})
    loss.backward()
    assert loss.isfinite()
    assert unn.solve(model, {"seen": seen}).outcomes == ("solved",) * 2


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (torch.full((2, 3, 3), torch.nan), "'seen': values have NaN"),
        (torch.ones(2, 3, 4), "'seen' needs"),
        (torch.ones(2, 3, 3, dtype=torch.complex64), "'seen' needs real numbers"),
        (None, "seen"),
    ],
)
def test_features_that_do_not_fit_are_refused_before_they_are_standardised(seen, words):
    model = unn.Perception(permutations(3), SMALL)
    with pytest.raises(ObservationError, match=words):
        model.prepare({} if seen is None else {"seen": seen})
    assert float(next(iter(model.readers.values())).center) == 0


def test_a_loss_of_no_examples_is_refused():
    model = unn.Perception(permutations(3), SMALL)
    with pytest.raises(ObservationError, match="no examples"):
        model.loss({"seen": torch.ones(0, 3, 3), "X": torch.ones(0, 3, 3)}, {})
