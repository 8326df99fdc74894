"""Losses agree with those written by hand and with enumeration."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.sudoku_graph import declare_sudoku

import unn
from factors import Among, Cardinality, Table
from unn.solver.layout import Layout
from unn.solver.losses import RowLosses, constraint_surprises, label_losses, preferences
from unn.solver.packing import pack
from unn.solver.propagation import Known


def packed(graph, batch=1):
    layout = Layout(graph, {})
    none = torch.zeros(batch, layout.candidates, dtype=torch.bool)
    return layout, pack(layout, Known(none, none.clone()))


def test_the_loss_of_labels_is_the_mean_cross_entropy_of_all_groups():
    layout, p = packed(declare_sudoku(2, 2))
    torch.manual_seed(0)
    grid = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])
    truth = torch.eye(4, dtype=torch.float64)[grid].flatten()
    scores = torch.randn(64, dtype=torch.float64, requires_grad=True)
    losses = []
    for family in layout.families:
        for members in family.entries:
            losses.append(F.cross_entropy(scores[members], truth[members].argmax()))
    torch.testing.assert_close(label_losses(scores, truth, p).mean(), torch.stack(losses).mean())
    assert torch.autograd.gradcheck(lambda s: label_losses(s, truth, p).mean(), (scores,))


@pytest.mark.parametrize("bounds", [(0, 1), (1, 1), (2, 2), (1, 2), (2, None), (0, 3)])
def test_the_surprise_of_a_count_is_that_of_enumerated_independent_nodes(bounds):
    lower, upper = bounds
    g = unn.FactorGraph("colours", node=3, colour=2)
    X = g.variable("X", "node | colour", unn.Entropy())
    g.factor(Cardinality(X["n c"], each="c", at_least=lower, at_most=upper, name="count"))
    _, p = packed(g)
    torch.manual_seed(1)
    scores = torch.randn(6, dtype=torch.float64, requires_grad=True)
    probability = scores.detach().view(3, 2).softmax(1)
    within = torch.zeros(2, dtype=torch.float64)
    for values in itertools.product(range(2), repeat=3):
        weight = torch.stack([probability[n, v] for n, v in enumerate(values)]).prod()
        for colour in range(2):
            count = values.count(colour)
            within[colour] += weight * (lower <= count <= (3 if upper is None else upper))
    expected = -(within + 1e-4).log().mean()
    torch.testing.assert_close(constraint_surprises(scores, p).mean(), expected)
    assert torch.autograd.gradcheck(lambda s: constraint_surprises(s, p).mean(), (scores,))


@pytest.mark.parametrize("losses_of", [lambda s, p: label_losses(s, s * 0 + 0.25, p), constraint_surprises])
def test_losses_of_rows_are_those_of_each_row_alone(losses_of):
    _, both = packed(declare_sudoku(2, 2), batch=2)
    _, alone = packed(declare_sudoku(2, 2))
    scores = torch.randn(2, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    by_row = [losses_of(row, alone).mean() for row in scores]
    losses = losses_of(scores.flatten(), both)
    torch.testing.assert_close(losses.by_row(), torch.stack(by_row))
    torch.testing.assert_close(losses.mean(), torch.stack(by_row).mean())
    torch.testing.assert_close(losses.mean(torch.tensor([0.0, 1.0])), by_row[1])


def test_rows_without_parts_have_no_loss():
    losses = RowLosses.of(torch.tensor([1.0, 3.0]), torch.tensor([0, 0]), 2)
    assert losses.by_row().tolist() == [2.0, 0.0]
    assert float(losses.mean()) == 2.0
    assert float(RowLosses(torch.zeros(2), torch.zeros(2)).mean()) == 0.0


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 1000))
def test_the_rows_of_an_example_share_its_weight_and_better_ones_have_more(examples, breadth, seed):
    losses = torch.randn(examples * breadth, generator=torch.Generator().manual_seed(seed)).double()
    weights = preferences(losses, breadth).view(examples, breadth)
    torch.testing.assert_close(weights.mean(1), torch.ones(examples).double())
    assert float(weights.min()) >= 0.1 - 1e-9
    order = losses.view(examples, breadth).argsort(1)
    assert bool((weights.gather(1, order).diff(dim=1) <= 0).all())


def test_both_losses_are_finite_for_extreme_scores():
    _, p = packed(declare_sudoku(2, 2))
    scores = torch.tensor([1e6, -1e6] * 32, dtype=torch.float64, requires_grad=True)
    truth = torch.eye(4, dtype=torch.float64).repeat(4, 1).flatten()
    for loss in (label_losses(scores, truth, p).mean(), constraint_surprises(scores, p).mean()):
        (gradient,) = torch.autograd.grad(loss, scores)
        assert bool(loss.isfinite()) and bool(gradient.isfinite().all())


def groups_by_node():
    g = unn.FactorGraph("pair", i=2, v=3)
    X = g.variable("X", "i | v", unn.Entropy())
    g.factor(Table(X["i v"], X["i+1 w"], allowed=[(0, 0), (1, 1), (1, 2), (2, 1), (2, 2)]))
    return g


def test_values_of_one_node_exclude_each_other_in_the_surprise_of_a_group():
    layout = Layout(groups_by_node(), {})
    none = torch.zeros(1, 6, dtype=torch.bool)
    packed = pack(layout, Known(none, none.clone()))
    scores = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = scores.view(2, 3).softmax(1)
    surprises = []
    for family in layout.families[1:]:
        lower, upper = family.bounds
        for members in family.entries.tolist():
            probability = 0.0
            for values in itertools.product(range(3), repeat=2):
                count = sum(members.count(3 * node + value) for node, value in enumerate(values))
                if lower <= count <= (len(members) if upper is None else upper):
                    probability += float(p[0, values[0]] * p[1, values[1]])
            surprises.append(-math.log(probability + 1e-4))
    expected = torch.tensor(surprises, dtype=torch.float64).mean()
    torch.testing.assert_close(constraint_surprises(scores, packed).mean(), expected)


@pytest.mark.parametrize("listed", [[0, 0, 1], [0, 0, 1, 1, 1], [0, 1, 4, 4], [0, 1, 1, 3, 4, 4, 5]])
@pytest.mark.parametrize("bounds", [(0, 1), (1, 2), (2, 2), (0, 3), (3, None)])
def test_candidates_that_occur_several_times_count_as_often_in_the_surprise_of_a_group(listed, bounds):
    # candidates 3 n + v of two nodes with three values
    lower, upper = bounds
    g = unn.FactorGraph("g", node=2, value=3)
    X = g.variable("X", "node | value", unn.Entropy())
    g.index("of", "listed", [c // 3 for c in listed], into="node")
    g.index("at", "listed", [c % 3 for c in listed], into="value")
    group = g.index("all", "listed", [0] * len(listed), into="one")
    g.factor(Among(X["of[e] at[e]"], group=[group], at_least=lower, at_most=upper))
    _, p = packed(g)
    scores = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    probability = scores.view(2, 3).softmax(1)
    within = torch.zeros((), dtype=torch.float64)
    for values in itertools.product(range(3), repeat=2):
        count = sum(listed.count(3 * node + value) for node, value in enumerate(values))
        if lower <= count and (upper is None or count <= upper):
            within += probability[0, values[0]] * probability[1, values[1]]
    torch.testing.assert_close(constraint_surprises(scores, p).mean(), -(within + 1e-4).log())
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: constraint_surprises(s, p).mean(), (scores,))
