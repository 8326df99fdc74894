"""The closed form of the benchmark of a regression is the posterior of its program."""

import torch

import unn
from problems.simulators.tasks import linear_regression
from tests.benchmarks.regression import closed_form


def test_the_closed_form_of_the_benchmark_is_the_posterior_of_the_program():
    generator = torch.Generator().manual_seed(0)
    place, y = torch.randn(2, 1, 5, generator=generator).double()
    mean, covariance = closed_form(place, y)
    traced = unn.trace(linear_regression, 5)
    law = torch.distributions.MultivariateNormal(mean[0], covariance[0])
    w = law.sample((50,))
    values = {"slope": w[:, 0], "intercept": w[:, 1], "place": place.expand(50, -1), "y": y.expand(50, -1)}
    difference = traced.log_prob(values) - law.log_prob(w)
    torch.testing.assert_close(difference, difference[:1].expand(50))
