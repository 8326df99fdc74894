"""Distributions of observed nodes are normalised, and their samples and means follow them."""

import math
from itertools import product

import pytest
import torch
from scipy.stats import chisquare, kstest

from unn.latent.likelihoods import LogisticMixture, Normal, Options, is_on_levels, to_levels

LEVELS = torch.arange(256, dtype=torch.float64) / 127.5 - 1


def parameters_of(likelihood, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(1, likelihood.parameters, 1, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("options", [2, 3, 7])
def test_probabilities_of_options_sum_to_one(options):
    likelihood = Options(options)
    parameters = parameters_of(likelihood, scale=3.0)
    values = torch.eye(options, dtype=torch.float64)[:, :, None]
    p = likelihood.log_probability(parameters.expand(options, -1, -1), values).exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert torch.allclose(likelihood.mean(parameters)[0, :, 0], p[:, 0])


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_probabilities_of_grey_levels_sum_to_one(scale):
    likelihood = LogisticMixture(1)
    parameters = parameters_of(likelihood, scale=scale).expand(256, -1, -1)
    p = likelihood.log_probability(parameters, LEVELS[:, None, None]).exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-10)


def test_probabilities_of_colours_sum_to_one_over_each_channel_given_those_before():
    # with one component, the probability of a colour is a product over its channels
    likelihood = LogisticMixture(3, 1)
    parameters = parameters_of(likelihood)
    red, green = LEVELS[[40, 200]]
    every = torch.cartesian_prod(torch.arange(256), torch.arange(256))
    colours = torch.stack([red.expand(256**2), *LEVELS[every].unbind(1)], 1)[:, :, None]
    logs = likelihood.log_probability(parameters.expand(256**2, -1, -1), colours)[:, 0].view(256, 256)
    # the mass of a level by the logistic distribution of its channel alone
    _, means, log_scales, coefficients = likelihood._split(parameters)
    mean, spread = means[0, :, 0, 0], log_scales[0, :, 0, 0].exp()

    def mass(level, channel, shift):
        upper, lower = ((level + s / 255 - mean[channel] - shift) / spread[channel] for s in (1, -1))
        return upper.sigmoid() - lower.sigmoid()

    a = coefficients[0, 0, 0, 0]
    assert float(logs.flatten().logsumexp(0).exp()) == pytest.approx(float(mass(red, 0, 0.0)), rel=1e-9)
    first_two = float(mass(red, 0, 0.0) * mass(green, 1, a * red))
    assert float(logs[200].logsumexp(0).exp()) == pytest.approx(first_two, rel=1e-9)


def test_tiny_masses_are_exact():
    likelihood = LogisticMixture(1, 1)
    parameters = torch.tensor([[[0.0], [-0.9], [-5.0]]], dtype=torch.float64)
    log_p = float(likelihood.log_probability(parameters, LEVELS[250][None, None, None]))
    x, s = float(LEVELS[250]) + 0.9, math.exp(-5.0)
    expected = -(x - 1 / 255) / s + math.log1p(-math.exp(-2 / 255 / s))
    assert log_p == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("likelihood", [Options(2), Options(4), LogisticMixture(1)])
def test_samples_have_the_probabilities(likelihood):
    count = 20_000
    parameters = parameters_of(likelihood, seed=3).expand(count, -1, -1)
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(count, likelihood.noise, 1, dtype=torch.float64, generator=generator)
    samples = likelihood.sample(parameters, uniform)
    if isinstance(likelihood, Options):
        values = torch.eye(likelihood.channels, dtype=torch.float64)[:, :, None]
        which = samples[:, :, 0].argmax(1)
    else:
        assert is_on_levels(samples)
        values = LEVELS[:, None, None]
        which = ((samples[:, 0, 0] + 1) * 127.5).round().long()
    p = likelihood.log_probability(parameters[: len(values)], values)[:, 0].exp()
    counts = torch.bincount(which, minlength=len(values)).double()
    common = p * count > 20
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    expected = torch.cat([p[common], p[~common].sum()[None]]) * count
    frequent = expected > 5
    observed, expected = (
        observed[frequent],
        expected[frequent] * observed[frequent].sum() / expected[frequent].sum(),
    )
    assert chisquare(observed.numpy(), expected.numpy()).pvalue > 1e-4


def test_normal_numbers_have_their_density_and_samples():
    likelihood = Normal(2)
    parameters = parameters_of(likelihood)
    mean, scale = likelihood._split(parameters)
    reference = torch.distributions.Normal(mean, scale)
    x = torch.randn(1, 2, 1, dtype=torch.float64)
    assert torch.allclose(likelihood.log_probability(parameters, x), reference.log_prob(x).sum(1))
    uniform = torch.rand(5000, 2, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    samples = (likelihood.sample(parameters.expand(5000, -1, -1), uniform) - mean) / scale
    assert kstest(samples[:, 0, 0].numpy(), "norm").pvalue > 1e-4


def test_levels_are_recognised():
    assert is_on_levels(LEVELS.float())
    assert not is_on_levels(LEVELS + 1e-3)
    assert torch.equal(to_levels(LEVELS + 1e-3), to_levels(LEVELS))
    assert all(is_on_levels(torch.tensor([a, b])) for a, b in product([-1.0, 1.0], repeat=2))


@pytest.mark.parametrize(("scale", "offset"), [(0.1, 0.0), (1.0, 0.0), (4.0, 3.0), (8.0, -6.0)])
def test_means_of_grey_levels_are_those_of_their_probabilities(scale, offset):
    likelihood = LogisticMixture(1, 3)
    for seed in range(5):
        parameters = parameters_of(likelihood, seed=seed, scale=scale)
        # components far beyond the outer levels, as those of black and white pixels
        parameters[:, 3:6] += offset
        p = likelihood.log_probability(parameters.expand(256, -1, -1), LEVELS[:, None, None]).exp()[:, 0]
        assert float(likelihood.mean(parameters)) == pytest.approx(float(p @ LEVELS), abs=1e-9)


def test_narrow_colours_are_drawn_with_their_probabilities():
    likelihood = LogisticMixture(3, 1)
    parameters = torch.zeros(1, likelihood.parameters, 1, dtype=torch.float64)
    red, green = float(LEVELS[120]), float(LEVELS[100])
    parameters[0, 1] = math.atanh(0.9)
    for channel, mean in enumerate((red + 0.45 / 127.5, green - 0.9 * red + 0.2 / 127.5, 0.0)):
        parameters[0, 4 + 2 * channel], parameters[0, 5 + 2 * channel] = mean, -8.0
    count = 20_000
    uniform = torch.rand(
        count, likelihood.noise, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    levels = ((likelihood.sample(parameters.expand(count, -1, -1), uniform)[:, :2, 0] + 1) * 127.5).round()
    pairs = torch.cartesian_prod(torch.arange(115, 126), torch.arange(95, 106))
    colours = torch.stack([*LEVELS[pairs].unbind(1), LEVELS[127].expand(len(pairs))], 1)
    # given the first two, the third channel is spread over few levels, summed here
    p = torch.zeros(len(pairs), dtype=torch.float64)
    for third in range(256):
        colours[:, 2] = LEVELS[third]
        p += likelihood.log_probability(parameters.expand(len(pairs), -1, -1), colours[:, :, None])[
            :, 0
        ].exp()
    shares = (levels[:, None] == pairs).all(2).double().mean(0)
    assert float(p.sum()) == pytest.approx(1, abs=1e-3)
    assert float((shares - p).abs().sum()) / 2 < 0.02
