"""Markov chains and gradients at the fixed point on the GPU, as on the CPU."""

import copy

import torch

import unn
from factors import Multilinear
from unn.gibbs import GibbsModel, GibbsOptions, log_partition, marginals


def machine():
    torch.manual_seed(0)
    g = unn.FactorGraph("machine", n=4, k=3)
    x = g.variable("X", "n | k", unn.Entropy())
    s = g.variable("S", "n", unn.SignedEntropy())
    r = g.variable("R", "n", unn.NonNegative())
    g.factor(Multilinear(x["i a"], g.parameter("W", "n k k")["i a b"], x["i+1 b"]))
    g.factor(Multilinear(x["i a"], g.parameter("V", "n k")["i a"], s["i"]))
    g.factor(Multilinear(s["i"], g.parameter("U", "n n", init=0.1)["i j"], r["j"]))
    return g


def test_means_and_log_partitions_agree_with_the_cpu(device):
    g = machine()
    mask = torch.tensor([[True, False, False, False]])
    part = unn.Partial(torch.eye(3)[[0, 1, 2, 0]][None], mask)
    on_gpu = unn.Partial(part.value.to(device), mask.to(device))
    options = GibbsOptions(chains=1000, burn_in=50, chain_draws=20)
    one = marginals(g, {"X": part}, options=options, generator=torch.Generator().manual_seed(0))
    moved = copy.deepcopy(g).to(device)
    other = marginals(moved, {"X": on_gpu}, options=options, generator=torch.Generator().manual_seed(1))
    for name in g.variables:
        torch.testing.assert_close(one[name], other[name].cpu(), atol=0.03, rtol=0)
    first = log_partition(g, options=options, steps=50, generator=torch.Generator().manual_seed(0))
    second = log_partition(moved, options=options, steps=50, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(first.value, second.value.cpu(), atol=0.1, rtol=0)


def test_chains_learn_on_the_gpu(device):
    model = GibbsModel(machine().to(device), GibbsOptions(chains=32))
    values = {"S": torch.ones(16, 4, device=device)}
    before = model.graph.V.detach().clone()
    model.loss(values, {}).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert torch.equal(before, model.graph.V.detach())


def test_gradients_at_the_fixed_point_are_those_of_the_cpu(device):
    torch.manual_seed(0)
    g = unn.FactorGraph("layers", x=4, a=4, b=3)
    x = g.variable("X", "x", unn.SquaredNorm())
    a, b = g.variable("A", "a", unn.SignedEntropy()), g.variable("B", "b", unn.Entropy())
    g.factor(Multilinear(x["x"], g.parameter("W", "x a")["x a"], a["a"]))
    g.factor(Multilinear(a["a"], g.parameter("V", "a b")["a b"], b["b"]))
    values, results = torch.randn(5, 4), []
    for where in ("cpu", device):
        graph = copy.deepcopy(g).to(where)
        network = unn.Unrolled(graph, "X", "B", ["A", "B"], gradient=unn.Implicit(1e-6, "anderson"))
        loss = network(values.to(where)).square().sum()
        results.append([x.cpu() for x in torch.autograd.grad(loss, list(graph.parameters()))])
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_cpu, on_gpu, rtol=1e-3, atol=1e-4)


def test_greedy_and_coloured_orders_run_on_the_gpu(device):
    g = machine().to(device)
    start = {"X": "uniform", "S": torch.zeros(2, 4, device=device), "R": "uniform"}
    for order in (unn.Greedy(["X", "S", "R"]), unn.Coloured(["X", "S", "R"])):
        out = unn.infer(g, {}, initial=start, order=order, iterations=5)
        assert bool((out.energy.diff(dim=0) <= 1e-4).all())
