"""Colour classes: exact sub-blocks of a variable that meets itself."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Multilinear
from unn.graph.colouring import colour_classes, meets_itself, node_pairs
from unn.graph.interactions import node_axis_count


def interactions(g, factors, shape):
    """For each two nodes of s, whether some factor has a mixed second derivative in them; by autograd, for
    random values."""
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(shape, dtype=torch.float64, generator=generator)
    fixed = {
        name: torch.randn(x.shape, dtype=torch.float64, generator=generator)
        for name, x in g.fixed_values().items()
    }
    hessian = torch.autograd.functional.hessian(
        lambda x: sum(f.energy({**fixed, "s": x[None]})[0] for f in factors), s
    )
    count = node_axis_count(g["s"])
    nodes = int(np.prod(shape[:count], dtype=int))
    features = s.numel() // nodes
    return hessian.reshape(nodes, features, nodes, features).abs().amax((1, 3)) > 0


def chain(patterns, sizes=(3, 3), axes="r c", where=None):
    g = unn.FactorGraph("grid", **dict(zip("rcv", sizes, strict=False)))
    s = g.variable("s", axes, unn.SignedEntropy() if "|" not in axes else unn.Entropy())
    for pair in patterns:
        g.factor(Multilinear(*(s[pattern] for pattern in pair), where=where))
    shapes = {"s": tuple(sizes[: len(s.axes)])}
    return g, s, list(g.factors.values()), shapes


def is_partition(classes, shape):
    assert all(c.shape == shape and c.dtype == bool and c.any() for c in classes)
    return (sum(c.astype(int) for c in classes) == 1).all()


@st.composite
def grids(draw):
    shift = st.sampled_from(["", "", "+1", "-1", "+2"])
    patterns = []
    for _ in range(draw(st.integers(1, 3))):
        letters = ["i", "j", draw(st.sampled_from("ik")), draw(st.sampled_from("jl"))]
        patterns.append(tuple(f"{a}{draw(shift)} {b}{draw(shift)}" for a, b in (letters[:2], letters[2:])))
    where = draw(st.sampled_from([None, None, "i != j", "i < j"]))
    return patterns, (draw(st.integers(1, 4)), draw(st.integers(1, 4))), where


@settings(max_examples=150, deadline=None)
@given(grids())
def test_no_two_nodes_of_a_class_interact_and_none_means_that_a_node_meets_itself(case):
    patterns, sizes, where = case
    g, s, factors, shapes = chain(patterns, sizes, where=where)
    meet = interactions(g, factors, sizes)
    classes = colour_classes(s, factors, shapes)
    assert (classes is None) == bool(meet.diagonal().any())
    if classes is not None:
        assert is_partition(classes, sizes)
        for nodes in classes:
            flat = torch.from_numpy(nodes.flatten())
            assert not meet[flat][:, flat].any()
    pairs = node_pairs(factors[0], s, shapes)
    unordered_pairs = {frozenset(pair) for pair in pairs.tolist()}
    meet = interactions(g, factors[:1], sizes)
    assert unordered_pairs == {frozenset(pair) for pair in meet.nonzero().tolist()}


@pytest.mark.parametrize("sizes", [(1, 2), (2, 2), (3, 4), (6, 5)])
def test_a_grid_with_nearest_neighbours_has_two_classes_as_a_chessboard(sizes):
    _, s, factors, shapes = chain([("i j", "i+1 j"), ("i j", "i j-1")], sizes)
    classes = colour_classes(s, factors, shapes)
    board = np.indices(sizes).sum(0) % 2 == 0
    assert len(classes) == 2
    assert (classes[0] == board).all() and (classes[1] == ~board).all()


def test_a_grid_with_diagonal_neighbours_has_four_classes():
    patterns = [("i j", "i+1 j"), ("i j", "i j+1"), ("i j", "i+1 j+1"), ("i j+1", "i+1 j")]
    _, s, factors, shapes = chain(patterns, (4, 4))
    assert len(colour_classes(s, factors, shapes)) == 4


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_complete_graph_has_one_class_for_each_node(n):
    for relation in ("i < j", "i != j"):
        g = unn.FactorGraph("complete", n=n)
        s, W = g.variable("s", "n", unn.SignedEntropy()), g.parameter("W", "n m", init=torch.ones(n, n))
        f = Multilinear(W["i j"], s["i"], s["j"], where=relation)
        g.factor(f)
        classes = colour_classes(s, [f], {"s": (n,), "W": (n, n)})
        assert len(classes) == n
        assert is_partition(classes, (n,))
        assert all(nodes.sum() == 1 for nodes in classes)


def test_all_nodes_are_one_class_where_no_two_interact():
    _, s, factors, shapes = chain([("i j", "i+5 j")], (3, 3))
    (nodes,) = colour_classes(s, factors, shapes)
    assert nodes.all()


@pytest.mark.parametrize(
    ("patterns", "where"),
    [
        ([("i j", "i j")], None),
        ([("i j", "k l")], None),
        ([("i j", "i+1 j"), ("i j", "j i")], None),
        ([("i j", "i j")], "i < j"),
    ],
)
def test_a_node_that_meets_itself_has_no_classes(patterns, where):
    _, s, factors, shapes = chain(patterns, (3, 3), where=where)
    assert colour_classes(s, factors, shapes) is None


def test_a_condition_that_excludes_every_node_from_itself_gives_classes():
    _, s, factors, shapes = chain([("i j", "j i")], (3, 3), where="i != j")
    classes = colour_classes(s, factors, shapes)
    assert len(classes) == 2 and is_partition(classes, (3, 3))


def test_features_of_one_node_belong_together():
    """Nodes are rows; a factor between entries of one row makes the node meet itself, one between rows does
    not."""
    _, s, factors, shapes = chain([("i v", "i+1 w")], (4, 3), "r | c")
    classes = colour_classes(s, factors, shapes)
    assert [c.tolist() for c in classes] == [[True, False, True, False], [False, True, False, True]]
    _, s, factors, shapes = chain([("i v", "i w")], (4, 3), "r | c")
    assert colour_classes(s, factors, shapes) is None


def test_splits_of_node_axes_pair_the_nodes_they_name():
    """Cells of one block of two, on an axis of six."""
    g = unn.FactorGraph("blocks", n=6, R=3)
    s = g.variable("s", "n", unn.SignedEntropy())
    f = Multilinear(
        s["(R r)"], s["(R q)"], g.parameter("W", "a b", init=torch.ones(2, 2))["r q"], where="r < q"
    )
    g.factor(f)
    shapes = {"s": (6,), "W": (2, 2)}
    assert node_pairs(f, s, shapes).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert [c.tolist() for c in colour_classes(s, [f], shapes)] == [[True, False] * 3, [False, True] * 3]


def test_three_places_pair_all_of_them():
    _, s, factors, shapes = chain([("i j", "i+1 j", "i+2 j")], (5, 2))
    assert {tuple(p) for p in node_pairs(factors[0], s, shapes).tolist()} == {
        (2 * a + c, 2 * b + c) for a, b in itertools.combinations(range(5), 2) if b - a < 3 for c in range(2)
    }
    assert len(colour_classes(s, factors, shapes)) == 3


def test_nodes_are_all_entries_of_an_elementwise_variable_and_the_axes_left_of_the_bar_of_others():
    g = unn.FactorGraph("nodes")
    signs, simplex = unn.SignedEntropy(), unn.Entropy()
    declared = [("r c", signs, 2), ("r | c", signs, 1), ("r c", simplex, 0), ("r | c", simplex, 1)]
    for name, (axes, regularizer, count) in zip("abcd", declared, strict=True):
        variable = g.variable(name, axes, regularizer)
        assert node_axis_count(variable) == count
        assert (variable.node_axes, variable.feature_axes) == (("r", "c")[:count], ("r", "c")[count:])
        assert variable.pattern == axes and variable.has_bar == ("|" in axes)
    a, b = g["a", "b"]
    assert meets_itself(Multilinear(a["i j"], a["j i"]), a)
    assert not meets_itself(Multilinear(a["i j"], b["j i"]), a)
