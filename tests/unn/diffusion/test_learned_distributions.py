"""Trained denoisers have the spread of posteriors that are known in closed form, through the default
calls."""

import pytest
import torch

import unn
from unn.programs import Bernoulli, Normal, trace

pytestmark = pytest.mark.slow


def normal(t):
    m = t.sample("m", Normal(0.0, 1.0))
    t.sample("x", Normal(m, 1.0), shape=(4,))


def rare(t):
    b = t.sample("b", Bernoulli(0.1))
    t.sample("y", Normal(2 * b, 1.0))


def learned(program, observed):
    torch.manual_seed(0)
    traced = trace(program)
    diffusion = unn.Diffusion(unn.Denoiser(traced.graph, width=32, depth=3, heads=2))
    unn.fit(diffusion, traced, steps=1500, observed=observed, rate=3e-3, batch=128, ema=0.99)
    return traced, diffusion


def test_the_posterior_of_a_mean_has_its_deviation_and_its_center():
    traced, diffusion = learned(normal, ["x"])
    data_sets, draws = 50, 200
    x = traced.draw(data_sets, seed=1)["x"]
    samples = diffusion.sample(
        {"x": x.repeat_interleave(draws, 0)}, data_sets * draws, steps=50, seed=0, at_once=5000
    )["m"].view(data_sets, draws)
    # N(sum of x / 5, 1 / 5)
    deviation = 0.2**0.5
    assert float((samples.var(1) / deviation**2).mean().sqrt()) == pytest.approx(1, abs=0.1)
    assert float(((samples.mean(1) - x.sum(1) / 5) / deviation).square().mean().sqrt()) < 0.25


def test_a_rare_choice_keeps_its_probability():
    _, diffusion = learned(rare, ["y"])
    for y in (0.0, 1.0, 2.0):
        likelihoods = torch.tensor([0.9, 0.1]) * torch.exp(-((y - torch.tensor([0.0, 2.0])) ** 2) / 2)
        share = diffusion.sample({"y": torch.tensor([y])}, 4000, steps=50, seed=0, at_once=4000)["b"].mean()
        assert float(share) == pytest.approx(float(likelihoods[1] / likelihoods.sum()), abs=0.05)
