"""Exact answers under transforms of torch.func are those of autograd."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import unn
from factors import Multilinear
from unn.errors import InferenceError


def chain():
    torch.manual_seed(0)
    g = unn.FactorGraph("chain", day=4, state=3)
    s, h = g.variable("S", "day | state", unn.Entropy()), g.constant("H", "day state")
    g.factor(Multilinear(h["t i"], s["t i"]))
    g.factor(Multilinear(s["t i"], g.parameter("T", "state next", init=0.5)["i j"], s["t+1 j"]))
    return g.double()


def loop():
    torch.manual_seed(0)
    g = unn.FactorGraph("loop", node=4, state=3)
    s, h = g.variable("S", "node | state", unn.Entropy()), g.constant("H", "node state")
    g.index("one", "edge", torch.tensor([0, 1, 2, 3]), into="node")
    g.index("other", "edge", torch.tensor([1, 2, 3, 0]), into="node")
    g.factor(Multilinear(h["n v"], s["n v"]))
    g.factor(Multilinear(g.parameter("J", "edge", init=0.7)["e"], s["one[e] v"], s["other[e] v"]))
    return g.double()


# torch loops over the slopes where it has no rule for all of them at once
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("declare", [chain, loop])
def test_derivatives_of_the_log_partition_are_those_of_autograd_also_in_a_first_call(declare):
    x = torch.randn(4, 3, dtype=torch.float64)
    autograd, g = torch.autograd.functional, declare()
    marginals = unn.exact.marginals(g, {"H": x[None]})["S"][0]

    def total(g):
        return lambda u: unn.exact.log_partition(g, {"H": u[None]}).sum()

    first = declare()
    for _ in range(2):
        torch.testing.assert_close(grad(total(first))(x), marginals)
    # the plan that the transform made serves plain calls too
    torch.testing.assert_close(total(first)(x), total(g)(x))
    torch.testing.assert_close(unn.exact.marginals(first, {"H": x[None]})["S"][0], marginals)
    expected = autograd.hessian(total(g), x)
    torch.testing.assert_close(hessian(total(declare()))(x), expected)
    for jacobian in (jacrev, jacfwd):
        slopes = jacobian(lambda u: unn.exact.marginals(g, {"H": u[None]})["S"][0])(x)
        torch.testing.assert_close(slopes, expected)


def test_vmap_is_refused_with_what_to_do_instead():
    g = chain()
    with pytest.raises(InferenceError, match="batch axis"):
        vmap(lambda u: unn.exact.log_partition(g, {"H": u[None]}))(torch.randn(2, 4, 3))


def ring(nodes, states):
    torch.manual_seed(nodes)
    g = unn.FactorGraph("ring", node=nodes, state=states)
    s = g.variable("S", "node | state", unn.Entropy())
    g.factor(Multilinear(g.parameter("T", "state next", init=0.5)["i j"], s["n i"], s["n+1 j"]))
    return g.double()


def answers(g, generator):
    total = unn.exact.log_partition(g).sum()
    slope = torch.autograd.grad(total, list(g.parameters()))[0]
    draws = unn.exact.sample(g, 3, generator=generator)
    best = unn.exact.best_values(g)
    return total, slope, unn.exact.marginals(g)["S"], unn.exact.entropy(g), draws["S"], best["S"]


# torch's own compiler asks for it where it resumes
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_answers_in_compiled_code_are_the_same_for_graphs_of_several_sizes():
    torch._dynamo.reset()
    compiled = torch.compile(answers, backend="eager")
    for sizes in ((4, 2), (5, 3), (3, 4)):
        # made outside, since torch 2.10 compiles no code that makes generators
        same, other = (torch.Generator().manual_seed(0) for _ in range(2))
        torch.testing.assert_close(compiled(ring(*sizes), same), answers(ring(*sizes), other))
