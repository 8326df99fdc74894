"""Exact samples and marginals of Ising grids by transfer over rows."""

import pytest
import torch

import unn
from problems.ising.grids import conditional, declare_coupled


@pytest.mark.parametrize("coupling", [-10.0, -0.7, 0.4, 10.0])
def test_marginals_are_those_of_the_declared_grid_and_samples_keep_what_is_given(coupling):
    generator = torch.Generator().manual_seed(0)
    values = (torch.rand(6, 3, 4, generator=generator) < 0.5).float()
    observed = torch.rand(6, 3, 4, generator=generator) < 0.4
    samples, marginals = conditional(coupling, values, observed, generator)
    given = {"X": unn.Partial(values, observed)}
    exact = unn.exact.marginals(declare_coupled(3, 4, coupling), given)["X"].detach()
    assert (marginals - exact).abs().max() < 1e-5
    assert torch.equal(samples[observed], values[observed])


def test_the_widest_grids_fit_into_memory():
    nothing = torch.zeros(16, 2, 12)
    samples, marginals = conditional(0.4, nothing, nothing.bool(), torch.Generator().manual_seed(0))
    assert samples.shape == (16, 2, 12)
    assert torch.allclose(marginals, torch.full_like(marginals, 0.5))
