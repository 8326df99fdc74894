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
    factors = factorise(E, 3, 0)
    assert factors["A"].shape == (2, 4, 3) and factors["R"].shape == (2, 3, 5)
    assert set(factors["R"].flatten().tolist()) == {0.0, 1.0}
    assert factorisation.error(factors, E) < 1e-3


def test_the_greedy_heuristic_keeps_the_largest_columns():
    E = torch.tensor([[[1.0, 5.0, 2.0], [1.0, 0.0, 2.0]]])
    factors = greedy(E, 2)
    assert factors["A"].tolist() == [[[5.0, 2.0], [0.0, 2.0]]]
    assert factors["R"].tolist() == [[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]
    assert factorisation.error(factors, E) == pytest.approx(math.sqrt(2 / 6))


@pytest.mark.parametrize("factorise", [k_means, greedy])
@pytest.mark.parametrize("rank", [5, 8])
def test_with_a_column_each_nothing_is_lost(factorise, rank):
    E = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factors = factorise(E, rank, 0)
    assert factors["A"].shape == (3, 4, rank) and factors["R"].shape == (3, rank, 5)
    assert factors["A"].dtype == torch.float64
    assert factorisation.error(factors, E) < 1e-9


def test_columns_that_are_the_same_share_a_cluster():
    E = torch.ones(1, 4, 5)
    factors = k_means(E, 3, 0)
    assert factorisation.error(factors, E) == 0
    assert factors["R"].sum() == 5 and factors["A"][:, :, 1:].abs().sum() == 0


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
    factors = factorise(E, rank, 0)
    assert factors["A"].shape == (shape[0], shape[1], rank) and factors["R"].shape == (
        shape[0],
        rank,
        shape[2],
    )
    assert factors["A"].isfinite().all()
    if fill == 0 or shape[2] == 1:
        assert factorisation.error(factors, E) < 1e-3


@pytest.mark.parametrize("factorise", HEURISTICS)
def test_what_is_no_matrix_or_rank_is_refused(factorise):
    E = torch.rand(1, 2, 3)
    for wrong in (0, 2.5, True):
        with pytest.raises(unn.ArgumentError, match=says("rank", repr(wrong))):
            factorise(E, wrong, 0)
    with pytest.raises(unn.ArgumentError, match=says("seed", "-1")):
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
