"""Dropout: its distribution, its gradient, and where it changes nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unn.networks.dropout import Dropout, dropout


@given(st.floats(0, 0.95), st.integers(0, 2**31))
def test_entries_are_dropped_with_the_probability_and_the_mean_stays(p, seed):
    torch.manual_seed(seed)
    y = dropout(torch.ones(50_001, dtype=torch.float64), p)
    zero = (y == 0).double().mean().item()
    assert abs(zero - p) < 0.015
    assert abs(y.mean().item() - 1) < 6 * (p / (1 - p) / len(y)) ** 0.5 + 1e-9
    assert len(y.unique()) <= 2


def test_entries_that_share_a_random_number_are_independent():
    torch.manual_seed(0)
    nonzero = dropout(torch.ones(400_000), 0.5).view(-1, 4) > 0
    correlation = torch.corrcoef(nonzero.T.double()) - torch.eye(4)
    assert correlation.abs().max() < 0.02
    following = torch.corrcoef(torch.stack([nonzero[:-1, 0], nonzero[1:, 0]]).double())[0, 1]
    assert following.abs() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_gradient_is_the_mask_times_the_scale(dtype):
    torch.manual_seed(0)
    x = torch.randn(7, 5, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.25)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert y.dtype == dtype and torch.equal(gradient * x, y)
    assert set(gradient.unique().tolist()) <= {0.0, torch.tensor(4 / 3, dtype=dtype).item()}


def test_a_seed_decides_and_evaluation_and_zero_change_nothing():
    x = torch.randn(3, 1001)
    first, second = ((torch.manual_seed(4), dropout(x, 0.3))[1] for _ in range(2))
    assert torch.equal(first, second) and not torch.equal(first, dropout(x, 0.3))
    layer = Dropout(0.3)
    assert not torch.equal(layer(x), x)
    assert layer.eval()(x) is x and dropout(x, 0.0) is x and Dropout(0.0)(x) is x
    assert dropout(torch.empty(0, 3), 0.5).shape == (0, 3)
