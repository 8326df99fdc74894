"""Log-densities of diffusion models, against closed forms."""

import math

import pytest
import torch
from support.helpers import says

import unn
from unn.diffusion.density import flow_log_density
from unn.errors import ArgumentError, ObservationError
from unn.programs import Bernoulli, Beta, Exponential, LogNormal, MultivariateNormal, Normal, trace_plates

LEVELS = (0.002, 80.0)


def of_mixture(means, covariances):
    """The exact denoiser of a mixture of Gaussians with equal weights, and its distribution."""
    components = torch.distributions.MultivariateNormal(means, covariances)
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(len(means), dtype=means.dtype)), components
    )
    identity = torch.eye(means.shape[1], dtype=means.dtype)

    def denoise(x, sigma):
        noisy = covariances + sigma**2 * identity
        logs = torch.distributions.MultivariateNormal(means, noisy).log_prob(x[:, None])
        gains = torch.linalg.solve(noisy, covariances).mT
        each = means + torch.einsum("kij,bkj->bki", gains, x[:, None] - means)
        return (logs.softmax(1)[..., None] * each).sum(1)

    return denoise, mixture


@pytest.fixture
def mixture():
    generator = torch.Generator().manual_seed(0)
    roots = 0.4 * torch.randn(3, 3, 3, generator=generator, dtype=torch.float64)
    covariances = roots @ roots.mT + 0.1 * torch.eye(3, dtype=torch.float64)
    return of_mixture(torch.randn(3, 3, generator=generator, dtype=torch.float64), covariances)


def test_the_density_of_an_exact_denoiser_is_that_of_the_data(mixture):
    denoise, law = mixture
    torch.manual_seed(0)
    x = law.sample((50,))
    free = torch.ones_like(x, dtype=torch.bool)
    density = flow_log_density(denoise, x, free, *LEVELS, steps=200)
    torch.testing.assert_close(density, law.log_prob(x), rtol=0, atol=1e-4)


def test_hutchinsons_estimate_is_unbiased(mixture):
    denoise, law = mixture
    torch.manual_seed(0)
    x = law.sample((5,))
    free = torch.ones_like(x, dtype=torch.bool)
    exact = flow_log_density(denoise, x, free, *LEVELS, steps=30)
    generator = torch.Generator().manual_seed(0)
    rows, probes = x.repeat_interleave(400, 0), 1
    estimates = flow_log_density(
        denoise, rows, free.repeat_interleave(400, 0), *LEVELS, 30, probes, generator
    ).view(5, 400)
    assert ((estimates.mean(1) - exact).abs() < 4 * estimates.std(1) / 20).all()
    assert (estimates.std(1) > 0).all()


def test_a_conditional_density_is_the_joint_one_divided_by_that_of_the_evidence():
    covariance = torch.tensor([[1.0, 0.6], [0.6, 1.0]], dtype=torch.float64)

    def denoise(x, sigma):
        # of the first number given the second
        mean, variance = 0.6 * x[:, 1], 1 - 0.36
        gain = variance / (variance + sigma**2)
        return torch.stack([mean + gain * (x[:, 0] - mean), x[:, 1]], 1)

    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    free = torch.tensor([True, False]).expand(20, 2)
    density = flow_log_density(denoise, x, free, *LEVELS, steps=100)
    joint = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=torch.float64), covariance)
    evidence = torch.distributions.Normal(0, torch.ones((), dtype=torch.float64)).log_prob(x[:, 1])
    torch.testing.assert_close(density, joint.log_prob(x) - evidence, rtol=0, atol=1e-4)


class Exact(unn.Diffusion):
    """A diffusion whose estimate is exact for independent standard normal coordinates."""

    def denoise(self, x, sigma, condition):
        gain = 1 / (1 + sigma**2)
        return torch.where(condition.numbers, condition.rows, gain * x)


@pytest.mark.parametrize("coordinates", ["auto", "domain", "quantiles"])
def test_densities_are_those_of_natural_values_whatever_the_coordinates(coordinates):
    def program(t):
        x = t.sample("x", Normal(3.0, 2.0))
        y = t.sample("y", LogNormal(0.5, 0.7))
        z = t.sample("z", Beta(2.0, 3.0))
        t.sample("b", Bernoulli((x + y + z > 0) * 0.5))

    traced = unn.trace(program)
    model = Exact(unn.Denoiser(traced.graph, width=8, depth=1, heads=1), coordinates=coordinates).double()
    model.standardise(traced.draw(50_000, seed=0, dtype=torch.float64))
    values = traced.draw(200, seed=1, dtype=torch.float64)
    given = {"b": torch.ones(1, dtype=torch.bool)}
    density = model.log_prob(values, given, steps=100)
    # the coordinates of x and y are normal, up to the estimated scales; those of z only with quantiles
    parts = {
        "x": torch.distributions.Normal(3.0, 2.0),
        "y": torch.distributions.LogNormal(0.5, 0.7),
        "z": torch.distributions.Beta(2.0, 3.0),
    }
    expected = sum(law.log_prob(values[name]) for name, law in parts.items())
    assert abs((density - expected).mean()) < 0.02
    assert (density - expected).std() < 0.25
    alone = model.log_prob(values, {**given, "z": torch.ones(1, dtype=torch.bool)}, steps=100)
    expected = expected - parts["z"].log_prob(values["z"])
    tolerance = 0.4 if coordinates == "quantiles" else 0.05
    assert (alone - expected).abs().quantile(0.9) < tolerance


