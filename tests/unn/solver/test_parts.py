"""Groups with several candidates of one node: what counting by nodes implies."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Among, Cardinality, Table
from unn.solver.layout import Layout
from unn.solver.propagation import Known, propagate

NODES, VALUES = 3, 3


@st.composite
def subsets(draw):
    """Listed candidates of three nodes with three values."""
    chosen = draw(st.sets(st.integers(0, NODES * VALUES - 1), min_size=1))
    return sorted(chosen)


def counting(*groups):
    """A graph of listed groups (candidates, least, greatest)."""
    g = unn.FactorGraph("g", node=NODES, value=VALUES)
    X = g.variable("X", "node | value", unn.Entropy())
    for k, (chosen, least, greatest) in enumerate(groups):
        g.index(f"node_{k}", f"listed_{k}", [c // VALUES for c in chosen], into="node")
        g.index(f"value_{k}", f"listed_{k}", [c % VALUES for c in chosen], into="value")
        all_in_one = g.index(f"group_{k}", f"listed_{k}", [0] * len(chosen), into=f"group_{k}_axis")
        entries = X[f"node_{k}[e] value_{k}[e]"]
        g.factor(Among(entries, group=[all_in_one], at_least=least, at_most=greatest, name=f"count {k}"))
    return g


def solutions(groups, false):
    """Assignments of values that agree with excluded candidates and the groups, as sets of candidates."""
    for values in itertools.product(range(VALUES), repeat=NODES):
        true = {node * VALUES + value for node, value in enumerate(values)}
        if not true & false and all(low <= len(true & set(own)) <= most for own, low, most in groups):
            yield true


@st.composite
def counts(draw):
    chosen = draw(subsets())
    least = draw(st.integers(0, min(2, len(chosen))))
    return chosen, least, draw(st.integers(max(1, least), 3))


@given(counts(), st.sets(st.integers(0, NODES * VALUES - 1), max_size=4))
@settings(max_examples=120)
def test_of_one_group_and_the_nodes_counting_excludes_exactly_what_no_solution_has(group, false):
    layout = Layout(counting(group), {})
    mask = torch.zeros(1, NODES * VALUES, dtype=torch.bool)
    mask[0, list(false)] = True
    known, impossible = propagate(layout, Known(torch.zeros_like(mask), mask))
    possible = list(solutions([group], false))
    assert (int(impossible) >= 0) == (not possible)
    if possible:
        assert set(known.false[0].nonzero()[:, 0].tolist()) == set(range(NODES * VALUES)) - set().union(
            *possible
        )
        assert set(known.true[0].nonzero()[:, 0].tolist()) == set.intersection(*possible)


@given(st.lists(counts(), min_size=2, max_size=3), st.sets(st.integers(0, NODES * VALUES - 1), max_size=3))
@settings(max_examples=60)
def test_of_several_groups_nothing_is_excluded_that_a_solution_has(groups, false):
    layout = Layout(counting(*groups), {})
    mask = torch.zeros(1, NODES * VALUES, dtype=torch.bool)
    mask[0, list(false)] = True
    known, impossible = propagate(layout, Known(torch.zeros_like(mask), mask))
    possible = list(solutions(groups, false))
    assert not possible or int(impossible) < 0
    for true in possible:
        assert not true & set(known.false[0].nonzero()[:, 0].tolist())
        assert set(known.true[0].nonzero()[:, 0].tolist()) <= true


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1), st.sets(st.integers(0, 5)))
@settings(max_examples=80)
def test_a_table_of_two_nodes_excludes_every_value_without_support(allowed, false):
    g = unn.FactorGraph("g", one=1, value=3)
    X = g.variable("X", "one | value", unn.Entropy())
    Y = g.variable("Y", "one | value", unn.Entropy())
    g.factor(Table(X["k a"], Y["k b"], allowed=sorted(allowed)))
    # constraints need not have groups where all combinations are allowed
    g.factor(Cardinality(X["k a"], each="k", equals=1))
    layout = Layout(g, {})
    mask = torch.zeros(1, 6, dtype=torch.bool)
    mask[0, list(false)] = True
    known, impossible = propagate(layout, Known(torch.zeros_like(mask), mask | layout.never))
    possible = [{a, 3 + b} for a, b in allowed if a not in false and 3 + b not in false]
    if not possible:
        assert int(impossible) >= 0
        return
    assert int(impossible) < 0
    assert set(known.false[0].nonzero()[:, 0].tolist()) == set(range(6)) - set().union(*possible)


def test_only_groups_with_several_candidates_of_a_node_have_parts():
    assert Layout(counting(([0, 3, 6], 1, 1)), {}).parts is None
    parts = Layout(counting(([0, 3, 6], 1, 1), ([0, 1, 8], 0, 1)), {}).parts
    assert parts is not None and len(parts.groups) == 1 and len(parts.group) == 2


@pytest.mark.parametrize("rows", [1, 5])
def test_each_row_of_a_batch_is_counted_alone(rows):
    layout = Layout(counting(([0, 1, 3, 4], 0, 1), ([2, 5, 8, 7], 2, 3)), {})
    generator = torch.Generator().manual_seed(0)
    false = torch.rand(rows, NODES * VALUES, generator=generator) < 0.3
    known, impossible = propagate(layout, Known(torch.zeros_like(false), false))
    for row in range(rows):
        own, group = propagate(layout, Known(torch.zeros_like(false[:1]), false[row : row + 1]))
        assert int(group) == int(impossible[row])
        assert torch.equal(own.true[0], known.true[row]) and torch.equal(own.false[0], known.false[row])
