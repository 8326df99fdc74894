"""Parameters of a graph under the parametrizations of torch."""

import pytest
import torch
from support.helpers import says
from torch.nn.utils import parametrizations, parametrize, prune

import unn
from factors import Multilinear


class Halved(torch.nn.Module):
    def forward(self, w):
        return w / 2


def layer():
    g = unn.FactorGraph("layer", n=4, m=3)
    x, y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "m", unn.SignedEntropy())
    g.factor(Multilinear(y["i"], g.parameter("W", "m n")["i j"], x["j"]))
    return g


@pytest.mark.parametrize(
    "register",
    [
        lambda g: parametrize.register_parametrization(g, "W", Halved()),
        lambda g: parametrizations.weight_norm(g, "W"),
        lambda g: parametrizations.spectral_norm(g, "W"),
    ],
    ids=["own", "weight norm", "spectral norm"],
)
def test_inference_and_training_use_the_parametrized_value(register):
    g, x = layer(), torch.randn(2, 4)
    register(g)
    g.eval()
    expected = torch.tanh(x @ g.W.T)
    assert torch.allclose(unn.infer(g, {"X": x}, order=["Y"])["Y"], expected)
    y = unn.Unrolled(g, "X", "Y", order=["Y"])(x)
    assert torch.allclose(y, expected)
    plain, values = layer(), {"X": x, "Y": torch.rand(2, 3)}
    plain.W.data.copy_(g.W)
    assert torch.allclose(g.energy(values), plain.energy(values))
    for way in (y, expected):
        g.zero_grad()
        way.square().sum().backward()
        gradients = [p.grad.clone() for p in g.parameters()]
        assert gradients and any(bool((grad != 0).any()) for grad in gradients)
        if way is y:
            own = gradients
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(own, gradients, strict=True))


@pytest.mark.parametrize(
    "replace",
    [
        lambda g: prune.l1_unstructured(g, "W", 0.5),
        pytest.param(
            lambda g: torch.nn.utils.spectral_norm(g, "W"),
            marks=pytest.mark.filterwarnings("ignore:.*spectral_norm.*"),
        ),
    ],
    ids=["prune", "old norm"],
)
def test_parameters_that_hooks_compute_are_refused_by_name(replace):
    g = layer()
    replace(g)
    with pytest.raises(unn.DeclarationError, match=says("'W'", "parametrize")):
        unn.infer(g, {"X": torch.randn(2, 4)}, order=["Y"])
