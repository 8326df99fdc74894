"""Depth-first search: it ends with a verified answer, or with a proof that there is none."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.problem_graphs import one_hot_grids, sudoku

import unn
from factors import Among, Cardinality, Different, Table
from unn.extending import SearchOptions
from unn.solver.layout import Layout
from unn.solver.propagation import Known, branch, evidence, propagate

DEPTH_FIRST = SearchOptions(mode="depth-first", chains=1)

HARD = [
    "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4..",
    "1....7.9..3..2...8..96..5....53..9...1..8...26....4...3......1..4......7..7...3..",
    "........3..1..56...9..4..7......9.5.7.......8.5.4.2....8..2..9...35..1..6........",
]


def puzzles(lines):
    cells = torch.tensor([[int(sign) if sign != "." else 0 for sign in line] for line in lines]).view(
        -1, 9, 9
    )
    return {"X": unn.Partial(one_hot_grids((cells - 1).clamp(min=0), 9), cells > 0)}


def coloured(nodes, edges, colours):
    g = unn.FactorGraph("g", node=nodes, colour=colours, edge=len(edges))
    g.index("one", "edge", [a for a, _ in edges], into="node")
    g.index("other", "edge", [b for _, b in edges], into="node")
    X = g.variable("X", "node | colour", unn.Entropy())
    g.factor(Different(X["one[e] c"], X["other[e] c"]))
    return g


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=10), st.integers(1, 3))
@settings(max_examples=40)
def test_a_graph_is_coloured_or_proved_impossible_as_enumeration_says(edges, colours):
    g = coloured(5, edges, colours)
    possible = any(all(x[a] != x[b] for a, b in edges) for x in itertools.product(range(colours), repeat=5))
    solutions = unn.solve(unn.Search(g, DEPTH_FIRST), {})
    assert solutions.outcomes == ("solved" if possible else "impossible",)


@given(st.integers(0, 2**16))
@settings(max_examples=25)
def test_all_solutions_are_reached(seed):
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand(27, generator=random) < 0.4
    allowed = [
        x for x, is_allowed in zip(itertools.product(range(3), repeat=3), rows, strict=True) if is_allowed
    ]
    if not allowed:
        return
    g = unn.FactorGraph("g", node=1, value=3)
    names = [g.variable(name, "node | value", unn.Entropy()) for name in "XYZ"]
    g.factor(Table(*(X[f"n {letter}"] for X, letter in zip(names, "abc", strict=True)), allowed=allowed))
    options = unn.SolvingOptions(count=len(allowed), tries=60 * len(allowed), seed=seed)
    solutions = unn.solve(unn.Search(g, DEPTH_FIRST), {}, options=options)
    answers = torch.cat([solutions.answers[0][name].argmax(-1) for name in "XYZ"], 1)
    assert sorted(map(tuple, answers.tolist())) == sorted(allowed)


def test_the_hardest_sudokus_are_solved_in_one_try():
    solutions = unn.solve(
        unn.Search(sudoku(3, 3), DEPTH_FIRST),
        puzzles(HARD),
        options=unn.SolvingOptions(tries=1),
    )
    assert solutions.outcomes == ("solved",) * 3


def test_a_contradiction_that_counting_does_not_show_is_proved():
    changed = HARD[0][:1] + "2" + HARD[0][2:]
    layout = Layout(sudoku(3, 3), {})
    rows, nodes = layout.frame.observation(puzzles([changed]), 1)
    assert propagate(layout, evidence(layout, rows, nodes))[1].tolist() == [-1]
    for chains in (1, 4):
        options = SearchOptions(mode="depth-first", chains=chains)
        solutions = unn.solve(unn.Search(sudoku(3, 3), options), puzzles([changed]))
        assert solutions.outcomes == ("impossible",) and solutions.reasons == ("",)


def test_an_instance_whose_tree_is_cut_off_is_unsolved_and_not_impossible():
    options = unn.SolvingOptions(tries=1, steps=2)
    solutions = unn.solve(unn.Search(sudoku(3, 3), DEPTH_FIRST), puzzles(HARD[:1]), options=options)
    assert solutions.outcomes == ("unsolved",) and int(solutions.violations) > 0


def test_answers_that_break_a_constraint_without_groups_are_left_again():
    g = unn.FactorGraph("g", node=2, value=3)
    X = g.variable("X", "node | value", unn.Entropy())
    g.factor(Cardinality(X["n v"], each="v", at_most=1))
    # a node that occurs twice has no groups, so that only complete answers show the violation
    g.factor(Table(X["n v"], X["n w"], allowed=[(1, 1), (2, 2)]))
    solutions = unn.solve(unn.Search(g, DEPTH_FIRST), {}, options=unn.SolvingOptions(tries=1))
    assert solutions.outcomes == ("solved",)
    assert sorted(solutions["X"][0].argmax(-1).tolist()) == [1, 2]


def test_the_same_seed_gives_the_same_answer():
    g = coloured(5, [(0, 1), (1, 2), (2, 3), (3, 4)], 3)
    one, other = (
        unn.solve(unn.Search(g, DEPTH_FIRST), {}, options=unn.SolvingOptions(seed=3)) for _ in range(2)
    )
    assert torch.equal(one["X"], other["X"])


def test_a_branch_is_an_open_candidate_of_a_smallest_group():
    layout = Layout(sudoku(2, 2), {})
    true = torch.zeros(20, layout.candidates, dtype=torch.bool)
    true[:10, 0] = True
    known, _ = propagate(layout, Known(true, torch.zeros_like(true)))
    marked = branch(layout, known, torch.Generator().manual_seed(0))
    assert (marked.sum(1) == 1).all() and (marked & known.open).sum() == 20
    openings = (layout.to_groups @ known.open.T.float()).T
    for row in range(20):
        own = layout.group[layout.candidate == int(marked[row].nonzero())]
        assert openings[row, own].min() == openings[row][openings[row] > 0].min()


def test_binary_nodes_are_branched_on_only_where_no_other_group_is_open():
    g = unn.FactorGraph("g", node=4)
    X = g.variable("X", "node", unn.BinaryEntropy())
    first = g.index("first", "own", [0, 0, 0], into="group")
    g.index("of_node", "own", [0, 1, 2], into="node")
    g.factor(Among(X["of_node[n]"], group=[first], equals=1))
    layout = Layout(g, {})
    none = torch.zeros(50, layout.candidates, dtype=torch.bool)
    marked = branch(layout, Known(none, none), torch.Generator().manual_seed(0))
    assert set(marked.nonzero()[:, 1].tolist()) == {1, 3, 5}
    true = none.clone()
    true[:, 1] = True
    known, _ = propagate(layout, Known(true, none))
    marked = branch(layout, known, torch.Generator().manual_seed(0))
    assert set(marked.nonzero()[:, 1].tolist()) == {6, 7}


def test_nothing_is_marked_where_nothing_is_open():
    layout = Layout(sudoku(1, 1), {})
    known = Known(torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1, dtype=torch.bool))
    assert not branch(layout, known, torch.Generator()).any()


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=10),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(0, 100),
)
@settings(max_examples=60)
def test_one_try_lists_all_answers_and_proves_that_there_are_no_others(edges, colours, chains, count, seed):
    g = coloured(5, edges, colours)
    every = [x for x in itertools.product(range(colours), repeat=5) if all(x[a] != x[b] for a, b in edges)]
    search = unn.Search(g, SearchOptions(mode="depth-first", chains=chains))
    solutions = unn.solve(search, {}, options=unn.SolvingOptions(count=count, tries=1, seed=seed))
    answers = solutions.answers[0]
    listed = [tuple(x) for x in answers["X"].argmax(-1).tolist()] if answers else []
    assert set(listed) <= set(every) and len(listed) == len(set(listed)) == min(count, len(every))
    if len(every) < count:
        assert bool(solutions.is_complete) and set(listed) == set(every)
    if len(every) > count:
        assert not bool(solutions.is_complete)


def test_the_only_answer_to_each_of_a_batch_of_puzzles_is_proved():
    solutions = unn.solve(
        unn.Search(sudoku(3, 3), DEPTH_FIRST), puzzles(HARD), options=unn.SolvingOptions(count=2)
    )
    assert [len(answers["X"]) for answers in solutions.answers] == [1, 1, 1]
    assert solutions.is_complete.tolist() == [True] * 3 and solutions.outcomes == ("solved",) * 3


def test_a_search_that_is_cut_off_and_a_sweep_prove_nothing():
    g = coloured(5, [(0, 1)], 3)
    few = unn.SolvingOptions(count=1000, tries=1, steps=20)
    cut = unn.solve(unn.Search(g, DEPTH_FIRST), {}, options=few)
    assert 0 < len(cut.answers[0]["X"]) < 162 and not bool(cut.is_complete)
    sweeps = unn.solve(unn.Search(g, SearchOptions(mode="focused")), {})
    assert not bool(sweeps.is_complete)


def test_answers_that_break_a_constraint_without_groups_do_not_end_the_list():
    g = unn.FactorGraph("g", node=2, value=3)
    X = g.variable("X", "node | value", unn.Entropy())
    g.factor(Cardinality(X["n v"], each="v", at_most=1))
    g.factor(Table(X["n v"], X["n w"], allowed=[(1, 1), (2, 2)]))
    for chains in (1, 4):
        search = unn.Search(g, SearchOptions(mode="depth-first", chains=chains))
        solutions = unn.solve(search, {}, options=unn.SolvingOptions(count=9, tries=1))
        answers = sorted(solutions.answers[0]["X"].argmax(-1).tolist())
        assert answers == [[1, 2], [2, 1]] and bool(solutions.is_complete)


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.lists(st.integers(0, 1), max_size=2),
    st.integers(0, 5),
    st.sampled_from(["equals", "at_least", "at_most"]),
)
@settings(max_examples=60)
def test_entries_that_occur_several_times_count_as_often(nodes, bits, bound, kind):
    g = unn.FactorGraph("g", node=3, value=2, bit=2)
    X, B = g.variable("X", "node | value", unn.Entropy()), g.variable("B", "bit", unn.BinaryEntropy())
    g.index("place", "entry", nodes, into="node")
    references = [X["place[e] v"]]
    groups = [g.index("of", "entry", [0] * len(nodes), into="group")]
    if bits:
        g.index("bit_at", "flag", bits, into="bit")
        references.append(B["bit_at[f]"])
        groups.append(g.index("of_flag", "flag", [0] * len(bits), into="group"))
    g.factor(Among(*references, group=groups, **{kind: bound}))
    states = [
        {"X": torch.nn.functional.one_hot(torch.tensor([x]), 2).float(), "B": torch.tensor([b]).float()}
        for x in itertools.product(range(2), repeat=3)
        for b in itertools.product(range(2), repeat=2)
    ]
    right = sum(int(g.constraints[0].violations_of(state)) == 0 for state in states)
    options = SearchOptions(mode="depth-first", chains=1, solving_steps=1000)
    solutions = unn.solve(unn.Search(g, options), {}, options=unn.SolvingOptions(count=40, tries=1))
    assert len(solutions.answers[0].get("X", ())) == right and bool(solutions.is_complete[0])
    assert solutions.outcomes == ("solved" if right else "impossible",)


def test_sizes_follow_from_the_evidence_or_the_axis_is_named():
    g = unn.FactorGraph("chain", value=3)
    X = g.variable("X", "n | value", unn.Entropy())
    g.factor(Table(X["i v"], X["i+1 w"], allowed=[(0, 1), (1, 2), (2, 0)]))
    search = unn.Search(g, DEPTH_FIRST)
    first = torch.zeros(1, 5, 3)
    first[0, 0, 0] = 1
    solutions = unn.solve(search, {"X": unn.Partial(first, first.any(2))})
    assert solutions["X"][0].argmax(-1).tolist() == [0, 1, 2, 0, 1]
    with pytest.raises(unn.DeclarationError, match=r"axis 'n' of 'X' is unknown; pass sizes=\{'n'"):
        unn.solve(search, {})
