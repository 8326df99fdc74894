"""The graphs that other tests declare once more are those of the problems, and their values satisfy them."""

import itertools

import pytest
import torch
from support import problem_graphs as again

from problems.boolean import graph as boolean
from problems.digits import network as digits
from problems.factorisation import graph as factorisation
from problems.sorting import graph as sorting
from problems.sudoku import grids as sudoku
from unn.graph.signature import graph_signature

SAME = {
    **{f"sudoku of {r} x {c}": (sudoku.declare, again.sudoku, (r, c)) for r, c in ((2, 2), (2, 3), (3, 3))},
    **{
        f"sorting, {arguments}": (sorting.declare, again.sorting, arguments)
        for arguments in itertools.product((4, None), (True, False), ("chain", "clique", "none"))
    },
    **{
        f"factorisation, {arguments}": (factorisation.declare, again.factorisation, arguments)
        for arguments in itertools.product(("binary", "hierarchical", "inversion"), (True, False), (None, 3))
    },
    **{
        f"circuit, {arguments}": (boolean.declare, again.circuit, arguments)
        for arguments in itertools.product((1, 3), (True, False))
    },
    **{f"digits of {n} x {n}": (digits.declare, again.convolutional, (n, n, 4)) for n in (8, 28)},
}


@pytest.mark.parametrize("name", SAME)
def test_the_graph_is_declared_as_by_its_problem(name):
    declare, declare_again, arguments = SAME[name]
    own, other = declare(*arguments), declare_again(*arguments)
    assert repr(own) == repr(other) and graph_signature(own) == graph_signature(other)
    for attribute in ("ordered", "each", "equals", "within", "stride"):
        assert [getattr(factor, attribute, None) for factor in own.factors.values()] == [
            getattr(factor, attribute, None) for factor in other.factors.values()
        ]


def test_the_defaults_are_those_of_the_problems():
    assert graph_signature(digits.declare()) == graph_signature(again.convolutional())
    assert graph_signature(sorting.declare(4, True, "chain")) == graph_signature(again.sorting(4))
    assert graph_signature(factorisation.declare("binary", True)) == graph_signature(again.factorisation())
    assert graph_signature(boolean.declare(3, True)) == graph_signature(again.circuit(3))


def test_the_grids_are_those_of_sudoku():
    ours, theirs = again.all_grids(), sudoku.all_grids(2, 2)
    assert sorted(ours.flatten(1).tolist()) == sorted(theirs.flatten(1).tolist())
    assert torch.equal(again.one_hot_grids(ours, 4), sudoku.one_hot(ours, 4))
    (drawn,) = again.draw_grids(1, 2, 2, torch.Generator().manual_seed(0))
    assert (ours == drawn).all(2).all(1).any()


def test_the_products_are_those_of_factorisation():
    ours = again.draw_products(5, 3, 4, 2, torch.Generator().manual_seed(0))
    theirs = factorisation.generate("binary", False, 5, 3, 4, 2, torch.Generator().manual_seed(0))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
