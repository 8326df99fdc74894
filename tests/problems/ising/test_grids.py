"""Exact samples and marginals of Ising grids by transfer over rows."""

import itertools

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


def test_samples_without_evidence_have_the_probabilities_of_all_grids():
    nothing = torch.zeros(4000, 2, 2)
    samples, _ = conditional(0.6, nothing, nothing.bool(), torch.Generator().manual_seed(0))
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4))).view(-1, 2, 2)
    spins = 2 * states - 1
    aligned = (spins[:, 1:] * spins[:, :-1]).sum((1, 2)) + (spins[:, :, 1:] * spins[:, :, :-1]).sum((1, 2))
    expected = 4000 * (0.6 * aligned).softmax(0)
    counts = torch.stack([(samples == state).all((1, 2)).sum() for state in states])
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # quantile 0.999 of fifteen degrees of freedom
