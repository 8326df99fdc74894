"""Sizes of axes: what is tied, what follows, and what contradicts."""

import itertools

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Conv2d, Depends, Multilinear
from unn.graph.sizes import letter_sizes


def vectors(g, *axes):
    """A variable for each axis, named as the axis in capitals."""
    return [g.variable(axis.upper(), axis, unn.SquaredNorm()) for axis in axes]


def size(g, axis):
    return g.size_table.static.get(g.size_table.root(axis))


# -- ties ----------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(
    ties=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8),
    known=st.dictionaries(st.integers(0, 6), st.integers(1, 2), max_size=3),
)
def test_axes_are_one_class_exactly_if_a_chain_of_ties_connects_them(ties, known):
    axes = [f"a{k}" for k in range(7)]
    g = unn.FactorGraph("ties", **{axes[k]: n for k, n in known.items()})
    X = vectors(g, *axes)
    links = nx.Graph()
    links.add_nodes_from(range(7))
    for a, b in ties:
        joined = nx.Graph(links)
        joined.add_edge(a, b)
        together = nx.node_connected_component(joined, a)
        sizes = {known[k] for k in together if k in known}
        factor = Depends(X[a]["i"], X[b]["i"])
        if len(sizes) > 1:
            with pytest.raises(unn.DeclarationError, match="ties axis"):
                g.factor(factor)
        else:
            g.factor(factor)
            links = joined
    for component in nx.connected_components(links):
        names = {axes[k] for k in component}
        assert {size(g, axis) for axis in names} == ({known[k] for k in component if k in known} or {None})
        assert all(set(g.size_table.tied(axis)) == names for axis in names)


def test_axes_of_one_name_are_one_axis_of_all_arrays():
    g = unn.FactorGraph("names", n=3)
    X, W = g.variable("X", "n n", unn.SquaredNorm()), g.parameter("W", "n m")
    table = g.size_table
    assert table.shape(X, table.static) == (3, 3)
    assert table.shape(W, table.static) == (3, None)
    assert not hasattr(g, "W")


def test_parameters_appear_when_the_last_of_their_sizes_becomes_known():
    g = unn.FactorGraph("late", n=3)
    X, Y, Z = g.variable("X", "n", unn.SquaredNorm()), *vectors(g, "p", "q")
    W = g.parameter("W", "u v")
    assert "1 of unknown size" in repr(g)
    g.factor(Multilinear(Y["i"], W["i j"], Z["j"]))
    assert not hasattr(g, "W")
    g.factor(Multilinear(X["i"], Y["i"]))
    assert not hasattr(g, "W")
    g.factor(Depends(Z["a"], X["a"]))
    assert g.W.shape == (3, 3)
    assert all(size(g, axis) == 3 for axis in "npquv")


def test_a_value_gives_sizes_to_all_that_is_tied():
    g = unn.FactorGraph("value")
    X, Y = vectors(g, "x", "y")
    g.factor(Depends(X["i"], Y["i"]))
    assert size(g, "y") is None
    g.parameter("W", "h x", init=torch.zeros(2, 5))
    assert (size(g, "x"), size(g, "y"), size(g, "h")) == (5, 5, 2)
    with pytest.raises(unn.DeclarationError, match="'V' has size 5 along axis 'y'.*shape .4,."):
        g.parameter("V", "y", init=torch.zeros(4))
    assert "V" not in g.arrays


def test_letters_are_local_to_a_factor():
    g = unn.FactorGraph("local", a=2, b=3)
    A, B, C, D = vectors(g, "a", "b", "c", "d")
    g.factor(Depends(A["i"], C["i"]))
    g.factor(Depends(B["i"], D["i"]))
    assert (size(g, "c"), size(g, "d")) == (2, 3)


