"""Factors without an energy: what they declare, print and refuse, and what counting constraints count."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Cardinality, Clique, Depends, Multilinear


def product_graph():
    """A matrix product as a generative program: each C[i,k,j] was computed from A[i,k] and B[k,j]."""
    g = unn.FactorGraph("product", i=2, k=3, j=2)
    A, B = g.variable("A", "i k", unn.SquaredNorm()), g.variable("B", "k j", unn.SquaredNorm())
    C = g.variable("C", "i k j", unn.SquaredNorm())
    g.factor(Depends(C["x y z"], A["x y"], B["y z"], name="each product"))
    return g, A, B, C


def declared():
    g, A, B, _ = product_graph()
    g.factor(Clique(A["r c"], B["c q"], each="r q", name="rows"))
    g.factor(Cardinality(A["r c"], each="r", equals=2, name="two"))
    return g


def test_they_are_declared_and_tie_axes_as_any_factor():
    g, A, B, C = product_graph()
    assert g.factors["each product"].child.array is C
    assert [parent.array for parent in g.factors["each product"].parents] == [A, B]
    h = unn.FactorGraph("tied", i=4)
    X, Y = h.variable("X", "i", unn.SquaredNorm()), h.variable("Y", "m", unn.SquaredNorm())
    h.factor(Clique(X["a"], Y["a"]))
    assert h.size_table.shape(Y, h.size_table.static) == (4,)
    with pytest.raises(unn.DeclarationError, match="'bad'.*'i'.*'k'|'bad'.*'k'.*'i'"):
        g.factor(Depends(A["x x"], name="bad"))
    assert "bad" not in g.factors


def test_they_print_what_they_say():
    g = declared()
    assert str(g.factors["each product"]) == "C[x y z] depends on A[x y], B[y z]"
    assert str(g.factors["rows"]) == "clique of A[r c], B[c q] for each r q"
    assert str(g.factors["two"]) == "count of A[r c] = 2 for each r"
    assert str(Depends(g["A"]["x y"])) == "A[x y] depends on nothing"
    assert str(Clique(g["A"]["x y"])) == "clique of A[x y]"
    assert str(Cardinality(g["A"]["x y"], each="", equals=5)) == "count of A[x y] = 5"
    text = " ".join(g.explain().split())
    for factor in g.factors.values():
        assert factor.formula() in text


@pytest.mark.parametrize("name", ["each product", "rows", "two"])
def test_inference_and_energies_are_refused_by_the_name_of_the_factor(name):
    g = declared()
    for other in [n for n in g.factors if n != name]:
        del g.factors[other]
    factor = g.factors[name]
    values = {n: torch.zeros(1, *g.size_table.shape(v, g.size_table.static)) for n, v in g.variables.items()}
    assert not isinstance(factor, unn.EnergyFactor)
    for refused in (
        lambda: unn.infer(g, {"A": values["A"]}, order=["B", "C"]),
        lambda: g.energy(values),
    ):
        with pytest.raises(unn.InferenceError, match=f"'{name}' .{type(factor).__name__}.*no energy"):
            refused()


def test_they_do_not_count_against_boundedness():
    g = declared()
    assert g.boundedness().bounded
    g.factor(Multilinear(g["A"]["i k"], g["B"]["k j"], g["C"]["i k j"]))
    assert not g.boundedness().bounded


@pytest.mark.parametrize("kind", ["parameter", "constant"])
def test_they_relate_variables_only(kind):
    g = unn.FactorGraph("kinds", n=2)
    X, W = g.variable("X", "n", unn.SquaredNorm()), getattr(g, kind)("W", "n")
    makes = (
        lambda: Depends(X["i"], W["i"]),
        lambda: Depends(W["i"], X["i"]),
        lambda: Clique(X["i"], W["i"]),
        lambda: Cardinality(W["i"], each="i"),
    )
    for make in makes:
        with pytest.raises(unn.DeclarationError, match=f"'W' is a {kind}"):
            make()


def test_groups_and_counts_that_do_not_fit_are_refused_by_name():
    g = unn.FactorGraph("wrong", row=2, col=2)
    X = g.variable("X", "row col", unn.BinaryEntropy())
    with pytest.raises(unn.DeclarationError, match="'count'.*'s'.*no letter"):
        Cardinality(X["r c"], each="s", name="count")
    with pytest.raises(unn.DeclarationError, match="'all'.*'r s'.*no letter"):
        Clique(X["r c"], each="r s", name="all")
    for equals in (-1, True, 1.0, "1"):
        with pytest.raises(unn.DeclarationError, match="'count'.*whole number"):
            Cardinality(X["r c"], each="r", equals=equals, name="count")


# -- counting ------------------------------------------------------------------------------------------------


def sudoku(R, C):
    """R x C blocks of C x R cells each, every digit once in each."""
    n = R * C
    g = unn.FactorGraph("sudoku", row=n, col=n, digit=n, R=R, C=C)
    X = g.variable("X", "row col | digit", unn.Entropy())
    g.factor(Cardinality(X["r c v"], each="r c", name="cells"))
    g.factor(Cardinality(X["r c v"], each="r v", name="rows"))
    g.factor(Cardinality(X["r c v"], each="c v", name="columns"))
    g.factor(Cardinality(X["(R r) (C c) v"], each="R C v", name="blocks"))
    return g


def solved(R, C, seed):
    """A valid grid: a cyclic one with its digits, and the rows of each band, shuffled."""
    n = R * C
    generator = random.Random(seed)
    digits = generator.sample(range(n), n)
    rows = [C * band + k for band in range(R) for k in generator.sample(range(C), C)]
    return [[digits[(R * (r % C) + r // C + c) % n] for c in range(n)] for r in rows]


def one_hot(grid):
    return torch.nn.functional.one_hot(torch.tensor(grid), len(grid)).double()[None]


@settings(max_examples=30, deadline=None)
@given(
    shape=st.sampled_from([(3, 3), (3, 2), (2, 3), (2, 2)]),
    seed=st.integers(0, 999),
    changes=st.integers(0, 12),
)
def test_sudoku_constraints_count_what_a_loop_over_rows_columns_and_blocks_counts(shape, seed, changes):
    R, C = shape
    n = R * C
    g = sudoku(R, C)
    grid = solved(R, C, seed)
    generator = random.Random(seed + 1)
    for _ in range(changes):
        grid[generator.randrange(n)][generator.randrange(n)] = generator.randrange(n)
    rows = [[(r, c) for c in range(n)] for r in range(n)]
    columns = [[(r, c) for r in range(n)] for c in range(n)]
    blocks = [
        [(r, c) for r in range(n) for c in range(n) if (r // C, c // R) == block]
        for block in itertools.product(range(R), range(C))
    ]
    x = torch.cat([one_hot(grid), one_hot(solved(R, C, seed + 2))])
    for name, groups in (("rows", rows), ("columns", columns), ("blocks", blocks)):
        wrong = sum(
            [grid[r][c] for r, c in group].count(digit) != 1 for group in groups for digit in range(n)
        )
        assert g.factors[name].violations(x).tolist() == [wrong, 0]
    assert g.factors["cells"].violations(x).tolist() == [0, 0]
    assert g.factors["blocks"].counts(x).shape == (2, R, C, n)


def test_empty_and_doubled_cells_violate():
    g = sudoku(2, 2)
    x = one_hot(solved(2, 2, 0))
    x[0, 0, 0] = 0
    assert [g.factors[name].violations(x).item() for name in ("cells", "rows", "columns", "blocks")] == [
        1,
        1,
        1,
        1,
    ]
    x[0, 0, 0] = 1
    assert [g.factors[name].violations(x).item() for name in ("cells", "rows", "columns", "blocks")] == [
        1,
        3,
        3,
        3,
    ]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    equals=st.integers(0, 4),
    each=st.sampled_from(["a", "b", "a b", "b a", "c", "c a", "a b c"]),
)
def test_counts_of_any_groups_equal_a_loop(seed, equals, each):
    g = unn.FactorGraph("counts", a=2, b=3, c=2)
    X = g.variable("X", "a b c", unn.BinaryEntropy())
    f = Cardinality(X["a b c"], each=each, equals=equals)
    g.factor(f)
    x = torch.rand(2, 2, 3, 2, generator=torch.Generator().manual_seed(seed))
    counts = f.counts(x)
    sizes = {"a": 2, "b": 3, "c": 2}
    groups = list(itertools.product(*(range(sizes[letter]) for letter in each.split())))
    for k in range(2):
        wrong = 0
        for group in groups:
            fixed = dict(zip(each.split(), group, strict=True))
            cells = itertools.product(
                *([fixed[letter]] if letter in fixed else range(n) for letter, n in sizes.items())
            )
            count = sum(x[(k, *cell)].item() > 0.5 for cell in cells)
            assert counts[(k, *group)].item() == count
            wrong += count != equals
        assert f.violations(x)[k].item() == wrong


def test_without_letters_all_entries_are_one_group():
    g = unn.FactorGraph("one group", n=3)
    X = g.variable("X", "n", unn.BinaryEntropy())
    f = Cardinality(X["i"], each="", equals=2)
    g.factor(f)
    x = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    assert f.counts(x).tolist() == [2, 3]
    assert f.violations(x).tolist() == [0, 1]


def test_diagonals_and_shifts_choose_what_is_counted():
    g = unn.FactorGraph("board", n=3)
    X = g.variable("X", "n m", unn.BinaryEntropy())
    main, upper = Cardinality(X["i i"], each="", equals=1), Cardinality(X["i i+1"], each="i", equals=1)
    x = torch.tensor([[[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]])
    assert upper.counts(x).tolist() == [[1, 1]]
    assert upper.violations(x).tolist() == [0]
    assert main.counts(x).tolist() == [1]


def test_a_split_of_unknown_size_is_refused_by_its_letter():
    g = unn.FactorGraph("unknown", row=4)
    X = g.variable("X", "row", unn.BinaryEntropy())
    f = Cardinality(X["(R r)"], each="R", name="blocks")
    g.factor(f)
    with pytest.raises(unn.DeclarationError, match="'blocks'.*'[Rr]'"):
        f.violations(torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("member", "base"),
    [
        ("energy", "EnergyFactor"),
        ("message", "EnergyFactor"),
        ("violations_of", "Constraint"),
        ("message_rows", "SharedMessages"),
    ],
)
def test_a_class_that_derives_from_too_little_for_what_it_defines_is_refused(member, base):
    with pytest.raises(unn.DeclarationError, match=says("Half", member, base)):
        type("Half", (unn.Factor,), {member: lambda self, *values: None})


def test_classes_that_define_too_little_say_what_they_lack():
    g = unn.FactorGraph("few", n=2)
    reference = g.variable("X", "n", unn.SquaredNorm())["i"]
    for base, member in ((unn.EnergyFactor, "energy"), (unn.Constraint, "violations_of")):
        factor = type("Half", (base,), {})(reference)
        with pytest.raises(NotImplementedError, match=says("Half", member)):
            getattr(factor, member)({"X": torch.zeros(1, 2)})
