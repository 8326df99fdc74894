"""Tables of allowed combinations: against enumeration, and their contract."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.constraints import constraint_contract, one_hot_values, penalty_contract

import unn
from factors import Table
from unn.descent.plan import Plan
from unn.extending import SearchOptions
from unn.solver.layout import Layout
from unn.solver.propagation import Known, propagate

CYCLE = [(0, 1), (1, 2), (2, 0), (0, 0)]


def triples_graph(allowed):
    g = unn.FactorGraph("triples", i=2, a=2, b=3, c=2)
    names = {"A": "i | a", "B": "i | b", "C": "i | c"}
    A, B, C = (g.variable(name, axes, unn.Entropy()) for name, axes in names.items())
    g.factor(Table(A["i a"], B["i b"], C["i c"], allowed=allowed))
    return g


def chain_graph():
    g = unn.FactorGraph("chain", n=4, v=3)
    X = g.variable("X", "n | v", unn.Entropy())
    g.factor(Table(X["n v"], X["n+1 w"], allowed=CYCLE))
    return g


def chain_values(generator):
    chains = [
        x
        for x in itertools.product(range(3), repeat=4)
        if all(pair in CYCLE for pair in itertools.pairwise(x))
    ]
    chosen = torch.randint(len(chains), (5,), generator=generator)
    return {"X": one_hot_values(torch.tensor(chains)[chosen], 3)}


TRIPLES = [(0, 2, 1), (1, 0, 0), (1, 1, 1)]


def triples_values(generator):
    chosen = torch.tensor(TRIPLES)[torch.randint(3, (5, 2), generator=generator)]
    return {
        name: one_hot_values(chosen[..., k], size)
        for k, (name, size) in enumerate({"A": 2, "B": 3, "C": 2}.items())
    }


TestChain = constraint_contract(chain_graph, chain_values)
TestPenaltiesOfChain = penalty_contract(chain_graph)
TestTriples = constraint_contract(lambda: triples_graph(TRIPLES), triples_values)
TestPenaltiesOfTriples = penalty_contract(lambda: triples_graph(TRIPLES))


@settings(max_examples=30)
@given(
    allowed=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1)), min_size=1),
    seed=st.integers(0, 100),
)
def test_the_loss_is_the_probability_that_independent_categories_are_not_allowed(allowed, seed):
    g = triples_graph(sorted(allowed))
    generator = torch.Generator().manual_seed(seed)
    values = {
        name: torch.rand(3, 2, size, generator=generator, dtype=torch.float64).softmax(-1)
        for name, size in {"A": 2, "B": 3, "C": 2}.items()
    }
    joint = torch.einsum("nia,nib,nic->niabc", *values.values())
    permitted = torch.zeros(2, 3, 2, dtype=torch.float64)
    permitted[tuple(torch.tensor(sorted(allowed)).T)] = 1
    torch.testing.assert_close(g.constraints[0].part_losses(values), 1 - (joint * permitted).sum((2, 3, 4)))


def test_a_variable_that_occurs_once_has_exact_updates():
    relaxed = unn.relax(triples_graph(TRIPLES))
    assert set(Plan.of(relaxed, []).update_kinds.values()) == {"closed form"}
    B = one_hot_values(torch.tensor([[0, 2]]), 3).float()
    out = unn.infer(unn.relax(triples_graph(TRIPLES), 8.0), {"B": B}, until=1e-6)
    assert out["A"].argmax(-1).tolist() == [[1, 0]] and out["C"].argmax(-1).tolist() == [[0, 1]]


def test_repeated_combinations_count_once():
    assert len(triples_graph([*TRIPLES, *TRIPLES]).constraints[0].allowed) == 3


@pytest.mark.parametrize(
    ("allowed", "facts"),
    [
        ([], "empty"),
        ([(0, 1)], "row 0.*3 numbers"),
        ([(0, 1, 0), (0, -1, 0)], "row 1"),
        ([(0, 1, 0.5)], "row 0"),
    ],
)
def test_malformed_tables_are_refused_with_the_row(allowed, facts):
    with pytest.raises(unn.DeclarationError, match=facts):
        triples_graph(allowed)


def test_categories_that_a_variable_lacks_are_refused_with_its_number_of_categories():
    g = triples_graph([(0, 5, 0)])
    with pytest.raises(unn.DeclarationError, match="category 5 .*3 categories"):
        g.constraints[0].violations_of(triples_values(torch.Generator()))


def test_tables_relate_categories_with_letters_of_their_own():
    g = unn.FactorGraph("wrong", n=4, v=3)
    X, b = g.variable("X", "n | v", unn.Entropy()), g.variable("b", "n", unn.BinaryEntropy())
    with pytest.raises(unn.DeclarationError, match="must differ"):
        g.factor(Table(X["n v"], X["n+1 v"], allowed=CYCLE))
    with pytest.raises(unn.DeclarationError, match="categories"):
        g.factor(Table(X["n v"], b["n"], allowed=[(0, 1)]))


@given(st.integers(1, 3), st.integers(2, 3), st.data())
@settings(max_examples=40)
def test_its_groups_hold_exactly_where_all_combinations_are_allowed(columns, size, data):
    everything = list(itertools.product(range(size), repeat=columns))
    allowed = data.draw(st.lists(st.sampled_from(everything), min_size=1, unique=True))
    g = unn.FactorGraph("g", node=3, value=size)
    X = g.variable("X", "node | value", unn.Entropy())
    for k in range(columns):
        g.index(f"i{k}", "term", [k, (k + 1) % 3], into="node")
    g.factor(Table(*(X[f"i{k}[t] v{k}"] for k in range(columns)), allowed=allowed))
    layout = Layout(g, {})
    values = torch.tensor(list(itertools.product(range(size), repeat=3)))
    x = torch.nn.functional.one_hot(values, size).float()
    rows = layout.frame.flatten({"X": x})
    counts = (layout.to_groups @ rows.T).T
    holds = ((counts >= layout.lower) & (counts <= layout.upper)).all(1)
    holds &= ~(rows.bool() & layout.never).any(1)
    assert torch.equal(holds, g.constraints[0].violations_of({"X": x}) == 0)


@given(st.integers(1, 3), st.integers(2, 3), st.data())
@settings(max_examples=60)
def test_propagation_keeps_the_categories_that_a_possible_combination_has(columns, size, data):
    everything = list(itertools.product(range(size), repeat=columns))
    allowed = data.draw(st.lists(st.sampled_from(everything), min_size=1, unique=True))
    open_ = data.draw(
        st.lists(st.sets(st.integers(0, size - 1), min_size=1), min_size=columns, max_size=columns)
    )
    g = unn.FactorGraph("g", node=3, value=size)
    X = g.variable("X", "node | value", unn.Entropy())
    for k in range(columns):
        g.index(f"i{k}", "term", [k], into="node")
    g.factor(Table(*(X[f"i{k}[t] v{k}"] for k in range(columns)), allowed=allowed, name="t"))
    layout = Layout(g, {}, with_tables=True)
    false = torch.zeros(1, 3, size, dtype=torch.bool)
    for node, values in enumerate(open_):
        false[0, node, sorted(set(range(size)) - values)] = True
    known, impossible = propagate(layout, Known(torch.zeros(1, 3 * size, dtype=torch.bool), false.flatten(1)))
    rows = [row for row in allowed if all(x in values for x, values in zip(row, open_, strict=True))]
    if not rows:
        assert int(impossible) == layout.groups
        nodes = ", ".join(f"X[{k}]" for k in range(columns))
        assert layout.describe(int(impossible)) == f"one of the combinations of 't': {nodes}"
        return
    assert int(impossible) == -1
    left = [{x for x in range(size) if not known.false[0, node * size + x]} for node in range(columns)]
    assert left == [{row[k] for row in rows} for k in range(columns)]


def test_propagation_runs_along_the_assignments_of_a_chain():
    g = unn.FactorGraph("chain", n=5, v=3)
    X = g.variable("X", "n | v", unn.Entropy())
    g.factor(Table(X["n v"], X["n+1 w"], allowed=[(0, 1), (1, 2), (2, 0)]))
    layout = Layout(g, {}, with_tables=True)
    true = torch.zeros(1, 15, dtype=torch.bool)
    true[0, 2 * 3 + 1] = True
    known, impossible = propagate(layout, Known(true, torch.zeros_like(true)))
    assert int(impossible) == -1
    assert known.true.view(5, 3).int().argmax(1).tolist() == [2, 0, 1, 2, 0]
    true[0, 4 * 3 + 1] = True
    assert int(propagate(layout, Known(true, torch.zeros_like(true)))[1]) >= 0
    assert len(layout.families) == 1


def test_a_refuted_table_is_described_by_its_nodes():
    g = unn.FactorGraph("chain", n=5, v=3)
    X = g.variable("X", "n | v", unn.Entropy())
    g.factor(Table(X["n v"], X["n+1 w"], allowed=[(0, 1), (1, 2), (2, 0)], name="next"))
    layout = Layout(g, {}, with_tables=True)
    true = torch.zeros(1, 15, dtype=torch.bool)
    true[0, [1 * 3 + 2, 2 * 3 + 2]] = True
    refuted = int(propagate(layout, Known(true, torch.zeros_like(true)))[1])
    assert layout.describe(refuted) == "one of the combinations of 'next': X[1], X[2]"


@given(st.integers(2, 3), st.integers(2, 3), st.data())
@settings(max_examples=40)
def test_terms_in_which_nodes_occur_twice_keep_the_combinations_that_agree(columns, size, data):
    everything = list(itertools.product(range(size), repeat=columns))
    allowed = data.draw(st.lists(st.sampled_from(everything), min_size=1, unique=True))
    nodes = [data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=2)) for _ in range(columns)]
    g = unn.FactorGraph("g", node=3, value=size)
    X = g.variable("X", "node | value", unn.Entropy())
    for k, own in enumerate(nodes):
        g.index(f"i{k}", "term", own, into="node")
    g.factor(Table(*(X[f"i{k}[t] v{k}"] for k in range(columns)), allowed=allowed))
    values = torch.tensor(list(itertools.product(range(size), repeat=3)))
    x = torch.nn.functional.one_hot(values, size).float()
    right = {tuple(row) for row in values[g.constraints[0].violations_of({"X": x}) == 0].tolist()}
    layout = Layout(g, {})
    rows = layout.frame.flatten({"X": x})
    counts = (layout.to_groups @ rows.T).T
    holds = ((counts >= layout.lower) & (counts <= layout.upper)).all(1)
    holds &= ~(rows.bool() & layout.never).any(1)
    assert {tuple(row) for row in values[holds].tolist()} == right
    search = unn.Search(g, SearchOptions(mode="depth-first", chains=1, solving_steps=1000))
    solutions = unn.solve(search, {}, options=unn.SolvingOptions(count=28, tries=1))
    answers = solutions.answers[0]
    reached = {tuple(row) for row in answers["X"].argmax(-1).tolist()} if answers else set()
    assert reached == right and bool(solutions.is_complete[0])
    assert solutions.outcomes == ("solved" if right else "impossible",)


@pytest.mark.parametrize("allowed", [5, [3], [(0, "a")], [(0, None)], ["ab"], [(0, 1.5)]])
def test_what_is_no_list_of_combinations_is_refused(allowed):
    g = unn.FactorGraph("g", node=2, value=2)
    X = g.variable("X", "node | value", unn.Entropy())
    with pytest.raises(unn.DeclarationError, match="table"):
        Table(X["n v"], X["n+1 w"], allowed=allowed)


@given(
    st.integers(1, 3),
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 10_000),
)
@settings(max_examples=20, deadline=None)
def test_categories_may_be_looked_up_and_a_node_may_occur_twice(nodes, listed, shifted, seed):
    pairs = list(itertools.product(range(len(listed)), range(3)))
    chosen = torch.rand(len(pairs), generator=torch.Generator().manual_seed(seed)) < 0.5
    g = unn.FactorGraph("listed", n=nodes, v=3)
    X = g.variable("X", "n | v", unn.Entropy())
    g.index("list", "c", listed, into="v")
    allowed = [pair for pair, flag in zip(pairs, chosen.tolist(), strict=True) if flag] or pairs[:1]
    g.factor(Table(X["i list[v]"], X["i+1 w"] if shifted else X["i w"], allowed=allowed))
    rows = torch.eye(3)[torch.tensor(list(itertools.product(range(3), repeat=nodes)))]
    count = int((g.constraints[0].violations_of({"X": rows}) == 0).sum())
    total = unn.exact.log_partition(g, semiring="count").exp()
    assert float(total) == pytest.approx(count)
    answers = unn.solve(
        unn.Search(g, SearchOptions(mode="depth-first")), {}, options=unn.SolvingOptions(count=30)
    ).answers[0]
    assert (len(answers["X"]) if answers else 0) == count


def test_an_index_that_repeats_a_category_counts_no_combination_twice():
    g = unn.FactorGraph("repeated", n=2, k=2)
    X = g.variable("X", "n | k", unn.Entropy())
    g.index("pick", "picked", [0, 1, 0], into="k")
    # the first and the third picked category are one
    g.factor(Table(X["i pick[p]"], X["i+1 w"], allowed=[(0, 0), (2, 0), (1, 1)]))
    (constraint,) = g.constraints
    relaxed = unn.relax(g)
    for first, second in itertools.product(range(2), repeat=2):
        values = {"X": torch.eye(2)[torch.tensor([[first, second]])]}
        violations = int(constraint.violations_of(values))
        assert violations == int(first != second)
        assert float(constraint.loss(values)) == violations
        assert float(relaxed.energy(values)) == pytest.approx(violations)
