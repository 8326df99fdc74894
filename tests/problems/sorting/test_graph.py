"""Sorting: lists with their permutations, and the graph."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems.sorting import graph as sorting

GOLDEN = Path(__file__).parents[2] / "golden"


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(n=st.integers(1, 8), seed=st.integers(0, 10_000), intermediate=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_list_is_sorted_by_its_permutation(n, seed, intermediate):
    values = sorting.generate(6, n, intermediate, generator(seed))
    u, s, P = values["u"], values["s"], values["P"]
    assert sorted(values) == sorted(["u", "s", "P", "C"] if intermediate else ["u", "s", "P"])
    assert sorting.is_permutation(P).all() and ((P == 0) | (P == 1)).all()
    assert (
        torch.equal((P @ u[:, :, None])[:, :, 0], s)
        and torch.equal(s, u.sort(1).values)
        and (s.diff() >= 0).all()
    )
    if intermediate:
        assert torch.equal(values["C"], P * u[:, None, :]) and torch.equal(values["C"].sum(2), s)
    assert sorting.error(u, P) == pytest.approx(0, abs=1e-6)


def test_lists_are_gaussian():
    u = sorting.generate(4000, 3, False, generator(0))["u"]
    assert u.mean().abs() < 0.05 and u.var() == pytest.approx(1, abs=0.06)


def test_errors_of_permutations_are_root_mean_squares():
    u, P = torch.tensor([[3.0, 1.0]]), torch.eye(2)[None]
    # sorted (1, 3), but P u is (3, 1)
    assert sorting.error(u, P) == pytest.approx(2) and sorting.is_permutation(P).tolist() == [True]
    assert sorting.error(u, P.flip(1)) == 0
    repeated = torch.tensor(
        [
            [[1.0, 0.0], [1.0, 0.0]],
            [[0.0, 0.0], [1.0, 1.0]],
            [[0.0, 1.0], [1.0, 0.0]],
            [[0.0, 0.0], [0.0, 0.0]],
        ]
    )
    assert sorting.is_permutation(repeated).tolist() == [False, False, True, False]


def test_sorting_in_which_only_children_see_their_parents_has_the_mask_of_the_paper():
    golden = np.load(GOLDEN / "sorting_n3_int_variant4.npz")
    adjacency = sorting.declare(3, True, "chain").adjacency()
    order = [adjacency.names().index(name) for name in golden["names"].tolist()]
    assert np.array_equal(
        adjacency.directed().dense().numpy()[np.ix_(order, order)], golden["mask"].astype(bool)
    )


def test_a_list_of_any_length_has_the_graph_of_its_length():
    for order in ("chain", "clique", "none"):
        for intermediate in (True, False):
            open_, fixed = sorting.declare(None, intermediate, order), sorting.declare(4, intermediate, order)
            assert open_.adjacency(i=4, j=4).same_entries(fixed.adjacency())
