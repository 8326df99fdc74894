"""Guided samples against truncated and conditional normal distributions in closed form."""

import math

import pytest
import torch
from scipy import stats
from support.helpers import says

import unn
from unn.diffusion import Guide, Likelihood, Near, Within, guided_samples
from unn.errors import ArgumentError, ObservationError
from unn.programs import Bernoulli, LogNormal, Normal

COUNT = 4000


class Exact(unn.Diffusion):
    """A diffusion whose estimate is exact for jointly normal standardised numbers with a correlation."""

    correlation = 0.0

    def denoise(self, x, sigma, condition):
        size = x.shape[1]
        covariance = torch.full((size, size), self.correlation).to(x).fill_diagonal_(1)
        gain = torch.linalg.solve(covariance + sigma**2 * torch.eye(size).to(x), covariance)
        return torch.where(condition.numbers, condition.rows, x @ gain)


def exact(program, correlation=0.0, scale=1.0):
    traced = unn.trace(program)
    model = Exact(unn.Denoiser(traced.graph, width=8, depth=1, heads=1)).double()
    model.correlation = correlation
    model.offsets[:], model.scales[:] = 0.0, scale
    return model


def pair(t):
    t.sample("y", Normal(t.sample("x", Normal()), 1.0))


@pytest.mark.parametrize("bounds", [(-0.5, 1.0), (1.5, math.inf), (-math.inf, -2.5)])
def test_an_interval_gives_the_truncated_normal_distribution(bounds):
    result = guided_samples(exact(pair), [Within("x", *bounds)], count=COUNT, seed=0)
    law = stats.truncnorm(*bounds)
    x = result["x"].numpy()
    assert x.min() >= bounds[0] and x.max() <= bounds[1]
    assert abs(x.mean() - law.mean()) < 0.06 * law.std() and abs(x.std() / law.std() - 1) < 0.06
    assert stats.kstest(x, law.cdf).statistic < 0.05
    # the other variable is independent
    assert abs(result["y"].mean()) < 0.08 and abs(result["y"].std() - 1) < 0.06
    probability = stats.norm.cdf(bounds[1]) - stats.norm.cdf(bounds[0])
    assert abs(result.log_evidence - math.log(probability)) < 0.1


def test_an_interval_of_one_variable_changes_what_it_is_correlated_with():
    result = guided_samples(exact(pair, 0.8), [Within("x", 1.0)], count=COUNT, seed=0)
    law = stats.truncnorm(1.0, math.inf)
    assert abs(result["y"].mean() - 0.8 * law.mean()) < 0.05
    assert abs(result["y"].std() - math.sqrt(0.36 + 0.64 * law.var())) < 0.05


def test_a_noisy_measurement_gives_the_conjugate_posterior():
    result = guided_samples(exact(pair, 0.8), [Near("x", 2.0, 0.5)], count=COUNT, seed=0)
    gain = 1 / 1.25
    assert abs(result["x"].mean() - 2 * gain) < 0.03 and abs(result["x"].std() - math.sqrt(1 - gain)) < 0.03
    assert abs(result["y"].mean() - 0.8 * 2 * gain) < 0.05
    assert abs(result.log_evidence - stats.norm(0, math.sqrt(1.25)).logpdf(2.0)) < 0.1


def test_any_likelihood_can_guide():
    ring = Likelihood(lambda v: -0.5 * ((v["x"] ** 2 + v["y"] ** 2).clamp(min=1e-9).sqrt() - 1) ** 2 / 0.4**2)
    result = guided_samples(exact(pair), [ring], count=COUNT, seed=0)
    radius = torch.hypot(result["x"], result["y"])
    grid = torch.linspace(0.0, 3.0, 3001, dtype=torch.float64)
    density = grid * torch.exp(-0.5 * grid**2 - 0.5 * (grid - 1) ** 2 / 0.16)
    mean = (grid * density).sum() / density.sum()
    assert abs(radius.mean() - mean) < 0.06
    assert abs(result["x"].mean()) < 0.08


def test_bounds_are_those_of_natural_values_in_any_coordinates():
    def program(t):
        t.sample("y", Normal(t.sample("x", LogNormal(0.0, 1.0)), 1.0))

    result = guided_samples(exact(program), [Within("x", 2.0, 4.0)], count=COUNT, seed=0)
    law = stats.truncnorm(math.log(2), math.log(4))
    assert result["x"].min() >= 2 and result["x"].max() <= 4
    assert stats.kstest(result["x"].log().numpy(), law.cdf).statistic < 0.05


def test_exact_evidence_and_guides_go_together():
    given = {"y": torch.tensor([1.0], dtype=torch.float64)}
    result = guided_samples(exact(pair, 0.8), [Within("x", 1.0)], given, COUNT, seed=0)
    # the exact denoiser of this test ignores evidence; it is kept as it is given
    assert (result["y"] == 1).all() and result["x"].min() >= 1


