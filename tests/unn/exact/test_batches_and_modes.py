"""Exact inference reads rows of constants, regularizers of single nodes, and tensors of inference mode."""

import itertools
import math

import pytest
import torch
from support.helpers import says

import unn
from factors import AllDifferent, Budget, Cardinality, MaskedEntropy, Multilinear, TreeEntropy
from unn.errors import ObservationError
from unn.exact import ExactOptions
from unn.exact.mixed_model import MixedModel


@pytest.mark.parametrize(("nodes", "states"), [(2, 2), (3, 3), (2, 3)])
def test_masks_of_single_nodes_forbid_their_states(nodes, states):
    generator = torch.Generator().manual_seed(nodes + states)
    allowed = torch.rand(nodes, states, generator=generator) < 0.6
    allowed[:, 0] = True
    allowed[0, 1] = False
    g = unn.FactorGraph("masked", n=nodes, k=states)
    v = g.variable("v", "n | k", MaskedEntropy(allowed=allowed))
    bias = torch.randn(nodes, states, generator=generator)
    g.factor(Multilinear(g.constant("b", "n k", bias)["n k"], v["n k"]))
    values = torch.stack([torch.eye(states)[list(x)] for x in itertools.product(range(states), repeat=nodes)])
    energies = g.energy({"v": values}).double()
    assert bool(energies.isinf().any())
    torch.testing.assert_close(unn.exact.log_partition(g), (-energies).logsumexp(0, keepdim=True))
    assert unn.exact.log_partition(g, semiring="count").exp().round().item() == int(energies.isfinite().sum())
    probabilities = (-energies).softmax(0)
    expected = (probabilities[:, None, None] * values.double()).sum(0)
    torch.testing.assert_close(unn.exact.marginals(g)["v"][0], expected)
    torch.testing.assert_close(unn.belief.marginals(g)["v"][0], expected)
    assert torch.equal(unn.exact.best_values(g)["v"][0].float(), values[energies.argmin()])
    drawn = unn.exact.sample(g, 50, generator=generator)["v"][0]
    assert not bool(drawn[:, ~allowed].any())


def chain(length):
    g = unn.FactorGraph("chain", state=2, time=length)
    s = g.variable("s", "time | state", unn.Entropy())
    g.factor(Multilinear(s["t i"], g.constant("T", "state next")["i j"], s["t+1 j"]))
    return g


@pytest.mark.parametrize("length", [1, 2])
def test_each_row_of_a_constant_is_a_query_also_without_terms(length):
    g, given = chain(length), {"T": torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0))}
    for batched in (
        unn.exact.log_partition(g, given),
        unn.exact.marginals(g, given)["s"],
        unn.exact.entropy(g, given),
        unn.exact.sample(g, 5, given)["s"],
        unn.belief.marginals(g, given)["s"],
    ):
        assert len(batched) == 3
    one = {"s": torch.eye(2)[torch.zeros(1, length, dtype=torch.long)]}
    assert unn.exact.log_partition(g, {**given, **one}).shape == (3,)
    two = {"s": torch.eye(2)[torch.zeros(2, length, dtype=torch.long)]}
    with pytest.raises(ObservationError, match=says("different batch sizes", "[2, 3]")):
        unn.exact.log_partition(g, {**given, **two})


def test_rows_of_a_constant_without_axes_are_energies_of_their_own():
    g = unn.FactorGraph("line", n=3)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Multilinear(g.constant("w", "")[""], x["i"], x["i+1"]))
    given = {"w": torch.tensor([0.1, 0.2]), "x": unn.Partial(torch.ones(2, 3), torch.eye(2, 3).bool())}
    means, _ = MixedModel(g, ExactOptions()).moments(given, 2, {})
    for k in range(2):
        alone = {
            "w": given["w"][k : k + 1],
            "x": unn.Partial(torch.ones(1, 3), torch.eye(2, 3).bool()[k : k + 1]),
        }
        torch.testing.assert_close(means["x"][k], unn.exact.gaussian_marginals(g, alone)["x"][0])


def test_constraints_without_groups_allow_everything():
    g = unn.FactorGraph("short", time=1, k=3)
    bit, category = g.variable("b", "time", unn.BinaryEntropy()), g.variable("c", "time | k", unn.Entropy())
    g.factor(Cardinality(bit["t+1"], each="t"))
    g.factor(AllDifferent(category["t+1 k"], each="t"))
    assert float(unn.exact.log_partition(g)) == pytest.approx(math.log(6))


@pytest.mark.parametrize(
    "mask",
    [torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 3), torch.tensor(True), torch.ones(2, 3).bool()],
)
def test_masks_that_do_not_fit_are_refused_of_continuous_variables_too(mask):
    g = unn.FactorGraph("line", n=3)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Multilinear(g.constant("w", "", torch.tensor(0.3))[""], x["i"], x["i+1"]))
    evidence = unn.Partial(torch.ones(1, 3), mask)
    with pytest.raises(ObservationError, match=says("'x'", "mask", "boolean", "(1, 3)")):
        unn.exact.gaussian_marginals(g, {"x": evidence})


def structured(regularizer, axes, **sizes):
    g = unn.FactorGraph("structured", **sizes)
    a = g.variable("A", axes, regularizer)
    letters = " ".join("ij"[: len(sizes)])
    g.factor(Multilinear(g.parameter("w", axes, init="ones")[letters], a[letters]))
    return g


def mixture():
    g = unn.FactorGraph("mixture", k=2)
    z, x = g.variable("z", "| k", unn.Entropy()), g.variable("x", "", unn.SquaredNorm())
    g.factor(Multilinear(g.constant("m", "k", torch.tensor([-2.0, 2.0]))["k"], z["k"], x[""]))
    return g


QUERIES = {
    "trees": lambda: unn.exact.marginals(structured(TreeEntropy(), "h m", h=3, m=3))["A"],
    "budgets": lambda: unn.exact.entropy(structured(Budget(2), "n", n=4)),
    "samples": lambda: unn.exact.sample(
        structured(Budget(2), "n", n=4), 3, generator=torch.Generator().manual_seed(0)
    )["A"],
    "mixed": lambda: unn.exact.mixed_marginals(mixture(), {"x": torch.tensor([0.5])})["z"],
    "Gaussian": lambda: unn.exact.gaussian_marginals(
        structured(unn.SquaredNorm(), "n", n=3), {"A": unn.Partial(torch.ones(1, 3), torch.eye(1, 3).bool())}
    )["A"],
}


@pytest.mark.parametrize("name", QUERIES)
def test_answers_in_inference_mode_are_the_same(name):
    expected = QUERIES[name]()
    with torch.inference_mode():
        torch.testing.assert_close(QUERIES[name](), expected)