def test_shifts_tie_only_equal_shifts():
    g = unn.FactorGraph("shifts", a=2, b=3, c=4)
    A, B, C, D, E, F = vectors(g, *"abcdef")
    g.factor(Multilinear(A["i"], B["i+1"], C["i-1"], D["i"], E["i+1"], F["i+2"]))
    assert (size(g, "d"), size(g, "e"), size(g, "f")) == (2, 3, None)
    with pytest.raises(
        unn.DeclarationError, match=r"'clash'.*'i\+1' ties axis.*'b'.*'c'|'clash'.*'i\+1' ties axis.*'c'.*'b'"
    ):
        g.factor(Multilinear(B["i+1"], C["i+1"], name="clash"))


def test_contradictions_name_the_factor_the_letter_and_all_tied_axes_with_their_sizes():
    g = unn.FactorGraph("clash", a=2, c=3)
    A, B, C = vectors(g, *"abc")
    g.factor(Depends(A["i"], B["i"], name="first"))
    with pytest.raises(unn.DeclarationError) as caught:
        g.factor(Depends(B["k"], C["k"], name="second"))
    message = str(caught.value)
    for words in ("factor 'second'", "letter 'k'", "'a'", "'b'", "(size 2)", "axis 'c' (size 3)"):
        assert words in message
    assert "first" not in message


def test_a_refused_factor_leaves_the_graph_as_it_was():
    g = unn.FactorGraph("refused", a=2, c=3)
    A, B, C, D = vectors(g, *"abcd")
    g.factor(Depends(A["i"], B["i"]))
    with pytest.raises(unn.DeclarationError):
        g.factor(Depends(D["i"], A["i"], C["j"], B["j"], name="bad"))
    assert list(g.factors) == ["Depends(A, B)"]
    assert size(g, "d") is None and size(g, "b") == 2 and size(g, "c") == 3
    g.factor(Depends(D["i"], C["i"], name="bad"))
    assert size(g, "d") == 3


@pytest.mark.parametrize("wrong", [-1, 2.0, True, "3", None])
def test_sizes_are_whole_numbers(wrong):
    with pytest.raises(unn.DeclarationError, match="axis 'n': the size must be a whole number >= 0"):
        unn.FactorGraph("wrong", n=wrong)


# -- splits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"n": 12, "a": 3}, {"n": 12, "a": 3, "b": 4}),
        ({"n": 12, "b": 3}, {"n": 12, "a": 4, "b": 3}),
        ({"a": 5, "b": 2}, {"n": 10, "a": 5, "b": 2}),
        ({"n": 12}, {"n": 12, "a": None, "b": None}),
        ({"a": 3}, {"n": None, "a": 3, "b": None}),
        ({"n": 6, "a": 2, "b": 3}, {"n": 6, "a": 2, "b": 3}),
    ],
)
def test_a_split_is_solved_for_the_one_unknown(sizes, expected):
    g = unn.FactorGraph("split", **sizes)
    N, A, B = vectors(g, "n", "a", "b")
    g.factor(Multilinear(N["(r s)"], A["r"], B["s"]))
    assert {axis: size(g, axis) for axis in "nab"} == expected


def test_splits_solve_one_another_through_chains():
    g = unn.FactorGraph("chain", n=24, a=4, c=3)
    N, M, A, B, C, D = vectors(g, "n", "m", "a", "b", "c", "d")
    g.factor(Multilinear(N["(r s)"], A["r"], B["s"]))
    assert (size(g, "b"), size(g, "m")) == (6, None)
    g.factor(Multilinear(M["(q r)"], N["(r s)"], C["q"], D["s"], B["s"], name="second"))
    assert size(g, "d") == 6
    assert size(g, "m") == 12


def test_sizes_given_by_the_name_of_a_letter_split_axes():
    g = unn.FactorGraph("letters", row=6, R=3)
    X = g.variable("X", "row", unn.SquaredNorm())
    f = Multilinear(X["(R r)"], g.parameter("W", "k", init="ones")["r"])
    g.factor(f)
    assert g.W.shape == (2,)
    assert dict(f.split_sizes) == {"R": 3, "r": 2}


