"""Bits whose number of ones is bounded: against enumeration."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Budget, count_distribution
from unn.errors import ObservationError

NUMBERS = st.one_of(st.floats(-8, 8), st.just(-float("inf")))


def enumerated(scores, lower, upper):
    """Log-partition, marginals and distribution of the count by enumeration; None if nothing is allowed."""
    n = len(scores)
    bits = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)), dtype=torch.float64)
    ones = bits.sum(1)
    energy = torch.where(bits.bool(), scores, 0).sum(1)
    energy = torch.where((ones >= lower) & (ones <= upper), energy, -torch.inf)
    total = energy.logsumexp(0)
    if total == -torch.inf:
        return None
    p = (energy - total).exp()
    counts = torch.zeros(n + 1, dtype=torch.float64).index_add(0, ones.long(), p)
    return total, p @ bits, counts


@settings(max_examples=150)
@given(
    scores=st.lists(NUMBERS, min_size=1, max_size=7),
    lower=st.integers(0, 8),
    width=st.one_of(st.none(), st.integers(0, 8)),
)
def test_distributions_are_those_of_enumeration(scores, lower, width):
    scores = torch.tensor(scores, dtype=torch.float64)
    upper = None if width is None else lower + width
    expected = enumerated(scores, lower, len(scores) if upper is None else upper)
    result = count_distribution(scores, lower, upper)
    if expected is None:
        assert result.log_partition == -torch.inf
        assert not result.marginals.any() and not result.counts.any()
        return
    for x, y in zip((result.log_partition, result.marginals, result.counts), expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def test_exactly_k_ones_have_the_marginals_of_a_budget():
    scores = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = Budget(3).mirror(scores)
    torch.testing.assert_close(count_distribution(scores, 3, 3).marginals, expected)


def test_marginals_are_the_gradient_and_have_gradients_themselves():
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: count_distribution(s, 1, 2).log_partition, scores)
    assert torch.autograd.gradcheck(lambda s: count_distribution(s, 1, 2).marginals, scores)


def test_many_bits_and_large_scores_stay_finite():
    scores = torch.linspace(-500, 500, 1000)
    result = count_distribution(scores, 400, 600)
    assert result.marginals.isfinite().all() and 400 <= float(result.marginals.sum()) <= 600.01
    assert result.log_partition.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "error", "facts"),
    [
        ((torch.tensor([0.0, float("nan")]),), unn.ObservationError, "numbers"),
        ((torch.tensor([float("inf")]),), unn.ObservationError, "numbers"),
        ((torch.zeros(2, 0),), unn.ObservationError, r"\(2, 0\)"),
        ((torch.zeros(3), -1), unn.ArgumentError, "lower"),
        ((torch.zeros(3), 2, 1), unn.ArgumentError, "upper"),
    ],
)
def test_bad_scores_and_bounds_are_refused(arguments, error, facts):
    with pytest.raises(error, match=facts):
        count_distribution(*arguments)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_scores_of_no_floating_point_type_are_refused(dtype):
    with pytest.raises(ObservationError, match="floating-point"):
        count_distribution(torch.tensor([1, 0, 1]).to(dtype), 1, 2)
