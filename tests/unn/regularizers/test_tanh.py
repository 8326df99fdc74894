"""The tanh activation is exact relative to its size, in every dtype, with its derivatives, and under every
transform."""

import pytest
import torch

import unn

SIZES = torch.cat(
    [
        torch.logspace(-30, 2, 20_001, dtype=torch.float64),
        torch.linspace(0.01, 12, 20_001, dtype=torch.float64),
    ]
)
POINTS = torch.cat([SIZES, -SIZES])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_small_and_large_activations_are_right_to_a_few_units_in_the_last_place(dtype):
    t = POINTS.to(dtype)
    exact = t.double().tanh()
    error = (unn.SignedEntropy().mirror(t).double() - exact).abs() / exact.abs()
    assert error.max() <= 4 * torch.finfo(dtype).eps
    edges = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    assert (
        unn.SignedEntropy().mirror(edges)[:4].tolist() == [0, 0, 1, -1]
        and unn.SignedEntropy().mirror(edges)[4].isnan()
    )


def test_derivatives_in_float32_are_those_of_tanh_in_both_modes():
    t, ones = POINTS.float(), torch.ones(len(POINTS))
    exact = 1 - POINTS.float().double().tanh() ** 2
    forward = torch.func.jvp(unn.SignedEntropy().mirror, (t,), (ones,))[1]
    leaf = t.clone().requires_grad_()
    (reverse,) = torch.autograd.grad(unn.SignedEntropy().mirror(leaf).sum(), leaf)
    for derivative in (forward, reverse):
        torch.testing.assert_close(derivative.double(), exact, atol=3e-7, rtol=0)


def test_it_works_under_vmap_jacobians_and_compilation():
    t, mirror = torch.randn(3, 4), unn.SignedEntropy().mirror
    torch.testing.assert_close(torch.func.vmap(mirror)(t), t.tanh())
    torch.testing.assert_close(torch.func.jacrev(mirror)(t[0]), torch.func.jacfwd(mirror)(t[0]))
    torch.testing.assert_close(torch.compile(mirror, fullgraph=True, backend="aot_eager")(t), t.tanh())


def test_the_backward_pass_keeps_one_tensor():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        unn.SignedEntropy().mirror(torch.randn(5, requires_grad=True))
    assert len(saved) == 1
