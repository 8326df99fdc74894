"""Graphs with a quadratic energy: means, covariances and integrals against closed forms and quadrature."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Multilinear
from unn.errors import ArgumentError, DeclarationError, InferenceError, ObservationError
from unn.exact import ExactOptions
from unn.exact.mixed_model import MixedModel


def linear_gaussian(seed=0, scale=0.2, n=3, m=2):
    """Two coupled variables with couplings within and between, and linear terms."""
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("linear", n=n, m=m)
    x = g.variable("x", "n", unn.SquaredNorm())
    y = g.variable("y", "m", unn.SquaredNorm())
    A = g.parameter("A", "n other", init=scale * torch.randn(n, n, generator=generator))
    B = g.parameter("B", "n m", init=scale * torch.randn(n, m, generator=generator))
    b = g.parameter("b", "m", init=torch.randn(m, generator=generator))
    g.factor(Multilinear(A["i j"], x["i"], x["j"]))
    g.factor(Multilinear(B["i k"], x["i"], y["k"]))
    g.factor(Multilinear(b["k"], y["k"]))
    return g.double()


def by_hand(g):
    """Precision and linear term from the formulas of the declaration."""
    n, m = g.sizes["n"], g.sizes["m"]
    P = torch.eye(n + m, dtype=torch.float64)
    P[:n, :n] -= g.A + g.A.T
    P[:n, n:] -= g.B
    P[n:, :n] -= g.B.T
    return P.detach(), torch.cat([torch.zeros(n, dtype=torch.float64), g.b]).detach()


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_means_covariances_and_log_partition_are_those_of_the_precision_matrix(seed):
    g = linear_gaussian(seed, 0.1)
    P, h = by_hand(g)
    answer = unn.exact.gaussian_marginals(g)
    mean = torch.linalg.solve(P, h)
    torch.testing.assert_close(torch.cat([answer["x"][0], answer["y"][0]]), mean)
    torch.testing.assert_close(answer.covariances[0], torch.linalg.inv(P))
    torch.testing.assert_close(
        torch.cat([answer.variances["x"][0], answer.variances["y"][0]]), torch.linalg.inv(P).diagonal()
    )
    expected = 2.5 * math.log(2 * math.pi) - torch.logdet(P) / 2 + h @ mean / 2
    torch.testing.assert_close(answer.log_partition[0], expected)


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_conditional_means_are_the_minimiser_of_coordinate_descent(seed):
    g = linear_gaussian(seed, 0.1)
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    exact = unn.exact.gaussian_marginals(g, {"y": y})
    descent = unn.infer(g, {"y": y}, order=["x"], until=1e-12)
    torch.testing.assert_close(exact["x"], descent["x"], atol=1e-6, rtol=0)
    assert torch.equal(exact["y"], y) and (exact.variances["y"] == 0).all()


def test_the_log_partition_is_the_integral_of_the_weights_given_evidence_in_part():
    g = linear_gaussian(3, 0.15, n=2, m=2)
    values = torch.tensor([[0.4, -1.0]], dtype=torch.float64)
    given = {
        "x": unn.Partial(values, torch.tensor([[True, False]])),
        "y": torch.tensor([[0.3, 0.2]]).double(),
    }
    answer = unn.exact.gaussian_marginals(g, given)
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    x = torch.stack([torch.full_like(grid, 0.4), grid], 1)
    weights = (-g.energy({"x": x, "y": given["y"].expand(len(grid), -1)})).exp()
    total = torch.trapezoid(weights, grid)
    torch.testing.assert_close(answer.log_partition[0], total.log(), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        answer["x"][0, 1], torch.trapezoid(weights * grid, grid) / total, atol=1e-6, rtol=0
    )
    assert float(answer["x"][0, 0].detach()) == 0.4


def test_samples_have_the_exact_means_and_covariances_and_keep_what_is_given():
    g = linear_gaussian(1)
    given = {"y": torch.tensor([[0.5, -0.5], [1.0, 2.0]]).double()}
    answer = unn.exact.gaussian_marginals(g, given)
    samples = answer.sample(40_000, torch.Generator().manual_seed(0))
    assert samples["x"].shape == (2, 40_000, 3)
    torch.testing.assert_close(samples["x"].mean(1), answer["x"].detach(), atol=0.03, rtol=0)
    covariance = torch.cov(samples["x"][0].T)
    torch.testing.assert_close(covariance, answer.covariances[0, :3, :3].detach(), atol=0.03, rtol=0)
    torch.testing.assert_close(samples["y"], given["y"][:, None].expand(-1, 40_000, -1))
    with pytest.raises(ArgumentError, match="count"):
        answer.sample(0)


def test_the_log_partition_is_differentiable_by_the_parameters():
    g = linear_gaussian(2)

    def total(A, b):
        return torch.func.functional_call(Total(g), {"g.A": A, "g.b": b}, ())

    assert torch.autograd.gradcheck(total, [g.A, g.b], fast_mode=True)


class Total(torch.nn.Module):
    def __init__(self, g):
        super().__init__()
        self.g = g

    def forward(self):
        return unn.exact.gaussian_marginals(self.g).log_partition


def test_what_is_no_normal_distribution_is_refused():
    with pytest.raises(InferenceError, match=r"not bounded below.*not positive definite at x\[0\]"):
        unn.exact.gaussian_marginals(linear_gaussian(0, 3.0))
    g = unn.FactorGraph("cubic", n=2)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], x["i"], x["i"]))
    with pytest.raises(DeclarationError, match="couples 3 continuous variables"):
        unn.exact.gaussian_marginals(g)
    h = unn.FactorGraph("bits", n=2)
    h.variable("x", "n", unn.BinaryEntropy())
    with pytest.raises(DeclarationError, match="variable 'x'"):
        unn.exact.gaussian_marginals(h)
    dynamic = unn.FactorGraph("dynamic")
    dynamic.variable("x", "n", unn.SquaredNorm())
    with pytest.raises(DeclarationError, match="axis 'n'.*unknown"):
        unn.exact.gaussian_marginals(dynamic)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"z": torch.zeros(1, 2)}, "no variable 'z'"),
        ({"y": torch.zeros(1, 3)}, r"shape \(batch, 2\)"),
        ({"y": torch.full((1, 2), torch.nan)}, "NaN"),
        (
            {"y": unn.Partial(torch.zeros(2, 2), torch.tensor([[True, False], [False, True]]))},
            "different entries",
        ),
    ],
)
def test_evidence_that_does_not_fit_is_refused_by_name(given, message):
    with pytest.raises(ObservationError, match=message):
        unn.exact.gaussian_marginals(linear_gaussian(), given)


def test_single_precision_graphs_are_answered_in_double_precision():
    # a regression whose noise is a thousandth: rounded precisions would move the mean by 0.16 deviations
    design = torch.stack([torch.ones(20), 1 + 0.01 * torch.linspace(0, 1, 20)], 1)
    y, weight = design @ torch.tensor([1.0, -1.0]), torch.tensor(1e6)
    g = unn.FactorGraph("regression", n=20, d=2)
    w = g.variable("w", "d", unn.SquaredNorm())
    F, h = g.constant("F", "n d", design), g.constant("h", "n", y)
    a, b = g.constant("a", "", -weight / 2), g.constant("b", "", weight)
    g.factor(Multilinear(a[""], F["n i"], F["n j"], w["i"], w["j"]))
    g.factor(Multilinear(b[""], h["n"], F["n i"], w["i"]))
    design, y, weight = design.double(), y.double(), weight.double()
    covariance = torch.linalg.inv(torch.eye(2).double() + weight * design.T @ design)
    marginals = unn.exact.gaussian_marginals(g)
    torch.testing.assert_close(
        marginals["w"][0], weight * covariance @ design.T @ y, rtol=1e-8, atol=0, check_dtype=True
    )
    torch.testing.assert_close(marginals.variances["w"][0], covariance.diagonal(), rtol=1e-8, atol=0)


def test_strong_couplings_of_a_bounded_energy_are_accepted_in_single_precision():
    coupling = torch.tensor(3e7)
    g = unn.FactorGraph("walk", n=6)
    x = g.variable("x", "n", unn.SquaredNorm())
    own = g.constant("own", "n", -coupling / 2 * torch.tensor([1.0, 2, 2, 2, 2, 1]))
    g.factor(Multilinear(own["i"], x["i"], x["i"]))
    g.factor(Multilinear(g.constant("c", "", coupling)[""], x["i"], x["i+1"]))
    variances = unn.exact.gaussian_marginals(g).variances["x"][0]
    # all move together with the variance of the mean of six standard normal numbers
    torch.testing.assert_close(variances, torch.full((6,), 1 / 6).double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("seed", range(10))
def test_a_singular_precision_matrix_is_refused(seed):
    v = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    v /= v.norm()
    g = unn.FactorGraph("m", n=3)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Multilinear(g.constant("A", "n m", torch.outer(v, v) / 2)["i j"], x["i"], x["j"]))
    with pytest.raises(InferenceError, match="not bounded below"):
        unn.exact.gaussian_marginals(g)


@pytest.mark.parametrize(
    "value", [torch.tensor(1.0), [1.0, 2.0], torch.zeros(0, 2), torch.zeros(2), torch.zeros(2, 2).numpy()]
)
@pytest.mark.parametrize("answer", [unn.exact.gaussian_marginals, unn.exact.mixed_marginals])
def test_evidence_without_rows_of_the_shape_is_refused(answer, value):
    with pytest.raises(ObservationError, match=r"'y' needs a tensor of shape \(batch, 2\)"):
        answer(linear_gaussian(), {"y": value})
    with pytest.raises(ObservationError, match="a mapping from names"):
        answer(linear_gaussian(), value)


def regression():
    """Weights with a standard normal prior, and targets of a design that comes with the query."""
    g = unn.FactorGraph("regression", n=4, d=2)
    w = g.variable("w", "d", unn.SquaredNorm())
    F, y = g.constant("F", "n d"), g.constant("y", "n")
    a, b = g.constant("a", "", torch.tensor(-0.5)), g.constant("b", "", torch.tensor(1.0))
    g.factor(Multilinear(a[""], F["n i"], F["n j"], w["i"], w["j"]))
    g.factor(Multilinear(b[""], y["n"], F["n i"], w["i"]))
    return g


@given(st.integers(0, 1000), st.booleans(), st.integers(1, 4))
@settings(max_examples=15)
def test_constants_of_a_call_give_each_row_its_own_energy(seed, shared, rows):
    generator = torch.Generator().manual_seed(seed)
    F = torch.randn(1 if shared else rows, 4, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    answer = unn.exact.gaussian_marginals(regression(), {"F": F, "y": y})
    P = torch.eye(2, dtype=torch.float64) + F.mT @ F
    h = (F.mT @ y[..., None]).squeeze(-1)
    mean = torch.linalg.solve(P, h.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(answer["w"], mean)
    torch.testing.assert_close(answer.covariances, torch.linalg.inv(P).expand(rows, -1, -1))
    torch.testing.assert_close(answer.variances["w"], answer.covariances.diagonal(dim1=1, dim2=2))
    expected = math.log(2 * math.pi) - torch.logdet(P) / 2 + (h * mean).sum(1) / 2
    torch.testing.assert_close(answer.log_partition, expected)


def test_samples_of_rows_with_their_own_constants_have_their_moments():
    F = torch.tensor([[[3.0, 0], [0, 0], [0, 0], [0, 0]], [[0, 1.0], [0, 1], [0, 0], [0, 0]]])
    answer = unn.exact.gaussian_marginals(regression(), {"F": F, "y": torch.ones(2, 4)})
    w = answer.sample(40_000, torch.Generator().manual_seed(0))["w"]
    torch.testing.assert_close(w.mean(1), answer["w"], atol=0.02, rtol=0)
    torch.testing.assert_close(w.var(1), answer.variances["w"], atol=0.02, rtol=0)


def test_answers_are_differentiable_by_constants_of_a_call():
    def log_partition(F, y):
        return unn.exact.gaussian_marginals(regression(), {"F": F, "y": y}).log_partition

    generator = torch.Generator().manual_seed(0)
    F = torch.randn(2, 4, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(1, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_partition, (F, y))


def test_the_engine_answers_rows_that_give_different_constants_and_entries():
    graph, generator = regression(), torch.Generator().manual_seed(0)
    F, y = torch.randn(3, 4, 2, generator=generator), torch.randn(3, 4, generator=generator)
    known = torch.tensor([[True, False], [False, False], [True, False]])
    evidence = {"F": F, "y": y, "w": unn.Partial(torch.ones(3, 2), known)}
    model = MixedModel(graph, ExactOptions())
    means, variances = model.moments(evidence, 3, {})
    for row in range(3):
        own = {name: x[row : row + 1] for name, x in (("F", F), ("y", y))}
        partial = {"w": unn.Partial(torch.ones(1, 2), known[row : row + 1])}
        alone = unn.exact.gaussian_marginals(graph, own | partial)
        torch.testing.assert_close(means["w"][row], alone["w"][0])
        torch.testing.assert_close(variances["w"][row], alone.variances["w"][0])
    # constants without an axis of rows are those of all rows
    shared, _ = model.moments({"F": F[0], "y": y[0]}, 2, {})
    alone = unn.exact.gaussian_marginals(graph, {"F": F[:1], "y": y[:1]})
    torch.testing.assert_close(shared["w"], alone["w"].expand(2, -1))
    loss = model.loss({"w": torch.ones(3, 2), "F": F, "y": y}, {})
    joint = graph.double().energy({"w": torch.ones(3, 2).double(), "F": F.double(), "y": y.double()})
    whole = unn.exact.gaussian_marginals(graph, {"F": F, "y": y}).log_partition
    torch.testing.assert_close(loss.double(), (whole + joint).mean(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({}, "constant 'F' has no value; pass it with the evidence"),
        ({"F": torch.ones(4, 2)}, "constant 'y' has no value"),
        (
            {"F": torch.ones(2, 4), "y": torch.ones(4)},
            r"'F' needs a tensor of real numbers of shape \(batch, 4",
        ),
        ({"F": [[1.0]], "y": torch.ones(4)}, "got list"),
        ({"F": torch.full((4, 2), torch.nan), "y": torch.ones(4)}, "'F' has NaN or infinite entries"),
        ({"F": torch.ones(2, 4, 2), "y": torch.ones(3, 4)}, "different numbers of rows: F 2, y 3"),
        ({"F": torch.ones(2, 4, 2), "y": torch.ones(4), "w": torch.ones(3, 2)}, "2 rows of constants"),
    ],
)
def test_constants_of_a_call_that_do_not_fit_are_refused_by_name(evidence, words):
    with pytest.raises(ObservationError, match=words):
        unn.exact.gaussian_marginals(regression(), evidence)


def test_a_constant_with_a_declared_value_is_not_given_another():
    g = unn.FactorGraph("m", n=2)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Multilinear(g.constant("w", "n", torch.ones(2))["i"], x["i"]))
    with pytest.raises(ObservationError, match="'w' has a value since its declaration"):
        unn.exact.gaussian_marginals(g, {"w": torch.ones(1, 2)})


@pytest.mark.parametrize("precision", [1e4, 1e8, 1e12])
def test_precise_readings_of_large_numbers_cost_no_digits(precision):
    g = unn.FactorGraph("sensor", time=3)
    z = g.variable("z", "time", unn.SquaredNorm())
    w, q, b = (
        g.constant(name, axes, torch.tensor(value, dtype=torch.float64))
        for name, axes, value in (
            ("w", "", 0.45),
            ("q", "time", [-precision / 2, 0, 0]),
            ("b", "time", [precision * 1e3, 0, 0]),
        )
    )
    g.double()
    g.factor(Multilinear(w[""], z["t"], z["t+1"]))
    g.factor(Multilinear(q["t"], z["t"], z["t"]))
    g.factor(Multilinear(b["t"], z["t"]))
    P = torch.tensor([[1 + precision, -0.45, 0], [-0.45, 1, -0.45], [0, -0.45, 1]], dtype=torch.float64)
    expected = torch.linalg.solve(P, torch.tensor([precision * 1e3, 0, 0], dtype=torch.float64))
    answer = unn.exact.gaussian_marginals(g)
    torch.testing.assert_close(answer["z"][0], expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(answer.variances["z"][0], P.inverse().diag(), rtol=1e-12, atol=0)
