"""Pairs of nodes whose values differ, where references reach only part of the categories."""

import itertools

import pytest
import torch

import unn
from factors import Different

ONE_HOT = torch.eye(3)


def pair(one: str, other: str) -> unn.FactorGraph:
    """Two nodes with one of three categories, of which the references reach some."""
    g = unn.FactorGraph("pair", n=2, v=3)
    X = g.variable("X", "n | v", unn.Entropy())
    g.index("kept", "w", [1, 2], into="v")
    g.index("s", "e", [0], into="n")
    g.index("t", "e", [1], into="n")
    g.factor(Different(X[one], X[other]))
    return g


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("s[e] v", "t[e] v", {(0, 0), (1, 1), (2, 2)}),
        ("s[e] kept[w]", "t[e] kept[w]", {(1, 1), (2, 2)}),
        ("s[e] v+1", "t[e] v+1", {(1, 1), (2, 2)}),
        ("s[e] v", "t[e] v+1", {(0, 1), (1, 2)}),
    ],
)
def test_only_the_categories_that_a_reference_reaches_differ_in_checks_losses_and_counts_alike(
    one, other, equal
):
    g = pair(one, other)
    (factor,) = g.constraints
    assignments = list(itertools.product(range(3), repeat=2))
    values = {"X": torch.stack([ONE_HOT[list(pair)] for pair in assignments])}
    wrong = torch.tensor([pair in equal for pair in assignments]).long()
    assert torch.equal(factor.violations_of(values), wrong)
    assert torch.equal(factor.part_losses(values).sum(1), wrong.float())
    assert round(float(unn.exact.log_partition(g).exp())) == 9 - len(equal)
    search = unn.Search(g, unn.SearchOptions(mode="depth-first"))
    solutions = unn.solve(search, {}, options=unn.SolvingOptions(count=100))
    assert len(solutions.answers[0]["X"]) == 9 - len(equal)


def test_undefined_values_of_reached_categories_are_violations():
    (factor,) = pair("s[e] kept[w]", "t[e] kept[w]").constraints
    x = ONE_HOT[[0, 0]][None].clone()
    x[0, 0, 1] = torch.nan
    assert factor.violations_of({"X": x}).tolist() == [1]
