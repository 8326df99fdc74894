"""Samples in their supports, densities and guides on the GPU, as on the CPU."""

import copy
import math

import pytest
import torch

import unn
from unn.diffusion import Near, Within, guided_samples
from unn.programs import Beta, Dirichlet, LogNormal, Normal, Poisson


def program(t):
    b = t.sample("b", LogNormal(0.3, 0.5))
    d = t.sample("d", Beta(2.0, b))
    t.sample("n", Poisson(5 * d))
    t.sample("w", Dirichlet([1.0, b, 2.0]))
    t.sample("x", Normal(b + d, 1.0), 2)


@pytest.fixture(scope="module", params=["auto", "quantiles"])
def model(request):
    torch.manual_seed(0)
    traced = unn.trace(program)
    made = unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1), coordinates=request.param)
    made.standardise(traced.draw(500, seed=0))
    return traced, made


def test_samples_are_in_their_supports_and_those_of_the_cpu(device, model):
    traced, ours = model
    other = copy.deepcopy(ours).to(device)
    one, two = (m.sample({"x": torch.ones(1, 2)}, 20, steps=5, seed=0).values for m in (ours, other))
    values = {name: x.double() for name, x in two.items()}
    assert (traced.log_prob(values) > -math.inf).all()
    for name in ("b", "d", "w"):
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-3)


def test_losses_and_densities_are_those_of_the_cpu(device, model):
    traced, ours = model
    other = copy.deepcopy(ours).to(device)
    values = traced.draw(6, seed=1)
    there = {name: x.to(device) for name, x in values.items()}
    given = {name: torch.ones(1, dtype=torch.bool) for name in ("n", "w")}
    assert other.loss(there, {name: x.to(device) for name, x in given.items()}).isfinite()
    densities = [m.log_prob(v, given, steps=5).cpu() for m, v in ((ours, values), (other, there))]
    torch.testing.assert_close(densities[1], densities[0], rtol=1e-3, atol=1e-3)


def test_guides_hold_on_the_device(device, model):
    _, ours = model
    other = copy.deepcopy(ours).to(device)
    result = guided_samples(other, [Within("d", 0.2, 0.9), Near("b", 1.5, 0.3)], count=100, steps=10, seed=0)
    assert float(result["d"].min()) >= 0.2 and float(result["d"].max()) <= 0.9
