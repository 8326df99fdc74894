"""The engine recurrent serves graphs of categories and bits with constraints."""

import pytest
import torch

import unn
from factors import AllDifferent, Cardinality, Different
from unn.recurrent.engine import RecurrentEngine
from unn.recurrent.options import RecurrentOptions
from unn.testing import EngineContract


class TestRecurrent(EngineContract):
    def engine(self):
        return RecurrentEngine()

    def graph(self):
        g = unn.FactorGraph("both", node=3, colour=3)
        X = g.variable("X", "node | colour", unn.Entropy())
        b = g.variable("b", "node", unn.BinaryEntropy())
        g.factor(AllDifferent(X["n c"], each=""))
        g.factor(Cardinality(b["n"], each="", equals=1))
        return g

    def examples(self, generator):
        colours = torch.rand(8, 3, generator=generator).argsort(1)
        bits = torch.randint(3, (8,), generator=generator)
        return {"X": torch.eye(3)[colours], "b": torch.eye(3)[bits]}

    def given(self):
        return ("b",)


def test_real_numbers_and_graphs_without_constraints_are_refused_by_name():
    g = unn.FactorGraph("real", node=3)
    X = g.variable("X", "node", unn.SquaredNorm())
    g.factor(Different(X["i"], X["i+1"]))
    assert "'X'" in RecurrentEngine().refusal(g)
    h = unn.FactorGraph("free", node=3, colour=2)
    h.variable("Y", "node | colour", unn.Entropy())
    assert "no constraints" in RecurrentEngine().refusal(h)


def test_weights_of_one_size_are_refused_for_another():
    g = unn.FactorGraph("bits")
    b = g.variable("b", "node", unn.BinaryEntropy())
    g.factor(Cardinality(b["i"], each="", equals=1))
    options = RecurrentOptions(width=8, heads=2, recurrences=2, dropout=0.0)
    model = RecurrentEngine().build(g, options, {"node": 3})
    loss = model.loss({"b": torch.tensor([[1.0, 0.0, 0.0]])}, {"b": torch.zeros(1, 3).bool()}, node=3)
    assert bool(loss.isfinite())
    with pytest.raises(unn.DeclarationError, match="node=3"):
        model.loss({"b": torch.zeros(1, 4)}, {}, node=4)
