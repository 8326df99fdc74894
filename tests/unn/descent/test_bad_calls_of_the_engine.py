"""Calls that make no sense are refused in words, by name, and with what to do."""

import numpy as np
import pytest
import torch
from support.helpers import X, mlp, says

import unn
from factors import Multilinear
from unn.errors import suggest


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g: unn.infer(None, {"X": X}), ["FactorGraph", "NoneType"]),
        (lambda g: unn.Unrolled(None, "X", "Y"), ["FactorGraph", "NoneType"]),
        (lambda g: unn.infer(g, {"X": X.to_sparse()}), ["'X'", "sparse", "to_dense"]),
        (lambda g: unn.infer(g, {"X": X}, lengths=torch.tensor([1, 2])), ["lengths", "mapping"]),
        (lambda g: unn.infer(g, {"X": X}, sizes=[3]), ["sizes", "mapping"]),
        (lambda g: unn.infer(g, {"X": X}, sizes="n"), ["sizes", "mapping"]),
        (lambda g: unn.infer(g, {"X": X}, generator=3), ["generator", "manual_seed"]),
        (lambda g: unn.Unrolled(g, "X", "Y")(X, generator=3), ["generator", "manual_seed"]),
        (
            lambda g: torch.func.vmap(lambda x: unn.Unrolled(g, "X", "Y")(x[None]))(X),
            ["vmap", "check_values=False"],
        ),
        (lambda g: unn.FactorGraph("large", x=2**40).parameter("b", "x"), ["'b'", "4,398,046,511,104 bytes"]),
        (lambda g: unn.FactorGraph("large", x=2**70).parameter("b", "x"), ["'b'", "bytes"]),
        (lambda g: unn.infer(g, {"X": X}, trace="yes"), ["trace", "'yes'"]),
        (lambda g: unn.infer(g, {"X": X}, until=float("inf")), ["until", "inf"]),
        (lambda g: g.energy([X]), ["energy", "mapping"]),
        (lambda g: g.energy(None), ["energy", "mapping"]),
        (lambda g: unn.Unrolled(g, "X", 3), ["want", "3"]),
        (lambda g: unn.Unrolled(g, 3, "Y"), ["given", "3"]),
        (lambda g: unn.Unrolled(g, "X", []), ["want", "[]"]),
        (lambda g: unn.Unrolled(g, "X", "Y", initial=["Y"]), ["initial", "mapping"]),
        (lambda g: unn.Unrolled(g, "X", "Y", dropout={"Q": 0.5}), ["dropout", "'Q'"]),
        (lambda g: g.parameter("U", "pixel", init=lambda values: 1 / 0), ["'U'", "ZeroDivisionError"]),
        (lambda g: g.parameter("U", "pixel", init=torch.full((4,), torch.nan)), ["'U'", "NaN"]),
        (lambda g: unn.FactorGraph(None), ["name", "None"]),
        (lambda g: unn.FactorGraph(3), ["name", "3"]),
    ],
)
def test_a_bad_call_is_refused_in_words(call, words):
    with pytest.raises(unn.UnnError, match=says(*words)):
        call(mlp())


def test_numbers_of_numpy_are_numbers():
    g = mlp()
    out = unn.infer(g, {"X": X}, until=np.float32(1e-4), iterations=np.int64(50))
    assert out.converged
    assert unn.FactorGraph("sizes", n=np.int64(3)).sizes == {"n": 3}


def test_an_attribute_that_is_a_variable_says_how_to_look_it_up():
    with pytest.raises(AttributeError, match=says("g['X']")):
        _ = mlp().X
    with pytest.raises(AttributeError, match="nothing"):
        _ = mlp().nothing


@pytest.mark.parametrize("name", ["x", "hidden", "HIDDEN", "Hiddn"])
def test_suggestions_ignore_case(name):
    assert "Did you mean" in suggest(name, ["X", "Hidden"])


def test_an_array_of_another_graph_does_not_suggest_its_own_name():
    g = mlp()
    with pytest.raises(unn.DeclarationError) as caught:
        g.factor(Multilinear(mlp()["X"]["i"]))
    assert "Did you mean 'X'" not in str(caught.value) and "g['X']" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_lengths_of_any_integer_type_fit_long_axes(dtype):
    g = unn.FactorGraph("long", d=1)
    x, y = g.variable("X", "n d", unn.SquaredNorm()), g.variable("Y", "n d", unn.SquaredNorm())
    g.factor(Multilinear(x["i d"], y["i d"]))
    out = unn.infer(
        g, {"X": torch.ones(1, 200, 1)}, order=["Y"], lengths={"n": torch.tensor([100], dtype=dtype)}
    )
    assert out["Y"].sum() == 100


def test_axes_may_have_the_names_of_arguments():
    g = unn.FactorGraph("names", **{"name": 3, "self": 2})
    X = g.variable("X", "name self", unn.SquaredNorm())
    g.factor(Multilinear(X["i j"]))
    assert g.adjacency().count == 6 and g.depth() >= 0
    dynamic = unn.FactorGraph("dynamic")
    dynamic.factor(Multilinear(dynamic.variable("X", "self name", unn.SquaredNorm())["i j"]))
    assert dynamic.adjacency(**{"self": 2, "name": 2}).count == 4 and dynamic.symmetries(
        **{"self": 2, "name": 2}
    )


def test_weights_for_a_parameter_without_a_size_are_refused_with_the_axis_that_lacks_one():
    g = unn.FactorGraph("late", pixel=3)
    X, H = g.variable("X", "pixel", unn.SquaredNorm()), g.variable("H", "hidden", unn.NonNegative())
    W = g.parameter("W", "hidden pixel")
    g.factor(Multilinear(H["h"], W["h x"], X["x"]))
    with pytest.raises(RuntimeError, match=r"parameter 'W' of graph 'late' has no size yet.*hidden=\.\.\."):
        g.load_state_dict({"W": torch.ones(2, 3)})
