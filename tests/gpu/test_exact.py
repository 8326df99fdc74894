"""Exact inference about tables on the GPU gives the answers of the CPU, and answers where the graph is."""

import copy

import pytest
import torch

import unn
from factors import Multilinear

GIVEN = torch.eye(3, 25).bool().view(3, 5, 5) | (torch.arange(25).view(5, 5) % 4 == 1)


def grid():
    g = unn.FactorGraph("grid", row=5, col=5)
    x = g.variable("x", "row col", unn.SignedEntropy())
    down, right = g.parameter("down", "row col"), g.parameter("right", "row col")
    g.factor(Multilinear(down["r c"], x["r c"], x["r+1 c"]))
    g.factor(Multilinear(right["r c"], x["r c"], x["r c+1"]))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in (g.down, g.right):
            weight.copy_(torch.randn(5, 5, generator=generator))
    return g


def evidence(device):
    spins = torch.sign(torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(1)))
    return {"x": unn.Partial(spins.to(device), GIVEN.to(device))}


@pytest.mark.parametrize("name", ["marginals", "best_values", "entropy"])
def test_answers_are_those_of_the_cpu_on_the_device_of_the_graph(name, device):
    graph = grid()
    query = getattr(unn.exact, name)
    expected, ours = query(graph, evidence("cpu")), query(copy.deepcopy(graph).to(device), evidence(device))
    if name != "entropy":
        expected, ours = expected["x"], ours["x"]
    assert ours.device == device
    torch.testing.assert_close(ours.cpu(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("semiring", ["sum", "log", "max", "count"])
def test_log_partitions_and_their_gradients_are_those_of_the_cpu(semiring, device):
    results = []
    for graph, place in ((grid(), "cpu"), (grid().to(device), device)):
        total = unn.exact.log_partition(graph, evidence(place), semiring=semiring)
        gradients = torch.autograd.grad(total.sum(), [graph.down, graph.right]) if semiring != "count" else ()
        results.append([x.detach().cpu().double() for x in (total, *gradients)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_samples_of_a_seed_are_those_of_the_cpu(device):
    graph = grid()
    samples = [
        unn.exact.sample(own, 20, evidence(place), generator=torch.Generator().manual_seed(0))["x"]
        for own, place in ((graph, "cpu"), (copy.deepcopy(graph).to(device), device))
    ]
    assert samples[1].device == device
    torch.testing.assert_close(samples[1].cpu(), samples[0])