def test_an_axis_with_its_own_size_wins_over_a_size_with_the_name_of_its_letter():
    g = unn.FactorGraph("own", n=6, m=2, R=3)
    X, Y = vectors(g, "n", "m")
    f = Multilinear(X["(R r)"], Y["R"])
    g.factor(f)
    assert dict(f.split_sizes) == {"R": 2, "r": 3}
    g = unn.FactorGraph("dynamic", n=6, R=3)
    X, Y = vectors(g, "n", "m")
    g.factor(Multilinear(X["(R r)"], Y["R"]))
    assert size(g, "m") is None
    y = torch.randn(1, 2)
    torch.testing.assert_close(unn.infer(g, {"M": y}, order=["N"])["N"], y.repeat_interleave(3, 1))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"n": 12, "a": 5}, r"X\[\(r s\)\].*size 12 cannot be split as \(r s\) with the others 5"),
        ({"n": 12, "a": 3, "b": 5}, r"X\[\(r s\)\].*size 12 is split as \(r s\), but r=3 x s=5 = 15"),
    ],
)
def test_splits_that_do_not_divide_are_refused_by_the_factor_and_the_reference(sizes, words):
    g = unn.FactorGraph("split", **sizes)
    X = g.variable("X", "n", unn.SquaredNorm())
    A, B = vectors(g, "a", "b")
    with pytest.raises(unn.DeclarationError, match=f"factor 'halves'.*{words}"):
        g.factor(Multilinear(X["(r s)"], A["r"], B["s"], name="halves"))
    assert not g.factors


def test_contradictions_between_rules_name_the_factor_and_the_axis():
    g = unn.FactorGraph("rules", d=1, o=1, a=9, b=9, p=2, q=2)
    H, X = g.variable("H", "o i j", unn.SquaredNorm()), g.variable("X", "d a b", unn.SquaredNorm())
    g.factor(Conv2d(H, g.parameter("W", "o d u v", init=torch.zeros(1, 1, 3, 3)), X))
    P, Q = vectors(g, "p", "q")
    with pytest.raises(unn.DeclarationError) as caught:
        g.factor(Multilinear(H["c (r s) k"], P["r"], Q["s"], name="halves"))
    message = str(caught.value)
    assert "'halves'" in message or "'Conv2d(H, W, X)'" in message
    assert "7" in message and "4" in message
    assert list(g.factors) == ["Conv2d(H, W, X)"]


# -- at run time ---------------------------------------------------------------------------------------------


def dynamic():
    g = unn.FactorGraph("dynamic", d=2)
    X, Y = g.variable("X", "n d", unn.SquaredNorm()), g.variable("Y", "m d", unn.SignedEntropy())
    S = g.variable("S", "n k", unn.Entropy())
    g.factor(Multilinear(X["i e"], Y["j e"], S["i j"]))
    return g


def test_dynamic_sizes_are_found_from_the_values_of_each_call():
    g = dynamic()
    for n, m in ((3, 4), (5, 2)):
        out = unn.infer(g, {"X": torch.randn(2, n, 2), "Y": torch.zeros(2, m, 2)}, order=["S"])
        assert out["S"].shape == (2, n, m)
        assert size(g, "n") is None
    with pytest.raises(unn.ObservationError, match="size of axis 'm' of variable 'Y' is not known"):
        unn.infer(g, {"X": torch.randn(2, 3, 2)}, order=["Y", "S"])
    out = unn.infer(g, {"X": torch.randn(2, 3, 2)}, order=["Y", "S"], sizes={"k": 4})
    assert out["Y"].shape == (2, 4, 2)


def test_values_that_contradict_static_or_one_another_are_refused_by_their_axes():
    g = dynamic()
    with pytest.raises(unn.ObservationError, match="'Y' given: axis 'd' has size 3, expected 2"):
        unn.infer(g, {"Y": torch.zeros(1, 4, 3)})
    with pytest.raises(
        unn.ObservationError, match=r"'S' given: axis 'k' \(tied to 'm'\) has size 5, expected 4"
    ):
        unn.infer(g, {"Y": torch.zeros(1, 4, 2), "S": torch.full((1, 3, 5), 0.2)})
    with pytest.raises(unn.ObservationError, match="sizes: axis 'k' is 5, but 4"):
        unn.infer(g, {"Y": torch.zeros(1, 4, 2)}, sizes={"k": 5, "n": 1})


