"""Candidates and groups of a declaration."""

import pytest
import torch
from support.sudoku_graph import declare_sudoku

import unn
from factors import Cardinality, Different
from unn.solver.layout import Layout, refusal


def two_variables():
    g = unn.FactorGraph("two", node=3, colour=2)
    X = g.variable("X", "node | colour", unn.Entropy())
    b = g.variable("b", "node", unn.BinaryEntropy())
    g.factor(Cardinality(X["n c"], each="c", at_most=2, name="colours"))
    g.factor(Cardinality(b["n"], each="", at_least=1, name="some"))
    return g


def test_nodes_are_groups_of_exactly_one_and_bits_count_where_they_are_one():
    layout = Layout(two_variables(), {})
    names = {family.name: family for family in layout.families}
    assert layout.candidates == 3 * 2 + 3 * 2
    assert names["X"].entries.tolist() == [[0, 1], [2, 3], [4, 5]] and names["X"].bounds == (1, 1)
    assert names["b"].entries.tolist() == [[6, 7], [8, 9], [10, 11]]
    assert names["colours"].entries.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert names["some"].entries.tolist() == [[7, 9, 11]] and names["some"].bounds == (1, None)


def test_kinds_are_the_distinct_bounds_in_order_and_groups_are_numbered_by_them():
    layout = Layout(two_variables(), {})
    assert layout.kinds == [(0, 2), (1, 1), (1, None)]
    assert layout.kind.tolist() == sorted(layout.kind.tolist())
    assert layout.upper[layout.kind == 2].tolist() == [3]


def test_pairs_of_candidates_and_groups_are_the_members_of_the_families():
    layout = Layout(declare_sudoku(2, 2), {})
    members = [set(layout.candidate[layout.group == g].tolist()) for g in range(layout.groups)]
    declared = [set(row) for family in layout.families for row in family.entries.tolist()]
    assert sorted(map(sorted, members)) == sorted(map(sorted, declared))
    assert layout.candidate.tolist() == sorted(layout.candidate.tolist())
    for candidate in range(layout.candidates):
        node = layout.candidate[layout.group == layout.node[candidate]].tolist()
        assert candidate in node and len(node) == 4 and max(node) // 4 == min(node) // 4


def test_the_ends_of_edges_are_groups_of_at_most_one():
    g = unn.FactorGraph("path", node=3, colour=2, edge=2)
    g.index("one", "edge", [0, 1], into="node")
    g.index("other", "edge", [1, 2], into="node")
    X = g.variable("X", "node | colour", unn.Entropy())
    g.factor(Different(X["one[e] c"], X["other[e] c"], name="edges"))
    (edges,) = (family for family in Layout(g, {}).families if family.name == "edges")
    assert sorted(map(sorted, edges.entries.tolist())) == [[0, 2], [1, 3], [2, 4], [3, 5]]
    assert edges.bounds == (0, 1)


def test_a_group_is_described_by_its_constraint_and_members():
    layout = Layout(declare_sudoku(2, 2), {})
    text = layout.describe(int((layout.families_of == 1).nonzero()[0]))
    assert text.startswith("exactly 1 of 'rows': X[0, 0] = 0, X[0, 1] = 0")


def test_graphs_without_candidates_or_groups_are_refused_by_name():
    real = unn.FactorGraph("real", node=3)
    real.variable("x", "node", unn.SquaredNorm())
    assert "'x'" in refusal(real)
    free = unn.FactorGraph("free", node=3)
    free.variable("b", "node", unn.BinaryEntropy())
    assert refusal(free) == "the graph has no constraints"
    assert not refusal(two_variables())


def test_sizes_that_are_missing_are_an_error():
    g = unn.FactorGraph("sized")
    b = g.variable("b", "node", unn.BinaryEntropy())
    g.factor(Cardinality(b["n"], each="", equals=1))
    assert Layout(g, {"node": 4}).candidates == 8
    with pytest.raises(unn.DeclarationError, match="node"):
        Layout(g, {})


def test_incidence_matrices_sum_over_members():
    layout = Layout(two_variables(), {})
    x = torch.rand(layout.candidates, 2)
    expected = torch.stack([x[layout.candidate[layout.group == g]].sum(0) for g in range(layout.groups)])
    torch.testing.assert_close(layout.to_groups @ x, expected)
    torch.testing.assert_close(layout.members, torch.bincount(layout.group))
