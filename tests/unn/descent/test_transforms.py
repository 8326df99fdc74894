"""Fixed points and their gradients under transforms of torch.func."""

import pytest
import torch
from support.helpers import says
from torch.func import functional_call, grad, jacrev, jvp, vmap

import unn
from factors import Multilinear, bounded_attention
from unn.errors import ConvergenceWarning, InferenceError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def layers(norm=0.4):
    """A strictly convex energy in float64, and evidence of three examples."""
    g = unn.FactorGraph("layers", x=4, a=4, b=3)
    x, a = g.variable("X", "x", unn.SquaredNorm()), g.variable("A", "a", unn.SignedEntropy())
    b = g.variable("B", "b", unn.Entropy())
    g.factor(Multilinear(x["x"], g.parameter("P", "x a")["x a"], a["a"]))
    g.factor(Multilinear(a["a"], g.parameter("Q", "a b")["a b"], b["b"]))
    g.double()
    with torch.no_grad():
        for p in g.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(), dtype=torch.float64))
            p.mul_(norm / torch.linalg.matrix_norm(p, 2))
    return g, torch.randn(3, 4, generator=seeded(1), dtype=torch.float64)


def network(g, solver="rounds", **options):
    implicit = unn.Implicit(1e-12, solver)
    return unn.Unrolled(g, "X", "B", order=["A", "B"], gradient=implicit, check_values=False, **options)


def objective(net):
    weights = torch.arange(1, 4)
    return lambda p, x: (functional_call(net, p, (x,)).sin() * weights).sum()


@pytest.mark.parametrize("solver", ["rounds", "anderson"])
def test_gradients_of_each_example_are_those_of_single_calls(solver):
    g, x = layers()
    net = network(g, solver)
    parameters = dict(net.named_parameters())
    each = vmap(grad(objective(net)), in_dims=(None, 0))(parameters, x[:, None])
    for k in range(len(x)):
        expected = torch.autograd.grad(objective(net)(parameters, x[k : k + 1]), list(parameters.values()))
        for ours, theirs in zip(each.values(), expected, strict=True):
            assert bool(theirs.any())
            torch.testing.assert_close(ours[k], theirs, atol=1e-9, rtol=1e-9)


def test_several_networks_at_once_equal_one_after_another_with_gradients():
    g, x = layers()
    net = network(g)
    stacked = {
        name: torch.stack([p.detach(), 0.6 * p.detach()]).requires_grad_()
        for name, p in net.named_parameters()
    }
    together = vmap(lambda p: functional_call(net, p, (x,)))(stacked)
    alone = torch.stack(
        [functional_call(net, {name: p[k] for name, p in stacked.items()}, (x,)) for k in range(2)]
    )
    torch.testing.assert_close(together, alone, atol=1e-10, rtol=0)
    ours, theirs = (torch.autograd.grad(out.sin().sum(), list(stacked.values())) for out in (together, alone))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_forward_derivatives_are_differences_and_second_ones_those_of_two_backward_passes():
    g, x = layers()
    net = network(g)
    direction = torch.randn(x.shape, generator=seeded(2), dtype=torch.float64)
    _, tangent = jvp(net, (x,), (direction,))
    step = 1e-6
    difference = (net(x + step * direction) - net(x - step * direction)) / (2 * step)
    torch.testing.assert_close(tangent, difference, atol=1e-8, rtol=1e-6)

    def loss(row):
        return (net(row[None]).square() * torch.arange(1, 4)).sum()

    ours = jacrev(jacrev(loss))(x[0])
    leaf = x[0].clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    theirs = torch.stack([torch.autograd.grad(entry, leaf, retain_graph=True)[0] for entry in first])
    assert bool((theirs.abs() > 1e-4).any())
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-7)


def test_attention_at_its_fixed_point_is_mapped():
    g = unn.FactorGraph("attention", d=4)
    x = g.variable("X", "n d", unn.SquaredNorm())
    declared = bounded_attention(g, x, heads=2)
    g.double()
    order = [*declared.order, "X"]
    net = unn.Unrolled(g, ["X"], "X", order, 1000, gradient=unn.Implicit(1e-5), check_values=False)
    known = (torch.arange(5) != 2)[None, :, None].expand(2, 5, 4)
    several = torch.randn(3, 2, 5, 4, generator=seeded(), dtype=torch.float64)
    mapped = vmap(lambda words: net(unn.Partial(words, known)))(several)
    for words, ours in zip(several, mapped, strict=True):
        torch.testing.assert_close(ours, net(unn.Partial(words, known)), atol=1e-3, rtol=0)


