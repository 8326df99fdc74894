"""Samplers against closed forms, and levels of noise."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import INF, NAN, says

import unn
from unn.diffusion import SAMPLERS, LinearSteps, LogNormal, LogUniform, restart_sampling, restarting_levels
from unn.diffusion.schedule import log_snr_levels

EVERY_SAMPLER = pytest.mark.parametrize("sampler", list(SAMPLERS))
STOCHASTIC = ("ancestral", "dpm-solver-sde", "churn")
FIRST_ORDER = ("ancestral", "ddim", "churn")
LONGER = {"churn": 8}
"""How many times as many steps a sampler needs, by the noise in them, to come as near to the limit as the
others."""


# -- samplers against closed forms ---------------------------------------------------------------------------


def silent(*_):
    pass


def draw(sampler, denoise, start, levels, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return SAMPLERS[sampler](
        denoise,
        start,
        levels,
        lambda: torch.randn(start.shape, generator=generator, dtype=start.dtype),
        silent,
    )


SAMPLED = 20_000
OFF = {"ancestral": 0.05, "ddim": 0.025, "churn": 0.05}
"""How much of the variance so many steps of the first order lose, from its exact value below."""


def gaussian(mean, covariance):
    """The exact estimate E[x0 | x, sigma] for Gaussian data, and draws from the noisy data."""

    def denoise(x, sigma):
        noisy = covariance + sigma**2 * torch.eye(len(mean), dtype=mean.dtype)
        return mean + (x - mean) @ torch.linalg.solve(noisy, covariance)

    def noisy(sigma, seed):
        root = torch.linalg.cholesky(covariance + sigma**2 * torch.eye(len(mean), dtype=mean.dtype))
        normal = torch.randn(
            SAMPLED, len(mean), generator=torch.Generator().manual_seed(seed), dtype=mean.dtype
        )
        return mean + normal @ root.T

    return denoise, noisy


DATA = {
    "independent": ([0.5, -1.0, 0.0], [[1.0, 0.0, 0.0], [0.0, 0.25, 0.0], [0.0, 0.0, 2.0]]),
    "correlated": ([1.0, -0.3], [[1.0, -0.6], [-0.6, 0.8]]),
}


@pytest.mark.slow
@EVERY_SAMPLER
@pytest.mark.parametrize("name", DATA)
def test_gaussian_data_are_sampled_with_their_mean_and_covariance(sampler, name):
    mean, covariance = (torch.tensor(x, dtype=torch.float64) for x in DATA[name])
    denoise, noisy = gaussian(mean, covariance)
    levels = LogUniform().levels(200 * LONGER.get(sampler, 1)).double()
    samples = draw(sampler, denoise, noisy(levels[0], 1), levels)
    deviations = covariance.diagonal().sqrt()
    # five standard errors
    error = 5 / SAMPLED**0.5
    assert ((samples.mean(0) - mean).abs() < (error + OFF.get(sampler, 0)) * deviations).all()
    # Var of an entry of the covariance is (c_ii c_jj + c_ij^2) / samples
    scale = (torch.outer(deviations**2, deviations**2) + covariance**2).sqrt()
    assert ((samples.T.cov() - covariance).abs() < (error + OFF.get(sampler, 0.001)) * scale).all()


def variance_of(sampler, variance, levels):
    """The exact variance of samples where the estimate is linear, by following the start and each draw of
    noise on its own."""
    count = len(levels) + 1
    calls = itertools.count(1)

    def noise():
        unit = torch.zeros(count, 1, dtype=torch.float64)
        unit[next(calls)] = 1
        return unit

    start = torch.zeros(count, 1, dtype=torch.float64)
    start[0] = (variance + levels[0] ** 2).sqrt()
    ends = SAMPLERS[sampler](
        lambda x, sigma: variance / (variance + sigma**2) * x, start, levels, noise, silent
    )
    assert sampler in STOCHASTIC or next(calls) == 1
    return float((ends**2).sum())


@pytest.mark.slow
@EVERY_SAMPLER
@pytest.mark.parametrize("variance", [0.25, 1.0, 4.0])
def test_the_variance_of_samples_converges_at_the_order_of_the_sampler(sampler, variance):
    counts = [steps * LONGER.get(sampler, 1) for steps in (50, 100, 200, 400)]
    errors = [
        abs(variance_of(sampler, variance, LogUniform(1e-3, 80).levels(steps).double()) / variance - 1)
        for steps in counts
    ]
    ratios = [a / b for a, b in itertools.pairwise(errors)]
    if sampler == "churn":
        # of the second order while its noise falls with the length of steps, of the first when ancestral
        # noise is left
        assert all(1.7 < ratio < 4.7 for ratio in ratios) and errors[-1] < 0.01
    elif sampler in FIRST_ORDER:
        assert all(1.7 < ratio < 2.3 for ratio in ratios) and errors[-1] < 0.03
    else:
        assert all(3.5 < ratio < 4.7 for ratio in ratios) and errors[-1] < 3e-4


def test_twenty_steps_of_churn_keep_nine_tenths_of_the_deviation_of_gaussian_data():
    deviation = variance_of("churn", 1.0, LinearSteps(last=0.01).levels(20).double()) ** 0.5
    assert deviation == pytest.approx(0.911, abs=0.001)


@pytest.mark.slow
@EVERY_SAMPLER
@pytest.mark.parametrize(
    "schedule", [LinearSteps(), LogNormal(), LogUniform()], ids=lambda s: type(s).__name__
)
def test_all_schedules_lead_to_the_right_variance(sampler, schedule):
    for steps, most in ((50, 0.35), (400, 0.1)):
        levels = schedule.levels(steps * LONGER.get(sampler, 1)).double()
        assert abs(variance_of(sampler, 1.0, levels) - 1) < most / (1 if sampler in FIRST_ORDER else 2)


@pytest.mark.slow
@EVERY_SAMPLER
@pytest.mark.parametrize("name", DATA)
def test_restarts_keep_the_mean_and_the_covariance_of_gaussian_data(sampler, name):
    mean, covariance = (torch.tensor(x, dtype=torch.float64) for x in DATA[name])
    denoise, noisy = gaussian(mean, covariance)
    longer = LONGER.get(sampler, 1)
    # rounds of many steps, so that the error of short ones does not hide a wrong amount of noise
    again = torch.linspace(math.log(2.0), math.log(0.03), 100 * longer, dtype=torch.float64).exp()
    schedules = [
        restarting_levels(LogUniform(), 200 * longer)[0].double(),
        *(torch.cat([again, again.new_tensor([end])]) for end in (0.02, 0.0)),
    ]
    generator = torch.Generator().manual_seed(0)
    start = noisy(schedules[0][0], 1)
    samples = restart_sampling(
        SAMPLERS[sampler],
        denoise,
        start,
        schedules,
        lambda: torch.randn(start.shape, generator=generator, dtype=start.dtype),
        silent,
    )
    error = 5 / SAMPLED**0.5 + OFF.get(sampler, 0.002)
    assert ((samples.mean(0) - mean).abs() < error * covariance.diagonal().sqrt()).all()
    scale = (torch.outer(covariance.diagonal(), covariance.diagonal()) + covariance**2).sqrt()
    assert ((samples.T.cov() - covariance).abs() < error * scale).all()


@EVERY_SAMPLER
def test_a_known_sample_is_found_exactly_whatever_the_number_of_steps(sampler):
    x0 = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for steps in (1, 2, 3, 10):
        samples = draw(
            sampler,
            lambda x, sigma: x0,
            80 * torch.ones(3, 4, dtype=torch.float64),
            LogUniform().levels(steps).double(),
        )
        torch.testing.assert_close(samples, x0)


@EVERY_SAMPLER
def test_levels_may_repeat(sampler):
    x0 = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    repeated = torch.tensor([3.0, 3.0, 3.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    for levels in (repeated, LinearSteps(steps=1).levels(3).double()):
        torch.testing.assert_close(
            draw(sampler, lambda x, sigma: x0, 3 * torch.ones(3, 4, dtype=torch.float64), levels), x0
        )


@EVERY_SAMPLER
def test_samplers_look_after_each_step_at_what_they_have(sampler):
    seen, asked = [], []

    def denoise(x, sigma):
        asked.append(float(sigma))
        return 0.5 * x

    levels = LogUniform().levels(7).double()
    end = SAMPLERS[sampler](
        denoise,
        torch.ones(2, 3, dtype=torch.float64),
        levels,
        lambda: torch.zeros(2, 3),
        lambda *now: seen.append(now),
    )
    assert [k for k, _, _ in seen] == list(range(7)) and torch.equal(seen[-1][1], end)
    assert all(x.shape == x0.shape == (2, 3) for _, x, x0 in seen)
    assert all(sigma > 0 for sigma in asked) and len(asked) == (13 if sampler == "heun" else 7)
    assert set(asked) == set(levels[:-1].tolist())


# -- levels of noise -----------------------------------------------------------------------------------------


@given(
    steps=st.integers(1, 300),
    schedule=st.sampled_from(
        [
            LinearSteps(),
            LinearSteps(last=0.005),
            LinearSteps(1),
            LogNormal(),
            LogUniform(0.1, 1.0),
            LogUniform(5, 60),
        ]
    ),
)
@settings(deadline=None)
def test_levels_with_restarts_are_those_of_the_schedule_and_of_rounds_in_as_many_steps_as_are_asked_for(
    steps, schedule
):
    first, *rounds = restarting_levels(schedule, steps)
    highest, lowest = schedule.levels(2)[:2].tolist()
    assert (
        torch.equal(first, schedule.levels(len(first) - 1))
        and len(first) - 1 + sum(len(levels) - 1 for levels in rounds) == steps
    )
    for levels in rounds:
        assert (
            (levels[1:] < levels[:-1]).all()
            and levels[-1] == 0
            and len(levels) - 1 == max(4, math.isqrt(steps))
        )
        assert lowest * 0.999 <= levels[-2] and levels[0] <= min(highest, 1.5) * 1.001
    assert bool(rounds) == (steps >= 7 and lowest < min(highest, 1.5))


def sigmas_by_hand(schedule):
    """sigma_t^2 = 1 / prod (1 - beta_s) - 1."""
    alpha_product, sigmas = 1.0, []
    for t in range(schedule.steps):
        beta = schedule.first + (schedule.last - schedule.first) * (
            t / (schedule.steps - 1) if schedule.steps > 1 else 0
        )
        alpha_product *= 1 - beta
        sigmas.append(math.sqrt(1 / alpha_product - 1))
    return torch.tensor(sigmas)


@pytest.mark.parametrize(
    "schedule",
    [
        LinearSteps(),
        LinearSteps(last=0.005),
        LinearSteps(20, 0.01, 0.3),
        LinearSteps(2, 0.5, 0.1),
        LinearSteps(1),
    ],
)
def test_the_levels_of_linear_steps_are_those_of_the_product(schedule):
    torch.testing.assert_close(schedule.sigmas, sigmas_by_hand(schedule), rtol=1e-5, atol=1e-7)


def test_the_paper_stops_where_noise_does_not_drown_the_data():
    last = float(LinearSteps(last=0.005).sigmas[-1])
    assert 1 / math.sqrt(1 + last**2) == pytest.approx(0.279, abs=5e-4) and last == pytest.approx(
        3.4, abs=0.05
    )
    assert float(LinearSteps().sigmas[-1]) == pytest.approx(150, rel=0.06)


schedules = st.one_of(
    st.builds(LinearSteps, steps=st.integers(2, 1000), first=st.floats(1e-5, 0.1), last=st.floats(1e-4, 0.2)),
    st.builds(LogUniform, lowest=st.floats(1e-3, 0.5), highest=st.floats(1, 200)),
    st.builds(LogNormal, lowest=st.floats(1e-3, 0.5), highest=st.floats(1, 200)),
)


@given(schedule=schedules, steps=st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_levels_fall_to_zero(schedule, steps):
    first = float(schedule.levels(1)[0])
    for levels in (schedule.levels(steps), log_snr_levels(schedule, steps)):
        assert levels.shape == (steps + 1,) and levels[-1] == 0 and levels.isfinite().all()
        assert (levels.diff() < 0).all()
        assert float(levels[0]) == pytest.approx(first, rel=1e-4)


def test_levels_are_spaced_as_they_say():
    linear = LinearSteps()
    torch.testing.assert_close(linear.levels(1000)[:-1], linear.sigmas.flip(0), rtol=1e-5, atol=0)
    torch.testing.assert_close(linear.levels(4)[:-1], linear.sigmas[[999, 666, 333, 0]], rtol=1e-5, atol=0)
    between = linear.levels(3)[1]
    assert linear.sigmas[499] < between < linear.sigmas[500]
    ratios = LogUniform(0.1, 10).levels(5)[:-1]
    torch.testing.assert_close(ratios, torch.tensor([10, 10**0.5, 1, 10**-0.5, 0.1]))
    # Karras et al. (2022), equation 5
    expected = [(80 ** (1 / 7) + k / 4 * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7 for k in range(5)]
    torch.testing.assert_close(LogNormal().levels(5)[:-1], torch.tensor(expected))
    # even in the log-SNR, over the same range
    even = log_snr_levels(linear, 6)[:-1].log()
    torch.testing.assert_close(even.diff(), even.diff()[:1].expand(5))
    assert even[0] == pytest.approx(float(linear.sigmas[-1].log()), abs=1e-5) and even[-1] == pytest.approx(
        float(linear.sigmas[0].log()), abs=1e-5
    )


@pytest.mark.parametrize("steps", [0, -1, 1.0, True, None])
@pytest.mark.parametrize(
    "schedule", [LinearSteps(), LogUniform(), LogNormal()], ids=lambda s: type(s).__name__
)
def test_numbers_of_steps_below_one_are_refused(schedule, steps):
    with pytest.raises(unn.ArgumentError, match=says("steps >= 1", repr(steps))):
        schedule.levels(steps)
    with pytest.raises(unn.ArgumentError, match=says("steps >= 1", repr(steps))):
        log_snr_levels(schedule, steps)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LinearSteps(0), ["LinearSteps", "steps=0"]),
        (lambda: LinearSteps(first=0), ["first=0"]),
        (lambda: LinearSteps(last=1), ["last=1"]),
        (lambda: LinearSteps(last=NAN), ["last=nan"]),
        (lambda: LogUniform(0, 1), ["LogUniform", "lowest", "0"]),
        (lambda: LogUniform(2, 1), ["2", "1"]),
        (lambda: LogNormal(lowest=-1), ["LogNormal", "-1"]),
        (lambda: LogNormal(highest=INF), ["inf"]),
    ],
)
def test_schedules_out_of_range_are_refused(make, words):
    with pytest.raises(unn.ArgumentError, match=says(*words)):
        make()


def test_training_draws_levels_from_its_distribution():
    def drawn(schedule, seed=0):
        return schedule.draw(20_000, torch.Generator().manual_seed(seed))

    linear = LinearSteps(50)
    levels = drawn(linear)
    assert set(levels.tolist()) == set(linear.sigmas.tolist())
    counts = (levels[:, None] == linear.sigmas).sum(0).double()
    # chi-square with 49 degrees of freedom, its 99.99% quantile
    assert float(((counts - 400) ** 2 / 400).sum()) < 93
    logs = drawn(LogUniform(0.1, 10)).log()
    assert logs.min() >= math.log(0.1) and logs.max() <= math.log(10) + 1e-6
    assert float(logs.mean()) == pytest.approx(0, abs=0.05) and float(logs.var()) == pytest.approx(
        math.log(100) ** 2 / 12, rel=0.05
    )
    logs = drawn(LogNormal(-1, 0.5)).log()
    assert float(logs.mean()) == pytest.approx(-1, abs=0.02) and float(logs.std()) == pytest.approx(
        0.5, rel=0.03
    )
    for schedule in (linear, LogUniform(), LogNormal()):
        assert torch.equal(drawn(schedule), drawn(schedule)) and not torch.equal(
            drawn(schedule), drawn(schedule, 1)
        )
