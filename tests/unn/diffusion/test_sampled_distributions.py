"""The default call of sampling against exact distributions: with an exact denoiser, only the sampler can be
wrong."""

import itertools
import math

import pytest
import torch
from support.helpers import says
from torch.nn.functional import one_hot

import unn
from factors import Clique
from unn.diffusion import SAMPLERS, Diffusion, LinearSteps, LogNormal, LogUniform, restart_sampling

COUNT = 20_000


class Exact(Diffusion):
    """A diffusion whose estimate is the exact posterior mean of a mixture of Gaussians or of points, in
    standardised numbers."""

    def __init__(self, graph, estimate, schedule=None):
        super().__init__(unn.Denoiser(graph, width=4, heads=1, depth=1), schedule=schedule)
        self.exact = estimate

    def estimator(self, condition):
        return lambda x, sigma: torch.where(
            condition.numbers, condition.rows, self.exact(x, sigma, condition)
        )


def reals(count):
    g = unn.FactorGraph("reals", node=count)
    X = g.variable("X", "node", unn.SquaredNorm())
    g.factor(Clique(X["i"]))
    return g


def gaussian(mean, covariance):
    """E[x0 | x, sigma, observed entries] for jointly Gaussian numbers."""

    def estimate(x, sigma, condition):
        seen = condition.numbers[0]
        free = ~seen
        gain = covariance[free][:, seen] @ torch.linalg.inv(covariance[seen][:, seen])
        center = mean[free] + (condition.rows[:, seen] - mean[seen]) @ gain.T
        own = covariance[free][:, free] - gain @ covariance[seen][:, free]
        noisy = own + sigma**2 * torch.eye(len(own))
        out = x.clone()
        out[:, free] = center + (x[:, free] - center) @ torch.linalg.solve(noisy, own)
        return out

    return estimate


def points(atoms, weights):
    """E[x0 | x, sigma] of a distribution over points, shape ``(points, numbers)``."""

    def estimate(x, sigma, condition):
        return (weights.log() - torch.cdist(x, atoms).square() / (2 * sigma**2)).softmax(1) @ atoms

    return estimate


def mixture(means, deviations, weights):
    """E[x0 | x, sigma] of a mixture of Gaussians on the line."""

    def estimate(x, sigma, condition):
        noisy = deviations**2 + sigma**2
        share = (weights.log() - (x - means) ** 2 / (2 * noisy) - noisy.log() / 2).softmax(1)
        return (share * (means + (x - means) * deviations**2 / noisy)).sum(1, keepdim=True)

    return estimate


TOLERANCES = pytest.mark.parametrize(
    ("options", "tolerance"), [({}, 0.05), ({"steps": 20}, 0.1)], ids=["default", "20 steps"]
)
ERROR = 4 * math.sqrt(0.5 / COUNT)
"""Four standard errors of a standard deviation from so many samples, relative to it."""


@TOLERANCES
@pytest.mark.parametrize("variance", [1.0, 0.1, 0.01, 0.001])
def test_the_default_call_keeps_the_deviation_of_gaussians(variance, options, tolerance):
    diffusion = Exact(reals(1), gaussian(torch.tensor([0.5]), torch.tensor([[variance]])))
    samples = diffusion.sample({}, COUNT, seed=0, at_once=COUNT, **options)["X"]
    assert float(samples.std()) / variance**0.5 == pytest.approx(1, abs=tolerance + ERROR)
    assert float(samples.mean()) == pytest.approx(0.5, abs=(0.03 + 4 / math.sqrt(COUNT)) * variance**0.5)


