"""Filtered trees: grammars, samples, and exact inference at every filtering, against golden values."""

from pathlib import Path

import numpy as np
import pytest
import torch

import unn
from problems.hierarchy.grammar import Grammar, draw_rules, draw_trees
from problems.hierarchy.graph import declare, level_name
from unn.errors import ArgumentError
from unn.exact import inference
from unn.exact.queries import tables_of

GOLDEN = Path(__file__).parents[2] / "golden" / "hierarchy"
BRUTE = sorted(path.name for path in GOLDEN.glob("brute_*.npz"))


def load(name):
    with np.load(GOLDEN / name) as content:
        return {key: content[key] for key in content.files}


def grammar_of(values):
    return Grammar(values["M"], values["p0"], int(values["l"]), int(values["k"]))


def evidence_of(values, grammar):
    leaves, mask = torch.from_numpy(values["leaves"]), torch.from_numpy(values["mask"])
    one_hot = torch.nn.functional.one_hot(leaves.clamp(0, grammar.symbols - 1), grammar.symbols).double()
    return {"leaf": unn.Partial(one_hot, ~mask)}


def node_marginals(answer, grammar):
    """Marginals of all nodes in the layout of the golden values, NaN where there is no node."""
    count = len(answer.log_partition)
    shape = count, grammar.levels + 1, grammar.leaves, grammar.symbols
    result = torch.full(shape, torch.nan, dtype=torch.float64)
    result[:, 0, 0] = answer["root"]
    for level in range(max(grammar.filtering, 1), grammar.levels + 1):
        result[:, level, : 2**level] = answer[level_name(level, grammar.levels)]
    return result.numpy()


@pytest.mark.parametrize("name", BRUTE)
def test_rules_marginals_counts_and_best_values_are_those_of_enumeration(name):
    values = load(name)
    grammar = grammar_of(values)
    if "p0" not in name:
        rules = draw_rules(grammar.symbols, float(values["sigma"]), int(values["seed"]))
        np.testing.assert_allclose(rules, values["M"], rtol=4e-15, atol=0)
    np.testing.assert_allclose(grammar.star(), values["P_star"], rtol=0, atol=1e-15)
    g, given = declare(grammar), evidence_of(values, grammar)
    answer = unn.exact.marginals(g, given)
    np.testing.assert_allclose(answer.log_partition, values["log_evidence"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(node_marginals(answer, grammar), values["node_marg"], rtol=0, atol=1e-12)
    best = unn.exact.best_values(g, given)
    np.testing.assert_allclose(-best.energy, values["map_logp"], rtol=0, atol=1e-12)
    # expected uses of each rule are sums of the marginals of the factors of all levels
    _, model, evidence = tables_of(g, given, None, None)
    beliefs = inference.table_marginals(model, evidence)
    counts = sum(
        (b.sum(0) for f, b in zip(model.families, beliefs, strict=True) if f.scopes.shape[1] == 3),
        start=torch.zeros(1, *grammar.rules.shape, dtype=torch.float64),
    )
    np.testing.assert_allclose(counts.expand(values["counts"].shape), values["counts"], rtol=0, atol=1e-11)


def test_marginals_of_the_published_implementation_are_met():
    values = load("ref_q4_l4_k2_s1.0_seed0.npz")
    grammar = grammar_of(values)
    answer = unn.exact.marginals(declare(grammar), evidence_of(values, grammar))
    possible = np.isfinite(values["ref_node_marg"]).any((1, 2, 3)) & (answer.log_partition > -np.inf).numpy()
    ours = node_marginals(answer, grammar)[possible]
    np.testing.assert_allclose(ours, values["ref_node_marg"][possible], rtol=0, atol=1e-12)


def test_evidence_of_probability_zero_has_log_partition_minus_infinity_and_no_nan():
    values = load("edge_zero_evidence.npz")
    grammar = grammar_of(values)
    answer = unn.exact.marginals(declare(grammar), evidence_of(values, grammar))
    assert answer.log_partition[0] == -torch.inf
    np.testing.assert_allclose(answer.log_partition[1:], values["log_evidence"][1:], rtol=0, atol=1e-12)
    assert not any(x.isnan().any() for x in answer.means.values())


@pytest.mark.parametrize("filtering", [0, 1, 2])
def test_samples_have_the_exact_distribution_of_the_leaves(filtering):
    """Frequencies of all sequences of four leaves against their probabilities."""
    grammar = Grammar(draw_rules(2, 1.0, 0), np.array([0.7, 0.3]), 2, filtering)
    g, count = declare(grammar), 40_000
    leaves = draw_trees(grammar, count, torch.Generator().manual_seed(0))[2]
    every = torch.cartesian_prod(*[torch.arange(2)] * 4)
    one_hot = torch.nn.functional.one_hot(every, 2).double()
    expected = count * unn.exact.log_partition(g, {"leaf": one_hot}).exp()
    counts = torch.bincount((leaves * torch.tensor([8, 4, 2, 1])).sum(1), minlength=16).double()
    assert float(expected.sum()) == pytest.approx(count)
    assert counts[expected == 0].sum() == 0
    often = expected > 5
    assert ((counts - expected).square() / expected)[often].sum() < 2 * often.sum() + 15


@pytest.mark.parametrize("filtering", [0, 2, 4])
def test_accuracies_of_exact_inference_are_the_published_ones(filtering):
    values = load("bp_accuracy_q4_l4.npz")
    grammar = Grammar(draw_rules(4, 1.0, 0), np.full(4, 0.25), 4, filtering)
    generator = torch.Generator().manual_seed(1)
    count = 4000
    trees = draw_trees(grammar, count, generator)
    g = declare(grammar)
    leaf = torch.nn.functional.one_hot(trees[4], 4).double()
    root = unn.exact.marginals(g, {"leaf": leaf})["root"].argmax(1)
    accuracy = float((root == trees[0][:, 0]).double().mean())
    assert accuracy == pytest.approx(values["root0"][filtering, filtering], abs=4 * 0.5 / count**0.5)
    hidden = torch.randint(16, (count,), generator=generator)
    mask = torch.arange(16) != hidden[:, None]
    p = unn.exact.marginals(g, {"leaf": unn.Partial(leaf, mask)})["leaf"][torch.arange(count), hidden]
    truth = trees[4][torch.arange(count), hidden]
    accuracy = float((p.argmax(1) == truth).double().mean())
    assert accuracy == pytest.approx(values["mlm0"][filtering, filtering], abs=4 * 0.5 / count**0.5)
    entropy = -float(p[torch.arange(count), truth].log().mean())
    assert entropy == pytest.approx(values["mlm_ce0"][filtering, filtering], abs=0.06)


@pytest.mark.parametrize(
    ("rules", "root", "levels", "filtering", "message"),
    [
        (np.ones((2, 2, 2)), np.full(2, 0.5), 2, 0, "rules must be probabilities"),
        (np.full((2, 2, 2), 0.25), np.array([0.5, 0.6]), 2, 0, "prior must be probabilities"),
        (np.full((2, 2, 2), 0.25), np.full(3, 1 / 3), 2, 0, "shape"),
        (np.full((2, 2, 2), 0.25), np.full(2, 0.5), 2, 3, "filtering lies between"),
        (np.full((2, 2, 2), 0.25), np.full(2, 0.5), 0, 0, "filtering lies between"),
    ],
)
def test_grammars_that_are_none_are_refused(rules, root, levels, filtering, message):
    with pytest.raises(ArgumentError, match=message):
        Grammar(rules, root, levels, filtering)
