"""What is kept for sizes seen before is bounded."""

import torch

import unn
from factors import Multilinear
from unn.descent.plan import Plan


def chain():
    g = unn.FactorGraph("chain")
    s, f = g.variable("s", "n", unn.SignedEntropy()), g.variable("f", "n", unn.SquaredNorm())
    g.factor(Multilinear(s["i"], s["i+1"], g.parameter("J", "", init=torch.tensor(0.5))[""]))
    g.factor(Multilinear(s["i"], f["i"]))
    return g


def test_many_sizes_keep_a_bounded_number_of_entries():
    g = chain()
    net = unn.Unrolled(g, "f", "s")
    first = torch.ones(1, 2)
    expected = net(first)
    with torch.no_grad():
        for size in range(2, 202):
            net(torch.ones(1, size))
            unn.infer(g, {"f": torch.ones(1, size)}, trace=False)
    assert len(net._live) <= 64 and len(Plan.of(g, ["f"])._colours) <= 64
    assert torch.equal(net(first), expected)