@pytest.mark.parametrize("program", ["x", "entries", "far"])
def test_densities_of_positive_values_are_constant_where_networks_extrapolate(program):
    def one(t):
        t.sample("b", Normal(t.sample("x", Exponential(2.0)), 1.0))

    def entries(t):
        x = t.empty("x", 2)
        x[0], x[1] = t.sample(Exponential(2.0)), t.sample(Normal(loc, 1.0))
        t.sample("b", Normal(x.sum(), 1.0))

    loc = 300.0 if program == "far" else 0.0
    traced = unn.trace(one if program == "x" else entries)
    model = Exact(unn.Denoiser(traced.graph, width=8, depth=1, heads=1)).double()
    model.standardise(traced.draw(20_000, seed=0, dtype=torch.float64))
    x = torch.tensor([0.0, 1e-9, 1e-6, 1e-2, 0.1, 0.5], dtype=torch.float64)
    values = {
        "x": x if program == "x" else torch.stack([x, torch.full_like(x, loc)], 1),
        "b": torch.ones_like(x),
    }
    density = model.log_prob(values, {"b": torch.ones(1, dtype=torch.bool)}, steps=50)
    assert density.isfinite().all()
    torch.testing.assert_close(density[:3], density[:1].expand(3))
    # the true density has no more than two nats between these values
    assert (density[0] - density[3:]).abs().max() < 4
    # evidence at the bound is that of samples
    given = {"x": torch.ones(1, *values["x"].shape[1:], dtype=torch.bool)}
    density = model.log_prob(values, given, steps=50)
    torch.testing.assert_close(density[:3], density[:1].expand(3))


def test_evidence_on_every_number_has_density_one():
    traced = unn.trace(lambda t: t.sample("y", Normal(t.sample("x", Normal()), 1.0)))
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1))
    values = traced.draw(3, seed=0)
    observed = torch.ones(3, 2, dtype=torch.bool)
    assert torch.equal(model.log_prob(values, observed, steps=2), torch.zeros(3))


def test_variables_without_a_density_are_refused_by_name():
    def program(t):
        b = t.sample("b", Bernoulli(0.5))
        t.sample("x", MultivariateNormal([b, 0.0], [[1.0, 0.0], [0.0, 1.0]]))

    traced = unn.trace(program)
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1))
    values = traced.draw(3, seed=0)
    with pytest.raises(ArgumentError, match=says("'b'", "observe")):
        model.log_prob(values)
    with pytest.raises(ArgumentError, match=says("steps")):
        model.log_prob(values, {"b": torch.ones(1, dtype=torch.bool)}, steps=0)
    for wrong in ({"steps": 1.5}, {"steps": True}, {"probes": 0.5}, {"probes": -1}):
        with pytest.raises(ArgumentError, match="whole numbers of steps"):
            model.log_prob(values, {"b": torch.ones(1, dtype=torch.bool)}, **wrong)
    for seed in (-1, 1.5, "a"):
        with pytest.raises(ObservationError, match="a seed is a whole number"):
            model.log_prob(values, {"b": torch.ones(1, dtype=torch.bool)}, steps=2, probes=2, seed=seed)
    assert (
        model.log_prob(values, {"b": torch.ones(1, dtype=torch.bool)}, steps=2, probes=2, seed=0)
        .isfinite()
        .all()
    )


def test_one_example_has_the_density_of_its_row_in_a_batch():
    traced = unn.trace(lambda t: t.sample("y", Normal(t.sample("x", Normal()), 1.0), 3))
    torch.manual_seed(0)
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=2, heads=1)).double()
    values = traced.draw(4, seed=0, dtype=torch.float64)
    model.standardise(values)
    together = model.log_prob(values, steps=5)
    for k in range(4):
        alone = model.log_prob({name: x[k : k + 1] for name, x in values.items()}, steps=5)
        torch.testing.assert_close(alone[0], together[k], rtol=1e-9, atol=1e-9)
    assert math.isfinite(together.sum())


def test_the_size_of_an_axis_with_the_name_of_an_argument_is_given_by_a_mapping():
    def program(t, steps):
        t.sample("x", Normal(t.sample("m", Normal()), 1.0), steps)

    plated = trace_plates(program, {"steps": (1, 4)})
    model = unn.Diffusion(unn.Denoiser(plated.graph, width=8, depth=1, heads=1))
    values = plated.draw(3, seed=0, steps=2)
    assert model.log_prob(values, sizes={"steps": 2}, steps=5).shape == (3,)
