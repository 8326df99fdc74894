"""A network that stops at convergence: the values of infer, the gradient of the rounds that were run."""

import pytest
import torch
from support.device_cases import make
from support.helpers import says
from torch.autograd import gradcheck

import unn

ORDERS = {"list": ["H", "Y"], "random": unn.RandomOrder(["H", "Y"])}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("until", [1e-3, 1e-9])
def test_values_and_gradients_are_those_of_infer_with_the_same_tolerance(order, until):
    case = make("mlp forward")
    g, x = case.graph, case.given["X"]
    seed = torch.Generator().manual_seed
    net = unn.Unrolled(g, "X", "Y", ORDERS[order], until=until, iterations=200)
    out = unn.infer(g, {"X": x}, order=ORDERS[order], until=until, iterations=200, generator=seed(0))
    ours = net(x, generator=seed(0))
    assert out.converged
    torch.testing.assert_close(ours, out["Y"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        net.preactivations(x, generator=seed(0)), out.preactivations["Y"], rtol=1e-12, atol=1e-12
    )
    weights = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).reshape(ours.shape)
    gradients, expected = (
        torch.autograd.grad((y * weights).sum(), list(g.parameters())) for y in (ours, out["Y"])
    )
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_the_gradient_at_convergence_is_that_of_finite_differences():
    case = make("mlp forward")
    net = unn.Unrolled(case.graph, "X", "Y", ["H", "Y"], until=1e-12)
    x = case.given["X"].requires_grad_()
    assert gradcheck(net, (x,), atol=1e-6, fast_mode=True)


def test_too_few_rounds_are_a_warning():
    case = make("mlp forward")
    net = unn.Unrolled(case.graph, "X", "Y", ["H", "Y"], until=1e-12, iterations=2)
    with pytest.warns(unn.ConvergenceWarning, match=says("2 rounds", "until", "iterations")):
        net(case.given["X"])


@pytest.mark.parametrize("until", [0, -1.0, "1", True, float("nan")])
def test_a_tolerance_is_a_positive_number(until):
    with pytest.raises(unn.InferenceError, match="until"):
        unn.Unrolled(make("mlp forward").graph, "X", "Y", ["H", "Y"], until=until)


def test_a_network_without_a_fixed_number_of_rounds_cannot_be_exported():
    case = make("mlp forward")
    net = unn.Unrolled(case.graph, "X", "Y", ["H", "Y"], until=1e-6)
    with pytest.raises(Exception, match="until"):
        torch.export.export(torch.nn.Sequential(net), (case.given["X"],))
