"""Distributions of programs and the density of a program, against scipy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from support.helpers import says
from support.tracing import seeded

import unn
from unn.errors import DeclarationError, ObservationError
from unn.programs import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    Laplace,
    LogNormal,
    Mixture,
    MultivariateNormal,
    Normal,
    Permutation,
    Poisson,
    StudentT,
    Uniform,
)

COVARIANCE = [[2.0, 0.5], [0.5, 1.0]]
CASES = {
    "normal": (Normal(1.0, 2.0), stats.norm(1, 2)),
    "log-normal": (LogNormal(0.3, 0.5), stats.lognorm(0.5, scale=math.exp(0.3))),
    "laplace": (Laplace(-1.0, 0.7), stats.laplace(-1, 0.7)),
    "student": (StudentT(5.0, 1.0, 2.0), stats.t(5, 1, 2)),
    "exponential": (Exponential(3.0), stats.expon(scale=1 / 3)),
    "gamma": (Gamma(2.5, 3.0), stats.gamma(2.5, scale=1 / 3)),
    "beta": (Beta(2.0, 0.7), stats.beta(2, 0.7)),
    "uniform": (Uniform(-1.0, 3.0), stats.uniform(-1, 4)),
    "poisson": (Poisson(4.0), stats.poisson(4)),
    "binomial": (Binomial(10, 0.3), stats.binom(10, 0.3)),
    "bernoulli": (Bernoulli(0.3), stats.bernoulli(0.3)),
}
DISCRETE = ("poisson", "binomial", "bernoulli")


def one(distribution, shape=None):
    return unn.trace(lambda t: t.sample("x", distribution, shape=shape))


@pytest.mark.parametrize("case", CASES)
def test_the_log_density_is_that_of_scipy(case):
    distribution, reference = CASES[case]
    traced = one(distribution)
    x = traced.draw(200, seeded(), torch.float64)["x"]
    expected = reference.logpmf(x.numpy()) if case in DISCRETE else reference.logpdf(x.numpy())
    np.testing.assert_allclose(traced.log_prob({"x": x}).numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_draws_have_the_distribution_of_scipy(case):
    distribution, reference = CASES[case]
    x = one(distribution).draw(20_000, seeded(), torch.float64)["x"].numpy()
    if case in DISCRETE:
        values = np.arange(0, 40)
        expected = reference.pmf(values) * len(x)
        counts = np.bincount(x.astype(int), minlength=40)[:40]
        large = expected > 5
        statistic = ((counts[large] - expected[large]) ** 2 / expected[large]).sum()
        assert stats.chi2.sf(statistic, large.sum() - 1) > 1e-4
    else:
        assert stats.kstest(x, reference.cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("distribution", "outside"),
    [
        (LogNormal(), -1.0),
        (Exponential(), -0.1),
        (Gamma(2.0), -0.1),
        (Beta(2.0, 2.0), 1.1),
        (Uniform(0.0, 1.0), 1.5),
        (Poisson(2.0), 0.5),
        (Binomial(3, 0.5), 4.0),
    ],
    ids=str,
)
def test_the_density_is_zero_outside_the_support(distribution, outside):
    assert one(distribution).log_prob({"x": torch.tensor([outside])}).item() == -math.inf


def test_densities_of_vectors_are_those_of_scipy():
    def program(t):
        m = t.sample("m", Normal(), 2)
        t.sample("many", MultivariateNormal(m, COVARIANCE), 3)
        t.sample("one", MultivariateNormal(m, COVARIANCE, one_node=True))
        t.sample("w", Dirichlet([1.0, 2.0, 0.5]))
        t.sample("p", Permutation(3))
        t.sample("k", Categorical(3, [0.2, 0.3, 0.5]))

    traced = unn.trace(program)
    values = traced.draw(20, seeded(), torch.float64)
    x = {name: value.numpy() for name, value in values.items()}
    expected = stats.norm.logpdf(x["m"]).sum(1) - math.log(6) + np.log(x["k"] @ [0.2, 0.3, 0.5])
    for row in range(20):
        normal = stats.multivariate_normal(x["m"][row], COVARIANCE)
        expected[row] += normal.logpdf(x["many"][row]).sum() + normal.logpdf(x["one"][row])
        expected[row] += stats.dirichlet([1.0, 2.0, 0.5]).logpdf(x["w"][row])
    np.testing.assert_allclose(traced.log_prob(values).numpy(), expected, rtol=1e-9)
    # a vector of one node has its entries along a feature axis; the entries of the other are nodes
    assert traced.graph.adjacency().shapes["one"] == () and traced.graph.adjacency().shapes["many"] == (3, 2)
    assert traced.graph.adjacency().shapes["w"] == ()


def test_an_impossible_component_of_infinite_density_does_not_count():
    def spike(t):
        t.sample("x", Mixture([0.0, 1.0], Normal([0.0, 0.0], [0.0, 1.0])))

    logs = unn.trace(spike).log_prob({"x": torch.tensor([0.0, 1.0])})
    expected = torch.from_numpy(stats.norm.logpdf([0.0, 1.0]))
    torch.testing.assert_close(logs, expected)


@pytest.mark.parametrize("concentration", [[1e-3, 1e-3], [0.05, 0.2, 0.5], [0.05] * 4])
def test_proportions_of_small_concentrations_are_drawn_as_they_should(concentration):
    def corners(t):
        t.sample("p", Dirichlet(concentration))

    draws = unn.trace(corners).draw(20_000, seed=0)["p"].double()
    a = np.array(concentration)
    mean, total = a / a.sum(), a.sum()
    deviation = np.sqrt(mean * (1 - mean) / (total + 1))
    assert np.abs(draws.mean(0).numpy() - mean).max() < 4 * deviation.max() / np.sqrt(20_000)
    assert np.abs(draws.std(0).numpy() / deviation - 1).max() < 0.03
    assert float((draws == 1 / len(a)).double().mean()) < 1e-3


def test_a_mixture_is_the_sum_over_its_components():
    def program(t):
        a = t.sample("a", Normal())
        t.sample("x", Mixture([0.3, 0.7], Normal([-2.0, a], [0.5, 1.0])), 4)

    traced = unn.trace(program)
    values = traced.draw(2000, seeded(), torch.float64)
    a, x = values["a"].numpy(), values["x"].numpy()
    parts = 0.3 * stats.norm.pdf(x, -2, 0.5) + 0.7 * stats.norm.pdf(x, a[:, None], 1.0)
    expected = stats.norm.logpdf(a) + np.log(parts).sum(1)
    np.testing.assert_allclose(traced.log_prob(values).numpy(), expected, rtol=1e-9)
    mean = 0.3 * -2 + 0.7 * a.mean()
    assert abs(x.mean() - mean) < 5 * x.std() / math.sqrt(x.size)


def test_moments_of_vectors_are_those_of_their_distributions():
    def program(t):
        t.sample("x", MultivariateNormal([1.0, -1.0], COVARIANCE))
        t.sample("w", Dirichlet([1.0, 2.0, 5.0]))

    values = unn.trace(program).draw(20_000, seeded(), torch.float64)
    torch.testing.assert_close(values["x"].mean(0), torch.tensor([1.0, -1.0]).double(), rtol=0, atol=0.05)
    torch.testing.assert_close(values["x"].T.cov(), torch.tensor(COVARIANCE).double(), rtol=0, atol=0.08)
    torch.testing.assert_close(values["w"].mean(0), torch.tensor([1, 2, 5]).double() / 8, rtol=0, atol=0.01)
    assert values["w"].min() > 0
    torch.testing.assert_close(values["w"].sum(1), torch.ones(20_000).double())


def test_the_density_of_a_program_multiplies_those_of_its_draws():
    def program(t):
        a = t.sample("a", Normal())
        b = t.sample("b", Gamma(2.0, np.exp(a)))
        c = t.empty("c", 3)
        for i in range(3):
            c[i] = t.sample(Normal(c[i - 1] if i else a, b))
        t.deterministic(c[0] * b, name="d")

    traced = unn.trace(program)
    values = traced.draw(50, seeded(), torch.float64)
    a, b, c = (values[name].numpy() for name in "abc")
    expected = stats.norm.logpdf(a) + stats.gamma.logpdf(b, 2, scale=np.exp(-a))
    before = np.concatenate([a[:, None], c[:, :2]], 1)
    expected += stats.norm.logpdf(c, before, b[:, None]).sum(1)
    np.testing.assert_allclose(traced.log_prob(values).numpy(), expected, rtol=1e-9)
    # computed variables may be left out; given ones have to agree
    without = {name: values[name] for name in "abc"}
    assert torch.equal(traced.log_prob(without), traced.log_prob(values))
    assert (traced.log_prob({**values, "d": values["d"] + 1}) == -math.inf).all()
    # draws in single precision agree up to rounding
    single = traced.draw(50, seeded(), torch.float32)
    assert traced.log_prob(single).isfinite().all()


def test_a_density_needs_all_random_variables_in_their_shapes():
    traced = one(Normal(), 3)
    with pytest.raises(ObservationError, match=says("missing", "x")):
        traced.log_prob({})
    with pytest.raises(ObservationError, match=says("'y'")):
        traced.log_prob({"x": torch.zeros(2, 3), "y": torch.zeros(2)})
    with pytest.raises(ObservationError, match=says("'x'", "(batch, 3)", "(2, 4)")):
        traced.log_prob({"x": torch.zeros(2, 4)})
    with pytest.raises(ObservationError, match=says("'x'", "NaN")):
        traced.log_prob({"x": torch.full((2, 3), math.nan)})
    with pytest.raises(ObservationError, match=says("'x'", "one-hot")):
        one(Categorical(3)).log_prob({"x": torch.tensor([[0.5, 0.5, 0.0]])})


def test_a_distribution_of_ones_own_needs_a_density_for_the_density_alone():
    class Tent(Distribution):
        def __init__(self):
            super().__init__()

        def draw(self, parameters, shape, drawing):
            return drawing.uniform(shape) + drawing.uniform(shape)

    traced = one(Tent())
    assert traced.draw(3, seeded())["x"].shape == (3,)
    with pytest.raises(DeclarationError, match=says("Tent", "log_density")):
        traced.log_prob({"x": torch.ones(1)})


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Gamma(-1.0), ["concentration", "> 0"]),
        (lambda: Exponential(0.0), ["rate", "> 0"]),
        (lambda: Binomial(2.5, 0.5), ["trials", "whole"]),
        (lambda: Poisson(-1.0), ["rate"]),
        (lambda: Dirichlet(1.0), ["concentration", "last axis"]),
        (lambda: Dirichlet([1.0, 0.0]), ["concentration", "> 0"]),
        (lambda: MultivariateNormal([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]), ["eigenvalue", "> 0"]),
        (lambda: MultivariateNormal([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]]), ["asymmetry"]),
        (lambda: Mixture(1.0, Normal()), ["probabilities", "last axis"]),
        (lambda: Mixture([0.5, 0.6], Normal([0.0, 1.0])), ["sum", "one"]),
        (lambda: Mixture([0.5, 0.5], Normal([0.0, 1.0, 2.0])), ["2 components", "mean"]),
        (lambda: Mixture([0.5, 0.5], Dirichlet([1.0, 1.0])), ["single numbers"]),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(make, names):
    with pytest.raises(DeclarationError, match=says(*names)):
        make()


def test_draws_with_parameters_out_of_range_are_counted_with_the_first():
    traced = unn.trace(lambda t: t.sample("y", Normal(0.0, t.sample("s", Normal(1.0, 1.0)))))
    draws = unn.trace(lambda t: t.sample("s", Normal(1.0, 1.0))).draw(100, seed=0)["s"]
    wrong = (draws < 0).nonzero()
    with pytest.raises(
        DeclarationError, match=says("'y'", f"{len(wrong)} of 100 draws, first in draw {int(wrong[0])}")
    ):
        traced.draw(100, seed=0)


def test_draws_that_are_not_finite_are_counted_with_the_first():
    def program(t):
        x = t.sample("x", Normal())
        t.deterministic(np.sqrt(x), name="root")

    with pytest.raises(DeclarationError, match=says("'root'", "of 100 draws", "first in draw")):
        unn.trace(program).draw(100, seeded())


def test_bounds_of_the_support_become_the_domain_of_the_variable():
    def program(t):
        a = t.sample("a", LogNormal())
        t.sample("b", Beta(2.0, 2.0))
        t.sample("c", Uniform(0.0, a))
        b = t.sample("d", Uniform(1.0, 2.0))
        t.sample("f", Uniform(-1.0, [b, 3.0]))
        t.sample("h", Uniform(b, 2 * b))
        t.sample("n", Binomial(5, 0.5), 2)
        t.sample("m", Poisson(a))
        e = t.empty("e", 2)
        e[0], e[1] = t.sample(Uniform(0.0, 1.0)), t.sample(Uniform(-1.0, 0.5))

    g = unn.trace(program).graph
    intervals = {name: variable.regularizer.interval() for name, variable in g.variables.items()}
    assert intervals == {
        "a": (0, math.inf),
        "b": (0, 1),
        "c": (0, math.inf),
        "d": (1, 2),
        "f": (-1, 3),
        # of computed bounds none is known
        "h": (-math.inf, math.inf),
        "n": (0, 5),
        "m": (0, math.inf),
        "e": (-1, 1),
    }


def test_draws_in_single_precision_have_a_finite_density():
    def program(t):
        t.sample("g", Gamma(0.02))
        t.sample("b", Beta(0.02, 0.02))
        t.sample("d", Dirichlet([0.02] * 3))
        x = t.sample("x", Normal(1000.0, 1.0))
        t.sample("u", Uniform(x, x + 0.00103))

    traced = unn.trace(program)
    for dtype in (torch.float32, torch.float64):
        assert traced.log_prob(traced.draw(1000, seeded(), dtype)).isfinite().all()


def test_an_impossible_value_has_density_zero_whatever_else_is_drawn():
    def program(t):
        t.sample("y", Normal(0.0, t.sample("x", Exponential())))

    values = {"x": torch.tensor([-1.0, 0.0]), "y": torch.tensor([0.0, 1.0])}
    assert (unn.trace(program).log_prob(values) == -math.inf).all()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: MultivariateNormal([0.0, 0.0], 1.0), ["covariance", "(2, 2)"]),
        (lambda: MultivariateNormal([0.0, 0.0], [1.0, 2.0]), ["covariance", "(2, 2)"]),
        (lambda: MultivariateNormal([0.0, 0.0], np.eye(3)), ["covariance", "(3, 3)"]),
        (lambda: MultivariateNormal([0.0, 0.0], np.zeros((2, 2))), ["eigenvalue"]),
        (lambda: Binomial([]), ["trials", "empty"]),
        (lambda: Uniform([], 1.0), ["low", "empty"]),
    ],
)
def test_parameters_of_wrong_shapes_are_refused_by_name(make, names):
    with pytest.raises(DeclarationError, match=says(*names)):
        make()


def test_categories_take_their_probabilities_alone():
    def program(t):
        w = t.sample("w", Dirichlet([1.0, 2.0, 1.5]))
        p = t.sample("p", Beta(2.0, 1.0))
        t.sample("of_values", Categorical(w), shape=4)
        t.sample("of_a_list", Categorical([p, 1 - p]))
        t.sample("of_rows", Categorical(torch.tensor([[0.1, 0.9], [0.5, 0.5]])))

    def with_numbers(t):
        w = t.sample("w", Dirichlet([1.0, 2.0, 1.5]))
        p = t.sample("p", Beta(2.0, 1.0))
        t.sample("of_values", Categorical(3, w), shape=4)
        t.sample("of_a_list", Categorical(2, [p, 1 - p]))
        t.sample("of_rows", Categorical(2, [[0.1, 0.9], [0.5, 0.5]]))

    one, other = unn.trace(program), unn.trace(with_numbers)
    values = one.draw(5, torch.Generator().manual_seed(0))
    again = other.draw(5, torch.Generator().manual_seed(0))
    assert {n: x.shape[1:] for n, x in values.items()}["of_rows"] == (2, 2)
    assert all(torch.equal(values[name], again[name]) for name in values)
    torch.testing.assert_close(one.log_prob(values), other.log_prob(values))
    rows = [torch.tensor([0.2, 0.3, 0.5]), np.array([0.1, 0.1, 0.8])]
    assert Categorical(rows).kind == Categorical(probabilities=rows).kind == Categorical(3).kind
    for wrong in ([0.5], [], torch.ones(2, 1)):
        with pytest.raises(DeclarationError, match="Categorical: the number of probabilities"):
            Categorical(wrong)
    for wrong in ("ab", 2.0):
        with pytest.raises(DeclarationError, match="Categorical: the number of options"):
            Categorical(wrong)
    with pytest.raises(DeclarationError, match="Categorical"):
        Categorical()


@pytest.mark.parametrize(
    ("law", "x", "y"),
    [
        (Bernoulli, 1.5, 1.0),
        (Bernoulli, -0.5, 0.0),
        (Poisson, -1.0, 0.0),
        (lambda x: Binomial(3, x), 1.5, 3.0),
        (lambda x: Binomial(x, 0.5), 2.5, 1.0),
        (lambda x: Gamma(x, 1.0), -0.5, 1.0),
        (lambda x: Beta(x, 1.0), -0.5, 0.5),
        (lambda x: Normal(0.0, x), -1.0, 1.0),
        (lambda x: Mixture([0.5, 0.5], Gamma(np.array([1.0, 1.0]) * x, 1.0)), -0.5, 1.0),
    ],
)
def test_the_density_is_zero_where_computed_parameters_are_out_of_range(law, x, y):
    def program(t):
        parameter = t.sample("x", Normal())
        t.sample("y", law(parameter))

    values = {"x": torch.tensor([x]).double(), "y": torch.tensor([y]).double()}
    assert unn.trace(program).log_prob(values).item() == -math.inf


def test_the_density_is_zero_where_computed_vectors_of_parameters_are_out_of_range():
    def program(t):
        x = t.sample("x", Normal())
        t.sample("options", Categorical([x, 1 - x]))
        t.sample("pair", MultivariateNormal([0.0, 0.0], np.eye(2) * x))
        t.sample("shares", Dirichlet([x, 2.0]))

    traced = unn.trace(program)
    names = {"options": torch.eye(2)[:1], "pair": torch.ones(1, 2), "shares": torch.tensor([[0.25, 0.75]])}
    for x, possible in ((0.5, True), (1.5, False), (-0.5, False)):
        values = {name: value.double() for name, value in names.items()} | {"x": torch.tensor([x]).double()}
        assert math.isfinite(traced.log_prob(values).item()) == possible


@pytest.mark.parametrize("degrees", [1e3, 1e8, 1e12, 1e16])
def test_the_density_of_many_degrees_of_freedom_keeps_its_digits(degrees):
    x = torch.tensor([0.5, 3.0], dtype=torch.float64)
    density = unn.trace(lambda t: t.sample("x", StudentT(degrees))).log_prob({"x": x})
    assert density.numpy() == pytest.approx(stats.t(degrees).logpdf(x.numpy()), abs=1e-11)


def test_narrow_intervals_of_large_numbers_have_their_bounds():
    x = torch.tensor([1e7 - 1, 1e7 + 0.5, 1e7 + 2], dtype=torch.float64)
    density = unn.trace(lambda t: t.sample("x", Uniform(1e7, 1e7 + 1))).log_prob({"x": x})
    assert density.tolist() == [-math.inf, 0, -math.inf]


def copied(t):
    a = t.sample("a", Normal())
    t.sample("b", Normal(0.1 * a, 0.0))


def spike_and_slab(t):
    t.sample("b", Mixture([0.5, 0.5], Normal(0.1, [0.0, 1.0])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounded_draws_of_point_masses_keep_their_infinite_density(dtype):
    traced = unn.trace(copied)
    draws = traced.draw(200, seed=0, dtype=dtype)
    assert bool((traced.log_prob(draws) == torch.inf).all())
    apart = {**draws, "b": draws["b"] + 1e-3}
    assert bool((traced.log_prob(apart) == -torch.inf).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounded_draws_of_a_point_mass_in_a_mixture_keep_their_infinite_density(dtype):
    traced = unn.trace(spike_and_slab)
    draws = traced.draw(1000, seed=0, dtype=dtype)
    is_spike = draws["b"] == torch.tensor(0.1, dtype=dtype)
    assert 400 < int(is_spike.sum()) < 600
    assert torch.equal(traced.log_prob(draws) == torch.inf, is_spike)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_evidence_at_a_point_mass_has_its_component(dtype):
    def program(t):
        s = t.sample("s", Bernoulli(0.5))
        t.sample("b", Normal(0.1, np.where(s, 0.0, 1.0)))

    posterior = unn.trace(program).posterior({"b": torch.tensor([0.1], dtype=dtype)}, 200, seed=0)
    assert bool((posterior["s"] == 1).all())


def test_complex_values_are_refused():
    traced = unn.trace(lambda t: t.sample("x", Normal()))
    with pytest.raises(unn.ObservationError, match="'x' needs real numbers, got torch.complex64"):
        traced.log_prob({"x": torch.tensor([1 + 5j])})
