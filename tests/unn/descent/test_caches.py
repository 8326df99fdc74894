"""What is kept for sizes seen before is bounded."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import unn
from factors import Multilinear
from unn.descent.plan import Plan
from unn.descent.recent import Recent


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


@given(keys=st.lists(st.integers(0, 9)), size=st.integers(1, 5))
def test_a_cache_returns_what_was_made_and_drops_the_least_recently_used(keys, size):
    cache, recent, made = Recent(size), [], []
    for key in keys:
        assert cache.get(key, lambda key=key: made.append(key) or str(key)) == str(key)
        if key not in recent:
            assert made[-1] == key
        recent = [*(other for other in recent if other != key), key][-size:]
        assert len(cache) == len(recent)
    assert len(made) >= len(set(keys))
