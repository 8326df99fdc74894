"""The networks of the paper, declared here and compared with reference values computed independently in
float64."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import unn
from factors import Conv2d, Multilinear

GOLDEN = Path(__file__).parents[2] / "golden"


def golden(name):
    arrays = np.load(GOLDEN / name, allow_pickle=False)
    return {key: torch.as_tensor(arrays[key]) for key in arrays.files if arrays[key].dtype.kind != "U"}


def close(ours, reference):
    torch.testing.assert_close(ours.detach(), reference, rtol=1e-12, atol=1e-12)


def energies_agree(ours, reference):
    """Where a block is still outside its domain both are +inf; elsewhere equal."""
    assert torch.equal(ours.isinf(), reference.isinf())
    close(ours[ours.isfinite()], reference[reference.isfinite()])


@pytest.fixture(scope="module")
def conv():
    z = golden("conv_unn.npz")
    g = unn.FactorGraph("digits", channel=1, row=28, column=28, label=10)
    X = g.variable("X", "channel row column", unn.SignedEntropy())
    H1 = g.variable("H1", "c1 r1 k1", unn.SignedEntropy())
    H2 = g.variable("H2", "c2 r2 k2", unn.SignedEntropy())
    Y = g.variable("Y", "label", unn.Entropy())
    W1 = g.parameter("W1", "c1 channel u1 v1", init=z["W1"])
    W2 = g.parameter("W2", "c2 c1 u2 v2", init=z["W2"])
    V = g.parameter("V", "label feature", init=z["V"])
    b1, b2, b = (g.parameter(n, a, init=z[n]) for n, a in (("b1", "c1"), ("b2", "c2"), ("b", "label")))
    g.factor(Conv2d(H1, W1, X, stride=2))
    g.factor(Conv2d(H2, W2, H1, stride=2))
    g.factor(Multilinear(Y["y"], V["y (c i j)"], H2["c i j"]))
    g.factor(Multilinear(b1["c"], H1["c i j"]))
    g.factor(Multilinear(b2["c"], H2["c i j"]))
    g.factor(Multilinear(b["y"], Y["y"]))
    return g, z


ORDERS = {
    "fw": (["H1", "H2", "Y"], ["H2", "H1", "X"]),
    "fb": (unn.ForwardBackward(["H1", "H2", "Y"]), unn.ForwardBackward(["H2", "H1", "X"])),
}


@pytest.mark.parametrize("order", ["fw", "fb"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_convolutional_network_classifies_as_the_reference(conv, order, k):
    g, z = conv
    out = unn.infer(g, {"X": z["X"]}, order=ORDERS[order][0], iterations=k)
    close(out.preactivations["Y"], z[f"{order}_k{k}_logits"])
    for name, key in (("Y", "y"), ("H1", "H1"), ("H2", "H2")):
        close(out[name], z[f"{order}_k{k}_{key}"])
    energies_agree(out.energy, z[f"{order}_k{k}_energy"])
    uniform = unn.infer(g, {"X": z["X"]}, order=ORDERS[order][0], iterations=k, initial={"Y": "uniform"})
    close(uniform.preactivations["Y"], z[f"{order}_k{k}_uniforminit_logits"])


@pytest.mark.parametrize("order", ["fw", "fb"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_convolutional_network_draws_as_the_reference(conv, order, k):
    g, z = conv
    y = torch.eye(10, dtype=torch.float64)[z["labels"]]
    out = unn.infer(g, {"Y": y}, order=ORDERS[order][1], iterations=k)
    close(out.preactivations["X"], z[f"gen_{order}_k{k}_Xpre"])
    for name in ("X", "H1", "H2"):
        close(out[name], z[f"gen_{order}_k{k}_{name}"])
    energies_agree(out.energy, z[f"gen_{order}_k{k}_energy"])


def test_joint_loss_and_its_gradients_equal_the_reference(conv):
    g, z = conv
    y = torch.eye(10, dtype=torch.float64)[z["labels"]]
    forward = unn.Unrolled(g, "X", "Y", order=ORDERS["fb"][0], iterations=2)
    reverse = unn.Unrolled(g, "Y", "X", order=ORDERS["fb"][1], iterations=2)
    loss_f = torch.nn.functional.cross_entropy(forward.preactivations(z["X"]), z["labels"])
    # the reference scores binarised pixels by sigmoid(t), as the authors' code does
    loss_b = torch.nn.functional.binary_cross_entropy_with_logits(
        reverse.preactivations(y), (z["X"] > 0).double()
    )
    close(loss_f, z["joint_fb_k2_loss_f"])
    close(loss_b, z["joint_fb_k2_loss_b"])
    g.zero_grad()
    (loss_f + 0.1 * loss_b).backward()
    for name in ("W1", "b1", "W2", "b2", "V", "b"):
        close(getattr(g, name).grad, z[f"joint_fb_k2_grad_{name}"])


def attention_graph(z, d=8):
    """Section 4 of the paper, from multilinear factors only."""
    g = unn.FactorGraph("attention", d=d)
    X = g.variable("X", "n d", unn.SquaredNorm())
    Q, K, V, H = (g.variable(name, "n e", unn.SquaredNorm()) for name in "QKVH")
    S = g.variable("S", "n m", unn.Entropy(temperature=math.sqrt(d)))
    P = g.constant("P", "n d")
    for variable in (Q, K, V):
        W = g.parameter(f"W_{variable.name}", "e d", init=z[f"W_{variable.name}"])
        g.factor(Multilinear(variable["n e"], W["e d"], X["n d"]))
        g.factor(Multilinear(variable["n e"], W["e d"], P["n d"]))
    g.factor(Multilinear(S["n m"], Q["n e"], K["m e"]))
    g.factor(Multilinear(H["n e"], S["n m"], V["m e"]))
    return g


ATTENTION = {
    "fb": (unn.ForwardBackward(["Q", "K", "V", "S", "H"], last="X"), (1, 2, 3)),
    "rnd0": (list("VSQHKX"), (1, 2)),
    "rnd1": (list("HKSVQX"), (1, 2)),
}


@pytest.mark.parametrize(("order", "k"), [(name, k) for name, (_, ks) in ATTENTION.items() for k in ks])
def test_undirected_attention_equals_the_reference(order, k):
    z = golden("attention_unn.npz")
    g = attention_graph(z)
    emb = z["emb"].clone().requires_grad_()
    padding = torch.arange(7) >= z["lengths"][:, None]
    missing = z["ids"] == 1
    x = torch.where((missing | padding)[..., None], 0, emb[z["ids"]])
    out = unn.infer(
        g,
        {"X": unn.Partial(x, ~missing), "P": z["PE"]},
        order=ATTENTION[order][0],
        iterations=k,
        lengths={"n": z["lengths"]},
    )
    for name in "QKVSHX":
        close(out[name], z[f"{order}_k{k}_{name}"])
    energies_agree(out.energy.T, z[f"{order}_k{k}_energy"])
    logits = out["X"][missing] @ emb.T
    close(logits, z[f"{order}_k{k}_logits"])
    if order == "fb":
        loss = torch.nn.functional.cross_entropy(logits, z["targets"])
        close(loss, z[f"fb_k{k}_loss"])
        loss.backward()
        close(emb.grad, z[f"fb_k{k}_grad_emb"])
        for name in ("W_Q", "W_K", "W_V"):
            close(getattr(g, name).grad, z[f"fb_k{k}_grad_{name}"])


def test_every_single_attention_update_equals_the_reference():
    z = golden("attention_unn.npz")
    g = attention_graph(z)
    padding = torch.arange(7) >= z["lengths"][:, None]
    missing = z["ids"] == 1
    x = torch.where((missing | padding)[..., None], 0, z["emb"][z["ids"]])
    names = ["Q", "K", "V", "S", "H", "S", "V", "K", "Q", "X"]
    for step, name in enumerate(names):
        held = {other: "zero" for other in "QKVSHX" if other not in names[: step + 1]}
        out = unn.infer(
            g,
            {"X": unn.Partial(x, ~missing), "P": z["PE"]},
            order=names[: step + 1],
            initial=held,
            lengths={"n": z["lengths"]},
        )
        close(out[name], z[f"fb_k1_step{step}_{name}"])


def test_the_printed_update_of_s_in_the_paper_is_not_ours():
    """Errata 1: V H^T in equation 14 should be H V^T; the reference holds the erroneous values for
    contrast."""
    z = golden("attention_unn.npz")
    assert (z["paperS_k1_S"] - z["fb_k1_S"]).abs().max() > 1e-3


def test_one_pass_of_an_undirected_mlp_is_a_standard_mlp():
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(
        torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3), torch.nn.Softmax(-1)
    )
    g = unn.FactorGraph("mlp", pixel=20, hidden=16, label=3)
    X = g.variable("X", "pixel", unn.SquaredNorm())
    H = g.variable("H", "hidden", unn.NonNegative())
    Y = g.variable("Y", "label", unn.Entropy())
    W = g.parameter("W", "hidden pixel", init=mlp[0].weight)
    V = g.parameter("V", "label hidden", init=mlp[2].weight)
    b, c = g.parameter("b", "hidden", init=mlp[0].bias), g.parameter("c", "label", init=mlp[2].bias)
    g.factor(Multilinear(H["h"], W["h x"], X["x"]))
    g.factor(Multilinear(Y["y"], V["y h"], H["h"]))
    g.factor(Multilinear(b["h"], H["h"]))
    g.factor(Multilinear(c["y"], Y["y"]))
    x = torch.randn(5, 20)
    torch.testing.assert_close(unn.Unrolled(g, "X", "Y", order=["H", "Y"])(x), mlp(x), rtol=1e-6, atol=1e-7)


def test_one_pass_of_undirected_attention_is_scaled_dot_product_attention():
    torch.manual_seed(0)
    d, n = 8, 5
    weights = {f"W_{name}": torch.randn(d, d, dtype=torch.float64) / d**0.5 for name in "QKV"}
    g = attention_graph(weights)
    x, p = torch.randn(3, n, d, dtype=torch.float64), torch.zeros(n, d, dtype=torch.float64)
    out = unn.infer(g, {"X": x, "P": p}, order=["Q", "K", "V", "S", "H"], iterations=1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x @ weights[f"W_{name}"].T for name in "QKV")
    )
    torch.testing.assert_close(out["H"], expected, rtol=1e-12, atol=1e-12)
