"""Rounds to a fixed point and learning from phases on the GPU, as on the CPU."""

import copy

import pytest
import torch

import unn
from factors import Multilinear, associative_memory, bounded_attention


def attention():
    torch.manual_seed(0)
    g = unn.FactorGraph("words", d=16)
    X = g.variable("X", "n d", unn.SquaredNorm())
    declared = bounded_attention(g, X, heads=2)
    known = (torch.arange(9) % 4 != 1)[None, :, None].expand(6, 9, 16)
    return g, {"X": unn.Partial(torch.randn(6, 9, 16), known)}, (*declared.order, "X")


def memory():
    torch.manual_seed(0)
    g = unn.FactorGraph("memory", m=5, d=8)
    X = g.variable("X", "d", unn.SquaredNorm())
    patterns = torch.randn(5, 8)
    declared = associative_memory(g, X, g.constant("M", "m d", patterns), selection=unn.SubsetNorm(2, 0.5))
    known = (torch.arange(8) < 5).expand(6, 8)
    return g, {"X": unn.Partial(torch.randn(6, 8), known)}, declared.order


@pytest.mark.parametrize("make", [attention, memory])
@pytest.mark.parametrize("solver", ["rounds", "anderson"])
def test_batches_that_are_divided_end_where_they_do_on_the_cpu(device, make, solver):
    g, given, order = make()
    part = given["X"]
    moved = {"X": unn.Partial(part.value.to(device), part.mask.to(device))}
    options = {"order": order, "until": 1e-5, "iterations": 3000, "solver": solver}
    with torch.no_grad():
        ours = unn.infer(copy.deepcopy(g).to(device), moved, **options)
        other = unn.infer(g, given, **options)
    assert ours.converged and other.converged
    for name in g.variables:
        torch.testing.assert_close(ours[name].cpu(), other[name], rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", [unn.EquilibriumPropagation, unn.ContrastiveHebbian])
def test_losses_of_two_phases_have_the_gradients_of_the_cpu(device, kind):
    torch.manual_seed(0)
    g = unn.FactorGraph("layers", x=4, a=5, b=3)
    X, A, B = (g.variable(n, a, unn.SignedEntropy()) for n, a in (("X", "x"), ("A", "a"), ("B", "b")))
    g.factor(Multilinear(X["x"], g.parameter("W", "x a", init=0.3)["x a"], A["a"]))
    g.factor(Multilinear(A["a"], g.parameter("V", "a b", init=0.3)["a b"], B["b"]))
    values = {"X": torch.rand(6, 4) - 0.5, "B": torch.rand(6, 3) - 0.5}
    slopes = []
    for where in ("cpu", device):
        loss = kind(copy.deepcopy(g), "X", "B", until=1e-6).to(where)
        loss({name: x.to(where) for name, x in values.items()}).backward()
        slopes.append([p.grad.cpu() for p in loss.parameters()])
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-4)
