"""Graphs of discrete and continuous variables: exact answers against sums of integrals by quadrature."""

import math
from itertools import product

import pytest
import torch
from scipy.stats import chisquare

import unn
from factors import Cardinality, Multilinear, SquaredResidual
from unn.errors import DeclarationError, InferenceError, ObservationError, UnnError
from unn.exact import ExactOptions
from unn.exact.engine import ExactEngine
from unn.exact.mixed_model import MixedModel, rows_by_pattern
from unn.extending import SamplingOptions
from unn.testing import EngineContract


def switching(n=2):
    """Categories and a binary node that shift and couple continuous nodes."""
    g = unn.FactorGraph("switching", n=n, k=3)
    z = g.variable("z", "n | k", unn.Entropy())
    on = g.variable("on", "", unn.BinaryEntropy())
    x = g.variable("x", "n", unn.SquaredNorm())
    m = g.parameter("m", "k", init=torch.tensor([-2.0, 0.5, 1.5]))
    c = g.parameter("c", "", init=torch.tensor(0.3))
    s = g.parameter("s", "k", init=torch.tensor([0.15, -0.2, 0.1]))
    g.factor(Multilinear(m["k"], z["i k"], x["i"]))
    g.factor(Multilinear(c[""], on[""], x["i"], x["i+1"]))
    g.factor(Multilinear(s["k"], z["i k"], x["i"], x["i"]))
    g.factor(Multilinear(z["i k"], z["i+1 k"]))
    return g.double()


def by_quadrature(g, x0=None):
    """Weights of joint states, means and second moments of x, by a grid."""
    points = torch.linspace(-14, 14, 561, dtype=torch.float64)
    first = points if x0 is None else torch.tensor([x0], dtype=torch.float64)
    grid = torch.cartesian_prod(first, points)
    cell = float(points[1] - points[0]) ** (2 if x0 is None else 1)
    results = {}
    for a, b, on in product(range(3), range(3), (0.0, 1.0)):
        z = torch.eye(3, dtype=torch.float64)[[a, b]].expand(len(grid), 2, 3)
        values = {"z": z, "on": torch.full((len(grid),), on, dtype=torch.float64), "x": grid}
        weights = (-g.energy(values)).exp().detach() * cell
        moments = torch.stack(
            [weights.sum(), (weights * grid[:, 1]).sum(), (weights * grid[:, 1] ** 2).sum()]
        )
        results[a, b, on] = moments
    return results


@pytest.mark.parametrize("x0", [None, 0.7])
def test_marginals_agree_with_quadrature(x0):
    g = switching()
    given = None
    if x0 is not None:
        given = {
            "x": unn.Partial(torch.tensor([[x0, 0.0]], dtype=torch.float64), torch.tensor([[True, False]]))
        }
    answer = unn.exact.mixed_marginals(g, given)
    table = by_quadrature(g, x0)
    total = sum(m[0] for m in table.values())
    torch.testing.assert_close(answer.log_partition[0], total.log(), atol=1e-9, rtol=0)
    on = sum(m[0] for (_, _, o), m in table.items() if o) / total
    torch.testing.assert_close(answer["on"][0], on, atol=1e-9, rtol=0)
    for k in range(3):
        p = sum(m[0] for (_, b, _), m in table.items() if b == k) / total
        torch.testing.assert_close(answer["z"][0, 1, k], p, atol=1e-9, rtol=0)
    mean = sum(m[1] for m in table.values()) / total
    second = sum(m[2] for m in table.values()) / total
    torch.testing.assert_close(answer["x"][0, 1], mean, atol=1e-9, rtol=0)
    torch.testing.assert_close(answer.variances["x"][0, 1], second - mean**2, atol=1e-8, rtol=0)


def test_rows_with_different_discrete_evidence_are_answered_together():
    g = switching()
    z = torch.eye(3, dtype=torch.float64)[torch.tensor([[0, 1], [2, 2], [1, 0]])]
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    together = unn.exact.mixed_marginals(g, {"z": unn.Partial(z, mask)})
    for row in range(3):
        one = unn.Partial(z[row : row + 1], mask[row : row + 1])
        alone = unn.exact.mixed_marginals(g, {"z": one})
        torch.testing.assert_close(together.log_partition[row], alone.log_partition[0])
        for name in ("z", "on", "x"):
            torch.testing.assert_close(together[name][row], alone[name][0])
    assert torch.equal(together["z"][0], z[0])


