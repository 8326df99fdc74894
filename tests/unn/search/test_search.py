"""Sampled block descent: exact conditional updates, verified answers, options."""

import itertools

import pytest
import torch
from support.sudoku_graph import declare_sudoku

import unn
from factors import AllDifferent, Cardinality, Different, Implies, Table
from unn.errors import DeclarationError
from unn.search.blocks import blocks_of
from unn.search.engine import SearchEngine
from unn.search.model import Search
from unn.search.options import SearchOptions
from unn.solver.counts import counts_of
from unn.solver.layout import Layout
from unn.testing import EngineContract


def colouring(nodes, edges, colours):
    g = unn.FactorGraph("colouring", node=nodes, colour=colours, edge=len(edges))
    g.index("one", "edge", [a for a, _ in edges], into="node")
    g.index("other", "edge", [b for _, b in edges], into="node")
    X = g.variable("X", "node | colour", unn.Entropy())
    g.factor(Different(X["one[e] c"], X["other[e] c"], name="edges"))
    return g


class TestSearch(EngineContract):
    def engine(self):
        return SearchEngine()

    def graph(self):
        g = unn.FactorGraph("both", node=3, colour=3)
        X = g.variable("X", "node | colour", unn.Entropy())
        b = g.variable("b", "node", unn.BinaryEntropy())
        g.factor(AllDifferent(X["n c"], each=""))
        g.factor(Cardinality(b["n"], each="", equals=1))
        return g

    def examples(self, generator):
        colours = torch.rand(8, 3, generator=generator).argsort(1)
        bits = torch.randint(3, (8,), generator=generator)
        return {"X": torch.eye(3)[colours], "b": torch.eye(3)[bits]}

    def given(self):
        return ("b",)

    def test_one_query_has_the_same_answer_alone_and_in_a_batch(self):
        """Random values depend on the place in the batch."""


