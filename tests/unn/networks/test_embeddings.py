"""Embeddings: along which symmetries they are shared, and their sizes."""

import pytest
import torch
from support.helpers import says
from support.networks import EVERY_GRAPH, change_under, inputs, named, network, output, without_fixed_points
from support.problem_graphs import factorisation

import unn
from factors import Clique
from unn.networks import Denoiser

# -- symmetries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [["X.col[1]"], ["X.row[0]", "X.col[1]"], []])
def test_sudoku_is_equivariant_exactly_under_the_symmetries_whose_embeddings_are_shared(shared):
    net, frame, given = named("sudoku", shared=shared)
    assert [s.name for s in frame.symmetries] == ["X.row[0]", "X.row[1]", "X.col[0]", "X.col[1]"]
    for s in frame.symmetries:
        change = change_under(net, frame, given, s.permutation(without_fixed_points(s.size)))
        assert change < 1e-9 if s.name in shared else change > 1e-3, s


@EVERY_GRAPH
@pytest.mark.parametrize("embedding", ["array", "independent"])
def test_embeddings_that_are_not_shared_break_the_symmetry(name, embedding):
    net, frame, given = named(name, embedding=embedding)
    for s in frame.symmetries:
        assert change_under(net, frame, given, s.permutation(without_fixed_points(s.size))) > 1e-3, s


# -- all options run -----------------------------------------------------------------------------------------


def test_embeddings_of_each_node_are_for_one_size():
    g = factorisation("binary", True)
    net = network(g, embedding="independent", sizes={"i": 3, "j": 4, "k": 2})
    with pytest.raises(
        unn.ArgumentError, match=says("50 independent embeddings", "'i': 2", "array", "exchangeable")
    ):
        net(*inputs(net.frame(i=2, j=4, k=2)), net.frame(i=2, j=4, k=2))
    with pytest.raises(unn.DeclarationError, match=says("size", "axis")):
        Denoiser(g, embedding="independent")
    with pytest.raises(unn.DeclarationError, match=says("size", "axis")):
        Denoiser(g, depth=None)


def test_an_index_that_is_shared_may_have_one_value():
    g = factorisation("binary", True)
    name = next(s.name for s in g.symmetries(i=3, j=4, k=2) if "A.i" in s.name)
    net = network(g, shared=[name])
    for i in (3, 1):
        frame = net.frame(i=i, j=4, k=2)
        assert net(*inputs(frame), frame).shape == (2, frame.numbers)


def test_naming_a_symmetry_twice_changes_nothing():
    once, frame, given = named("sudoku", shared=["X.col[1]"])
    assert torch.equal(output("sudoku", shared=["X.col[1]", "X.col[1]"]), once(*given, frame))


# -- what is refused -----------------------------------------------------------------------------------------


def test_unknown_symmetries_are_refused():
    with pytest.raises(unn.ArgumentError, match=says("'sudoku'", "'X.col[2]'", "Did you mean", "X.col[")):
        output("sudoku", shared=["X.col[1]", "X.col[2]"])
    with pytest.raises(unn.ArgumentError, match=says("'sorting'", "'s.i'", "u.j P.j C.j")):
        output("sorting", shared=["s.i"])


def test_positions_are_finite_for_long_axes():
    g = unn.FactorGraph("chain", n=500)
    X = g.variable("X", "n", unn.SquaredNorm())
    g.factor(Clique(X["t+1"], X["t"], each="t"))
    net = network(g, depth=1)
    place = net._embeddings(net.frame())
    apart = torch.cdist(place, place).detach().fill_diagonal_(1)
    assert place.isfinite().all() and apart.min() > 1e-6
