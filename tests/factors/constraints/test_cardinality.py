"""Bounds on counts, differing values, negation and implication: against enumeration, and their contracts."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.constraints import constraint_contract, one_hot_values, penalty_contract

import unn
from factors import AllDifferent, Among, Cardinality, Implies, Not

BITS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))


def bits_graph(make, rows=2):
    g = unn.FactorGraph("bits", row=rows, col=4)
    x = g.variable("x", "row col", unn.BinaryEntropy())
    g.factor(make(x))
    return g


def counted(make):
    """All rows of four bits that satisfy a constraint on rows, two of them at random."""
    every = BITS[bits_graph(make, 1).constraints[0].violations_of({"x": BITS[:, None]}) == 0]

    def values(generator):
        chosen = torch.randint(len(every), (5, 2), generator=generator)
        return {"x": every[chosen].double()}

    return values


MAKERS = {
    "at most one": lambda x: Cardinality(x["r c"], each="r", at_most=1),
    "at least two": lambda x: Cardinality(x["r c"], each="r", at_least=2),
    "between": lambda x: Cardinality(x["r c"], each="r", at_least=1, at_most=3),
    "not two": lambda x: Not(Cardinality(x["r c"], each="r", equals=2)),
    "not few": lambda x: Not(Cardinality(x["r c"], each="r", at_most=1)),
    "not many": lambda x: Not(Cardinality(x["r c"], each="r", at_least=3)),
    "implies": lambda x: Implies(
        Cardinality(x["r c"], each="r", at_least=1), Cardinality(x["r c"], each="r", equals=3)
    ),
}
ALLOWED = {
    "at most one": lambda n: n <= 1,
    "at least two": lambda n: n >= 2,
    "between": lambda n: 1 <= n <= 3,
    "not two": lambda n: n != 2,
    "not few": lambda n: n > 1,
    "not many": lambda n: n < 3,
    "implies": lambda n: n in (0, 3),
}


def different_graph():
    g = unn.FactorGraph("rows", row=2, col=3, value=4)
    X = g.variable("X", "row col | value", unn.Entropy())
    g.factor(AllDifferent(X["r c v"], each="r"))
    return g


def different_values(generator):
    orders = torch.rand(5, 2, 4, generator=generator).argsort(2)[..., :3]
    return {"X": one_hot_values(orders, 4)}


CASES = {name: (lambda make=make: bits_graph(make), counted(make)) for name, make in MAKERS.items()}
CASES["different"] = (different_graph, different_values)

for _name, (_graph, _values) in CASES.items():
    _title = "".join(word.capitalize() for word in _name.split())
    globals()[f"Test{_title}"] = constraint_contract(_graph, _values)
    globals()[f"TestPenaltiesOf{_title}"] = penalty_contract(_graph)


@pytest.mark.parametrize("name", MAKERS)
def test_bits_violate_a_count_exactly_where_it_is_not_allowed(name):
    factor = bits_graph(MAKERS[name], 1).constraints[0]
    violations = factor.violations_of({"x": BITS[:, None]})
    expected = [int(not ALLOWED[name](int(row.sum()))) for row in BITS]
    assert violations.tolist() == expected


@settings(max_examples=30)
@given(equals=st.integers(0, 4), seed=st.integers(0, 100))
def test_the_energy_of_at_most_one_counts_pairs_of_ones_twice(equals, seed):
    g = bits_graph(MAKERS["at most one"], 3)
    relaxed = unn.relax(g, 1.0)
    x = torch.randint(2, (4, 3, 4), generator=torch.Generator().manual_seed(seed)).float()
    n = x.sum(2)
    (energy,) = relaxed.energy_factors
    torch.testing.assert_close(energy.energy({"x": x}), (n * (n - 1)).sum(1))


def test_groups_hold_the_entries_that_are_counted_together():
    g = unn.FactorGraph("grid", row=4, col=4, digit=4, band=2, stack=2)
    X = g.variable("X", "row col | digit", unn.Entropy())
    g.factor(Cardinality(X["(band r) (stack c) v"], each="band stack v", name="blocks"))
    (groups,) = g.constraints[0].groups({"X": (4, 4, 4)})
    index = torch.arange(64).view(4, 4, 4)
    expected = index.view(2, 2, 2, 2, 4).permute(0, 2, 4, 1, 3).reshape(16, 4)
    assert (groups.lower, groups.upper, list(groups.entries)) == (1, 1, ["X"])
    assert torch.equal(torch.as_tensor(groups.entries["X"]), expected)


def test_values_of_as_many_nodes_as_categories_occur_exactly_once():
    g = unn.FactorGraph("rows", row=2, col=4, value=4)
    X = g.variable("X", "row col | value", unn.Entropy())
    factor = g.factor(AllDifferent(X["r c v"], each="r"))
    (groups,) = factor.groups({"X": (2, 4, 4)})
    assert (groups.lower, groups.upper) == (1, 1)
    (groups,) = different_graph().constraints[0].groups({"X": (2, 3, 4)})
    assert (groups.lower, groups.upper) == (0, 1)


@given(st.integers(1, 3), st.lists(st.integers(0, 2), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_only_the_values_that_an_index_reaches_differ(nodes, reached):
    g = unn.FactorGraph("some", node=nodes, value=3)
    X = g.variable("X", "node | value", unn.Entropy())
    g.index("reach", "some", reached, into="value")
    factor = g.factor(AllDifferent(X["n reach[s]"], each=""))
    rows = list(itertools.product(range(3), repeat=nodes))
    expected = torch.tensor([sum(row.count(v) > 1 for v in reached) for row in rows])
    values = {"X": torch.eye(3)[torch.tensor(rows)]}
    assert torch.equal(factor.violations_of(values), expected)
    assert torch.equal(factor.part_losses(values).sum(1) == 0, expected == 0)
    count = unn.exact.log_partition(g, semiring="count").exp()
    assert float(count) == pytest.approx(int((expected == 0).sum()))
    answers = unn.solve(unn.Search(g, unn.SearchOptions(mode="depth-first")), {})
    assert bool(answers.solved) == bool((expected == 0).any())


def counts_of(entropy):
    """Graphs with one constraint on four entries, that may be bits or spins."""
    graphs = {}
    for name, make in {
        "equal": lambda x, _: Cardinality(x["i"], each="", equals=2),
        "between": lambda x, _: Cardinality(x["i"], each="", at_least=1, at_most=3),
        "not": lambda x, _: Not(Cardinality(x["i"], each="", equals=0)),
        "among": lambda x, pairs: Among(x["i"], group=[pairs]),
    }.items():
        graphs[name] = g = unn.FactorGraph(name, i=4)
        g.factor(make(g.variable("x", "i", entropy), g.index("pair", "i", [0, 0, 1, 1], into="pairs")))
    return graphs


@pytest.mark.parametrize("name", list(counts_of(unn.BinaryEntropy())))
def test_spins_count_as_the_bits_that_they_stand_for(name):
    bits, spins = (counts_of(entropy)[name] for entropy in (unn.BinaryEntropy(), unn.SignedEntropy()))
    soft = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))
    for x in (BITS, soft):
        as_bits, as_spins = {"x": x}, {"x": 2 * x - 1}
        one, other = bits.constraints[0], spins.constraints[0]
        assert torch.equal(one.violations_of(as_bits), other.violations_of(as_spins))
        torch.testing.assert_close(one.part_losses(as_bits), other.part_losses(as_spins))
    valid = int((bits.constraints[0].violations_of({"x": BITS}) == 0).sum())
    assert float(unn.exact.log_partition(spins, semiring="count").exp()) == pytest.approx(valid)
    (energy,) = unn.relax(spins, weight=3.0).factors.values()
    lowest = energy.energy({"x": 2 * BITS - 1}) == energy.energy({"x": 2 * BITS - 1}).min()
    assert torch.equal(lowest, spins.constraints[0].violations_of({"x": 2 * BITS - 1}) == 0)


def test_implications_relate_groups_in_any_order_of_their_letters():
    g = unn.FactorGraph("two", i=2, j=3, k=2)
    x, y = g.variable("x", "i j k", unn.BinaryEntropy()), g.variable("y", "j i k", unn.BinaryEntropy())
    factor = g.factor(
        Implies(
            Cardinality(x["i j k"], each="i j", at_least=1), Cardinality(y["j i k"], each="j i", equals=2)
        )
    )
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(2, shape, generator=generator).float() for shape in ((50, 2, 3, 2), (50, 3, 2, 2)))
    wrong = (x.sum(3) >= 1) & (y.sum(3).transpose(1, 2) != 2)
    assert torch.equal(factor.violations_of({"x": x, "y": y}), wrong.sum((1, 2)))
    assert torch.equal(factor.part_losses({"x": x, "y": y}) > 0, wrong.flatten(1))


def neighbours(size, left="x[i-1]"):
    """No two neighbours are one, as an implication from one to the next."""
    g = unn.FactorGraph("neighbours", i=size)
    x = g.variable("x", "i", unn.BinaryEntropy())
    before, after = ("i-1", "i") if left == "x[i-1]" else ("i", "i+1")
    condition = Cardinality(x[before], each="i", equals=1)
    g.factor(Implies(condition, Cardinality(x[after], each="i", equals=0)))
    return g


@pytest.mark.parametrize("left", ["x[i-1]", "x[i]"])
@pytest.mark.parametrize("size", [2, 3, 6])
def test_groups_of_an_implication_run_over_the_indices_at_which_both_counts_exist(left, size):
    g = neighbours(size, left)
    (factor,) = g.constraints
    x = torch.tensor(list(itertools.product([0.0, 1.0], repeat=size)))
    wrong = (x[:, :-1] * x[:, 1:]).sum(1)
    assert torch.equal(factor.violations_of({"x": x}), wrong.long())
    assert torch.equal(factor.part_losses({"x": x}).sum(1) > 0, wrong > 0)
    apart = (torch.arange(size)[:, None] - torch.arange(size)).abs()
    assert torch.equal(g.adjacency().dense(), apart <= 1)


def test_an_implication_between_neighbours_has_all_its_solutions():
    g = neighbours(5)
    # any number is allowed: the search needs a constraint that counts
    g.factor(Cardinality(g.variables["x"]["i"], each="", at_most=5))
    search = unn.Search(g, unn.SearchOptions(mode="depth-first"))
    solutions = unn.solve(search, {}, options=unn.SolvingOptions(count=100))
    assert len(solutions.answers[0]["x"]) == 13


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_implications_of_shifted_groups_equal_their_definition(data):
    shifts = [data.draw(st.integers(-2, 2)) for _ in range(2)]
    bounds = [data.draw(st.sampled_from(["equals", "at_least", "at_most"])) for _ in range(2)]
    g = unn.FactorGraph("shifted", i=4, j=2)
    x, y = g.variable("x", "i j", unn.BinaryEntropy()), g.variable("y", "j i", unn.BinaryEntropy())
    condition = Cardinality(x[f"i{shifts[0]:+d} j"], each="i", **{bounds[0]: 1})
    conclusion = Cardinality(y[f"j i{shifts[1]:+d}"], each="i", **{bounds[1]: 1})
    factor = g.factor(Implies(condition, conclusion))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    values = {
        name: torch.randint(2, (20, *shape), generator=generator).float()
        for name, shape in (("x", (4, 2)), ("y", (2, 4)))
    }
    holds = {"equals": lambda n: n == 1, "at_least": lambda n: n >= 1, "at_most": lambda n: n <= 1}
    wrong = torch.zeros(20, dtype=torch.int64)
    for i in range(6):
        rows = [i + shift for shift in shifts]
        if all(0 <= row < 4 for row in rows):
            one, other = values["x"][:, rows[0]].sum(1), values["y"][:, :, rows[1]].sum(1)
            wrong += holds[bounds[0]](one) & ~holds[bounds[1]](other)
    assert torch.equal(factor.violations_of(values), wrong)
    assert torch.equal((factor.part_losses(values) > 0).sum(1), wrong)


@pytest.mark.parametrize(
    ("bounds", "facts"),
    [
        ({"equals": -1}, "equals.*-1"),
        ({"equals": 1.5}, "equals.*1.5"),
        ({"equals": True}, "equals.*True"),
        ({"at_least": 3, "at_most": 2}, "at least 3 and at most 2"),
        ({"equals": 1, "at_most": 2}, "equals=1"),
        ({"at_most": "two"}, "at_most.*two"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds, facts):
    with pytest.raises(unn.DeclarationError, match=facts):
        bits_graph(lambda x: Cardinality(x["r c"], each="r", **bounds))


def test_negations_and_implications_of_what_always_holds_are_refused():
    with pytest.raises(unn.DeclarationError, match="count of x.* >= 0"):
        bits_graph(lambda x: Not(Cardinality(x["r c"], each="r", at_least=0)))
    with pytest.raises(unn.DeclarationError, match="each r .*each c"):
        bits_graph(
            lambda x: Implies(Cardinality(x["r c"], each="r"), Cardinality(x["r c"], each="c", at_least=1))
        )
    with pytest.raises(unn.DeclarationError, match="takes counts"):
        bits_graph(lambda x: Not(x["r c"]))
    with pytest.raises(unn.DeclarationError, match="AllDifferent has one for each of its values"):
        Not(different_graph().constraints[0])


def test_values_of_bits_are_no_categories():
    with pytest.raises(unn.DeclarationError, match="AllDifferent"):
        bits_graph(lambda x: AllDifferent(x["r c"], each="r"))


def test_formulas_name_the_bounds():
    texts = {name: bits_graph(make).constraints[0].formula() for name, make in MAKERS.items()}
    assert "<= 1" in texts["at most one"] and ">= 2" in texts["at least two"]
    assert "1 <=" in texts["between"] and "<= 3" in texts["between"]
    assert texts["not two"].startswith("not") and "implies" in texts["implies"]


@pytest.mark.parametrize("bounds", [{}, {"at_least": 3}, {"at_least": 1, "at_most": 2}])
def test_without_letters_all_entries_are_one_group(bounds):
    whole = bits_graph(lambda x: Cardinality(x["r c"], each="", **bounds), 1)
    row = bits_graph(lambda x: Cardinality(x["r c"], each="r", **bounds), 1)
    x = {"x": torch.cat([BITS, torch.rand(8, 4, generator=torch.Generator().manual_seed(0))])[:, None]}
    one, other = whole.constraints[0], row.constraints[0]
    assert torch.equal(one.violations_of(x), other.violations_of(x))
    torch.testing.assert_close(one.part_losses(x), other.part_losses(x))
    assert torch.equal(unn.constraint_loss(whole, x), unn.constraint_loss(row, x))


def test_values_of_another_size_than_declared_are_refused_with_the_axis():
    g = bits_graph(lambda x: Cardinality(x["r c"], each="r", equals=1), 2)
    negated = bits_graph(lambda x: Not(Cardinality(x["r c"], each="r", equals=1)), 2)
    for constraint in (*g.constraints, *negated.constraints):
        for shape, axis in (((1, 3, 4), "row"), ((1, 2, 5), "col")):
            with pytest.raises(unn.ObservationError, match=axis):
                constraint.violations_of({"x": torch.zeros(shape)})
        assert constraint.violations_of({"x": torch.zeros(1, 2, 4)}).shape == (1,)


def test_a_size_that_is_declared_later_counts_too():
    g = unn.FactorGraph("bits")
    x = g.variable("x", "row col", unn.BinaryEntropy())
    rows = g.factor(Cardinality(x["r c"], each="r", equals=1))
    assert rows.violations_of({"x": torch.zeros(1, 3, 5)}).item() == 3
    g.constant("b", "row", torch.zeros(2))
    with pytest.raises(unn.ObservationError, match="row"):
        rows.violations_of({"x": torch.zeros(1, 3, 5)})


@pytest.mark.parametrize(("nodes", "least"), [(3, 1), (2, 0)])
def test_loss_of_all_different_wants_each_value_where_there_are_as_many_nodes_as_values(
    nodes: int, least: int
) -> None:
    g = unn.FactorGraph("line", cell=nodes, value=3)
    x = g.variable("X", "cell | value", unn.Entropy())
    g.factor(AllDifferent(x["c v"], each=""))
    undecided = torch.full((1, nodes, 3), 1 / 3, requires_grad=True)
    loss = unn.constraint_loss(g, {"X": undecided})
    # probabilities below 1/2 become zeros
    assert loss.item() == 3 * least
    assert torch.autograd.grad(loss.sum(), undecided)[0].abs().sum().item() == 2 * 3 * least * nodes
    decided = torch.eye(3)[:nodes][None]
    assert unn.constraint_loss(g, {"X": decided}).item() == 0


class WithoutGroups(Cardinality):
    """Counts, of which no group says anything."""

    def groups(self, shapes):
        return []


def test_groups_that_do_not_define_a_counted_constraint_break_its_contract():
    contract = constraint_contract(
        lambda: bits_graph(lambda x: WithoutGroups(x["r c"], each="r", equals=2)),
        counted(lambda x: Cardinality(x["r c"], each="r", equals=2)),
    )()
    with pytest.raises(AssertionError, match="groups hold, with .* violations"):
        contract.test_groups_hold_exactly_where_nothing_is_violated()