@TOLERANCES
def test_the_default_call_keeps_correlated_and_conditional_deviations(options, tolerance):
    mean = torch.tensor([0.3, -0.5, 0.0])
    covariance = torch.tensor([[1.0, 0.7, 0.2], [0.7, 0.8, -0.1], [0.2, -0.1, 0.5]])
    diffusion = Exact(reals(3), gaussian(mean, covariance))
    free = diffusion.sample({}, COUNT, seed=0, at_once=COUNT, **options)["X"]
    # along the eigenvectors, the narrowest included
    values, vectors = torch.linalg.eigh(covariance)
    ratios = (free @ vectors).std(0) / values.sqrt()
    assert ((ratios - 1).abs() < tolerance + ERROR).all()
    seen = unn.Partial(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[True, False, False]]))
    held = diffusion.sample({"X": seen}, COUNT, seed=0, at_once=COUNT, **options)["X"]
    own = covariance[1:, 1:] - torch.outer(covariance[1:, 0], covariance[0, 1:]) / covariance[0, 0]
    values, vectors = torch.linalg.eigh(own)
    assert (((held[:, 1:] @ vectors).std(0) / values.sqrt() - 1).abs() < tolerance + ERROR).all()
    assert (held[:, 0] == 1).all()


@TOLERANCES
@pytest.mark.parametrize("deviation", [0.1, 0.3])
def test_the_default_call_keeps_the_weights_of_mixtures(deviation, options, tolerance):
    means, deviations, weights = (
        torch.tensor([-0.2, 1.8]),
        torch.full((2,), deviation),
        torch.tensor([0.9, 0.1]),
    )
    samples = Exact(reals(1), mixture(means, deviations, weights)).sample(
        {}, COUNT, seed=0, at_once=COUNT, **options
    )["X"]
    assert float((samples > 0.8).float().mean()) == pytest.approx(
        0.1, abs=0.02 if "steps" in options else 0.01
    )
    assert float(samples[samples < 0.8].std()) / deviation == pytest.approx(1, abs=tolerance + ERROR)


@TOLERANCES
@pytest.mark.parametrize("chance", [0.1, 0.01])
def test_the_default_call_keeps_the_probability_of_rare_binary_values(chance, options, tolerance):
    g = unn.FactorGraph("binary", node=1)
    g.factor(Clique(g.variable("B", "node", unn.BinaryEntropy())["i"]))
    # the standardised options are -1 and 1
    atoms = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    samples = Exact(g, points(atoms, torch.tensor([1 - chance, chance]))).sample(
        {}, COUNT, seed=0, at_once=COUNT, **options
    )["B"]
    assert float(samples.mean()) == pytest.approx(
        chance, abs=0.1 * chance + 3 * math.sqrt(chance * (1 - chance) / COUNT)
    )


@TOLERANCES
def test_the_default_call_keeps_the_probabilities_of_categories_and_of_sets_of_points(options, tolerance):
    options_count = 10
    weights = 0.6 ** torch.arange(options_count)
    weights = weights / weights.sum()
    g = unn.FactorGraph("categories", node=2, option=options_count)
    g.factor(Clique(g.variable("C", "node | option", unn.Entropy())["i v"]))
    share = 1 / options_count
    # two nodes that always agree
    atoms = ((torch.eye(options_count) - share) / (share * (1 - share)) ** 0.5).repeat(1, 2)
    samples = (
        Exact(g, points(atoms, weights)).sample({}, COUNT, seed=0, at_once=COUNT, **options)["C"].argmax(2)
    )
    assert (samples[:, 0] == samples[:, 1]).all()
    counts = one_hot(samples[:, 0], options_count).float().mean(0)
    assert ((counts - weights).abs() < 0.01).all()


def deviation_ratio(sampler, spacing, variance, steps):
    """Of samples to Gaussian data, exactly: the start and each draw of noise are followed on their own
    through linear estimates."""
    diffusion = Exact(reals(1), None, LogUniform(0.002, 80.0))
    schedules = [levels.double() for levels in diffusion._level_schedules(spacing, steps)]
    draws = itertools.count()

    def unit():
        x = torch.zeros(steps + len(schedules) + 1, 1, dtype=torch.float64)
        x[next(draws)] = 1
        return x

    start = (variance + schedules[0][0] ** 2).sqrt() * unit()
    ends = restart_sampling(
        SAMPLERS[sampler],
        lambda x, sigma: variance / (variance + sigma**2) * x,
        start,
        schedules,
        unit,
        lambda *_: None,
    )
    return float((ends**2).sum() / variance) ** 0.5


