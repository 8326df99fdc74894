"""The pieces into which a graph is taken: every pair once."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graph_attention import CPU, GRAPHS, check_every_kernel, worthwhile
from support.structures import declarations, factorisation, sudoku

import unn
from factors import Clique
from unn.ops.attention import AttentionMask
from unn.ops.attention.terms import Grouped, Term, Window, terms_of


def pairs_of(term, count):
    """Numbers of the queries and of the keys of all pairs of a term."""
    numbers = torch.arange(count)[None]
    queries, keys = term.queries.of(numbers)[0], term.keys.of(numbers)[0]
    if isinstance(term, Grouped):
        groups = math.prod(term.queries.sizes[: term.groups])
        queries, keys = queries.reshape(groups, -1, 1), keys.reshape(groups, 1, -1)
    queries, keys = torch.broadcast_tensors(queries, keys)
    shown = torch.ones_like(queries, dtype=torch.bool) if term.hidden is None else ~term.hidden
    return queries[shown], keys[shown]


def check_cover(adjacency):
    """Every pair is in one term, once."""
    pairs = [pairs_of(term, adjacency.count) for term in terms_of(adjacency)]
    flat = (
        torch.cat([queries * adjacency.count + keys for queries, keys in pairs])
        if pairs
        else torch.zeros(0, dtype=torch.int64)
    )
    expected = torch.from_numpy(adjacency.rows * adjacency.count + adjacency.columns)
    assert torch.equal(flat.sort().values, expected)


@given(g=declarations(most=4), fewest=st.sampled_from([1, 6, 200]))
@settings(max_examples=100, deadline=None)
def test_terms_have_every_pair_once(g, fewest):
    with worthwhile(fewest):
        check_cover(g.adjacency())


@pytest.mark.parametrize("name", GRAPHS)
def test_terms_of_the_graphs_of_the_paper_have_every_pair_once(name):
    for fewest in (1, 200):
        with worthwhile(fewest):
            check_cover(GRAPHS[name]())


def test_regular_graphs_have_few_regular_terms():
    for adjacency, kind in (
        (sudoku(5, 5).adjacency(), Grouped),
        (factorisation(16, 10, 8).adjacency(), Term),
    ):
        terms = AttentionMask(adjacency).terms(CPU)
        assert all(type(term) is kind and isinstance(term.queries, Window) for term in terms)
        assert len(terms) <= 8
        # little is hidden
        assert sum(term.pairs for term in terms) < 1.2 * len(adjacency.rows)


def test_a_relation_with_a_pair_twice_counts_it_once():
    class Twice(Clique):
        def interactions(self, shapes):
            (relation,) = super().interactions(shapes)
            return [relation, relation]

    g = unn.FactorGraph("twice", n=20)
    g.factor(Twice(g.variable("X", "n", unn.SquaredNorm())["i"]))
    check_cover(g.adjacency())
    check_every_kernel(AttentionMask(g.adjacency()), seed=0)
