"""Networks as programs of torch.export: the same results, saved and loaded, and states of earlier
versions."""

import copy
import io
import pickle

import pytest
import torch
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

import unn
from factors import Multilinear
from unn.errors import InferenceError
from unn.runs.weights import copy_weights, named_tensors


def mlp():
    torch.manual_seed(0)
    g = unn.FactorGraph("mlp", pixel=6, hidden=4, label=3)
    X, H, Y = (
        g.variable("X", "pixel", unn.SquaredNorm()),
        g.variable("H", "hidden", unn.SignedEntropy()),
        g.variable("Y", "label", unn.Entropy()),
    )
    W, V = g.parameter("W", "hidden pixel"), g.parameter("V", "label hidden")
    g.factor(Multilinear(H["h"], W["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], V["c h"], H["h"]))
    return g


def network():
    return unn.Unrolled(mlp(), "X", "Y", order=["H", "Y"], iterations=3)


# torch 2.10 warns of its own buffer where it loads
@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_an_exported_network_computes_the_same_also_after_saving_and_loading():
    net, x = network(), torch.randn(5, 6)
    program = torch.export.export(net, (x,))
    torch.testing.assert_close(program.module()(x), net(x))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    stream.seek(0)
    torch.testing.assert_close(torch.export.load(stream).module()(x), net(x))


def test_an_exported_network_takes_batches_of_any_size():
    net, x = network(), torch.randn(5, 6)
    program = torch.export.export(
        net, (x,), dynamic_shapes={"inputs": ({0: torch.export.Dim("batch", min=2)},)}
    )
    for size in (2, 9):
        inputs = torch.randn(size, 6)
        torch.testing.assert_close(program.module()(inputs), net(inputs))


def test_states_of_earlier_versions_load():
    net = network()
    inner = {f"graph.{name}": torch.randn_like(p) for name, p in net.graph.named_parameters()}
    net.load_state_dict(inner)
    assert all(torch.equal(p, inner[f"graph.{name}"]) for name, p in net.graph.named_parameters())
    outer = torch.nn.Sequential(network())
    outer.load_state_dict({f"0.{name}": p for name, p in inner.items()})
    assert torch.equal(outer[0].graph.W, net.graph.W)
    again = torch.nn.Sequential(network())
    copy_weights({f"0.{name}": p for name, p in inner.items()}, again, "an earlier run")
    assert torch.equal(again[0].graph.W, net.graph.W) and set(named_tensors(again)) == {
        "0.declaration.W",
        "0.declaration.V",
    }


def grid():
    """Neighbours in a grid interact, and so do the ends of edges: both are planned at the first call."""
    torch.manual_seed(0)
    g = unn.FactorGraph("grid", row=3, col=3, edge=2)
    s, h = g.variable("S", "row col", unn.SignedEntropy()), g.constant("H", "row col")
    g.factor(Multilinear(h["i j"], s["i j"]))
    g.factor(Multilinear(g.parameter("J", "", init=0.6)[""], s["i j"], s["i+1 j"]))
    return g


def edges():
    torch.manual_seed(0)
    g = unn.FactorGraph("edges", node=4, state=2)
    s, h = g.variable("S", "node | state", unn.Entropy()), g.constant("H", "node state")
    g.index("one", "edge", torch.tensor([0, 0, 1]), into="node")
    g.index("other", "edge", torch.tensor([1, 2, 3]), into="node")
    g.factor(Multilinear(h["n v"], s["n v"]))
    g.factor(Multilinear(g.parameter("J", "edge", init=1.0)["e"], s["one[e] v"], s["other[e] v"]))
    return g


FIRST_CALLS = {
    "export": lambda net, x: torch.export.export(net, (x,)).module()(x),
    "grad": lambda net, x: grad(lambda u: net(u).sum())(x),
    "jacrev": lambda net, x: jacrev(net)(x),
    "vmap": lambda net, x: vmap(lambda u: net(u[None])[0])(x),
}


def halves():
    """The grid in an order of two blocks of nodes without interaction."""
    odd = torch.arange(9).reshape(3, 3) // 3 % 2 == 1
    return [unn.Block("S", odd), unn.Block("S", ~odd)]


@pytest.mark.parametrize(
    ("declare", "order"), [(grid, ["S"]), (grid, halves()), (edges, ["S"])], ids=["grid", "blocks", "edges"]
)
@pytest.mark.parametrize("first", FIRST_CALLS)
def test_a_first_call_that_is_traced_or_transformed_leaves_plans_for_all_others(declare, order, first):
    options = {"order": order, "iterations": 2, "initial": {"S": "uniform"}}

    def network():
        return unn.Unrolled(declare(), "H", "S", check_values=False, **options)

    x = torch.randn(3, 3, 3) if declare is grid else torch.randn(3, 4, 2)
    net, planned = network(), network()
    expected = planned(x)
    torch.testing.assert_close(FIRST_CALLS[first](net, x), FIRST_CALLS[first](planned, x))
    # the plan, which is kept, held tensors of the export or of the transform
    assert type(net(x)) is torch.Tensor
    for again in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(again(x), expected)
    inferred = unn.infer(net.graph, {"H": x}, **options)
    torch.testing.assert_close(inferred["S"], expected)


def test_networks_stacked_by_vmap_say_that_values_cannot_be_checked():
    nets = [network(), network()]
    weights, buffers = stack_module_state(nets)
    x = torch.randn(5, 6)

    def together(net):
        return vmap(lambda p, b: functional_call(net, (p, b), (x,)))(weights, buffers)

    with pytest.raises(InferenceError, match="check_values=False"):
        together(nets[0])
    unchecked = unn.Unrolled(mlp(), "X", "Y", order=["H", "Y"], iterations=3, check_values=False)
    torch.testing.assert_close(together(unchecked), torch.stack([net(x) for net in nets]))
