"""Bounds of entries as declared: shapes, domains, and what cannot use them."""

import math
import pickle

import numpy as np
import pytest
import torch
from support.helpers import says

import unn
from factors import Clique, Multilinear
from unn.errors import DeclarationError
from unn.graph.bounds import EntryBounds
from unn.graph.latents import contract_latents
from unn.graph.signature import graph_signature


def declared(bounds, regularizer=None, axes="i j", **sizes):
    g = unn.FactorGraph("g", **(sizes or {"i": 2, "j": 3}))
    g.variable("x", axes, regularizer or unn.Box(0.0, 10.0), bounds)
    return g


def test_bounds_keep_the_axes_along_which_they_differ():
    bounds = declared((0.0, [[1.0, 2.0, 3.0]] * 2)).variables["x"].bounds
    assert bounds == EntryBounds((1, 3), (0.0, 0.0, 0.0), (1.0, 2.0, 3.0))
    low, high = bounds.arrays()
    np.testing.assert_array_equal(high, [[1.0, 2.0, 3.0]])
    assert low.shape == (1, 3)
    assert pickle.loads(pickle.dumps(bounds)) == bounds
    # an axis of any size along which they are equal
    g = unn.FactorGraph("g", j=3)
    assert g.variable("x", "i j", unn.Box(0.0, 10.0), (0.0, [1.0, 2.0, 3.0])).bounds == bounds


@pytest.mark.parametrize(
    "high",
    [
        [1, 2, 3],
        torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
        np.array([1, 2, 3], dtype=np.int32),
    ],
)
def test_bounds_are_lists_arrays_or_tensors_of_any_dtype(high):
    bounds = declared((np.float32(0), high)).variables["x"].bounds
    assert bounds == EntryBounds((1, 3), (0.0, 0.0, 0.0), (1.0, 2.0, 3.0))


def test_long_bounds_are_shown_in_part():
    bounds = declared((0.0, np.linspace(1, 10, 500)), axes="i", i=500).variables["x"].bounds
    assert len(str(bounds)) < 200 and "..." in str(bounds)


def test_bounds_that_are_those_of_the_regularizer_are_none():
    assert declared((0.0, 10.0)).variables["x"].bounds is None
    assert declared((0.0, math.inf), unn.NonNegative()).variables["x"].bounds is None
    narrower = declared((0.0, 9.0)).variables["x"].bounds
    assert narrower == EntryBounds((1, 1), (0.0,), (9.0,))


@pytest.mark.parametrize(
    ("bounds", "regularizer", "words"),
    [
        ((0.0, [1.0, 2.0]), None, ["'x'", "axis 'j'", "2 entries", "size 3"]),
        ((0.0, 11.0), None, ["'x'", "from 0 to 10", "got 0 and 11"]),
        ((-1.0, 1.0), None, ["'x'", "got -1 and 1"]),
        ((2.0, 2.0), None, ["'x'", "increasing", "got 2 and 2"]),
        ((0.0, math.nan), None, ["'x'", "NaN"]),
        ((-math.inf, 1.0), unn.SquaredNorm(), ["'x'", "an upper one only beside a lower one"]),
        ((math.inf, math.inf), unn.SquaredNorm(), ["'x'", "got inf and inf"]),
        ((1.0, 3.0), unn.Counts(5), ["'x'", "0 and a whole number of at most 5"]),
        ((0.0, 2.5), unn.Counts(5), ["'x'", "got 0 and 2.5"]),
        ((0.0, 1.0), unn.BinaryEntropy(), ["'x'", "BinaryEntropy"]),
        ((0.0, 1.0), unn.Entropy(), ["'x'", "Entropy"]),
        (3.0, None, ["'x'", "a lower and an upper"]),
        ((None, 3.0), None, ["'x'", "a lower and an upper"]),
        ((0.0, "two"), None, ["'x'", "a lower and an upper"]),
        ((0.0, []), None, ["'x'", "shape (0,)"]),
        ((0.0, np.ones((1, 1, 3))), None, ["'x'", "(1, 1, 3)", "2 axes"]),
    ],
)
def test_bounds_that_do_not_fit_are_refused(bounds, regularizer, words):
    with pytest.raises(DeclarationError, match=says(*words)):
        declared(bounds, regularizer)


def test_bounds_along_an_axis_without_a_static_size_are_refused():
    g = unn.FactorGraph("g")
    with pytest.raises(DeclarationError, match=says("'x'", "axis 'i'", "declare i=2")):
        g.variable("x", "i", unn.Box(0.0, 10.0), (0.0, [1.0, 2.0]))
    assert not g.variables


def test_the_signature_and_the_explanation_of_a_graph_have_its_bounds():
    one, other, none = (declared(b) for b in ((0.0, [1.0, 2.0, 3.0]), (0.0, [1.0, 2.0, 4.0]), None))
    assert len({graph_signature(g) for g in (one, other, none)}) == 3
    assert "entries from" in one.explain() and "entries from" not in none.explain()


def test_factors_with_an_energy_do_not_take_a_variable_with_bounds_of_its_entries():
    g = declared((0.0, 5.0))
    W = g.parameter("W", "i j")
    with pytest.raises(DeclarationError, match=says("'x'", "bounds", "a variable for each")):
        g.factor(Multilinear(W["i j"], g["x"]["i j"]))
    assert not g.factors
    g.factor(Clique(g["x"]["i j"]))


@pytest.mark.parametrize("name", ["descent", "gibbs", "exact"])
@pytest.mark.parametrize("regularizer", [unn.Box(0.0, 10.0), unn.SquaredNorm()])
def test_engines_that_work_on_energies_refuse_bounds_of_entries(name, regularizer):
    from unn.engine import load_engine

    refusal = load_engine(name).refusal(declared((0.0, 5.0), regularizer))
    assert "'x'" in refusal
    assert isinstance(regularizer, unn.Box) or "bounds" in refusal


def test_contraction_keeps_the_bounds_of_what_is_observable():
    g = declared((0.0, [1.0, 2.0, 3.0]))
    h = g.variable("h", "", unn.SquaredNorm())
    g.factor(Clique(g["x"]["i j"], h[""]))
    assert contract_latents(g, ["x"]).variables["x"].bounds == g.variables["x"].bounds


def test_axes_along_which_bounds_differ_are_not_exchangeable():
    def sizes(*bounds):
        g = declared(*bounds)
        g.factor(Clique(g["x"]["i j"]))
        return sorted(symmetry.size for symmetry in g.symmetries())

    assert sizes(None) == sizes((0.0, 5.0)) == [2, 3]
    assert sizes((0.0, [1.0, 2.0, 3.0])) == [2]
    assert sizes(([[0.0], [1.0]], 5.0)) == [3]
    assert sizes((0.0, [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])) == []


def test_samples_of_a_declared_graph_are_inside_the_bounds_of_their_entries():
    g = declared((0.0, [1.0, 2.0, 3.0]))
    g.factor(Clique(g["x"]["i j"]))
    torch.manual_seed(0)
    model = unn.Diffusion(unn.Denoiser(g, width=8, depth=1, heads=1))
    model.standardise({"x": torch.rand(50, 2, 3) * torch.tensor([1.0, 2.0, 3.0])})
    x = model.sample(count=100, steps=3, seed=0)["x"]
    assert ((x >= 0) & (x <= torch.tensor([1.0, 2.0, 3.0]))).all()
