"""The engine exact: the contract of engines, learning by conditional likelihood, exact samples by default."""

from itertools import product

import pytest
import torch

import unn
from factors import Cardinality, Different, Multilinear
from unn.belief.engine import BeliefEngine
from unn.errors import ArgumentError, DeclarationError, InferenceError, ObservationError, UnnError
from unn.exact import ExactOptions
from unn.exact.engine import ExactEngine
from unn.exact.model import ExactModel
from unn.extending import SamplingOptions
from unn.testing.engines import EngineContract


def grid(rows=2, columns=3):
    g = unn.FactorGraph("grid", row=rows, column=columns)
    X = g.variable("X", "row column", unn.BinaryEntropy())
    Y = g.variable("Y", "row", unn.BinaryEntropy())
    J, h = g.parameter("J", "", init="ones"), g.parameter("h", "row column", init=0.5)
    g.factor(Multilinear(J[""], X["r c"], X["r c+1"]))
    g.factor(Multilinear(h["r c"], X["r c"]))
    g.factor(Multilinear(X["r c"], Y["r"]))
    return g


class TestExact(EngineContract):
    def engine(self):
        return ExactEngine()

    def graph(self):
        return grid()

    def examples(self, generator):
        return {
            "X": torch.randint(2, (16, 2, 3), generator=generator).float(),
            "Y": torch.randint(2, (16, 2), generator=generator).float(),
        }

    def given(self):
        return ("Y",)


def test_the_loss_is_minus_the_conditional_log_likelihood():
    g = grid(1, 2)
    X = torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]])
    observed = torch.tensor([[[True, False]]])
    loss = ExactModel(g, ExactOptions()).loss({"X": X}, {"X": observed})
    total = 0.0
    for x in X:
        weights = {
            values: sum(
                float((-g.energy({"X": torch.tensor([[values]]), "Y": torch.tensor([[y]])})).exp().detach())
                for y in (0.0, 1.0)
            )
            for values in product((0.0, 1.0), repeat=2)
        }
        own = tuple(x[0].tolist())
        total -= (
            torch.tensor(weights[own] / sum(w for v, w in weights.items() if v[0] == own[0])).log().item()
        )
    assert float(loss.detach()) == pytest.approx(total / 2, abs=1e-5)


def test_the_loss_of_examples_in_part_is_that_of_what_they_give():
    g = grid(1, 3)
    X = torch.tensor([[[1.0, 0.0, 1.0]], [[0.0, 1.0, 1.0]]])
    mask = torch.tensor([[[True, True, False]], [[True, True, True]]])
    observed = torch.tensor([[[True, False, True]]])
    loss = ExactModel(g, ExactOptions()).loss({"X": unn.Partial(X, mask)}, {"X": observed})
    joint, total = (
        unn.exact.log_partition(g, {"X": unn.Partial(X, m)}).detach() for m in (mask, mask & observed)
    )
    torch.testing.assert_close(loss.detach().double(), (total - joint).mean().double())


def test_learning_recovers_the_distribution_of_the_examples():
    """Maximum likelihood of a pair and a field, from samples of a known model."""
    truth = grid(1, 2)
    with torch.no_grad():
        truth.J.fill_(1.5)
        truth.h.copy_(torch.tensor([[-1.0, 0.3]]))
    generator = torch.Generator().manual_seed(0)
    X = unn.exact.sample(truth, 20_000, generator=generator)["X"][0].float()
    torch.manual_seed(1)
    g = grid(1, 2)
    model = ExactModel(g, ExactOptions())
    nothing = {"X": torch.zeros(1, 1, 1, dtype=torch.bool)}
    unn.fit(
        model, {"X": X}, observed=lambda count, generator: nothing, steps=150, batch=2000, rate=0.1, seed=0
    )
    ours, theirs = unn.exact.marginals(g)["X"], unn.exact.marginals(truth)["X"]
    torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0)
    pair = {"X": unn.Partial(torch.ones(1, 1, 2), torch.tensor([[[True, False]]]))}
    conditional, true_conditional = (unn.exact.marginals(x, pair)["X"] for x in (g, truth))
    torch.testing.assert_close(conditional, true_conditional, atol=0.02, rtol=0)


def test_samples_through_the_default_call_have_the_exact_means_and_correlations():
    g = grid()
    model = ExactModel(g, ExactOptions())
    samples = model.sample_with({}, 40_000, SamplingOptions(seed=0), {})["X"]
    exact = unn.exact.marginals(g)["X"][0].float()
    torch.testing.assert_close(samples.mean(0), exact, atol=0.01, rtol=0)
    pair = unn.exact.marginals(
        g, {"X": unn.Partial(torch.ones(1, 2, 3), torch.arange(6).view(1, 2, 3) == 0)}
    )["X"][0, 0, 1]
    both = (samples[:, 0, 0] * samples[:, 0, 1]).mean()
    assert float(both) == pytest.approx(float((exact[0, 0] * pair).detach()), abs=0.01)