def test_blocks_contain_every_node_once_and_none_of_their_nodes_share_a_group():
    layout = Layout(declare_sudoku(2, 3), {})
    counts = counts_of(layout)
    blocks = blocks_of(layout, counts)
    entries = torch.cat([block.candidates.flatten() for block in blocks])
    assert sorted(entries.tolist()) == list(range(layout.candidates))
    for block in blocks:
        nodes = (block.candidates // 6)[:, 0]
        owner = {int(c): int(n) for row, n in zip(block.candidates, nodes, strict=True) for c in row}
        for group in range(len(counts.lower)):
            members = counts.candidate[counts.group == group].tolist()
            assert len({owner[c] for c in members if c in owner}) <= 1


def assert_boltzmann_distribution(graph, nodes, violations, temperature):
    """Annealed sweeps at a constant temperature draw values of ``nodes`` nodes with two options with
    probability proportional to exp(-violations / T)."""
    options = SearchOptions(
        mode="annealed", chains=4000, hottest=temperature, coldest=temperature, solving_steps=30
    )
    attempt = Search(graph, options).attempt({}, 1, {}, None, torch.Generator().manual_seed(0), 0)
    while attempt.advance() is not None:
        pass
    drawn = attempt.values.view(nodes, 2, -1).argmax(1).T
    assignments = list(itertools.product(range(2), repeat=nodes))
    weights = torch.tensor([-violations(x) / temperature for x in assignments]).exp()
    for x, probability in zip(assignments, weights / weights.sum(), strict=True):
        share = float((drawn == torch.tensor(x)).all(1).float().mean())
        assert abs(share - float(probability)) < 4 * (0.25 / 4000) ** 0.5


def test_the_stationary_distribution_of_annealed_sweeps_is_the_boltzmann_distribution():
    edges = [(0, 1), (1, 2), (2, 0)]
    graph = colouring(3, edges, 2)
    assert_boltzmann_distribution(graph, 3, lambda x: sum(x[a] == x[b] for a, b in edges), 0.7)


@pytest.mark.parametrize("mode", ["focused", "annealed", "descent"])
def test_the_counts_of_all_groups_stay_those_of_the_values(mode):
    layout = Layout(declare_sudoku(2, 2), {})
    options = SearchOptions(mode=mode, chains=3, solving_steps=20)
    attempt = Search(declare_sudoku(2, 2), options).attempt(
        {}, 4, {}, None, torch.Generator().manual_seed(0), 0
    )
    for _ in range(2):
        attempt.advance()
        attempt.keep(torch.arange(3))
        counts = counts_of(layout)
        expected = torch.zeros(len(counts.lower), attempt.columns)
        expected.index_add_(0, counts.group, attempt.values[counts.candidate])
        torch.testing.assert_close(attempt.totals, expected)
        assert bool((attempt.values.view(16, 4, -1).sum(1) == 1).all())


def test_plain_descent_never_raises_the_violations():
    options = SearchOptions(mode="descent", chains=1, solving_steps=30)
    graph = declare_sudoku(2, 2)
    attempt = Search(graph, options).attempt({}, 20, {}, None, torch.Generator().manual_seed(1), 0)
    before = attempt.counts.cost(attempt.totals).sum(0)
    while attempt.advance() is not None:
        now = attempt.counts.cost(attempt.totals).sum(0)
        assert bool((now <= before).all())
        before = now


@pytest.mark.parametrize("mode", ["focused", "annealed"])
def test_colourable_graphs_are_coloured(mode):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randint(3, (30,), generator=generator)
    pairs = torch.randint(30, (90, 2), generator=generator).tolist()
    edges = sorted({(min(p), max(p)) for p in pairs if hidden[p[0]] != hidden[p[1]]})
    model = Search(colouring(30, edges, 3), SearchOptions(mode=mode, hottest=1.0, coldest=0.2))
    solutions = unn.solve(model, {})
    assert solutions.outcomes == ("solved",)
    colours = solutions["X"][0].argmax(-1)
    assert all(colours[a] != colours[b] for a, b in edges)


def test_given_colours_are_kept_and_a_clique_is_not_coloured():
    clique = [(a, b) for a in range(4) for b in range(a)]
    model = Search(colouring(4, clique, 3), SearchOptions(solving_steps=50))
    assert unn.solve(model, {}).outcomes == ("unsolved",)
    model = Search(colouring(4, clique, 4), SearchOptions())
    value, mask = torch.eye(4)[[2, 0, 0, 0]][None], torch.tensor([[True, False, False, False]])
    solutions = unn.solve(model, {"X": unn.Partial(value, mask)})
    assert solutions.outcomes == ("solved",) and int(solutions["X"][0, 0].argmax()) == 2


def test_options_out_of_range_are_refused_by_name():
    for options in ({"solving_steps": 0}, {"chains": 0}, {"coldest": 0.0}, {"hottest": -1.0}):
        with pytest.raises(unn.ArgumentError, match=next(iter(options))):
            SearchOptions(**options).check("here")
    with pytest.raises(unn.ArgumentError, match="falls"):
        SearchOptions(hottest=0.1, coldest=0.2).check("here")


def packing(sizes, capacity, bins):
    """Items of some sizes in bins: the entry of an item occurs as often as its size says."""
    g = unn.FactorGraph("bins", item=len(sizes), bin=bins)
    X = g.variable("X", "item | bin", unn.Entropy())
    g.index("of", "unit", [i for i, size in enumerate(sizes) for _ in range(size)], into="item")
    g.factor(Cardinality(X["of[u] b"], each="b", at_most=capacity))
    return g


@pytest.mark.parametrize("sizes", [(2, 3), (1, 4), (3, 1, 2), (2, 2)])
def test_an_entry_that_occurs_several_times_in_a_group_counts_as_often_in_sampled_values(sizes):
    def overload(places):
        loads = [sum(size for size, b in zip(sizes, places, strict=True) if b == own) for own in range(2)]
        return sum(max(0, load - 4) for load in loads)

    assert_boltzmann_distribution(packing(sizes, 4, 2), len(sizes), overload, 0.9)


@pytest.mark.parametrize("mode", ["descent", "annealed", "focused"])
def test_sweeps_pack_items_whose_size_is_above_one(mode):
    model = Search(packing([2] * 20, 9, 5), SearchOptions(mode=mode))
    assert unn.solve(model, {}, options=unn.SolvingOptions(tries=1, steps=300)).outcomes == ("solved",)


def test_focused_chains_begin_anew_where_an_uncounted_constraint_refuses_their_values():
    g = unn.FactorGraph("implied", n=10)
    x = g.variable("x", "n", unn.BinaryEntropy())
    g.factor(Cardinality(x["i"], each="", at_least=1))
    g.factor(Implies(Cardinality(x["i"], each="", at_least=1), Cardinality(x["j"], each="", equals=3)))
    model = Search(g, SearchOptions(mode="focused"))
    for seed in range(3):
        answers = unn.solve(model, {}, options=unn.SolvingOptions(seed=seed, tries=1))
        assert answers.outcomes == ("solved",)
        assert float(answers["x"].sum()) == 3


def test_constraints_on_single_nodes_are_searched_with_and_without_evidence():
    g = unn.FactorGraph("knights", kind=2)
    A, B = (g.variable(name, "| kind", unn.Entropy()) for name in "AB")
    C = g.variable("C", "", unn.BinaryEntropy())
    D = g.variable("D", "", unn.BinaryEntropy())
    g.factor(Table(A["a"], B["b"], allowed=[(0, 1), (1, 0)]))
    g.factor(Different(C[""], D[""]))
    given = {"A": torch.tensor([[1.0, 0.0]]), "C": torch.tensor([1.0])}
    for mode in ("depth-first", "focused"):
        model = Search(g, SearchOptions(mode=mode))
        assert unn.solve(model, {}).outcomes == ("solved",)
        answers = unn.solve(model, given)
        assert answers["B"].tolist() == [[0, 1]] and answers["D"].tolist() == [0]
    bits = {"C": torch.tensor([0.2]), "D": torch.tensor([0.4])}
    loss = unn.constraint_loss(g, {"A": torch.eye(2)[:1], "B": torch.eye(2)[:1], **bits})
    assert bool(loss.isfinite())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"itm": 4}, "unknown axis 'itm'. Did you mean 'item'"),
        ({"item": 2.5}, "whole number"),
        ([3], "mapping"),
    ],
)
def test_sizes_of_a_query_are_checked(sizes, message):
    g = packing([1, 1], 2, 2)
    with pytest.raises(DeclarationError, match=message):
        unn.solve(Search(g, SearchOptions()), {}, sizes=sizes)
