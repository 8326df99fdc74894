"""A small task to train on: random inputs, labels of a hidden linear map, an unrolled network with
dropout."""

import time

import torch

import unn
from factors import Multilinear
from unn.training import Task, TensorExamples

SIZE, LABELS = 5, 3


def toy_network(seed=0, hidden=4, dropout=0.2, iterations=2):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        g = unn.FactorGraph("toy", pixel=SIZE, hidden=hidden, label=LABELS)
        X, H = g.variable("X", "pixel", unn.SquaredNorm()), g.variable("H", "hidden", unn.SignedEntropy())
        Y = g.variable("Y", "label", unn.Entropy())
        g.factor(Multilinear(H["h"], g.parameter("W", "hidden pixel")["h x"], X["x"]))
        g.factor(Multilinear(Y["c"], g.parameter("V", "label hidden")["c h"], H["h"]))
        return unn.Unrolled(
            g, "X", "Y", order=["H", "Y"], iterations=iterations, dropout={"H": dropout} if dropout else None
        )


class ToyTask(Task):
    """Classify; ``pause`` seconds in each loss leave time to be killed in."""

    monitor = "accuracy"
    larger_is_better = True

    def __init__(self, count=50, pause=0.0):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(count, SIZE, generator=generator)
        self.labels = (self.inputs @ torch.randn(SIZE, LABELS, generator=generator)).argmax(1)
        self.pause = pause
        self.facts = {"count": count}

    def examples(self):
        return TensorExamples(self.inputs, self.labels)

    def loss(self, network, batch):
        inputs, labels = batch
        if self.pause:
            time.sleep(self.pause)
        return torch.nn.functional.cross_entropy(network.preactivations(inputs), labels)

    def evaluate(self, network):
        return {"accuracy": float((network(self.inputs).argmax(1) == self.labels).double().mean())}


def without_times(entries):
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]


def tensors_of(network):
    from unn.runs import named_tensors

    return {name: x.detach().clone() for name, x in named_tensors(network).items()}


def same_tensors(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