def test_equal_seeds_give_equal_samples():
    model, guides = exact(pair), [Within("x", 0.0)]
    one, again, other = (guided_samples(model, guides, count=50, steps=10, seed=s)["x"] for s in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_what_cannot_guide_is_refused_by_name():
    def program(t):
        t.sample("b", Bernoulli(1 / (1 + t.sample("x", LogNormal()))))

    model = exact(program)
    with pytest.raises(ObservationError, match=says("'b'", "not real")):
        guided_samples(model, [Within("b", 0.5)])
    with pytest.raises(ObservationError, match=says("'z'")):
        guided_samples(model, [Within("z", 0.5)])
    with pytest.raises(ObservationError, match=says("'x'", "given", "guided")):
        guided_samples(model, [Within("x", 0.5)], {"x": torch.ones(1)})
    with pytest.raises(ArgumentError, match=says("guide")):
        guided_samples(model, [])
    with pytest.raises(ArgumentError, match=says("steps")):
        guided_samples(model, [Within("x", 0.5)], steps=0)
    with pytest.raises(ObservationError, match=says("likelihood zero")):
        guided_samples(model, [Within("x", 1e6, 2e6)], count=50, steps=10, seed=0)


def test_evidence_of_several_conditions_and_settings_that_do_not_fit_are_refused():
    model = exact(pair)
    with pytest.raises(ObservationError, match=says("'y'", "batch axis of 1")):
        guided_samples(model, [Within("x", 0.0)], {"y": torch.zeros(5)}, 5)
    for guide in (Near("x", torch.zeros(4), 1.0), Within("x", [0.0])):
        with pytest.raises(ObservationError, match=says("'x'")):
            guided_samples(model, [guide])
    with pytest.raises(ArgumentError, match=says("'x'", "deviation")):
        Near("x", 0.0, -1.0)
    for wrong in (
        lambda: Near("x", 0.0, torch.inf),
        lambda: Near("x", torch.nan, 1.0),
        lambda: Within("x", torch.nan),
        lambda: Within("x", 2.0, 1.0),
    ):
        with pytest.raises(ArgumentError, match="'x' must"):
            wrong()


def test_given_entries_are_compared_with_bounds_exactly():
    torch.manual_seed(0)
    traced = unn.trace(lambda t: t.sample("x", Normal(t.sample("m", Normal(0.3, 1.7)), 1.0), 3))
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1))
    model.standardise(traced.draw(300, seed=0))
    mask = torch.tensor([[True, False, False]])
    for v in torch.linspace(-2, 3, 41):
        part = unn.Partial(torch.stack([v, v, v])[None], mask)
        low = torch.tensor([float(v), -9.0, -9.0])
        assert (guided_samples(model, [Within("x", low)], {"x": part}, 20, steps=2, seed=0)["x"] >= low).all()


@pytest.mark.parametrize("deviation", [0.05, 0.3, 3.0])
def test_a_sharp_likelihood_of_several_numbers_gives_the_conjugate_posterior(deviation):
    measured = stats.norm(0, deviation)

    def of_sum(values):
        total = values["x"] + values["y"]
        return -0.5 * ((total - 3) / deviation) ** 2 + float(measured.logpdf(0))

    result = guided_samples(exact(pair), [Likelihood(of_sum)], count=COUNT, steps=60, seed=0)
    variance = 2 + deviation**2
    total, difference = result["x"] + result["y"], result["x"] - result["y"]
    spread = math.sqrt(2) * deviation / math.sqrt(variance)
    assert abs(total.mean() - 6 / variance) < 0.1 * spread and abs(total.std() / spread - 1) < 0.08
    assert abs(difference.mean()) < 0.1 and abs(difference.std() - math.sqrt(2)) < 0.1
    assert abs(result.log_evidence - stats.norm(0, math.sqrt(variance)).logpdf(3)) < 0.08
    assert result.effective > 0.2 * COUNT


def test_a_thin_ring_has_its_probability():
    def ring(values):
        return -0.5 * (((values["x"] ** 2 + values["y"] ** 2) - 4) / 0.2) ** 2

    result = guided_samples(exact(pair), [Likelihood(ring)], count=COUNT, seed=0)
    # the squared radius is exponential with the mean 2
    expected = math.log(0.5 * 0.2 * math.sqrt(2 * math.pi)) - 2
    assert abs(result.log_evidence - expected) < 0.1
    angles = torch.atan2(result["y"], result["x"])
    assert stats.kstest(angles, stats.uniform(-math.pi, 2 * math.pi).cdf).statistic < 0.06


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_likelihoods_that_are_not_finite_are_refused(value):
    guide = Likelihood(lambda v: torch.where(v["x"] > 0, v["x"], value))
    with pytest.raises(ObservationError, match="likelihood is NaN or infinite"):
        guided_samples(exact(pair), [guide], count=100, seed=0)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda v: -v["x"].square().sum(), r"shape \(100,\), got shape \(\)"),
        (lambda v: -v["x"].square()[:, None], r"got shape \(100, 1"),
        (lambda v: 0.0, "got float"),
        (lambda v: v["z"], "reads 'z'.*x, y"),
    ],
)
def test_likelihoods_that_are_not_one_number_for_each_particle_are_refused(function, text):
    with pytest.raises(ObservationError, match=text):
        guided_samples(exact(pair), [Likelihood(function)], count=100, steps=5, seed=0)


