"""Mini-buckets bound the log-partition from above, and are exact where nothing is split."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import AllDifferent, Multilinear
from unn.belief import BeliefOptions
from unn.belief.model import BeliefModel
from unn.errors import ArgumentError


def random_graph(seed: int, zeros: float = 0.0) -> unn.FactorGraph:
    """Six categories with random tables over pairs and triples, some of whose entries are impossible."""
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("random", node=6, state=3, pair=7, triple=3)
    s = g.variable("s", "node | state", unn.Entropy())

    def table(*shape: int) -> torch.Tensor:
        logs = torch.randn(*shape, generator=generator)
        return torch.where(torch.rand(*shape, generator=generator) < zeros, -1e30, logs)

    def ends(name: str, axis: str, count: int) -> unn.extending.Indices:
        return g.index(name, axis, torch.randint(6, (count,), generator=generator).tolist(), into="node")

    a, b, c = ends("a", "pair", 7), ends("b", "pair", 7), ends("c", "triple", 3)
    d, e = ends("d", "triple", 3), ends("e", "triple", 3)
    assert all((a, b, c, d, e))
    two, three = (
        g.constant("T", "pair state x", table(7, 3, 3)),
        g.constant("U", "triple state x y", table(3, 3, 3, 3)),
    )
    g.factor(Multilinear(two["p i j"], s["a[p] i"], s["b[p] j"]))
    g.factor(Multilinear(three["q i j k"], s["c[q] i"], s["d[q] j"], s["e[q] k"]))
    return g


def bound(g: unn.FactorGraph, entries: int, evidence=None):
    options = BeliefOptions(method="mini-bucket", entries=entries)
    return unn.belief.marginals(g, evidence, options=options)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([1, 9, 27, 81]), st.sampled_from([0.0, 0.2]))
def test_the_log_partition_is_bounded_from_above(seed, entries, zeros):
    g = random_graph(seed, zeros)
    exact = unn.exact.log_partition(g)
    answer = bound(g, entries)
    assert bool((answer.log_partition >= exact - 1e-9).all())
    possible = answer.log_partition > -torch.inf
    total = answer["s"].sum(-1)[possible]
    torch.testing.assert_close(total, torch.ones_like(total))
    assert not bool(answer["s"].isnan().any())


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.2]))
def test_log_partition_and_marginals_are_exact_where_nothing_is_split(seed, zeros):
    g = random_graph(seed, zeros)
    known = torch.tensor([[True, False, False, False, False, False]]).expand(2, -1)
    given_values = {"s": unn.Partial(torch.eye(3)[torch.tensor([[0] * 6, [2] * 6])], known)}
    for evidence in (None, given_values):
        exact = unn.exact.marginals(g, evidence)
        answer = bound(g, 3**6, evidence)
        torch.testing.assert_close(answer.log_partition, exact.log_partition)
        torch.testing.assert_close(answer["s"], exact["s"], atol=1e-8, rtol=0)


@pytest.mark.slow
def test_more_entries_give_a_tighter_bound_on_average():
    gaps = []
    for entries in (1, 27, 243):
        graphs = [random_graph(seed) for seed in range(10)]
        own = [float(bound(g, entries).log_partition - unn.exact.log_partition(g)) for g in graphs]
        gaps.append(sum(own) / len(own))
    assert gaps[0] > gaps[1] > gaps[2] >= -1e-9


def test_constraints_that_contradict_one_another_have_no_weight():
    g = unn.FactorGraph("order", node=3, place=2)
    x = g.variable("x", "node | place", unn.Entropy())
    g.factor(AllDifferent(x["n p"], each=""))
    answer = bound(g, 2**8)
    assert float(answer.log_partition) == -torch.inf
    assert not bool(answer["x"].isnan().any())


@pytest.mark.parametrize("entries", [0, 2.5])
def test_a_limit_that_is_no_number_of_entries_is_refused(entries):
    with pytest.raises(ArgumentError, match="entries"):
        BeliefOptions(method="mini-bucket", entries=entries).check("belief")


def test_the_bound_of_a_model_of_tables_is_that_of_its_declaration():
    g = random_graph(3)
    model = unn.exact.to_model_file(g).model
    for entries in (9, 81, 3**6):
        own = unn.belief.upper_bound(model, entries=entries)
        torch.testing.assert_close(own, bound(g, entries).log_partition)
    observed = unn.exact.TableEvidence.of(model, {0: 2})
    total = unn.exact.inference.log_partition(model, observed)
    torch.testing.assert_close(unn.belief.upper_bound(model, observed, entries=3**6), total)


def test_the_bound_has_the_gradient_of_the_log_partition_where_nothing_is_split():
    g = unn.FactorGraph("chain", spin=4)
    s = g.variable("s", "spin", unn.SignedEntropy())
    J = g.parameter("J", "", init=0.5)
    g.factor(Multilinear(J[""], s["i"], s["i+1"]))
    (ours,) = torch.autograd.grad(bound(g, 2**8).log_partition.sum(), g.J)
    (exact,) = torch.autograd.grad(unn.exact.log_partition(g).sum(), g.J)
    torch.testing.assert_close(ours, exact)


def test_the_gradient_of_a_split_bound_is_that_of_finite_differences():
    g = random_graph(1)
    model = unn.exact.to_model_file(g).model
    family = model.families[0]

    def value(logs):
        families = (replace(family, logs=logs), *model.families[1:])
        return unn.belief.upper_bound(replace(model, families=families), entries=9).sum()

    logs = family.logs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(logs), logs)
    direction = torch.randn(logs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = 1e-5
    change = (value(family.logs + step * direction) - value(family.logs - step * direction)) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), change, atol=1e-6, rtol=1e-6)


def test_max_product_does_not_train():
    model = BeliefModel(random_graph(0), BeliefOptions(method="max-product"))
    with pytest.raises(ArgumentError, match="no log-partition"):
        model.loss({"s": torch.eye(3)[torch.zeros(1, 6, dtype=torch.long)]}, {})