def test_without_discrete_variables_the_answer_is_the_normal_distribution():
    g = unn.FactorGraph("pair", n=3)
    x = g.variable("x", "n", unn.SquaredNorm())
    w = g.constant("w", "", torch.tensor(0.3))
    g.factor(Multilinear(w[""], x["i"], x["i+1"]))
    mixed, normal = unn.exact.mixed_marginals(g), unn.exact.gaussian_marginals(g)
    torch.testing.assert_close(mixed.log_partition, normal.log_partition)
    torch.testing.assert_close(mixed.variances["x"], normal.variances["x"])


def test_samples_follow_the_exact_distribution():
    g = switching()
    answer = unn.exact.mixed_marginals(g)
    samples = answer.sample(20_000, torch.Generator().manual_seed(0))
    state = samples["z"][0].argmax(-1) @ torch.tensor([3, 1]) * 2 + samples["on"][0].long()
    counts = torch.bincount(state, minlength=18).double()
    expected = torch.zeros(18, dtype=torch.float64)
    code = answer.states["z"].argmax(-1) @ torch.tensor([3, 1]) * 2 + answer.states["on"].long()
    expected = expected.index_add(0, code, answer.probabilities[0].detach())
    assert chisquare(counts.numpy(), (expected * 20_000).numpy()).pvalue > 1e-3
    x = samples["x"][0]
    torch.testing.assert_close(x.mean(0), answer["x"][0].detach(), atol=0.06, rtol=0)
    torch.testing.assert_close(x.var(0), answer.variances["x"][0].detach(), atol=0.25, rtol=0)
    # within one joint state as well, where the mixture cannot hide it
    one = x[(state == 18 - 1)]
    normal = int((code == 17).nonzero()[0])
    mean = answer.normals.means[normal, 0].detach()
    spread = answer.normals.variances[normal].detach()
    torch.testing.assert_close(one.mean(0), mean, atol=5 * float(spread.max() / len(one)) ** 0.5, rtol=0)


def test_the_log_partition_is_differentiable_by_the_parameters():
    g = switching()

    def total(m, c):
        return torch.func.functional_call(_Total(g), {"g.m": m, "g.c": c}, ())

    assert torch.autograd.gradcheck(total, [g.m, g.c], fast_mode=True)


class _Total(torch.nn.Module):
    def __init__(self, g):
        super().__init__()
        self.g = g

    def forward(self):
        return unn.exact.mixed_marginals(self.g).log_partition


def test_constraints_exclude_joint_states_and_impossible_evidence_is_said_so():
    g = unn.FactorGraph("choice", n=3)
    on = g.variable("on", "n", unn.BinaryEntropy())
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Multilinear(on["i"], x["i"]))
    g.factor(Cardinality(on["i"], each="", equals=1))
    answer = unn.exact.mixed_marginals(g)
    torch.testing.assert_close(answer["on"][0], torch.full((3,), 1 / 3, dtype=torch.float64))
    expected = math.log(3) + 0.5 + 1.5 * math.log(2 * math.pi)
    assert float(answer.log_partition) == pytest.approx(expected)
    impossible = unn.exact.mixed_marginals(g, {"on": torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])})
    assert impossible.log_partition[0] == -math.inf and impossible.log_partition[1].isfinite()
    assert all(x.isfinite().all() for x in (*impossible.means.values(), *impossible.variances.values()))
    with pytest.raises(InferenceError, match="row 0 .*probability zero"):
        impossible.sample(1)


def test_joint_states_that_constraints_exclude_may_be_unbounded():
    g = unn.FactorGraph("choice", n=2)
    on = g.variable("on", "n", unn.BinaryEntropy())
    x = g.variable("x", "", unn.SquaredNorm())
    w = g.constant("w", "", torch.tensor(0.3))
    g.factor(Multilinear(w[""], on["i"], x[""], x[""]))
    with pytest.raises(InferenceError, match="not bounded below"):
        unn.exact.mixed_marginals(g)
    g.factor(Cardinality(on["i"], each="", at_most=1))
    answer = unn.exact.mixed_marginals(g)
    weights = torch.tensor([1.0, 0.4**-0.5, 0.4**-0.5], dtype=torch.float64)
    torch.testing.assert_close(answer["on"][0, 0], weights[1] / weights.sum(), atol=1e-6, rtol=0)


def test_rows_of_different_numbers_and_too_little_memory_are_refused():
    g = switching()
    given = {"x": torch.zeros(2, 2).double(), "on": torch.ones(3)}
    with pytest.raises(ObservationError, match="'x': 2 batch elements are given, but 3"):
        unn.exact.mixed_marginals(g, given)
    with pytest.raises(InferenceError, match="GiB.*option memory"):
        unn.exact.mixed_marginals(g, options=ExactOptions(memory=1e-8))


