"""Two-sample measures: blind where distributions agree, and near one where they do not."""

import math

import pytest
import torch
from support.helpers import says

from unn.cli.references import measured
from unn.errors import ArgumentError, ObservationError
from unn.two_sample import c2st, mmd


def normal(seed, count=400, shift=0.0, scale=1.0, d=2):
    generator = torch.Generator().manual_seed(seed)
    return shift + scale * torch.randn(count, d, generator=generator, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("classifier", ["forest", "perceptron"])
def test_equal_distributions_cannot_be_told_apart_and_others_can(classifier):
    x = normal(0)
    assert abs(c2st(x, normal(1), classifier) - 0.5) < 0.06
    assert c2st(x, normal(1, shift=6.0), classifier) > 0.99
    # the best classifier of two scales is right with the probability 0.5 + half their total variation
    variation = math.exp(-math.log(4) / 3) - math.exp(-4 * math.log(4) / 3)
    assert abs(c2st(normal(0, 1000), normal(1, 1000, scale=2.0), classifier) - (0.5 + variation / 2)) < 0.05


def test_samples_are_standardised_by_the_reference():
    x, y = normal(0), normal(1, shift=0.3)
    assert c2st(x, y) == c2st(x * 4 + 8, y * 4 + 8)
    # a number that is constant in the reference does no harm
    constant = torch.zeros(400, 1, dtype=torch.float64)
    assert c2st(torch.cat([x, constant], 1), torch.cat([normal(1), constant], 1)) < 0.56


def test_equal_seeds_give_equal_accuracies():
    x, y = normal(0, 200), normal(1, 200, shift=0.5)
    assert c2st(x, y, seed=3) == c2st(x, y, seed=3)


def test_the_discrepancy_is_zero_on_average_for_equal_distributions_and_grows_with_the_shift():
    same = [mmd(normal(k, 200), normal(k + 100, 200)) for k in range(30)]
    assert abs(sum(same) / 30) < 0.003 and min(same) < 0
    shifted = [mmd(normal(0), normal(1, shift=s)) for s in (0.5, 1.0, 2.0)]
    assert 0.01 < shifted[0] < shifted[1] < shifted[2] < 2


def test_the_discrepancy_is_that_of_the_formula():
    x, y = normal(0, 20), normal(1, 20, shift=1.0)
    length = torch.pdist(x).median()
    kernel = [torch.exp(-0.5 * (torch.cdist(a, b) / length) ** 2) for a, b in ((x, x), (y, y), (x, y))]
    off = ~torch.eye(20, dtype=torch.bool)
    expected = kernel[0][off].mean() + kernel[1][off].mean() - 2 * kernel[2].mean()
    assert math.isclose(mmd(x, y), float(expected), rel_tol=1e-9)


def test_samples_that_do_not_fit_are_refused():
    x = normal(0)
    with pytest.raises(ObservationError, match=says("(400, 2)", "(300, 2)")):
        c2st(x, x[:300])
    with pytest.raises(ObservationError, match=says("at least 50")):
        c2st(x[:20], x[:20])
    with pytest.raises(ObservationError, match=says("NaN")):
        mmd(x, torch.full_like(x, math.nan))
    with pytest.raises(ObservationError, match=says("(count, d)")):
        mmd(x[0], x[0])
    with pytest.raises(ArgumentError, match=says("'forrest'", "forest")):
        c2st(x, x, "forrest")
    with pytest.raises(ArgumentError, match=says("folds")):
        c2st(x, x, folds=1)


def test_the_discrepancy_of_samples_far_from_zero_is_that_of_samples_at_zero():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(300, 2, generator=generator, dtype=torch.float64) + shift for shift in (0.0, 0.5))
    assert mmd(x + 2.0**31, y + 2.0**31) == pytest.approx(mmd(x, y), abs=1e-5)


@pytest.mark.parametrize("offset", [0.0, 2000.0, -1e4])
def test_bias_and_spread_are_those_of_the_deviations_however_far_from_zero_numbers_are(offset):
    generator = torch.Generator().manual_seed(0)
    one = offset + 0.01 * torch.randn(4000, 1, generator=generator, dtype=torch.float64)
    assert measured("bias", one, one + 0.05) == pytest.approx(5.0, rel=0.05)
    assert measured("spread", one, offset + (one - offset) * 3) == pytest.approx(3.0, rel=1e-6)
    # a number that the evidence determines has no spread
    constant = torch.full((4000, 1), offset + 1.0, dtype=torch.float64)
    assert measured("spread", torch.cat([one, constant], 1), torch.cat([one, constant], 1)) == 1.0


@pytest.mark.parametrize("metric", ["bias", "spread"])
def test_bias_and_spread_of_one_sample_are_refused(metric):
    with pytest.raises(ObservationError, match=f"{metric}: at least 2 samples"):
        measured(metric, torch.zeros(1, 2), torch.zeros(1, 2))


def test_samples_that_differ_from_a_constant_reference_have_no_bias_and_no_spread():
    constant = torch.full((50, 2), 6.0)
    assert measured("bias", constant, constant) == 0.0
    assert measured("spread", constant, constant) == 1.0
    for samples in (constant + 1, constant + torch.randn(50, 2)):
        assert math.isnan(measured("bias", constant, samples))
        assert math.isnan(measured("spread", constant, samples))


def test_samples_that_are_no_tensors_are_refused():
    for measure in (c2st, mmd):
        with pytest.raises(ObservationError, match="samples are tensors, got ndarray"):
            measure(torch.zeros(100, 2).numpy(), torch.zeros(100, 2))