class Own(Guide):
    """A guide whose two likelihoods are given functions."""

    def __init__(self, exact=lambda v: -(v["x"] ** 2), smoothed=lambda v: -(v["x"] ** 2)):
        self.exact, self.around = exact, smoothed

    def log_likelihood(self, values):
        return self.exact(values)

    def smoothed(self, values, spread, uncertainty):
        return self.around(values)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_exact_likelihood_that_is_nan_or_infinite_for_some_particles_is_refused(value):
    guide = Own(exact=lambda v: torch.where(v["x"] > 0, -v["x"], value))
    with pytest.raises(ObservationError, match=r"NaN or \+inf for \d+ of 100 samples"):
        guided_samples(exact(pair), [guide], count=100, steps=5, seed=0)


def test_an_exact_likelihood_of_zero_excludes_particles():
    guide = Own(exact=lambda v: torch.where(v["x"] > 0, 0.0, -math.inf), smoothed=lambda v: 0 * v["x"])
    assert bool((guided_samples(exact(pair), [guide], count=100, steps=5, seed=0)["x"] > 0).all())


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda v: -v["x"].square().sum(), r"shape \(100,\), got shape \(\)"),
        (lambda v: 0.0, "got float"),
        (lambda v: v["q"], "reads 'q'.*x, y"),
    ],
)
@pytest.mark.parametrize("part", ["exact", "smoothed"])
def test_guides_of_ones_own_that_do_not_return_one_number_for_each_particle_are_refused(part, function, text):
    with pytest.raises(ObservationError, match=text):
        guided_samples(exact(pair), [Own(**{part: function})], count=100, steps=5, seed=0)


def test_a_constant_likelihood_changes_nothing():
    constant = Likelihood(lambda v: torch.zeros(len(v["x"])))
    result = guided_samples(exact(pair), [constant], count=2000, steps=30, seed=0)
    assert result.log_evidence == pytest.approx(0.0, abs=1e-6)
    assert result.effective == pytest.approx(2000)


def heavy(t):
    t.sample("x", LogNormal(0.0, 1.5))


@pytest.mark.parametrize(("low", "high"), [(6.84, math.inf), (21.77, math.inf), (5.0, 12.0), (-1.0, 0.1)])
def test_intervals_in_the_tails_of_positive_variables_have_their_probability(low, high):
    result = guided_samples(exact(heavy, scale=1.5), [Within("x", low, high)], count=COUNT, seed=0)
    bounds = (math.log(max(low, 1e-300)) / 1.5, math.log(high) / 1.5)
    probability = stats.norm.cdf(bounds[1]) - stats.norm.cdf(bounds[0])
    assert abs(result.log_evidence - math.log(probability)) < 0.1
    law = stats.truncnorm(*bounds)
    assert stats.kstest(result["x"].log().numpy() / 1.5, law.cdf).statistic < 0.05
    assert result.effective > COUNT / 4


@pytest.mark.parametrize(("value", "deviation"), [(20.0, 1.0), (0.5, 2.0), (1.0, 0.1), (-1.0, 1.0)])
def test_measurements_of_positive_variables_give_the_posterior_by_quadrature(value, deviation):
    result = guided_samples(exact(heavy, scale=1.5), [Near("x", value, deviation)], count=COUNT, seed=0)
    u = torch.linspace(-8, 8, 400_001, dtype=torch.float64)
    x = torch.exp(1.5 * u)
    weights = torch.exp(-0.5 * u**2 - 0.5 * ((value - x) / deviation) ** 2)
    evidence = weights.sum() * (u[1] - u[0]) / (2 * math.pi * deviation)
    mean = (weights * x).sum() / weights.sum()
    spread = ((weights * (x - mean) ** 2).sum() / weights.sum()).sqrt()
    assert abs(result.log_evidence - float(evidence.log())) < 0.12
    assert abs(result["x"].mean() - mean) < 0.1 * spread
    assert abs(result["x"].std() / spread - 1) < 0.1


def test_what_is_no_guide_is_refused_with_what_is_one():
    model = exact(pair)
    for guides in (Within("x", 0.0), ["x"], "x"):
        with pytest.raises(ArgumentError, match="takes a list of guides such as"):
            guided_samples(model, guides)
    for attempt in (
        lambda: Within("x", "0", 1.0),
        lambda: Near("x", None, 1.0),
        lambda: Near("x", "x", 1.0),
        lambda: Within(0.0, 1.0),
    ):
        with pytest.raises(ArgumentError, match=r"Within|Near"):
            attempt()
    with pytest.raises(ArgumentError, match="Likelihood: a function"):
        Likelihood(3)
