"""The factor, the graph, and what it is trained on."""

from __future__ import annotations

import torch

import unn
from unn.training import Task, TensorExamples


class Gain(unn.EnergyFactor):
    """E = -<output, input exp(gain)>: a factor with an energy only; its message comes from autograd."""

    def energy(self, values):
        output, gain, source = (values[name] for name in self.operands)
        return -(output * source * gain.exp()).sum(1)

    def affine_in(self, target):
        return True


def declare(size):
    g = unn.FactorGraph("phases", n=size)
    source = g.variable("source", "n", unn.SquaredNorm())
    output = g.variable("output", "n", unn.SignedEntropy())
    gain = g.parameter("gain", "n", init="zeros")
    g.factor(Gain(output["i"], gain["i"], source["i"]))
    return g


def network(size):
    return unn.Unrolled(declare(size), given="source", want="output", order=["output"])


class PhasesTask(Task):
    monitor = "error"

    def __init__(self, size, count):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(count, size, generator=generator)
        self.outputs = torch.tanh(3 * self.inputs)

    def examples(self):
        return TensorExamples(self.inputs, self.outputs)

    def loss(self, network, batch):
        inputs, outputs = batch
        return (network(inputs) - outputs).square().mean()

    def evaluate(self, network):
        return {"error": float((network(self.inputs) - self.outputs).abs().max())}