def test_what_is_not_conditionally_quadratic_is_refused_by_name():
    g = switching()
    x = g["x"]
    g.factor(Multilinear(x["i"], x["i"], x["i"], name="cubic"))
    with pytest.raises(DeclarationError, match="'cubic' couples 3 continuous"):
        unn.exact.mixed_marginals(g)
    h = unn.FactorGraph("balls", n=2)
    h.variable("y", "n", unn.Ball())
    with pytest.raises(DeclarationError, match="variable 'y' is neither"):
        unn.exact.mixed_marginals(h)
    r = unn.FactorGraph("residual", n=2)
    a, b = (r.variable(name, "n", unn.SquaredNorm()) for name in "ab")
    r.factor(SquaredResidual(a["n"], b["n"], name="residual"))
    with pytest.raises(DeclarationError, match="factor 'residual'.*no product"):
        unn.exact.mixed_marginals(r)
    d = unn.FactorGraph("bits", n=2)
    d.variable("b", "n", unn.BinaryEntropy())
    with pytest.raises(DeclarationError, match="no continuous variables"):
        unn.exact.mixed_marginals(d)
    steep = switching()
    with torch.no_grad():
        steep.s.fill_(3.0)
    with pytest.raises(InferenceError, match=r"not bounded below.*x\[0\]"):
        unn.exact.mixed_marginals(steep)
    with pytest.raises(InferenceError, match="joint states"):
        unn.exact.mixed_marginals(switching(12))
    with pytest.raises(ObservationError, match="no variable 'q'"):
        unn.exact.mixed_marginals(switching(), {"q": torch.zeros(1)})


class TestMixedEngine(EngineContract):
    def engine(self):
        return ExactEngine()

    def graph(self):
        return switching().float()

    def examples(self, generator):
        return {
            "z": torch.eye(3)[torch.randint(3, (8, 2), generator=generator)],
            "on": torch.randint(2, (8,), generator=generator).float(),
            "x": torch.randn(8, 2, generator=generator),
        }

    def given(self):
        return ("x",)


def test_the_loss_is_minus_the_conditional_log_density():
    g = switching()
    model = MixedModel(g, ExactOptions())
    generator = torch.Generator().manual_seed(0)
    values = {
        "z": torch.eye(3, dtype=torch.float64)[torch.randint(3, (4, 2), generator=generator)],
        "on": torch.randint(2, (4,), generator=generator).double(),
        "x": torch.randn(4, 2, generator=generator, dtype=torch.float64),
    }
    observed = {
        "z": torch.tensor([[True, False], [False, False], [True, True], [False, True]]),
        "x": torch.tensor([[True, False], [False, True], [False, False], [True, False]]),
    }
    expected = 0.0
    for row in range(4):
        given = {
            name: unn.Partial(values[name][row : row + 1], m[row : row + 1]) for name, m in observed.items()
        }
        one = {name: x[row : row + 1] for name, x in values.items()}
        expected += unn.exact.mixed_marginals(g, given).log_partition[0] + g.energy(one)[0]
    torch.testing.assert_close(model.loss(values, observed), expected / 4)


def test_the_loss_of_examples_in_part_is_that_of_what_they_give():
    g = switching()
    model = MixedModel(g, ExactOptions())
    x = torch.tensor([[0.3, -1.0], [1.2, 0.4]], dtype=torch.float64)
    on, mask = torch.ones(2, dtype=torch.float64), torch.tensor([[True, False], [True, True]])
    # the second row also gives the other node, which is not observed
    observed = {"x": torch.tensor([[True, True], [True, False]])}
    expected = 0.0
    for row in range(2):
        joint = {"x": unn.Partial(x[row : row + 1], mask[row : row + 1]), "on": on[:1]}
        both = mask[row : row + 1] & observed["x"][row : row + 1]
        evidence = {"x": unn.Partial(x[row : row + 1], both)}
        logs = [unn.exact.mixed_marginals(g, given).log_partition[0] for given in (evidence, joint)]
        expected += logs[0] - logs[1]
    loss = model.loss({"x": unn.Partial(x, mask), "on": on}, observed)
    torch.testing.assert_close(loss.double(), expected / 2)


