"""Answers of models on another device to queries on the CPU, as training on an accelerator evaluates them."""

import copy

import pytest
import torch
from support.elsewhere import DEVICE, modules_elsewhere

import unn
from factors import Multilinear
from unn.belief.model import BeliefModel
from unn.belief.options import BeliefOptions
from unn.cli.measures import answer
from unn.descent.model import DescentModel
from unn.descent.options import DescentOptions
from unn.exact.model import ExactModel
from unn.exact.options import ExactOptions
from unn.extending import SamplingOptions


def graph(learned):
    g = unn.FactorGraph("pairs", node=4)
    x = g.variable("x", "node", unn.SignedEntropy())
    values = torch.tensor([0.5, -0.3, 0.2, 0.0])
    if learned:
        coupling = g.parameter("J", "node")
        with torch.no_grad():
            g.J.copy_(values)
    else:
        coupling = g.constant("J", "node", values)
    g.factor(Multilinear(coupling["i"], x["i"], x["i+1"]))
    return g


X = torch.tensor([[1.0, -1, 1, 1], [-1, -1, 1, -1], [1, 1, 1, -1]])
QUERIES = {
    "nothing": {},
    "everything": {"x": X},
    "some nodes": {"x": unn.Partial(X, torch.tensor([True, False, True, False]).expand(3, 4))},
    "different nodes": {"x": unn.Partial(X, torch.eye(3, 4).bool())},
    "some rows": {"x": unn.Partial(X, torch.tensor([[True] * 4, [False] * 4, [True, False, False, False]]))},
}


MODELS = {
    "descent": lambda g: DescentModel(g, DescentOptions()),
    "exact": lambda g: ExactModel(g, ExactOptions()),
    "belief": lambda g: BeliefModel(g, BeliefOptions()),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", MODELS)
@pytest.mark.parametrize("learned", [True, False], ids=["parameters", "constants"])
@pytest.mark.parametrize("query", QUERIES)
def test_answers_of_a_model_on_another_device_are_those_on_the_cpu(query, learned, engine):
    model = MODELS[engine](graph(learned))
    options = SamplingOptions(seed=0)
    expected, _ = answer(model, QUERIES[query], 3, options, {}, verify=False)
    with modules_elsewhere():
        there = copy.deepcopy(model).to(DEVICE)
        ours, _ = answer(there, QUERIES[query], 3, options, {}, verify=False)
        assert all(type(x) is torch.Tensor for x in ours.values())
    for variable, x in expected.items():
        torch.testing.assert_close(ours[variable], x)