def test_masks_of_coloured_variables_are_mapped():
    g = unn.FactorGraph("tags", d=3, label=4)
    words, tags = (
        g.variable("words", "n d", unn.SquaredNorm()),
        g.variable("tags", "n | label", unn.Entropy()),
    )
    g.factor(Multilinear(tags["i c"], g.parameter("E", "label d")["c d"], words["i d"]))
    g.factor(Multilinear(tags["i a"], g.parameter("T", "label other")["a b"], tags["i+1 b"]))
    net = unn.Unrolled(
        g, ["words", "tags"], "tags", ["tags"], 2, initial={"tags": "uniform"}, check_values=False
    )
    x, known = torch.randn(5, 4, 3, generator=seeded()), torch.rand(5, 4, generator=seeded(1)) < 0.6
    labels = torch.eye(4)[torch.randint(4, (5, 4), generator=seeded())]
    mapped = vmap(lambda row, value, mask: net(row[None], unn.Partial(value[None], mask[None]))[0])
    torch.testing.assert_close(mapped(x, labels, known), net(x, unn.Partial(labels, known)))


def test_how_the_rounds_ended_can_be_read_afterwards():
    g, x = layers()
    net = network(g)
    vmap(lambda row: net(row[None]))(x)
    assert net.equilibrium.converged and net.equilibrium.change.shape == (3,)
    with pytest.warns(ConvergenceWarning, match=says("2 rounds", "Without the transform")):
        vmap(lambda row: network(g, iterations=2)(row[None]))(x)


def test_large_blocks_are_refused_under_transforms():
    g = unn.FactorGraph("wide", a=3000)
    x, a = g.variable("X", "a", unn.SquaredNorm()), g.variable("A", "a", unn.SignedEntropy())
    g.factor(Multilinear(g.parameter("w", "a", init=0.1)["i"], x["i"], a["i"]))
    net = unn.Unrolled(g, "X", "A", order=["A"], gradient=unn.Implicit(), check_values=False)
    with pytest.raises(InferenceError, match=says("3000", "2048", "Truncate")):
        grad(lambda x: net(x).sum())(torch.zeros(1, 3000))


@pytest.mark.parametrize("gradient", [unn.Unroll(), unn.Implicit(1e-12)], ids=str)
def test_the_first_call_of_a_network_of_blocks_may_be_under_a_transform(gradient):
    g = unn.FactorGraph("spins", n=4, x=3)
    s, X = g.variable("s", "n", unn.SignedEntropy()), g.variable("X", "x", unn.SignedEntropy())
    A = 0.3 * torch.randn(4, 4, generator=seeded())
    g.factor(Multilinear(s["i"], s["j"], g.parameter("A", "n m", init=A)["i j"], where="i < j"))
    g.factor(Multilinear(s["i"], g.parameter("W", "n x", init=torch.ones(4, 3))["i x"], X["x"]))
    g.double()
    x = torch.rand(2, 3, generator=seeded(1)).double()
    order = [unn.Block("s", torch.arange(4) == k) for k in (0, 2)]
    net = unn.Unrolled(g, "X", "s", order=order, gradient=gradient, iterations=60, check_values=False)
    parameters = dict(net.named_parameters())

    def loss(p, x):
        return functional_call(net, p, (x,)).sin().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(parameters, x[:, None])
    for k in range(2):
        expected = torch.autograd.grad(loss(parameters, x[k : k + 1]), list(parameters.values()))
        for ours, theirs in zip(each.values(), expected, strict=True):
            torch.testing.assert_close(ours[k], theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("gradient", [unn.Unroll(), unn.Implicit()], ids=["unroll", "implicit"])
def test_blocks_of_the_inner_solver_are_refused_under_vmap_by_name(gradient):
    g = unn.FactorGraph("hopfield", q=3, x=2)
    x, h = g.variable("X", "x", unn.SquaredNorm()), g.variable("H", "q", unn.SignedEntropy())
    g.factor(Multilinear(h["i"], g.parameter("W", "q x")["i j"], x["j"]))
    g.factor(Multilinear(h["i"], g.parameter("J", "q r", init=0.1)["i j"], h["j"]))
    net = unn.Unrolled(g, "X", "H", order=["H"], check_values=False, gradient=gradient)

    def loss(parameters, x):
        return functional_call(net, parameters, (x[None],)).sum()

    parameters, examples = dict(net.named_parameters()), torch.randn(4, 2, generator=seeded(0))
    assert set(grad(loss)(parameters, examples[0])) == set(parameters)
    for of in (grad(loss), loss):
        with pytest.raises(unn.InferenceError, match=r"minimum in H .*vmap"):
            vmap(of, in_dims=(None, 0))(parameters, examples)