def test_rows_that_give_different_entries_are_answered_in_their_order():
    model = MixedModel(switching(), ExactOptions())
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    mask = torch.tensor([[True, False], [False, True], [True, False]])
    answer = model.infer_values({"x": unn.Partial(x, mask)}, 3, {})
    torch.testing.assert_close(answer["x"][mask], x[mask])
    samples = model.sample_with({"x": unn.Partial(x, mask)}, 3, SamplingOptions(seed=0), {})
    torch.testing.assert_close(samples.values["x"][mask], x[mask])
    again = model.sample_with({"x": unn.Partial(x, mask)}, 3, SamplingOptions(seed=0), {})
    torch.testing.assert_close(samples.values["x"], again.values["x"])
    many = model.sample_with({}, 500, SamplingOptions(seed=0), {})
    assert many.values["x"].shape == (500, 2) and len(many.values["x"].unique(dim=0)) == 500
    with pytest.raises(ObservationError, match="3 rows are given, but 2"):
        rows_by_pattern({"x": x}, 2, ["x"], {})
    z = unn.Partial(torch.eye(3)[torch.zeros(3, 2, dtype=torch.long)], mask)
    assert len(rows_by_pattern({"z": z, "x": x}, 3, ["x"], {})) == 1, "discrete patterns may differ"
    with pytest.raises(UnnError, match="no steps"):
        model.sample_with({}, 1, SamplingOptions(steps=5), {})


@pytest.mark.parametrize("regularizer", [unn.Ball(), unn.NonNegative(), unn.Box(0, 1)])
def test_a_point_that_is_not_on_a_simplex_is_no_category(regularizer):
    g = unn.FactorGraph("points", n=2, d=3)
    g.variable("y", "n | d", regularizer)
    with pytest.raises(DeclarationError, match="variable 'y' is neither categorical, binary nor a spin"):
        unn.exact.log_partition(g)


def test_states_of_weight_zero_are_impossible():
    g = unn.FactorGraph("m", k=2)
    z = g.variable("z", "| k", unn.Entropy())
    x = g.variable("x", "", unn.SquaredNorm())
    g.factor(Multilinear(g.constant("w", "k", torch.tensor([0.0, -1e30]))["k"], z["k"]))
    # in the impossible state the energy of x is not bounded
    g.factor(Multilinear(g.constant("s", "k", torch.tensor([0.0, 2.0]))["k"], z["k"], x[""], x[""]))
    marginals = unn.exact.mixed_marginals(g)
    assert marginals["z"][0].tolist() == [1.0, 0.0]
    assert float(marginals.log_partition) == pytest.approx(math.log(2 * math.pi) / 2)
    given = {"z": torch.tensor([[0.0, 1.0]])}
    impossible = unn.exact.mixed_marginals(g, given)
    assert float(impossible.log_partition) == -math.inf and not impossible["z"].any()
    with pytest.raises(InferenceError, match="probability zero"):
        impossible.sample(2)


def test_constants_of_a_call_are_those_of_the_declaration():
    def mixture(means):
        g = unn.FactorGraph("mixture", k=2)
        z, x = g.variable("z", "| k", unn.Entropy()), g.variable("x", "", unn.SquaredNorm())
        g.factor(Multilinear(g.constant("m", "k", means)["k"], z["k"], x[""]))
        return g

    m, evidence = torch.tensor([[-2.0, 1.0], [0.5, 3.0]]), {"x": torch.tensor([0.5])}
    alone = [unn.exact.mixed_marginals(mixture(own), evidence) for own in m]
    for own, expected in zip(m, alone, strict=True):
        answer = unn.exact.mixed_marginals(mixture(None), {"m": own, **evidence})
        torch.testing.assert_close(answer["z"], expected["z"])
        torch.testing.assert_close(answer.log_partition, expected.log_partition)
    with pytest.raises(ObservationError, match="constant 'm': 2 rows are given"):
        unn.exact.mixed_marginals(mixture(None), {"m": m, **evidence})
    model = MixedModel(mixture(None), ExactOptions())
    means, _ = model.moments({"m": m, **evidence}, 2, {})
    torch.testing.assert_close(means["z"], torch.cat([answer["z"] for answer in alone]))


def test_a_state_that_no_row_has_may_have_an_energy_without_a_minimum():
    g = unn.FactorGraph("m", n=2)
    z, x = g.variable("z", "n", unn.BinaryEntropy()), g.variable("x", "", unn.SquaredNorm())
    a = g.constant("a", "", torch.tensor(0.7, dtype=torch.float64))
    g.index("p", "k", [0], into="n")
    g.index("r", "k", [1], into="n")
    # not bounded below where both are 1
    g.factor(Multilinear(a[""], z["p[k]"], z["r[k]"], x[""], x[""]))
    values = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    mask = torch.tensor([[True, False], [True, True]])
    answer = unn.exact.mixed_marginals(g, {"z": unn.Partial(values, mask)})
    expected = torch.tensor([math.log(2), 0.0], dtype=torch.float64) + 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(answer.log_partition, expected)
    with pytest.raises(InferenceError, match="not bounded below"):
        unn.exact.mixed_marginals(g, {"z": unn.Partial(values, mask[:1].expand(2, 2))})