def test_samples_of_constraints_are_valid_and_uniform():
    g = unn.FactorGraph("two of four", cell=4)
    x = g.variable("x", "cell", unn.BinaryEntropy())
    g.factor(Cardinality(x["i"], each="", equals=2))
    samples = ExactModel(g, ExactOptions()).sample_with({}, 6000, SamplingOptions(seed=1), {}, verify=True)
    assert samples.valid is not None and samples.valid.all()
    counts = torch.bincount((samples["x"] @ torch.tensor([8.0, 4, 2, 1])).long(), minlength=16)
    assert (counts > 0).sum() == 6 and counts[counts > 0].min() > 850


@pytest.mark.parametrize("options", [{"steps": 3}, {"sampler": "ddim"}, {"spacing": "log-snr"}])
def test_options_of_denoising_are_refused(options):
    model = ExactModel(grid(), ExactOptions())
    with pytest.raises(ArgumentError, match=next(iter(options))):
        model.sample_with({}, 2, SamplingOptions(**options), {})
    with pytest.raises(UnnError, match="no trace"):
        model.sample_with({}, 2, SamplingOptions(), {}, trace=print)


def test_graphs_that_are_too_wide_are_refused_with_their_number_of_nodes():
    g = unn.FactorGraph("dense", n=60)
    x = g.variable("x", "n", unn.BinaryEntropy())
    J = g.parameter("J", "n other", init=0.1)
    g.factor(Multilinear(J["i j"], x["i"], x["j"], where="i < j"))
    assert "its 60 nodes needs more than 2^40" in ExactEngine().refusal(g)
    spins = unn.FactorGraph("spins", n=3)
    s = spins.variable("s", "n", unn.SignedEntropy())
    spins.factor(Different(s["i"], s["i+1"]))
    for engine in (ExactEngine(), BeliefEngine()):
        assert "Different" in engine.refusal(spins) and "does not count" in engine.refusal(spins)
    h = unn.FactorGraph("real", n=2)
    h.variable("x", "n", unn.Ball())
    assert "variable 'x'" in ExactEngine().refusal(h)
    with pytest.raises(DeclarationError, match="variable 'x'"):
        ExactModel(h, ExactOptions())


@pytest.mark.parametrize(
    "query",
    [
        lambda g, given: unn.infer(g, given, order=["b"]),
        unn.exact.marginals,
        unn.exact.best_values,
        unn.belief.marginals,
        unn.gibbs.sample,
    ],
    ids=["infer", "exact", "best", "belief", "gibbs"],
)
def test_a_constant_that_is_declared_with_a_value_takes_no_other_in_any_query(query):
    g = unn.FactorGraph("field", item=3)
    b, c = g.variable("b", "item", unn.BinaryEntropy()), g.constant("c", "item", value=torch.ones(3))
    g.factor(Multilinear(c["i"], b["i"]))
    with pytest.raises(ObservationError, match="constant 'c' has a value since its declaration"):
        query(g, {"c": torch.zeros(1, 3)})
    h = unn.FactorGraph("gaussian", item=3)
    x, d = h.variable("x", "item", unn.SquaredNorm()), h.constant("d", "item", value=torch.ones(3))
    h.factor(Multilinear(d["i"], x["i"]))
    with pytest.raises(ObservationError, match="constant 'd' has a value since its declaration"):
        unn.exact.gaussian_marginals(h, {"d": torch.zeros(1, 3)})


def forbidden_pairs():
    """A chain of two states in which the second never follows the first."""
    g = unn.FactorGraph("chain", n=3, k=2)
    s = g.variable("s", "n | k", unn.Entropy())
    T = g.constant("T", "k k2", torch.tensor([[0.0, -1e30], [0.0, 0.0]]))
    g.factor(Multilinear(s["t i"], T["i j"], s["t+1 j"]))
    return g


def forbidden_pairs_with_a_number():
    g = forbidden_pairs()
    g.variable("y", "", unn.SquaredNorm())
    return g


@pytest.mark.parametrize(
    ("engine", "graph"),
    [
        (ExactEngine(), forbidden_pairs),
        (BeliefEngine(), forbidden_pairs),
        (ExactEngine(), forbidden_pairs_with_a_number),
    ],
    ids=["exact", "belief", "mixed"],
)
def test_examples_and_evidence_of_probability_zero_are_errors_that_name_the_row(engine, graph):
    g = graph()
    model = engine.build(g, engine.options(), {})
    x = torch.eye(2)[torch.tensor([[0, 0, 0], [0, 1, 1]])]
    values = {name: torch.zeros(2) for name in g.variables} | {"s": x}
    mask = {"s": torch.tensor([[True, True, False]])}
    assert model.loss({name: v[:1] for name, v in values.items()}, mask).isfinite()
    with pytest.raises(InferenceError, match="example 1"):
        model.loss(values, mask)
    with pytest.raises(InferenceError, match="probability zero"):
        model.infer_values({"s": unn.Partial(x[1:], mask["s"])}, 1, {})
