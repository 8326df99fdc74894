"""The update commutes with the symmetries of the graph, and with nothing else."""

import pytest
import torch
from support.sudoku_graph import declare_sudoku

import unn
from factors import Cardinality
from unn.solver.layout import Layout
from unn.solver.network import GroupNetwork
from unn.solver.packing import pack
from unn.solver.propagation import Known


def everything_open(layout, batch=1):
    none = torch.zeros(batch, layout.candidates, dtype=torch.bool)
    return Known(none, none.clone())


def after(network, layout, state, steps=3):
    packed = pack(layout, everything_open(layout))
    with torch.no_grad():
        for _ in range(steps):
            state = network(state, packed)
    return state


def permuted_candidates(move):
    """Order of the candidates of a 4x4 grid after moving an array (row, column, digit)."""
    return move(torch.arange(64).view(4, 4, 4)).flatten()


SYMMETRIES = {
    "digits": lambda x: x[:, :, [2, 0, 3, 1]],
    "rows of a band": lambda x: x[[1, 0, 2, 3]],
    "bands": lambda x: x[[2, 3, 0, 1]],
    "columns of a stack": lambda x: x[:, [0, 1, 3, 2]],
    "stacks": lambda x: x[:, [2, 3, 0, 1]],
    "transposition": lambda x: x.transpose(0, 1),
}
OTHERS = {
    "rows of different bands": lambda x: x[[0, 2, 1, 3]],
    "two cells": lambda x: x.reshape(16, 4)[[1, 0, *range(2, 16)]].view(4, 4, 4),
    "digits of one row": lambda x: torch.cat([x[:1, :, [1, 0, 2, 3]], x[1:]]),
}


@pytest.mark.parametrize("name", SYMMETRIES)
def test_updates_commute_with_the_symmetries_of_sudoku(name):
    torch.manual_seed(0)
    layout = Layout(declare_sudoku(2, 2), {})
    network = GroupNetwork(layout.kinds, 16)
    state, order = torch.randn(64, 16), permuted_candidates(SYMMETRIES[name])
    difference = after(network, layout, state[order]) - after(network, layout, state)[order]
    assert float(difference.abs().max()) < 1e-5


@pytest.mark.parametrize("name", OTHERS)
def test_updates_do_not_commute_with_other_permutations(name):
    torch.manual_seed(0)
    layout = Layout(declare_sudoku(2, 2), {})
    network = GroupNetwork(layout.kinds, 16)
    state, order = torch.randn(64, 16), permuted_candidates(OTHERS[name])
    difference = after(network, layout, state[order]) - after(network, layout, state)[order]
    assert float(difference.abs().max()) > 1e-3


def latin_square(n):
    g = unn.FactorGraph("latin", row=n, col=n, digit=n)
    X = g.variable("X", "row col | digit", unn.Entropy())
    g.factor(Cardinality(X["r c v"], each="r v", equals=1, name="rows"))
    g.factor(Cardinality(X["r c v"], each="c v", equals=1, name="columns"))
    return g


@pytest.mark.parametrize("graph", [declare_sudoku(2, 2), declare_sudoku(2, 3), latin_square(4)], ids=repr)
def test_updates_commute_with_every_symmetry_that_the_graph_reports(graph):
    torch.manual_seed(0)
    layout = Layout(graph, {})
    network = GroupNetwork(layout.kinds, 8)
    values = layout.frame.slots["X"].channels
    state = torch.randn(layout.candidates, 8)
    symmetries = graph.symmetries()
    assert len(symmetries) >= 2
    for symmetry in symmetries:
        nodes = symmetry.permutation(torch.randperm(symmetry.size))
        order = (nodes[:, None] * values + torch.arange(values)).flatten()
        difference = after(network, layout, state[order]) - after(network, layout, state)[order]
        assert float(difference.abs().max()) < 1e-5


def test_instances_of_a_batch_do_not_affect_each_other():
    torch.manual_seed(0)
    layout = Layout(declare_sudoku(2, 2), {})
    network = GroupNetwork(layout.kinds, 16)
    states = torch.randn(3, 64, 16)
    with torch.no_grad():
        together = network(states.flatten(0, 1), pack(layout, everything_open(layout, 3)))
    for k in range(3):
        torch.testing.assert_close(after(network, layout, states[k], 1), together.view(3, 64, 16)[k])


def test_the_same_weights_serve_every_size_and_have_the_size_of_the_trial():
    network = GroupNetwork(Layout(declare_sudoku(3, 3), {}).kinds, 32)
    assert sum(p.numel() for p in network.parameters()) == 5313
    for rows, columns in ((2, 2), (2, 3)):
        layout = Layout(declare_sudoku(rows, columns), {})
        assert after(network, layout, torch.randn(layout.candidates, 32)).isfinite().all()


def test_counts_beyond_one_see_what_a_group_still_needs():
    g = unn.FactorGraph("bits", node=4)
    b = g.variable("b", "node", unn.BinaryEntropy())
    g.factor(Cardinality(b["n"], each="", equals=2, name="two"))
    layout = Layout(g, {})
    network = GroupNetwork(layout.kinds, 8)
    with torch.no_grad():
        for p in network.needs.values():
            p.normal_()
    nothing = everything_open(layout)
    one = Known(torch.tensor([[False, True] + [False] * 6]), torch.tensor([[True] + [False] * 7]))
    free, given = pack(layout, nothing), pack(layout, one)
    assert sorted(free.upper.tolist()) == [1, 1, 1, 1, 2] and given.upper.tolist() == [1, 1, 1, 1]
    state = torch.randn(8, 8)
    with torch.no_grad():
        assert not torch.allclose(network(state, free)[2:], network(state[2:], given))
