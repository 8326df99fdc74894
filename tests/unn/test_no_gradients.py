"""Under autocast, no gradient is lost after a computation without gradients: torch 2.10 keeps parameters in
half precision from one for the other."""

import pytest
import torch
from support.diffusion import made, values_of
from support.helpers import mlp

import unn

LEAST_COSINE = 0.8
"""Between gradients in half precision and in float32; differences of two phases lose most of their digits."""

X = torch.linspace(-1, 1, 8).reshape(2, 4)
Y = torch.eye(3)[:2]


def check_under_autocast(loss, parameters):
    expected = torch.autograd.grad(loss(), parameters)
    with torch.autocast("cpu", torch.bfloat16):
        ours = torch.autograd.grad(loss(), parameters)
    for one, other in zip(ours, expected, strict=True):
        assert float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0)) > LEAST_COSINE


@pytest.mark.parametrize("gradient", [unn.Truncate(1), unn.Implicit(tolerance=1e-2)], ids=repr)
def test_gradients_of_the_last_rounds_point_where_those_of_float32_do(gradient):
    g = mlp()
    network = unn.Unrolled(g, "X", "Y", order=["H", "Y"], iterations=10, gradient=gradient)
    check_under_autocast(lambda: network(X)[:, 0].sum(), list(g.parameters()))


@pytest.mark.parametrize("learning", [unn.ContrastiveHebbian, unn.EquilibriumPropagation])
def test_gradients_of_two_phases_point_where_those_of_float32_do(learning):
    g = mlp()
    loss = learning(g, "X", "Y", until=1e-2)
    check_under_autocast(lambda: loss({"X": X, "Y": Y}), list(g.parameters()))


def test_gradients_of_a_denoiser_that_is_given_its_own_estimate_reach_all_weights():
    model = made(self_conditioning="estimate").float()
    torch.manual_seed(0)
    values = {name: x.float() if x.is_floating_point() else x for name, x in values_of(16).items()}
    with torch.autocast("cpu", torch.bfloat16):
        model.loss(values, torch.rand(16, 16) < 0.3).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
