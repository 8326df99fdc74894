"""Heuristics for factorisation: exact where they must be, and what they refuse."""

import math

import pytest
import torch
from support.helpers import says

import unn
from problems.factorisation import graph as factorisation
from problems.factorisation.baselines import greedy, k_means, nmf

HEURISTICS = [k_means, nmf, greedy]


def separable():
    """Two matrices of rank 3 with one-hot columns of R, largest ones first; the last column of the second one
    is zero."""
    A = torch.tensor([[[0.9, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.3, 0.4], [0.8, 0.0, 0.1]]]).repeat(2, 1, 1)
    R = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 0, 1], [2, 0, 1, 1, 1]]), 3).float().mT
    return A @ R


@pytest.mark.parametrize("factorise", [k_means, nmf])
def test_separable_matrices_are_factorised_exactly(factorise):
    E = separable()
    found = factorise(E, 3, 0)
    assert found["A"].shape == (2, 4, 3) and found["R"].shape == (2, 3, 5)
    assert set(found["R"].flatten().tolist()) == {0.0, 1.0}
    assert factorisation.error(found, E) < 1e-3


def test_the_greedy_heuristic_keeps_the_largest_columns():
    E = torch.tensor([[[1.0, 5.0, 2.0], [1.0, 0.0, 2.0]]])
    found = greedy(E, 2)
    assert found["A"].tolist() == [[[5.0, 2.0], [0.0, 2.0]]]
    assert found["R"].tolist() == [[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]
    assert factorisation.error(found, E) == pytest.approx(math.sqrt(2 / 6))


@pytest.mark.parametrize("factorise", [k_means, greedy])
@pytest.mark.parametrize("rank", [5, 8])
def test_with_a_column_each_nothing_is_lost(factorise, rank):
    E = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = factorise(E, rank, 0)
    assert found["A"].shape == (3, 4, rank) and found["R"].shape == (3, rank, 5)
    assert found["A"].dtype == torch.float64
    assert factorisation.error(found, E) < 1e-9


def test_columns_that_are_the_same_share_a_cluster():
    E = torch.ones(1, 4, 5)
    found = k_means(E, 3, 0)
    assert factorisation.error(found, E) == 0
    assert found["R"].sum() == 5 and found["A"][:, :, 1:].abs().sum() == 0


def test_the_least_error_is_taken_among_cuts():
    """On products of uniform and binary factors refitting is better than rounding, and better than
    clusters."""
    generator = torch.Generator().manual_seed(0)
    E = factorisation.generate("binary", False, 6, 8, 8, 3, generator)["E"]
    refitted, rounded = nmf(E, 3, 0), nmf(E, 3, 0, refit=False)
    assert set(rounded["R"].flatten().tolist()) <= {0.0, 1.0}
    assert factorisation.error(refitted, E) < factorisation.error(rounded, E)
    assert factorisation.error(refitted, E) < factorisation.error(k_means(E, 3, 0), E)
    assert (refitted["A"] >= 0).all()
    assert torch.equal(refitted["R"], nmf(E, 3, 0)["R"])


@pytest.mark.parametrize("factorise", HEURISTICS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 4), (2, 4, 1)])
@pytest.mark.parametrize("rank", [1, 6])
@pytest.mark.parametrize("fill", [0.0, 0.5])
def test_odd_matrices_are_factorised(factorise, shape, rank, fill):
    E = torch.full(shape, fill)
    found = factorise(E, rank, 0)
    assert found["A"].shape == (shape[0], shape[1], rank) and found["R"].shape == (shape[0], rank, shape[2])
    assert found["A"].isfinite().all()
    if fill == 0 or shape[2] == 1:
        assert factorisation.error(found, E) < 1e-3


@pytest.mark.parametrize("factorise", HEURISTICS)
def test_what_is_no_matrix_or_rank_is_refused(factorise):
    E = torch.rand(1, 2, 3)
    for wrong in (0, 2.5, True):
        with pytest.raises(unn.DeclarationError, match=says("rank", repr(wrong))):
            factorise(E, wrong, 0)
    with pytest.raises(unn.DeclarationError, match=says("seed", "-1")):
        factorise(E, 1, -1)
    for wrong in (E[0], E.long(), E[:0], E.tolist()):
        with pytest.raises(unn.ObservationError, match="count, rows, columns"):
            factorise(wrong, 1, 0)
    with pytest.raises(unn.ObservationError, match="NaN"):
        factorise(E * torch.nan, 1, 0)


def test_negative_matrices_are_refused_where_they_have_no_factors():
    with pytest.raises(unn.ObservationError, match="negative"):
        nmf(-torch.ones(1, 2, 2), 1, 0)
    assert factorisation.error(k_means(-torch.ones(1, 2, 2), 1, 0), -torch.ones(1, 2, 2)) == 0
