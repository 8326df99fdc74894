"""The fast float32 tanh is tanh, with its derivatives, under every transform."""

import pytest
import torch

from unn.regularizers.tanh import tanh

POINTS = torch.cat([torch.linspace(-12, 12, 20_001), torch.tensor([0.0, -0.0, 1e-30, -1e-8, 1e-4, 90.0, -90.0, torch.inf, -torch.inf])])


def test_error_is_at_most_two_hundred_billionths_of_a_unit_interval():
    exact = POINTS.double().tanh()
    assert (tanh(POINTS).double() - exact).abs().max() < 2e-7
    assert (tanh(POINTS).abs() <= 1).all()
    assert tanh(torch.tensor([torch.inf, -torch.inf])).tolist() == [1, -1]
    assert tanh(torch.tensor([torch.nan])).isnan().all()


def test_first_and_second_derivatives_are_those_of_tanh():
    t = POINTS[:-2].clone().requires_grad_()
    s = POINTS[:-2].double().clone().requires_grad_()
    first, exact = (torch.autograd.grad(y.sum(), x, create_graph=True)[0] for y, x in ((tanh(t), t), (s.tanh(), s)))
    torch.testing.assert_close(first.double(), exact, atol=5e-7, rtol=0)
    second, exact = (torch.autograd.grad(d.sum(), x)[0] for d, x in ((first, t), (exact, s)))
    torch.testing.assert_close(second.double(), exact, atol=1e-6, rtol=0)


def test_it_works_under_vmap_jacobians_and_compilation():
    t = torch.randn(3, 4)
    torch.testing.assert_close(torch.func.vmap(tanh)(t), t.tanh())
    torch.testing.assert_close(torch.func.jacrev(tanh)(t[0]), torch.func.jacrev(torch.tanh)(t[0]))
    torch.testing.assert_close(torch.compile(tanh, fullgraph=True, backend="aot_eager")(t), t.tanh())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_use_tanh_itself(dtype):
    t = torch.randn(100, dtype=dtype)
    assert torch.equal(tanh(t), t.tanh())


def test_the_backward_pass_keeps_one_tensor():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        tanh(torch.randn(5, requires_grad=True))
    assert len(saved) == 1
