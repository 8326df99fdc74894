"""Results belong to the caller: changing one changes no input, no other result, and no later call."""

import pytest
import torch
from support.device_cases import CASES, Case, make
from torch.utils._pytree import tree_leaves

import unn
from factors import Multilinear
from unn.descent.orders import as_order


def copying() -> Case:
    """Identity messages and activations: values are what was given, several times over."""
    g = unn.FactorGraph("copy", n=3)
    X, Y, Z, B = (g.variable(name, "n", unn.SquaredNorm()) for name in "XYZB")
    g.factor(Multilinear(X["i"], Y["i"]))
    g.factor(Multilinear(Y["i"], Z["i"]))
    g.factor(Multilinear(B["i"], g.parameter("b", "n", init=torch.rand(3))["i"]))
    return Case(g.double(), {"X": torch.rand(2, 3).double()}, "Z", ["Y", "Z", "B"])


def masked() -> Case:
    """A message that is a condition of its factor alone."""
    g = unn.FactorGraph("masked", n=3)
    A, X = g.variable("A", "n m", unn.SquaredNorm()), g.variable("X", "n m", unn.SquaredNorm())
    g.factor(Multilinear(A["i j"], where="i < j"))
    g.factor(Multilinear(A["i j"], X["i j"], g.parameter("w", "", init=torch.tensor(0.0))[""]))
    g.factor(Multilinear(X["i j"], where="i < j"))
    return Case(g.double(), {"A": torch.rand(2, 3, 3).double()}, "X", ["X"])


def held() -> Case:
    case = copying()
    case.order, case.want = ["Y"], "Y"
    case.initial = {"Z": torch.rand(2, 3).double(), "B": torch.rand(2, 3).double()}
    return case


MORE = {"copying": copying, "masked": masked, "held": held}


def build(name):
    return MORE[name]() if name in MORE else make(name)


def inputs(case):
    """All tensors that belong to the caller."""
    parts = [[x.value, x.mask] if isinstance(x, unn.Partial) else x for x in case.given.values()]
    blocks = (
        [item.nodes for item in case.order if isinstance(item, unn.Block)]
        if isinstance(case.order, list)
        else []
    )
    owned = [parts, case.initial, case.lengths, case.dropout, blocks, list(case.graph.state_dict().values())]
    return [x for x in tree_leaves(owned) if isinstance(x, torch.Tensor)]


def outputs(out):
    return [*out.values.values(), *out.preactivations.values(), out.energy, *(out.terms or {}).values()]


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_changing_a_result_changes_nothing_else(name):
    case = build(name)
    with torch.no_grad():
        expected = outputs(case.infer())
        out = outputs(case.infer())
        before = [x.clone() for x in inputs(case)]
        for k, x in enumerate(out):
            others = [other.clone() for j, other in enumerate(out) if j != k]
            x.fill_(7.0)
            assert all(map(torch.equal, others, [other for j, other in enumerate(out) if j != k]))
        assert all(map(torch.equal, before, inputs(case)))
        assert all(torch.equal(a, b) for a, b in zip(outputs(case.infer()), expected, strict=True))


@pytest.mark.parametrize("name", [*CASES, *MORE])
@pytest.mark.parametrize("which", ["forward", "preactivations"])
def test_changing_what_a_network_returns_changes_nothing_else(name, which):
    case = build(name)
    # B of the copying graph meets nothing that is given
    names = [n for n in case.graph.variables if n in as_order(case.order).names and n != "B"]
    net = unn.Unrolled(case.graph, list(case.given), names, case.order, 2, case.initial or None)
    call = getattr(net.eval(), which)
    with torch.no_grad():
        expected = call(*case.given.values(), lengths=case.lengths or None)
        out = call(*case.given.values(), lengths=case.lengths or None)
        before = [x.clone() for x in inputs(case)]
        for k, x in enumerate(out):
            others = [other.clone() for other in out[k + 1 :]]
            x.fill_(7.0)
            assert all(map(torch.equal, others, out[k + 1 :]))
        assert all(map(torch.equal, before, inputs(case)))
        again = call(*case.given.values(), lengths=case.lengths or None)
        assert all(map(torch.equal, again, expected))


def test_gradients_flow_through_copied_results():
    case = copying()
    x = case.given["X"].requires_grad_()
    out = unn.infer(case.graph, {"X": x}, order=["Y", "Z", "B"])
    (out["X"].sum() + 2 * out["Y"].sum() + out["B"].sum()).backward()
    assert x.grad.eq(3.0).all() and case.graph.b.grad.eq(2.0).all()
