"""Networks as programs of torch.export: the same results, saved and loaded, and states of earlier
versions."""

import io

import torch

import unn
from factors import Multilinear
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
