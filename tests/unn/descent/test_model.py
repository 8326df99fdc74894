"""Coordinate descent as a model: what it learns, its loss, queries in batches."""

import pytest
import torch

import unn
from factors import Multilinear


def test_a_descent_model_learns_each_direction_of_a_linear_map():
    from unn.extending import DescentOptions

    torch.manual_seed(0)
    g = unn.FactorGraph("line", n=2, m=2)
    x, y = g.variable("x", "n", unn.SquaredNorm()), g.variable("y", "m", unn.SquaredNorm())
    W = g.parameter("W", "m n")
    g.factor(Multilinear(y["i"], W["i j"], x["j"]))
    # a rotation is the inverse of its transpose, so that both directions have the same weights
    angle = torch.tensor(0.7)
    R = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    data = torch.randn(256, 2)
    values = {"x": data, "y": data @ R.T}
    model = unn.DescentModel(g, DescentOptions(iterations=1))

    def loss(model, batch):
        every = torch.ones(1, 1, dtype=torch.bool)
        return model.loss(batch, {"x": every}) + model.loss(batch, {"y": every})

    unn.fit(model, values, steps=300, rate=0.05, loss=loss)
    torch.testing.assert_close(g.W.detach(), R, atol=0.02, rtol=0)
    forward = model.infer_values({"x": data}, 256, {})["y"]
    reverse = model.infer_values({"y": values["y"]}, 256, {})["x"]
    torch.testing.assert_close(forward, values["y"], atol=0.1, rtol=0)
    torch.testing.assert_close(reverse, data, atol=0.1, rtol=0)


@pytest.mark.parametrize("observed", ["nothing", "some", "all"])
def test_the_loss_of_a_descent_model_is_the_fenchel_young_loss_of_what_is_not_observed(observed):
    from unn.extending import DescentOptions

    torch.manual_seed(1)
    g = unn.FactorGraph("mlp", pixel=4, hidden=5, label=3)
    X = g.variable("X", "pixel", unn.SignedEntropy())
    H = g.variable("H", "hidden", unn.SignedEntropy())
    Y = g.variable("Y", "label", unn.Entropy())
    g.factor(Multilinear(H["h"], g.parameter("W", "hidden pixel")["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], g.parameter("V", "label hidden")["c h"], H["h"]))
    model = unn.DescentModel(g, DescentOptions(iterations=2))
    labels = torch.eye(3)[[0, 2, 1]]
    values = {"X": torch.rand(3, 4) * 2 - 1, "Y": labels}
    every = torch.ones(1, 4, dtype=torch.bool)
    if observed == "all":
        assert model.loss(values, {"X": every, "Y": torch.ones(1, dtype=torch.bool)}).item() == 0
        return
    if observed == "nothing":
        loss = model.loss(values, {"X": every})
        scores = model.unrolled(["X"], [], ["Y"]).preactivations(values["X"])[0]
        torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(scores, labels.argmax(1)))
        return
    mask = torch.tensor([[True, False, True, True]]).expand(3, 4)
    loss = model.loss(values, {"X": mask, "Y": torch.ones(1, dtype=torch.bool)})
    network = model.unrolled(["Y"], ["X"], [])
    (scores,) = network.preactivations(labels, unn.Partial(values["X"], mask))
    expected = unn.SignedEntropy().loss(scores[:, 1:2], values["X"][:, 1:2]).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert g.W.grad.abs().sum() > 0


def test_the_answer_of_a_descent_model_to_one_query_is_its_row_in_a_batch():
    from unn.extending import DescentOptions

    torch.manual_seed(2)
    g = unn.FactorGraph("ring", n=6)
    X = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Multilinear(g.parameter("w", "", init="ones")[""], X["i"], X["i+1"]))
    model = unn.DescentModel(g, DescentOptions(iterations=3))
    x, mask = torch.rand(5, 6).round(), torch.rand(5, 6) < 0.5
    together = model.infer_values({"X": unn.Partial(x, mask)}, 5, {})["X"]
    for k in range(5):
        alone = model.infer_values({"X": unn.Partial(x[k : k + 1], mask[k : k + 1])}, 1, {})["X"]
        torch.testing.assert_close(alone[0], together[k])
    assert model.infer_values({}, 4, {})["X"].shape == (4, 6)
