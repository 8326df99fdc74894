"""Measures of distributions: right posteriors pass them, posteriors that are too narrow, too wide or shifted
do not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy.stats import chisquare, kstest
from support.helpers import says

import unn
from unn.calibration import (
    calibrate_discrete,
    calibrate_real,
    calibration_error,
    coverage_error,
    expected_coverage,
    fractional_ranks,
    summary,
    uniformity,
)
from unn.draw import draw_ranks
from unn.errors import ArgumentError, ObservationError

CONDITIONS, DRAWS, NODES = 400, 32, 3


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def posterior(width=1.0, shift=0.0, seed=0):
    """True values and samples of m given y for m ~ N(0, 1), y ~ N(m, 1): N(y / 2, 1 / 2), or a posterior that
    is wrong."""
    g = generator(seed)
    m = torch.randn(CONDITIONS, NODES, generator=g)
    y = m + torch.randn(CONDITIONS, NODES, generator=g)
    noise = torch.randn(CONDITIONS, DRAWS, NODES, generator=g)
    return m, y[:, None] / 2 + shift + width * noise / 2**0.5


def everything():
    return torch.ones(CONDITIONS, NODES, dtype=torch.bool)


@pytest.mark.parametrize("seed", range(3))
def test_the_right_posterior_is_calibrated(seed):
    calibration = calibrate_real(*posterior(seed=seed), everything(), generator())
    assert calibration.p_value > 0.001
    assert calibration.coverage_50 == pytest.approx(
        0.5, abs=0.06
    ) and calibration.coverage_90 == pytest.approx(0.9, abs=0.04)
    assert calibration.spread == pytest.approx(1, abs=0.06) and calibration.calibration_error is None
    assert kstest(calibration.ranks.numpy(), "uniform").pvalue > 0.001


@pytest.mark.parametrize(("width", "shift"), [(0.0, 0.0), (0.3, 0.0), (0.7, 0.0), (1.5, 0.0), (1.0, 0.5)])
def test_a_wrong_posterior_is_seen(width, shift):
    calibration = calibrate_real(*posterior(width, shift), everything(), generator())
    assert calibration.p_value < 1e-4
    if not shift:
        assert calibration.spread == pytest.approx(width, rel=0.08)
        assert (calibration.coverage_90 < 0.87) == (width < 1) and (calibration.coverage_50 > 0.53) == (
            width > 1
        )


def test_a_collapsed_posterior_covers_nothing():
    truth, samples = posterior()
    calibration = calibrate_real(
        truth, samples.mean(1, keepdim=True).expand(-1, DRAWS, -1).contiguous(), everything(), generator()
    )
    assert calibration.spread < 1e-3 and calibration.coverage_90 < 0.1 and calibration.p_value < 1e-30


def categories(seed, sharpen=1.0):
    g = generator(seed)
    shares = torch.randn(CONDITIONS, NODES, 4, generator=g).softmax(-1)
    truth = torch.multinomial(shares.flatten(0, 1), 1, generator=g).view(CONDITIONS, NODES)
    wrong = (shares**sharpen / (shares**sharpen).sum(-1, keepdim=True)).flatten(0, 1)
    samples = (
        torch.multinomial(wrong, DRAWS, replacement=True, generator=g)
        .view(CONDITIONS, NODES, DRAWS)
        .transpose(1, 2)
    )
    return truth, samples


@pytest.mark.parametrize("seed", range(3))
def test_right_probabilities_of_categories_are_calibrated_and_sharpened_ones_are_not(seed):
    right = calibrate_discrete(*categories(seed), everything(), 4, generator())
    assert right.calibration_error < 0.03 and right.p_value > 0.001 and right.spread is None
    sharp = calibrate_discrete(*categories(seed, 4.0), everything(), 4, generator())
    assert sharp.calibration_error > 0.06 > 2 * right.calibration_error


def test_observed_nodes_do_not_count():
    truth, samples = posterior()
    unobserved = everything()
    unobserved[:, 1] = False
    samples[:, :, 1] = 1e6
    calibration = calibrate_real(truth, samples, unobserved, generator())
    assert calibration.ranks.shape == (2 * CONDITIONS,) and calibration.spread == pytest.approx(1, abs=0.08)


@given(conditions=st.integers(1, 20), draws=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_ranks_are_those_of_counting(conditions, draws, seed):
    g = generator(seed)
    truth, samples = (
        torch.randint(4, (conditions, 2), generator=g),
        torch.randint(4, (conditions, draws, 2), generator=g),
    )
    ranks = fractional_ranks(truth, samples, g) * (draws + 1)
    for i in range(conditions):
        for k in range(2):
            below, equal = (
                int((samples[i, :, k] < truth[i, k]).sum()),
                int((samples[i, :, k] == truth[i, k]).sum()),
            )
            assert below <= float(ranks[i, k]) <= below + equal + 1


def test_uniformity_is_pearsons_test():
    ranks = torch.rand(200, generator=generator())
    counts = torch.bincount((ranks * 8).long(), minlength=8)
    assert uniformity(ranks) == pytest.approx(chisquare(counts.numpy()).pvalue)
    assert uniformity(torch.full((50,), 0.99)) < 1e-30 and uniformity(torch.zeros(0)) == 1


def test_the_calibration_error_is_the_mean_gap_between_probability_and_frequency():
    probabilities = torch.tensor([0.2, 0.2, 0.2, 0.2, 0.9, 0.9])
    outcomes = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    assert calibration_error(probabilities, probabilities, outcomes) == pytest.approx(
        (abs(0.8 - 1) + abs(1.8 - 2)) / 6
    )


def test_a_summary_has_the_worst_of_each_figure():
    narrow = calibrate_real(*posterior(0.5), everything(), generator())
    right = calibrate_real(*posterior(), everything(), generator())
    figures = summary({"right": right, "narrow": narrow})
    assert figures["spread"] == narrow.spread and figures["coverage_90"] == narrow.coverage_90
    assert figures["sbc_p"] == pytest.approx(2 * narrow.p_value) and summary({}) == {}


def test_bad_shapes_are_refused():
    truth, samples = posterior()
    with pytest.raises(unn.ObservationError, match=says("(conditions, draws, nodes)", "(400, 3)")):
        calibrate_real(truth, samples[:, :1], everything(), generator())
    with pytest.raises(unn.ObservationError, match=says("every node is observed")):
        calibrate_real(truth, samples, ~everything(), generator())
    with pytest.raises(unn.ObservationError, match=says("dtype bool", "int64")):
        calibrate_real(truth, samples, everything().long(), generator())
    with pytest.raises(unn.ObservationError, match=says("(conditions, nodes)", "(0, 3)")):
        calibrate_real(truth[:0], samples[:0], everything()[:0], generator())


@pytest.mark.parametrize("wrong", [-1.0, 3.0, 0.5])
@pytest.mark.parametrize("where", ["true values", "samples"])
def test_indices_that_are_no_options_are_refused_where_they_are_compared(wrong, where):
    truth, samples = torch.zeros(20, 2), torch.zeros(20, 8, 2)
    broken = truth if where == "true values" else samples[:, 0]
    broken[3, 1] = wrong
    unobserved = torch.ones(20, 2, dtype=torch.bool)
    with pytest.raises(unn.ObservationError, match=says("1 of", where, f"{wrong:g}", "3 options")):
        calibrate_discrete(truth, samples, unobserved, 3, generator())
    unobserved[3, 1] = False
    assert calibrate_discrete(truth, samples, unobserved, 3, generator()).calibration_error is not None


@pytest.mark.parametrize("figure", [coverage_error, uniformity])
def test_figures_of_numbers_that_are_no_probabilities_are_refused(figure):
    for wrong in (-0.1, 1.5, torch.nan):
        with pytest.raises(unn.ObservationError, match=says(figure.__name__, f"{wrong:g} among 2")):
            figure(torch.tensor([0.5, wrong]))
    assert uniformity(torch.zeros(0)) == 1
    with pytest.raises(unn.ObservationError, match=says("coverage_error", "none")):
        coverage_error(torch.zeros(0))


def test_rank_histograms_are_drawn_and_bad_ranks_refused():
    assert isinstance(draw_ranks({"m": [0.1, 0.5, 0.9], "b": [0.2]}), Figure)
    for ranks in ({}, {"m": []}, {"m": [1.5]}, {"m": [float("nan")]}):
        with pytest.raises(unn.ObservationError, match="draw_ranks"):
            draw_ranks(ranks)


# -- expected coverage ---------------------------------------------------------------------------------------


def covered(truth, samples, seed=1):
    centres = torch.randn(truth.shape, generator=generator(seed))
    return expected_coverage(truth, samples, centres, torch.ones_like(truth, dtype=torch.bool), generator())


def test_the_right_posterior_has_uniform_coverage_and_wrong_ones_do_not():
    assert uniformity(covered(*posterior())) > 0.001
    for wrong in (posterior(width=0.5), posterior(width=2.0), posterior(shift=0.8)):
        assert uniformity(covered(*wrong)) < 0.001


def test_coverage_shows_wrong_dependences_that_no_single_rank_shows():
    g = generator()
    common = torch.randn(2000, 1, generator=g)
    truth = torch.cat([common, common], 1)
    # right marginal distributions, but independent
    samples = torch.randn(2000, DRAWS, 2, generator=g)
    everything = torch.ones(2000, 2, dtype=torch.bool)
    assert calibrate_real(truth, samples, everything, generator()).p_value > 0.001
    centres = torch.randn(2000, 2, generator=g)
    assert uniformity(expected_coverage(truth, samples, centres, everything, generator())) < 1e-6


def test_given_numbers_do_not_count_in_coverage():
    truth, samples = posterior()
    unobserved = everything()
    unobserved[:, 0] = False
    centres = torch.randn(truth.shape, generator=generator(1))
    one = expected_coverage(truth, samples, centres, unobserved, generator())
    changed = samples.clone()
    changed[:, :, 0] = 100.0
    other = expected_coverage(truth, changed, centres, unobserved, generator())
    assert torch.equal(one, other)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_the_error_of_coverage_is_the_statistic_of_kolmogorov(probabilities):
    error = coverage_error(torch.tensor(probabilities, dtype=torch.float64))
    assert error == pytest.approx(kstest(probabilities, "uniform").statistic, abs=1e-9)


def test_centres_of_another_shape_are_refused():
    truth, samples = posterior()
    with pytest.raises(unn.ObservationError, match=says("centres")):
        expected_coverage(truth, samples, truth[:, :1], everything(), generator())


@pytest.mark.parametrize("where", ["true values", "samples"])
def test_values_that_are_nan_are_refused_where_they_are_compared(where):
    truth, samples = torch.randn(20, 2), torch.randn(20, 9, 2)
    broken = truth if where == "true values" else samples[:, 0]
    broken[3, 1] = torch.nan
    unobserved, generator = torch.ones(20, 2, dtype=torch.bool), torch.Generator()
    with pytest.raises(unn.ObservationError, match=f"1 of .* {where} of unobserved nodes are NaN"):
        calibrate_real(truth, samples, unobserved, generator)
    unobserved[3, 1] = False
    assert calibrate_real(truth, samples, unobserved, generator).spread is not None


def test_calibration_errors_of_what_is_no_probability_or_no_number_of_bins_are_refused():
    half, outcome = torch.tensor([0.5]), torch.tensor([1.0])
    for bad in (torch.tensor([2.0]), torch.tensor([-0.1]), torch.tensor([torch.nan])):
        for chosen_by, probabilities in ((bad, half), (half, bad)):
            with pytest.raises(ObservationError, match=r"calibration_error needs .* in \[0, 1\]"):
                calibration_error(chosen_by, probabilities, outcome)
    with pytest.raises(ArgumentError, match="bins must be a whole number >= 1"):
        calibration_error(half, half, outcome, bins=0)
    with pytest.raises(ArgumentError, match="bins must be a whole number >= 2"):
        uniformity(half, bins=1)
