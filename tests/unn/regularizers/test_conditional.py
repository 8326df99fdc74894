"""Conditional distributions of blocks under exp(-E / temperature)."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

import unn
from factors import TreeEntropy
from unn.errors import UnnError
from unn.regularizers.truncated import log_gaussian_integral, truncated_normal


def on_the_line(regularizer, x):
    return float(regularizer.value(torch.tensor([[x]], dtype=torch.float64)))


LINES = {
    "SquaredNorm": (unn.SquaredNorm(), -math.inf, math.inf),
    "NonNegative": (unn.NonNegative(), 0.0, math.inf),
    "Box": (unn.Box(-0.5, 2.0), -0.5, 2.0),
    "L1": (unn.L1(0.7), -math.inf, math.inf),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.0])
@pytest.mark.parametrize("score", [-3.0, 0.0, 0.4, 5.0])
def test_draws_on_the_line_have_the_density_of_the_energy(name, temperature, score):
    regularizer, low, high = LINES[name]

    def density(x):
        return math.exp((score * x - on_the_line(regularizer, x)) / temperature)

    reach = 12 * math.sqrt(temperature)
    start = max(low, min(score, high if high < math.inf else score) - reach)
    end = min(high, max(score, low if low > -math.inf else score) + reach)
    points = [0.0] if start < 0 < end else None
    total = quad(density, start, end, limit=200, points=points)[0]
    t = torch.tensor([[score]], dtype=torch.float64)
    assert float(regularizer.conditional_log_partition(t, temperature)) == pytest.approx(
        math.log(total), abs=1e-7
    )
    draws = regularizer.conditional_sample(
        t.expand(4000, 1), temperature, generator=torch.Generator().manual_seed(1)
    )[:, 0]
    grid = np.linspace(start, end, 4001)
    values = np.array([density(x) for x in grid])
    cumulative = np.concatenate([[0.0], np.cumsum((values[1:] + values[:-1]) / 2 * np.diff(grid))]) / total
    p_value = stats.kstest(draws.numpy(), lambda x: np.interp(x, grid, cumulative)).pvalue
    assert p_value > 1e-4


@pytest.mark.parametrize(
    ("mean", "low", "high"), [(-40.0, 0.0, math.inf), (1e4, -1.0, 1.0), (-1e4, -1.0, 1.0)]
)
def test_draws_far_in_a_tail_stay_in_the_interval_and_fall_off_from_its_end(mean, low, high):
    noise = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = truncated_normal(torch.tensor(mean, dtype=torch.float64), torch.tensor(1.0), low, high, noise)
    assert bool(((x >= low) & (x <= high)).all())
    end = low if mean < low else high
    # the tail is exponential with the distance of the mean as its rate
    assert float((x - end).abs().mean() * abs(mean - end)) == pytest.approx(1, abs=0.03)


def test_integrals_over_intervals_add_up_to_those_over_the_line():
    score = torch.linspace(-30, 30, 41, dtype=torch.float64)
    variance = torch.tensor(0.7, dtype=torch.float64)
    ends = [-math.inf, -2.0, 0.0, 0.5, 3.0, math.inf]
    parts = [log_gaussian_integral(score, variance, a, b) for a, b in pairwise(ends)]
    whole = 0.5 * score**2 / 0.7 + 0.5 * math.log(2 * math.pi * 0.7)
    torch.testing.assert_close(torch.logsumexp(torch.stack(parts), 0), whole, rtol=1e-12, atol=1e-12)


def test_the_derivative_of_an_integral_is_finite_for_infinite_ends():
    score = torch.linspace(-5, 5, 7, dtype=torch.float64, requires_grad=True)
    variance = torch.tensor(0.7, dtype=torch.float64)
    for low, high in [(0.0, math.inf), (-math.inf, 0.0), (-1.0, 2.0), (-math.inf, math.inf)]:
        assert torch.autograd.gradcheck(
            lambda t, a=low, b=high: log_gaussian_integral(t, variance, a, b), score
        )


def test_categories_at_a_temperature_have_the_probabilities_of_the_energy_at_the_corners():
    # the temperature of Entropy scales the mean-field entropy, and not the energy of a corner
    t = torch.tensor([[0.3, -1.0, 1.2]], dtype=torch.float64)
    draws = unn.Entropy(temperature=4.0).conditional_sample(
        t.expand(40_000, 3), 0.5, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(draws.mean(0), torch.softmax(t[0] / 0.5, 0), atol=0.01, rtol=0)
    assert float(unn.Entropy(temperature=4.0).conditional_log_partition(t, 0.5)) == pytest.approx(
        float(torch.logsumexp(t / 0.5, 1))
    )


def test_trees_at_a_temperature_are_those_of_scores_over_it():
    t = torch.randn(1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    draws = TreeEntropy().conditional_sample(
        t.expand(20_000, 4, 4), 2.0, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(draws.mean(0), TreeEntropy().mirror(t / 2)[0], atol=0.02, rtol=0)


def test_padding_is_zero_in_draws_and_counts_nothing():
    mask = torch.tensor([[True, True, False]])
    t = torch.randn(1, 3, dtype=torch.float64)
    for regularizer in (unn.SquaredNorm(), unn.BinaryEntropy(), unn.SignedEntropy(), unn.L1(), unn.Entropy()):
        assert float(regularizer.conditional_sample(t, 1.0, mask)[0, 2]) == 0
        torch.testing.assert_close(
            regularizer.conditional_log_partition(t, 1.0, mask),
            regularizer.conditional_log_partition(t[:, :2], 1.0),
        )


@pytest.mark.parametrize("regularizer", [unn.Ball(), unn.SimplexNorm(), unn.TsallisEntropy()])
def test_regularizers_without_a_sampler_say_which_have_one(regularizer):
    with pytest.raises(UnnError, match="no exact sampler.*SquaredNorm"):
        regularizer.conditional_sample(torch.zeros(1, 3))
