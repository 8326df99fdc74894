"""Langevin moves forget the distance from the mean, whatever the period of the dynamics is."""

import pytest
import torch

import unn
from factors import Implicit
from unn.gibbs import GibbsOptions, sample


@pytest.mark.parametrize(("entries", "precision"), [(1, 3.0), (10, 1.0)])
def test_squares_of_gaussians_are_nearly_independent_after_a_few_sweeps(entries, precision):
    # moves of one length come back to where they began on one of these, after any adaptation
    g = unn.FactorGraph("gaussian", n=entries)
    x = g.variable("x", "n", unn.SquaredNorm())
    energy = Implicit(lambda v: (precision * v.square() / 2 - 2 * v).sum(1), x["n"], bounded_below=True)
    g.factor(energy)
    options = GibbsOptions(chains=1000, burn_in=200, chain_draws=20)
    draws = sample(g, options=options, generator=torch.Generator().manual_seed(0))["x"][0].double()
    squares = (draws - 2 / (1 + precision)).square() * (1 + precision) - 1
    assert abs(float(squares.mean())) < 0.05
    autocorrelation = (squares[:, 1:] * squares[:, :-1]).mean() / squares.square().mean()
    assert float(autocorrelation) < 0.7
