"""Propagation never contradicts a solution, and proves impossible only what is."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.sudoku_graph import declare_sudoku

import unn
from factors import Cardinality
from unn.solver.layout import Layout
from unn.solver.propagation import Known, branch, evidence, exclude, propagate, suppose


@st.composite
def graphs(draw):
    """Random counts over two categorical and two binary nodes."""
    g = unn.FactorGraph("random", node=2, value=3, bit=2)
    X = g.variable("X", "node | value", unn.Entropy())
    b = g.variable("b", "bit", unn.BinaryEntropy())
    for k, (reference, each, most) in enumerate([(X["n v"], "v", 2), (X["n v"], "n", 1), (b["k"], "", 2)]):
        if draw(st.booleans()):
            lower = draw(st.integers(0, most))
            upper = draw(st.integers(lower, most))
            g.factor(Cardinality(reference, each=each, at_least=lower, at_most=upper, name=f"count {k}"))
    g.factor(Cardinality(b["k"], each="", at_most=2, name="free"))
    return g


def assignments():
    """All values of the candidates: two nodes of three values, two bits."""
    for values in itertools.product(range(3), range(3), range(2), range(2)):
        truth = torch.zeros(10, dtype=torch.bool)
        for node, value in enumerate(values[:2]):
            truth[3 * node + value] = True
        for bit, value in enumerate(values[2:]):
            truth[6 + 2 * bit + value] = True
        yield truth


def meets(layout, truth):
    counts = torch.zeros(layout.groups, dtype=torch.long)
    counts.index_add_(0, layout.group, truth[layout.candidate].long())
    within = ((counts >= layout.lower) & (counts <= layout.upper)).all()
    return bool(within) and not bool((truth & layout.never).any())


@given(graph=graphs(), seed=st.integers(0, 999))
def test_what_is_known_holds_in_every_solution_and_impossible_means_none(graph, seed):
    layout = Layout(graph, {})
    generator = torch.Generator().manual_seed(seed)
    everything = list(assignments())
    truth = everything[int(torch.randint(len(everything), (1,), generator=generator))]
    nodes = torch.rand(1, layout.frame.nodes, generator=generator) < 0.4
    given_nodes = nodes[0, layout.frame.node_of_number]
    solutions = [x for x in everything if meets(layout, x) and bool((x == truth)[given_nodes].all())]
    first = evidence(layout, truth[None].float(), nodes)
    known, impossible = propagate(layout, first)
    if int(impossible[0]) >= 0:
        assert not solutions
        return
    for x in solutions:
        assert bool(x[known.true[0]].all()) and not bool(x[known.false[0]].any())
    excluded = exclude(layout, first)
    assert bool((known.false | ~excluded.false).all()) and torch.equal(excluded.true, first.true)


def test_each_instance_of_a_batch_is_propagated_alone():
    layout = Layout(declare_sudoku(2, 2), {})
    generator = torch.Generator().manual_seed(0)
    rows = torch.eye(4)[torch.randint(4, (12, 16), generator=generator)].flatten(1)
    nodes = torch.rand(12, 16, generator=generator) < 0.3
    known, impossible = propagate(layout, evidence(layout, rows, nodes))
    assert 0 < int((impossible >= 0).sum()) < 12
    for k in range(12):
        alone, group = propagate(layout, evidence(layout, rows[k : k + 1], nodes[k : k + 1]))
        assert int(group[0]) == int(impossible[k])
        assert torch.equal(alone.true[0], known.true[k]) and torch.equal(alone.false[0], known.false[k])


def test_singles_fill_an_easy_puzzle():
    layout = Layout(declare_sudoku(2, 2), {})
    grid = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])
    nodes = torch.ones(1, 16, dtype=torch.bool)
    nodes[0, [0, 5, 10, 15]] = False
    known, impossible = propagate(layout, evidence(layout, torch.eye(4)[grid].view(1, -1), nodes))
    assert int(impossible[0]) == -1 and not bool(known.open.any())
    assert torch.equal(known.true.view(16, 4).int().argmax(1), grid.flatten())


def test_rows_are_selected_by_indices_or_masks():
    known = Known(torch.eye(3).bool(), torch.zeros(3, 3).bool())
    for rows in (torch.tensor([2, 0]), torch.tensor([True, False, True])):
        assert torch.equal(known.select(rows).true, known.true[rows])


def test_what_a_count_of_zero_excludes_is_false_and_belongs_to_no_group():
    g = unn.FactorGraph("g", node=2, value=3)
    X = g.variable("X", "node | value", unn.Entropy())
    g.factor(Cardinality(X["n v"], each="v", at_most=1))
    g.index("of_node", "listed", [0, 1], into="node")
    g.index("of_value", "listed", [2, 1], into="value")
    g.factor(Cardinality(X["of_node[k] of_value[k]"], each="", equals=0, name="none"))
    layout = Layout(g, {})
    assert layout.never.nonzero()[:, 0].tolist() == [2, 4]
    assert (0, 0) not in layout.kinds
    known = evidence(layout, torch.zeros(1, 6), torch.zeros(1, 2, dtype=torch.bool))
    assert known.false[0].nonzero()[:, 0].tolist() == [2, 4]
    truth = torch.tensor([[0.0, 0, 1, 0, 0, 0]])
    _, impossible = propagate(layout, evidence(layout, truth, torch.tensor([[True, False]])))
    assert int(impossible) >= 0


@given(seed=st.integers(0, 2**16))
def test_a_supposition_adds_what_it_implies_and_keeps_a_solution_unless_it_is_wrong(seed):
    generator = torch.Generator().manual_seed(seed)
    layout = Layout(declare_sudoku(2, 2), {})
    grid = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])
    truth = torch.nn.functional.one_hot(grid, 4).bool().flatten()
    nodes = torch.rand(1, 16, generator=generator) < 0.2
    known, _ = propagate(layout, evidence(layout, truth[None].float(), nodes))
    marked = branch(layout, known, generator)
    later, refuted = suppose(layout, known, marked)
    assert not refuted.any()
    assert (later.true >= known.true).all() and (later.false >= known.false).all()
    assert ((later.true | later.false) >= marked).all() and not (later.true & later.false).any()
    wrong = bool((marked & ~truth).any())
    assert wrong or (later.true <= truth).all()


def test_rows_in_which_counting_refutes_a_candidate_and_its_exclusion_are_named():
    g = unn.FactorGraph("g", node=2, value=2)
    X = g.variable("X", "node | value", unn.Entropy())
    g.factor(Cardinality(X["n v"], each="v", equals=1, name="both differ"))
    g.index("of_node", "listed", [0, 1], into="node")
    g.index("of_value", "listed", [0, 0], into="value")
    g.factor(Cardinality(X["of_node[k] of_value[k]"], each="", equals=2, name="both are 0"))
    layout = Layout(g, {})
    none = torch.zeros(2, 4, dtype=torch.bool)
    chosen = none.clone()
    chosen[0, 0] = True
    _, refuted = suppose(layout, Known(none, none.clone()), chosen)
    assert refuted.all()
