"""Perception on the GPU: losses as on the CPU, answers from networks there."""

import copy

import torch

import unn
from factors import Cardinality, Depends


def model():
    torch.manual_seed(0)
    g = unn.FactorGraph("seen", cell=4, value=4, y=8, x=8)
    X = g.variable("X", "cell | value", unn.Entropy())
    image = g.variable("image", "cell | y x", unn.SquaredNorm())
    g.factor(Cardinality(X["c v"], each="v", equals=1))
    g.factor(Depends(image["c y x"], X["c v"]))
    return unn.Perception(g, unn.PerceptionOptions(filters=4, hidden=16, dropout=0.0, shift=0))


def examples(count=8):
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(count, 4, generator=generator).argsort(1)
    return {"X": torch.eye(4)[labels], "image": torch.randn(count, 4, 8, 8, generator=generator)}


def test_the_loss_and_its_gradients_are_those_of_the_cpu(device):
    one = model().train()
    other = copy.deepcopy(one).to(device)
    results = []
    for network, where in ((one, "cpu"), (other, device)):
        loss = network.loss({name: x.to(where) for name, x in examples().items()}, {})
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        results.append([loss.detach().cpu(), *(g.cpu() for g in gradients)])
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_cpu, on_gpu, rtol=1e-3, atol=1e-4)


def test_answers_are_those_of_the_cpu(device):
    one = model().eval()
    other = copy.deepcopy(one).to(device)
    images = {"image": examples()["image"]}
    on_cpu, on_gpu = (unn.solve(network, images) for network in (one, other))
    assert on_cpu.outcomes == on_gpu.outcomes == ("solved",) * 8
    assert (on_cpu["X"] == on_gpu["X"]).double().mean() > 0.9