def test_splits_are_solved_from_the_values_of_each_call():
    g = unn.FactorGraph("dynamic split", r=2)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "m r", unn.SquaredNorm())
    g.factor(Multilinear(X["(R s)"], Y["R s"], name="fold"))
    for m in (3, 5):
        y = torch.randn(2, m, 2)
        torch.testing.assert_close(unn.infer(g, {"Y": y}, order=["X"])["X"], y.flatten(1))
        x = torch.randn(2, 2 * m)
        torch.testing.assert_close(unn.infer(g, {"X": x}, order=["Y"])["Y"], x.view(2, m, 2))
    with pytest.raises(unn.ObservationError, match="'fold'.*X.*size 5 cannot be split"):
        unn.infer(g, {"X": torch.zeros(1, 5)}, order=["Y"])
    with pytest.raises(unn.ObservationError, match="'fold'.*X.*size 6 is split"):
        g.energy({"X": torch.zeros(1, 6), "Y": torch.zeros(1, 4, 2)})


def test_convolutions_are_solved_from_the_image_of_each_call():
    g = unn.FactorGraph("conv", d=1)
    H, X = g.variable("H", "o i j", unn.SquaredNorm()), g.variable("X", "d a b", unn.SquaredNorm())
    g.factor(Conv2d(H, g.parameter("W", "o d u v", init=torch.ones(2, 1, 3, 2)), X, stride=2))
    for a, b in ((7, 9), (8, 4)):
        assert unn.infer(g, {"X": torch.zeros(1, 1, a, b)})["H"].shape == (
            1,
            2,
            (a - 3) // 2 + 1,
            (b - 2) // 2 + 1,
        )


# -- the extent of letters -----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ij"), st.integers(-2, 2), st.integers(1, 5)), min_size=1, max_size=4)
)
def test_shifted_letters_run_over_the_indices_at_which_every_reference_is_inside(axes):
    g = unn.FactorGraph("extent")
    references, shapes = [], {}
    for k, (letter, shift, n) in enumerate(axes):
        X = g.variable(f"x{k}", f"a{k}", unn.SquaredNorm())
        references.append(X[f"{letter}{shift:+d}"])
        shapes[f"x{k}"] = (n,)
    extents = letter_sizes(references, shapes)
    for letter in {letter for letter, _, _ in axes}:
        mine = [(shift, n) for x, shift, n in axes if x == letter]
        assert extents[letter] == sum(all(0 <= index + shift < n for shift, n in mine) for index in range(10))


@settings(max_examples=60, deadline=None)
@given(
    a=st.integers(1, 4),
    b=st.integers(1, 4),
    c=st.integers(1, 4),
    order=st.permutations(range(3)),
    known=st.sampled_from("abc"),
)
def test_letters_of_splits_are_found_in_whatever_order_they_stand(a, b, c, order, known):
    g = unn.FactorGraph("extent")
    X, Y, Z = vectors(g, "x", "y", "z")
    references = [X["(a b)"], Y["(b c)"], Z["(c a b)"]]
    shapes = {"X": (a * b,), "Y": (b * c,), "Z": (a * b * c,)}
    sizes = {"a": a, "b": b, "c": c}
    extents = letter_sizes([references[k] for k in order], shapes, {known: sizes[known]})
    assert extents == sizes


def test_absent_arrays_leave_their_own_letters_out():
    g = unn.FactorGraph("absent")
    X, Y = vectors(g, "x", "y")
    assert letter_sizes([X["i"], Y["j"]], {"X": (3,)}) == {"i": 3}
    for a, b in itertools.product((1, 2), (3, 5)):
        assert letter_sizes([X["i"], Y["i+1"]], {"X": (a,), "Y": (b,)}) == {"i": min(a, b - 1)}
