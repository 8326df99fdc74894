"""Inference about tables and quadratic energies on another device gives the answers of the CPU."""

import copy

import pytest
import torch
from support.elsewhere import DEVICE, modules_elsewhere, values

import unn
from factors import Multilinear
from unn.belief.model import BeliefModel
from unn.belief.options import BeliefOptions
from unn.exact.mixed_model import MixedModel
from unn.exact.model import ExactModel
from unn.exact.options import ExactOptions

SPINS = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])


def chain():
    g = unn.FactorGraph("chain", node=3)
    x = g.variable("x", "node", unn.SignedEntropy())
    coupling = g.parameter("J", "node")
    g.factor(Multilinear(coupling["i"], x["i"], x["i+1"]))
    with torch.no_grad():
        g.J.copy_(torch.tensor([0.4, -0.7, 0.0]))
    return g


def mixture():
    g = unn.FactorGraph("mixture", k=2)
    z = g.variable("z", "k", unn.Entropy())
    x = g.variable("x", "", unn.SquaredNorm())
    mean = g.parameter("m", "k")
    g.factor(Multilinear(mean["k"], z["k"], x[""]))
    with torch.no_grad():
        g.m.copy_(torch.tensor([-1.0, 2.0]))
    return g


def learned(model, examples, observed, device):
    loss = model.loss(
        {name: x.to(device) for name, x in examples.items()},
        {name: x.to(device) for name, x in observed.items()},
    )
    return loss, *torch.autograd.grad(loss, list(model.parameters()))


MODELS = {
    "exact": (
        lambda: ExactModel(chain(), ExactOptions()),
        {"x": SPINS},
        {"x": torch.tensor([[True, False, True]])},
    ),
    "belief": (
        lambda: BeliefModel(chain(), BeliefOptions()),
        {"x": SPINS},
        {"x": torch.tensor([[True, False, True]])},
    ),
    "mixed": (
        lambda: MixedModel(mixture(), ExactOptions()),
        {"x": torch.tensor([0.5, -1.0])},
        {"x": torch.tensor([False])},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_the_cpu_and_on_the_device_of_the_parameters(name):
    make, examples, observed = MODELS[name]
    model = make()
    expected = learned(model, examples, observed, "cpu")
    with modules_elsewhere():
        there = copy.deepcopy(model).to(DEVICE)
        ours_there = learned(there, examples, observed, DEVICE)
        assert all(x.device == DEVICE for x in ours_there)
    for ours, theirs in zip(values(ours_there), expected, strict=True):
        torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.parametrize("name", MODELS)
def test_means_are_those_of_the_cpu_whatever_the_device_of_the_evidence(name):
    make, examples, observed = MODELS[name]
    model = make()
    (variable,) = examples
    partial = unn.Partial(examples[variable], observed[variable].expand(2, *observed[variable].shape[1:]))
    if name == "mixed":
        partial = examples[variable]
    expected = model.infer_values({variable: partial}, 2, {})
    with modules_elsewhere():
        there = copy.deepcopy(model).to(DEVICE)
        for device in ("cpu", DEVICE):
            given = (
                partial.to(device)
                if isinstance(partial, torch.Tensor)
                else unn.Partial(partial.value.to(device), partial.mask.to(device))
            )
            answer = there.infer_values({variable: given}, 2, {})
            for key, x in expected.items():
                torch.testing.assert_close(answer[key].cpu(), x)


def test_gaussian_queries_are_those_of_the_cpu():
    g = unn.FactorGraph("pair", n=2)
    x = g.variable("x", "n", unn.SquaredNorm())
    coupling = g.parameter("J", "n")
    g.factor(Multilinear(coupling["i"], x["i"], x["i+1"]))
    with torch.no_grad():
        g.J.fill_(0.8)
    given = unn.Partial(torch.tensor([[1.0, 0.0]]), torch.tensor([[True, False]]))
    expected = unn.exact.gaussian_marginals(g, {"x": given})["x"]
    with modules_elsewhere():
        there = copy.deepcopy(g).to(DEVICE)
        moved = unn.Partial(given.value.to(DEVICE), given.mask.to(DEVICE))
        torch.testing.assert_close(unn.exact.gaussian_marginals(there, {"x": moved})["x"], expected)
