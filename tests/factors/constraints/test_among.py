"""Counts of listed groups: against enumeration, and their contract."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import AllDifferent, Among, Cardinality
from unn.errors import DeclarationError
from unn.solver.layout import Layout
from unn.testing import ConstraintContract


def regions(numbers, **bounds):
    """Values of cells counted by region."""
    g = unn.FactorGraph("regions", cell=len(numbers), value=2)
    X = g.variable("X", "cell | value", unn.Entropy())
    region = g.index("region", "cell", numbers, into="area")
    g.factor(Among(X["cell v"], group=[region], each="v", name="regions", **bounds))
    return g


def one_hot(numbers, size):
    return torch.nn.functional.one_hot(torch.tensor(numbers), size).double()


def all_values(nodes, size):
    return torch.stack([one_hot(list(row), size) for row in itertools.product(range(size), repeat=nodes)])


BOUNDS = st.sampled_from([{}, {"equals": 2}, {"at_least": 1}, {"at_most": 1}, {"at_least": 1, "at_most": 2}])


@given(st.lists(st.integers(0, 2), min_size=1, max_size=5), BOUNDS)
@settings(max_examples=30)
def test_violations_count_the_groups_with_a_wrong_number_of_ones(numbers, bounds):
    g = regions(numbers, **bounds)
    X = all_values(len(numbers), 2)
    lower = bounds.get("equals", bounds.get("at_least", 0 if "at_most" in bounds else 1))
    upper = bounds.get("equals", bounds.get("at_most", 99 if "at_least" in bounds else 1))
    for x, violations in zip(X, g.constraints[0].violations_of({"X": X}).tolist(), strict=True):
        wrong = 0
        for area, value in itertools.product(range(max(numbers) + 1), range(2)):
            count = sum(int(x[k, value]) for k, n in enumerate(numbers) if n == area)
            wrong += not lower <= count <= upper
        assert violations == wrong


@given(st.lists(st.integers(0, 2), min_size=1, max_size=4), BOUNDS)
@settings(max_examples=30)
def test_its_groups_hold_exactly_where_it_is_not_violated(numbers, bounds):
    numbers = [sorted(set(numbers)).index(n) for n in numbers]
    g = regions(numbers, **bounds)
    layout = Layout(g, {})
    X = all_values(len(numbers), 2)
    counts = (layout.to_groups @ layout.frame.flatten({"X": X}).float().T).T
    holds = ((counts >= layout.lower) & (counts <= layout.upper)).all(1)
    assert torch.equal(holds, g.constraints[0].violations_of({"X": X}) == 0)


def test_equal_groups_agree_with_cardinality_in_all_respects():
    one = regions([0, 0, 1, 1], equals=1)
    g = unn.FactorGraph("regions", area=2, cell=2, value=2)
    X = g.variable("X", "area cell | value", unn.Entropy())
    g.factor(Cardinality(X["a c v"], each="a v", equals=1))
    x = torch.rand(3, 4, 2, dtype=torch.double)
    y = x.view(3, 2, 2, 2)
    listed, counted = one.constraints[0], g.constraints[0]
    assert torch.equal(listed.violations_of({"X": x}), counted.violations_of({"X": y}))
    torch.testing.assert_close(listed.loss({"X": x}), counted.loss({"X": y}))
    assert (one.adjacency().matrix != g.adjacency().matrix).nnz == 0


def channel():
    """Whether X has the value 0 or 1 is chosen by Y."""
    g = unn.FactorGraph("channel", cell=2, value=2, choice=1, option=2)
    X = g.variable("X", "cell | value", unn.Entropy())
    Y = g.variable("Y", "choice | option", unn.Entropy())
    g.index("cell_of", "inside", [0, 0, 1, 1], into="cell")
    g.index("value_of", "inside", [0, 1, 0, 1], into="value")
    inside = g.index("group_of", "inside", [0, 1, 2, 3], into="pair")
    g.index("choice_of", "outside", [0, 0, 0, 0], into="choice")
    g.index("option_of", "outside", [1, 0, 1, 0], into="option")
    outside = g.index("group_without", "outside", [0, 1, 2, 3], into="pair")
    g.factor(Among(X["cell_of[i] value_of[i]"], Y["choice_of[o] option_of[o]"], group=[inside, outside]))
    return g


def test_members_of_several_variables_are_counted_together():
    g = channel()
    for x, y in itertools.product(itertools.product(range(2), repeat=2), range(2)):
        values = {"X": one_hot(list(x), 2)[None], "Y": one_hot([y], 2)[None]}
        assert (g.constraints[0].violations_of(values) == 0) == (x == (y, y))
    assert g.adjacency().matrix.toarray().tolist() == [[True, False, True], [False, True, True], [True] * 3]


def test_the_index_lies_along_the_letter_of_its_own_axis_beside_one_that_is_looked_up():
    g = unn.FactorGraph("chosen", cell=4, value=3)
    X = g.variable("X", "cell | value", unn.Entropy())
    g.index("second", "one", [1], into="value")
    area = g.index("area", "cell", [0, 0, 1, 1], into="area")
    g.factor(Among(X["cell second[o]"], group=[area], equals=1, name="once"))
    every = all_values(4, 3)
    seconds = every[:, :, 1].view(-1, 2, 2).sum(2)
    assert torch.equal(g.constraints[0].violations_of({"X": every}), (seconds != 1).sum(1))


class TestAmong(ConstraintContract):
    def graph(self):
        return regions([0, 1, 0, 1], equals=1)

    def satisfying(self, generator):
        first = torch.randint(2, (5, 2), generator=generator)
        return {"X": torch.nn.functional.one_hot(torch.cat([first, 1 - first], 1), 2).double()}


class TestAmongSeveralVariables(ConstraintContract):
    def graph(self):
        return channel()

    def satisfying(self, generator):
        y = torch.randint(2, (5, 1), generator=generator)
        hot = torch.nn.functional.one_hot
        return {"X": hot(y.expand(5, 2), 2).double(), "Y": hot(y, 2).double()}


def test_the_formula_names_members_and_groups():
    assert regions([0, 1], at_most=1).constraints[0].formula() == "count of X[cell v] <= 1 for each region v"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g, X, r: Among(X["c v"], group=[r, r]), "one index for each reference"),
        (lambda g, X, r: Among(X["c v"], group=["region"]), "one index for each reference"),
        (lambda g, X, r: Among(X["c v"], group=[r], each="w"), "names no letter"),
        (lambda g, X, r: Among(X["c v"], X["c w"], group=[r, r], each="v"), "does not have"),
        (lambda g, X, r: Among(X["c v"], group=[g.index("i", "other", [0], into="area")]), "0 letters"),
        (lambda g, X, r: Among(X["c v"], group=[r], equals=-1), "equals"),
        (lambda g, X, r: Among(X["c v"], group=[r], at_least=2, at_most=1), "no number"),
    ],
)
def test_a_wrong_declaration_is_refused_by_name(make, message):
    g = unn.FactorGraph("g", cell=3, value=2)
    X = g.variable("X", "cell | value", unn.Entropy())
    r = g.index("region", "cell", [0, 0, 1], into="area")
    with pytest.raises(DeclarationError, match=message):
        g.factor(make(g, X, r))


def test_a_list_of_members_that_is_longer_than_its_groups_is_refused():
    g = unn.FactorGraph("g", cell=3, value=2)
    X = g.variable("X", "cell | value", unn.Entropy())
    g.index("cell_of", "member", [0, 1, 2], into="cell")
    r = g.index("region", "others", [0, 1], into="area")
    g.factor(Among(X["cell_of[m] v"], group=[r], each="v"))
    with pytest.raises(DeclarationError, match="2 numbers.*runs over 3"):
        g.constraints[0].violations_of({"X": torch.zeros(1, 3, 2)})


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1}, {"at_most": 1}])
def test_an_empty_list_has_no_groups(bounds):
    g = unn.FactorGraph("empty", node=2, value=2)
    X = g.variable("X", "node | value", unn.Entropy())
    source = g.index("source", "edge", [], into="node")
    group = g.index("group", "edge", [], into="groups")
    g.factor(Among(X[f"{source.name}[e] v"], group=[group], **bounds))
    assert not g.constraints[0].violations_of({"X": torch.eye(2)[None]}).any()
    assert float(unn.exact.log_partition(g).exp()) == pytest.approx(4)


def test_all_different_rows_equal_their_listing():
    g = unn.FactorGraph("g", row=2, column=2, value=2)
    X = g.variable("X", "row column | value", unn.Entropy())
    g.factor(AllDifferent(X["r c v"], each="r"))
    listed = regions([0, 0, 1, 1], equals=1)
    X = all_values(4, 2)
    a = listed.constraints[0].violations_of({"X": X}) == 0
    b = g.constraints[0].violations_of({"X": X.view(-1, 2, 2, 2)}) == 0
    assert torch.equal(a, b)
