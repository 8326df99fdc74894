"""What the engine keeps between calls serves every later call, whatever grad mode it was made in."""

import pytest
import torch
from support.device_cases import CASES, Case, make
from torch.utils._pytree import tree_map_only

import unn
from factors import Multilinear


def hopfield() -> Case:
    g = unn.FactorGraph("hopfield", n=5)
    s = g.variable("s", "n", unn.SignedEntropy())
    W = g.parameter("W", "n m", init=0.5)
    g.factor(Multilinear(W["i j"], s["i"], s["j"], where="i != j"))
    seen = unn.Partial(torch.rand(2, 5), torch.tensor([True, False, False, True, False]).expand(2, 5))
    return Case(g.double(), {"s": unn.Partial(seen.value.double(), seen.mask)}, "s", ["s"])


def potts() -> Case:
    g = unn.FactorGraph("potts", row=3, column=4, state=3)
    s, f = (g.variable(name, "row column | state", unn.Entropy()) for name in "sf")
    T = g.parameter("T", "state other", init=0.6)
    g.factor(Multilinear(s["i j v"], T["v w"], s["i+1 j w"]))
    g.factor(Multilinear(s["i j v"], T["v w"], s["i j+1 w"]))
    g.factor(Multilinear(s["i j v"], f["i j v"]))
    return Case(g.double(), {"f": torch.rand(2, 3, 4, 3).softmax(3).double()}, "s", ["s"])


def self_coupled() -> Case:
    g = unn.FactorGraph("self", n=4)
    s, x = g.variable("s", "n", unn.SignedEntropy()), g.variable("x", "n", unn.SquaredNorm())
    g.factor(Multilinear(g.parameter("W", "n m", init=0.2)["i j"], s["i"], s["j"]))
    g.factor(Multilinear(s["i"], x["i"]))
    return Case(g.double(), {"x": torch.rand(2, 4).double()}, "s", ["s"])


MORE = {"hopfield": hopfield, "potts": potts, "self-coupled": self_coupled}


def build(name):
    if name not in MORE:
        return make(name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(2)
        return MORE[name]()


def gradients_of_infer(case):
    case.graph.zero_grad()
    out = case.infer()[case.want]
    (out * torch.linspace(-1, 1, out.numel()).to(out).reshape(out.shape)).sum().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in case.graph.named_parameters()
    }


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_gradients_of_infer_are_the_same_after_evaluation_in_inference_mode(name):
    expected, case = gradients_of_infer(build(name)), build(name)
    with torch.inference_mode():
        case.infer()
    torch.testing.assert_close(gradients_of_infer(case), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_gradients_of_a_network_are_the_same_after_its_evaluation_in_inference_mode(name):
    def gradients(evaluate_first):
        case = build(name)
        run = case.unrolled()
        if evaluate_first:
            with torch.inference_mode():
                run()
        out = run()
        (out * torch.linspace(-1, 1, out.numel()).to(out).reshape(out.shape)).sum().backward()
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad
            for name, p in case.graph.named_parameters()
        }

    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-12, atol=1e-12)


def test_nodes_of_a_block_made_in_inference_mode_serve_training():
    g = hopfield().graph
    with torch.inference_mode():
        first = torch.tensor([True, False, False, False, False])
        net_order = [unn.Block("s", first), unn.Block("s", torch.arange(5) == 1)]
    start = torch.rand(2, 5, dtype=torch.float64)
    out = unn.infer(g, {}, initial={"s": start}, order=net_order)
    out["s"].sum().backward()
    assert g.W.grad.abs().sum() > 0


def test_changing_the_nodes_of_a_block_afterwards_does_not_change_a_network():
    nodes = torch.tensor([True, False, True, False, True])
    case = make("mlp forward")
    net = unn.Unrolled(case.graph, "X", "Y", [unn.Block("H", nodes), "Y"])
    expected = net(case.given["X"])
    nodes.fill_(True)
    assert torch.equal(net(case.given["X"]), expected)


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_values_and_energies_are_the_same_in_inference_mode(name):
    expected = build(name).infer()
    case = build(name)
    with torch.inference_mode():
        case.given = tree_map_only(torch.Tensor, torch.clone, case.given)
        out = case.infer()
    for variable, x in expected.values.items():
        torch.testing.assert_close(out[variable], x.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out.energy, expected.energy, rtol=1e-9, atol=1e-9)
