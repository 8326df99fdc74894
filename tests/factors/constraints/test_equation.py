"""Equations between variables: what breaks them, what they say of a graph, and what is refused."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import INF, NAN, says

import unn
from factors import SumOfProducts

SIZES = {"i": 2, "j": 3, "k": 2, "p": 4}
EQUATIONS = {
    "matrix product": ("E", "i j", [("A", "i k"), ("R", "k j")]),
    "products": ("C", "i j k", [("A", "i k"), ("R", "k j")]),
    "sum": ("E", "i j", [("C", "i j k")]),
    "sum that repeats": ("E", "i j", [("u", "k")]),
    "equal": ("E", "i j", [("F", "i j")]),
    "transposed": ("T", "j i", [("E", "i j")]),
    "three": ("u", "k", [("A", "i k"), ("E", "i j"), ("R", "k j")]),
    "whole": ("t", "", [("A", "i k"), ("A", "i k")]),
    "split": ("A", "i k", [("s", "(i k)")]),
    "shifted": ("s", "p+1", [("s", "p")]),
    "shifted back": ("s", "p", [("q", "p-1")]),
}  # fmt: skip
AXES = {
    "A": "i k",
    "R": "k j",
    "C": "i j k",
    "E": "i j",
    "F": "i j",
    "T": "j i",
    "u": "k",
    "t": "",
    "s": "p",
    "q": "p",
}
EVERY_EQUATION = pytest.mark.parametrize("which", EQUATIONS)


def declared(which, within=0.05):
    g = unn.FactorGraph("equations", **SIZES)
    child, pattern, parents = EQUATIONS[which]
    arrays = {
        name: g.variable(name, AXES[name], unn.SquaredNorm())
        for name in dict.fromkeys([child, *(name for name, _ in parents)])
    }
    references = [arrays[child][pattern], *(arrays[name][p] for name, p in parents)]
    g.factor(SumOfProducts(*references, within=within, name="equation"))
    return g


def drawn(g, seed, batch=3):
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: [g.sizes[axis] for axis in x.axes] for name, x in g.variables.items()}
    return {
        name: torch.randn(batch, *shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def place(pattern, index):
    """Where in an array a term lies; None if it lies outside."""
    if pattern == "(i k)":
        return (index["i"] * SIZES["k"] + index["k"],)
    indices = [index[x[0]] + int(x[1:] or 0) for x in pattern.split()]
    return (
        tuple(indices)
        if all(0 <= at < SIZES[x[0]] for at, x in zip(indices, pattern.split(), strict=True))
        else None
    )


def sums_by_loops(which, values):
    """What each entry of the child that has an equation should be: by its place, a number for each of the
    batch."""
    _, pattern, parents = EQUATIONS[which]
    letters = list(dict.fromkeys(x for _, p in [("", pattern), *parents] for x in p if x.isalpha()))
    sums = {}
    for at in itertools.product(*(range(SIZES[x]) for x in letters)):
        index = dict(zip(letters, at, strict=True))
        places = [place(p, index) for p in (pattern, *(p for _, p in parents))]
        if None in places:
            continue
        terms = [
            values[name][(slice(None), *spot)] for (name, _), spot in zip(parents, places[1:], strict=True)
        ]
        sums[places[0]] = sums.get(places[0], 0) + math.prod(terms)
    return sums


@EVERY_EQUATION
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), within=st.sampled_from([0.0, 0.3, 1.0, 100.0]))
def test_entries_that_are_off_are_those_that_a_loop_counts(which, seed, within):
    g = declared(which, within)
    values = drawn(g, seed)
    child = EQUATIONS[which][0]
    sums = sums_by_loops(which, values)
    off = torch.stack([(values[child][(slice(None), *at)] - x).abs() > within for at, x in sums.items()])
    assert g.factors["equation"].violations_of(values).tolist() == off.sum(0).tolist()


@pytest.mark.parametrize("which", [name for name in EQUATIONS if not name.startswith("shifted")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_what_was_computed_from_its_parents_breaks_nothing_and_each_change_beyond_the_tolerance_counts_once(
    which, dtype
):
    g = declared(which)
    child = EQUATIONS[which][0]
    values = {name: x.to(dtype) for name, x in drawn(g, 0).items()}
    for at, x in sums_by_loops(which, values).items():
        values[child][(slice(None), *at)] = x
    violations_of = g.factors["equation"].violations_of
    assert violations_of(values).tolist() == [0, 0, 0]
    values[child] += 0.049
    assert violations_of(values).tolist() == [0, 0, 0]
    first = (0,) * (values[child].ndim - 1)
    values[child][(1, *first)] += 0.002
    assert violations_of(values).tolist() == [0, 1, 0]
    for bad in (NAN, INF):
        values[child][(2, *first)] = bad
        assert violations_of(values).tolist() == [0, 1, 1]
    values[child] -= 0.1
    assert violations_of(values).tolist()[0] == values[child][0].numel()


def test_axes_without_entries_are_a_sum_of_zero():
    g = unn.FactorGraph("none")
    E, C = g.variable("E", "i", unn.SquaredNorm()), g.variable("C", "i k", unn.SquaredNorm())
    g.factor(SumOfProducts(E["i"], C["i k"], within=0.0))
    violations_of = next(iter(g.factors.values())).violations_of
    assert violations_of({"E": torch.tensor([[0.0, 1.0]]), "C": torch.zeros(1, 2, 0)}).tolist() == [1]
    assert violations_of({"E": torch.zeros(1, 0), "C": torch.zeros(1, 0, 3)}).tolist() == [0]


@EVERY_EQUATION
def test_it_adds_no_edges_to_the_graph(which):
    g = declared(which)
    assert torch.equal(g.adjacency().dense(), torch.eye(g.adjacency().dense().shape[0], dtype=torch.bool))


def test_indices_are_exchangeable_unless_they_are_shifted():
    def symmetries(which):
        return " ".join(map(str, declared(which).symmetries()))

    assert declared("matrix product").factors["equation"].ordered_letters() == set() and "A.i" in symmetries(
        "matrix product"
    )
    assert declared("shifted").factors["equation"].ordered_letters() == {"p"} and "p" not in symmetries(
        "shifted"
    )


def test_it_prints_its_equation():
    assert (
        str(declared("matrix product").factors["equation"])
        == "E[i j] = sum over k of A[i k] * R[k j] within 0.05"
    )
    assert str(declared("products").factors["equation"]) == "C[i j k] = A[i k] * R[k j] within 0.05"
    assert isinstance(declared("sum").factors["equation"], unn.Constraint)
    text = " ".join(declared("sum").explain().split())
    assert "E[i j] = sum over k of C[i j k] within 0.05" in text


@pytest.mark.parametrize("within", [-0.1, NAN, INF, True, "0.1", None, 10**400], ids=lambda x: repr(x)[:5])
def test_tolerances_that_are_none_are_refused_by_the_name_of_the_factor(within):
    with pytest.raises(unn.DeclarationError, match=says("'equation'", "within", "number >= 0")):
        declared("sum", within)


@pytest.mark.parametrize("within", [0, 1, np.float32(0.25), np.int64(2), 1e300], ids=repr)
def test_tolerances_are_numbers_of_any_kind(within):
    assert declared("sum", within).factors["equation"].within == float(within)


def test_an_equation_without_operands_is_refused():
    g = unn.FactorGraph("alone", n=2)
    X = g.variable("X", "n", unn.SquaredNorm())
    with pytest.raises(unn.DeclarationError, match=says("'alone'", "X", "operand")):
        SumOfProducts(X["i"], within=0.1, name="alone")


def matrices(**changes):
    """Values of a matrix product that holds, but for some changes."""
    A, R = torch.rand(2, 2, 2), torch.rand(2, 2, 3)
    return {"E": A @ R, "A": A, "R": R, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"A": None}, ["'A'", "torch.Tensor", "NoneType"]),
        ({"A": np.zeros((2, 2, 2))}, ["'A'", "torch.Tensor", "ndarray"]),
        ({"A": torch.zeros(2, 2, 2, dtype=torch.complex64)}, ["'A'", "real", "complex64"]),
        ({"A": torch.zeros(2, 2)}, ["'A'", "(2, 2)", "(batch, i, k)", "x[None]"]),
        ({"A": torch.zeros(2, 2, 2, 1)}, ["'A'", "4 axes", "(batch, i, k)"]),
        ({"A": torch.zeros(3, 2, 2)}, ["'A'", "batch size 3", "2"]),
        ({"A": torch.zeros(1, 2, 2)}, ["'A'", "batch size 1", "2"]),
        ({"E": torch.zeros(2, 3, 3)}, ["'E'", "'i'", "size 3", "2"]),
        ({"R": torch.zeros(2, 3, 3)}, ["'R'", "'k'", "size 3", "2"]),
    ],
    ids=[
        "None",
        "numpy",
        "complex",
        "no batch",
        "too many axes",
        "batch",
        "batch of one",
        "a row more",
        "rank",
    ],
)
def test_values_that_do_not_fit_are_refused_by_factor_variable_and_axis(changes, words):
    violations_of = declared("matrix product").factors["equation"].violations_of
    assert violations_of(matrices()).tolist() == [0, 0]
    with pytest.raises(unn.ObservationError, match=says("'equation'", *words)):
        violations_of(matrices(**changes))


def test_values_that_are_missing_are_named():
    values = matrices()
    del values["R"]
    with pytest.raises(unn.ObservationError, match=says("'equation'", "'R'", "no value")):
        declared("matrix product").factors["equation"].violations_of(values)


def test_a_split_that_does_not_multiply_out_is_refused():
    values = drawn(declared("split"), 0)
    with pytest.raises(unn.ObservationError, match=says("'equation'", "'s'", "'p'", "size 5", "4")):
        declared("split").factors["equation"].violations_of({**values, "s": torch.zeros(3, 5)})


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_values_of_any_real_type_are_compared_with_one_another(dtype):
    A = torch.tensor([[[1, 0], [1, 1]]])
    R = torch.tensor([[[1, 0, 1], [0, 1, 0]]])
    values = {"E": (A @ R).double(), "A": A.to(dtype), "R": R}
    violations_of = declared("matrix product", 0).factors["equation"].violations_of
    assert violations_of(values).tolist() == [0]
    values["E"][0, 0, 1] += 1e-9
    assert violations_of(values).tolist() == [1]


def test_diagonals_and_more_letters_than_the_alphabet_has():
    g = unn.FactorGraph("many", n=3)
    P, t, y = (
        g.variable("P", "n n", unn.SquaredNorm()),
        g.variable("t", "", unn.SquaredNorm()),
        g.variable("y", "n", unn.SquaredNorm()),
    )
    trace, diagonal = (
        SumOfProducts(t[""], P["a a"], within=1e-9),
        SumOfProducts(y["a"], P["a a"], within=1e-9),
    )
    many = SumOfProducts(t[""], *(P[f"a{k} b{k}"] for k in range(30)), within=1e-9)
    x = torch.rand(2, 3, 3, dtype=torch.float64)
    assert trace.violations_of({"P": x, "t": x.diagonal(dim1=1, dim2=2).sum(1)}).tolist() == [0, 0]
    assert diagonal.violations_of({"P": x, "y": x.diagonal(dim1=1, dim2=2)}).tolist() == [0, 0]
    x /= x.sum((1, 2), keepdim=True)
    assert many.violations_of({"P": x, "t": torch.tensor([1.0, 1.1])}).tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["parameter", "constant"])
def test_it_relates_variables_only(kind):
    g = unn.FactorGraph("kinds", n=2)
    X, W = g.variable("X", "n", unn.SquaredNorm()), getattr(g, kind)("W", "n")
    for make in (
        lambda: SumOfProducts(X["i"], W["i"], within=0.1),
        lambda: SumOfProducts(W["i"], X["i"], within=0.1),
    ):
        with pytest.raises(unn.DeclarationError, match=f"'W' is a {kind}"):
            make()


def test_a_result_of_one_number_has_one_residual():
    g = unn.FactorGraph("total", i=3)
    total, x = g.variable("total", "", unn.SquaredNorm()), g.variable("x", "i", unn.SquaredNorm())
    g.factor(SumOfProducts(total[""], x["i"], within=0.1))
    (constraint,) = g.constraints
    values = {"total": torch.tensor([6.0, 1.0]), "x": torch.tensor([[1.0, 2.0, 3.0]]).expand(2, 3)}
    assert constraint.part_losses(values).tolist() == [[0.0], [25.0]]