EVERY_SPACING = pytest.mark.parametrize("spacing", ["log-snr", "schedule", "restarts"])
EVERY_SAMPLER = pytest.mark.parametrize("sampler", list(SAMPLERS))


@pytest.mark.slow
@EVERY_SPACING
@EVERY_SAMPLER
def test_deviations_converge_with_every_sampler_and_spacing(sampler, spacing):
    errors = [
        max(abs(deviation_ratio(sampler, spacing, v, steps) - 1) for v in (1.0, 0.1, 0.01))
        for steps in (50, 400, 1600)
    ]
    # rounds of restarts have as many steps as the square root of all
    assert errors[2] < (0.12 if spacing == "restarts" else 0.01)
    assert errors[2] < max(errors[1], 0.002) and errors[1] < max(errors[0], 0.01)


@pytest.mark.slow
@EVERY_SPACING
@EVERY_SAMPLER
def test_the_probability_of_a_rare_value_converges_with_every_sampler_and_spacing(sampler, spacing):
    diffusion = Exact(
        reals(1), points(torch.tensor([[1.0], [-1.0]]), torch.tensor([0.9, 0.1])), LogUniform(0.002, 80.0)
    )
    samples = diffusion.sample({}, 4000, steps=400, sampler=sampler, spacing=spacing, seed=0, at_once=4000)[
        "X"
    ]
    # with both, what sharpens is still felt after 400 steps
    bias = 0.04 if (sampler, spacing) == ("churn", "restarts") else 0.01
    assert float((samples < 0).float().mean()) == pytest.approx(0.1, abs=bias + 3 * math.sqrt(0.09 / 4000))


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", [LinearSteps(), LogNormal(), LogUniform()], ids=lambda s: type(s).__name__
)
def test_the_default_sampler_is_right_with_every_schedule(schedule):
    for variance in (1.0, 0.01):
        diffusion = Exact(reals(1), gaussian(torch.zeros(1), torch.tensor([[variance]])), schedule)
        samples = diffusion.sample({}, COUNT, seed=0, at_once=COUNT)["X"]
        assert float(samples.std()) / variance**0.5 == pytest.approx(1, abs=0.05)


def test_the_first_batch_of_training_standardises_continuous_variables_unless_they_are_already():
    values = {"X": 5 + 3 * torch.randn(200, 2, generator=torch.Generator().manual_seed(0))}
    nothing = torch.zeros(200, 2, dtype=torch.bool)
    first = Diffusion(unn.Denoiser(reals(2), width=4, heads=1, depth=1))
    first.eval().loss(values, nothing)
    assert first.scales.item() == 1
    first.train().loss(values, nothing)
    assert first.offsets.item() == pytest.approx(5, abs=0.5) and first.scales.item() == pytest.approx(
        3, rel=0.1
    )
    second = Diffusion(unn.Denoiser(reals(2), width=4, heads=1, depth=1))
    second.load_state_dict(first.state_dict())
    second.loss({"X": 10 * values["X"]}, nothing)
    torch.testing.assert_close(second.scales, first.scales)


def test_verification_without_a_constraint_is_refused():
    diffusion = Diffusion(unn.Denoiser(reals(2), width=4, heads=1, depth=1))
    with pytest.raises(unn.ArgumentError, match=says("verify", "'reals'", "no constraint")):
        diffusion.sample({}, verify=True)
    with pytest.raises(unn.ArgumentError, match=says("tries=3", "verify=True")):
        diffusion.sample({}, tries=3)
