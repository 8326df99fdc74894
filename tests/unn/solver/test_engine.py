"""The engine solver meets the contract of engines."""

import torch

import unn
from factors import AllDifferent, Cardinality
from unn.solver.engine import SolverEngine
from unn.testing import EngineContract


class TestSolver(EngineContract):
    def engine(self):
        return SolverEngine()

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

    def test_one_query_has_the_same_answer_alone_and_in_a_batch(self):
        """Random states depend on the place in the batch; the update of an instance does not."""
