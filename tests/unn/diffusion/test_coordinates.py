"""Coordinates without bounds: samples of every model stay in the domain of their variable."""

import math
import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.diffusion import extreme_samples
from support.helpers import says
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import unn
from unn.diffusion.coordinates import (
    Coordinates,
    balanced_rate,
    interpolated,
    knots_at_scores,
    softened_exp,
    softened_log,
)
from unn.errors import ArgumentError, ObservationError
from unn.programs import (
    Beta,
    Binomial,
    Dirichlet,
    Exponential,
    Gamma,
    LogNormal,
    MultivariateNormal,
    Normal,
    Poisson,
    Uniform,
)


def program(t):
    b = t.sample("b", LogNormal(0.3, 0.5))
    t.sample("d", Beta(2.0, b))
    h = t.sample("h", Uniform(-1.0, 3.0), 2)
    t.sample("p", Poisson(b * 3))
    t.sample("q", Binomial(10, b / (1 + b)))
    w = t.sample("w", Dirichlet([1.0, b, 3.0]))
    t.sample("v", MultivariateNormal([b, b], [[2.0, 0.5], [0.5, 1.0]], one_node=True))
    t.sample("x", Normal(h[0] + h[1] + w[0], 1.0))


@pytest.fixture(scope="module")
def traced():
    return unn.trace(program)


def model_of(traced, coordinates="auto"):
    torch.manual_seed(0)
    return unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1), coordinates=coordinates)


def in_support(traced, values):
    return traced.log_prob({name: x.double() for name, x in values.items()}) > -math.inf


@given(st.floats(-50, 50), st.floats(0.1, 100), st.integers(0, 2**31 - 1))
def test_coordinates_are_increasing_and_invertible(low, width, seed):
    x = low + width * torch.rand(1, 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for own in (
        Coordinates(),
        Coordinates(low),
        Coordinates(low, rate=1 / width),
        Coordinates(low, rate=1e3),
        Coordinates(low, low + width),
    ):
        y = own.forward(x)
        torch.testing.assert_close(own.backward(y), x, rtol=1e-6, atol=1e-6 * width)
        order = x[0].argsort()
        assert (y[0][order].diff() >= 0).all()


@given(st.integers(0, 1000), st.floats(1e-6, 0.999999))
def test_noise_that_makes_counts_continuous_is_removed_exactly(count, noise):
    x = torch.tensor([[float(count)]])
    for own in (
        Coordinates(0, math.inf, whole=True),
        Coordinates(0, math.inf, whole=True, rate=0.3),
        Coordinates(0, 1000.0, whole=True),
    ):
        assert own.backward(own.forward(x, noise)).item() == count


def test_the_slope_of_coordinates_is_their_derivative():
    x = (0.1 + 0.8 * torch.rand(1, 20, dtype=torch.float64)).requires_grad_()
    for own in (Coordinates(), Coordinates(0.0), Coordinates(0.0, rate=4.0), Coordinates(0.0, 1.0)):
        slope = torch.autograd.grad(own.forward(x).sum() + 0 * x.sum(), x)[0]
        torch.testing.assert_close(own.log_slope(x), slope.log())


def test_logarithms_become_linear_at_the_rate():
    x = torch.logspace(-8, 3, 100, dtype=torch.float64)
    for rate in (1e-3, 1.0, 50.0):
        y = softened_log(x, rate)
        small, large = rate * x < 1e-6, rate * x > 40
        torch.testing.assert_close(y[small], x[small].log(), rtol=0, atol=1e-5)
        torch.testing.assert_close(y[large], rate * x[large] - math.log(rate))
        torch.testing.assert_close(softened_exp(y, rate), x)
    assert torch.equal(softened_log(x, 0.0), x.log())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_the_balanced_rate_makes_both_tails_equally_long_in_any_unit(scale):
    generator = torch.Generator().manual_seed(0)
    x = scale * torch.empty(20_000, dtype=torch.float64).exponential_(generator=generator)
    rate = balanced_rate(x)
    y = softened_log(x, rate)
    low, middle, high = torch.quantile(y, torch.tensor([0.01, 0.5, 0.99], dtype=torch.float64)).tolist()
    assert (high - middle) / (middle - low) == pytest.approx(1, abs=0.02)
    standard = (y - y.mean()) / y.std()
    logs = (x.log() - x.log().mean()) / x.log().std()
    assert abs((standard**3).mean()) < 0.2 < abs((logs**3).mean())
    # where logarithms are normal they are nearly kept, and where their right tail is longer entirely
    normal = torch.randn(20_000, generator=generator, dtype=torch.float64)
    assert balanced_rate(scale * normal.exp()) * scale < 0.05
    assert balanced_rate(scale * (normal + 0.5 * normal.exp()).exp()) == 0
    # equal values have no tails
    assert balanced_rate(torch.full((5,), 2.0)) == 0


def test_state_dicts_of_earlier_versions_keep_plain_logarithms():
    traced = unn.trace(lambda t: t.sample("x", Exponential(2.0)))
    model = model_of(traced)
    model.standardise(traced.draw(2000, seed=0))
    assert model.log_rates is not None and model.log_rates[0] == pytest.approx(math.log(2), abs=0.7)
    again = model_of(traced)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.log_rates, model.log_rates)
    again.load_state_dict({name: x for name, x in model.state_dict().items() if name != "log_rates"})
    assert again._coordinates_at(again.frames.at())["x"].rate == 0
    # runs name the coordinates, and those of earlier versions have no rates
    assert model_of(traced, "domain").log_rates is None and model_of(traced, "quantiles").log_rates is None


def test_averages_of_weights_keep_the_rates():
    def program(t):
        x = t.sample("x", Exponential(2.0))
        t.sample("y", LogNormal(x, 1.0))
        t.sample("z", Normal(x, 1.0))

    model = model_of(unn.trace(program))
    model.standardise(unn.trace(program).draw(2000, seed=0))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(3):
        average.update_parameters(model)
    torch.testing.assert_close(average.module.log_rates, model.log_rates)


def test_exact_zeros_are_no_part_of_the_tail_that_is_balanced():
    x = torch.empty(10_000, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(0))
    rate = balanced_rate(x)
    with_zeros = torch.cat([x, torch.full((1000,), 1e-12, dtype=torch.float64)])
    assert balanced_rate(with_zeros) == pytest.approx(rate)
    # an atom at a bound beyond which the body has a long left tail
    assert balanced_rate((3 - x).clamp(min=1e-12)) < 1e3
    assert balanced_rate(torch.full((10,), 1e-12)) == 0 == balanced_rate(torch.empty(0))


def test_the_warp_to_normal_quantiles_makes_any_distribution_normal():
    x = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3
    x = (x - x.mean()) / x.std()
    knots = knots_at_scores(x, 49)
    assert (knots.diff() > 0).all()
    scores = torch.linspace(-3, 3, 49, dtype=torch.float64)
    warped = interpolated(x, knots, scores)
    assert abs(warped.mean()) < 0.1 and abs(warped.std() - 1) < 0.15
    torch.testing.assert_close(interpolated(warped, scores, knots), x)


@pytest.mark.parametrize("coordinates", ["auto", "domain", "quantiles"])
def test_samples_of_an_untrained_model_are_in_their_supports(traced, coordinates):
    values = extreme_samples(model_of(traced, coordinates), traced.draw(500, seed=0))
    assert in_support(traced, values).all()


@pytest.mark.parametrize("coordinates", ["auto", "domain", "quantiles"])
def test_values_come_back_from_their_coordinates(traced, coordinates):
    model, values = model_of(traced, coordinates), traced.draw(500, seed=0)
    model.standardise(values)
    frame = model.frames.at()
    rows = frame.flatten(values)
    back = model._natural(model._standard(rows, frame), frame)
    torch.testing.assert_close(back, rows, rtol=1e-4, atol=1e-4)


def test_given_values_are_returned_exactly(traced):
    model, values = model_of(traced), traced.draw(500, seed=0)
    model.standardise(values)
    evidence = {name: values[name][:3] for name in ("b", "p", "w", "h")}
    samples = model.sample(evidence, 3, steps=2, seed=0)
    for name, x in evidence.items():
        assert torch.equal(samples[name], x)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("b", [-1.0], ["'b'", "at least 0", "-1"]),
        ("h", [[0.0, 3.5]], ["'h'", "from -1 to 3", "3.5"]),
        ("p", [1.5], ["'p'", "whole", "1.5"]),
        ("q", [11.0], ["'q'", "from 0 to 10", "11"]),
        ("w", [[0.5, 0.4, 0.3]], ["'w'", "sum to one"]),
        ("b", [math.nan], ["'b'", "NaN"]),
    ],
)
def test_evidence_outside_the_support_is_refused(traced, name, value, words):
    model = model_of(traced)
    with pytest.raises(ObservationError, match=says(*words)):
        model.sample({name: torch.tensor(value)}, 1, steps=1)


def test_a_value_outside_its_support_does_not_matter_where_it_is_not_observed(traced):
    model = model_of(traced)
    part = unn.Partial(torch.tensor([[0.0, 99.0]]), torch.tensor([[True, False]]))
    samples = model.sample({"h": part}, 2, steps=1, seed=0)
    assert (samples["h"][:, 0] == 0).all() and (samples["h"].abs() <= 3).all()


def test_linear_coordinates_leave_values_as_they_are(traced):
    model, values = model_of(traced, "linear"), traced.draw(500, seed=0)
    model.standardise(values)
    frame = model.frames.at()
    x = model._standard(frame.flatten(values), frame)[:, frame.slots["b"].numbers]
    torch.testing.assert_close(x[:, 0], (values["b"] - values["b"].mean()) / values["b"].std())


def test_unknown_coordinates_are_refused(traced):
    with pytest.raises(ArgumentError, match=says("coordinates", "'domein'", "domain")):
        model_of(traced, "domein")


@pytest.mark.slow
def test_samples_of_positive_numbers_have_the_exact_deviation_and_tail():
    def gamma_poisson(t):
        rate = t.sample("rate", Gamma(2.0, 0.5))
        t.sample("counts", Poisson(rate), shape=2)

    traced = unn.trace(gamma_poisson)
    torch.manual_seed(0)
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=16, depth=2, heads=2))
    model.standardise(traced.draw(5000, seed=0))
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 800)
    for step in range(800):
        observed = torch.rand(256, 3) < torch.rand(256, 1)
        optimiser.zero_grad()
        model.loss(traced.draw(256, seed=1 + step), observed).backward()
        optimiser.step()
        schedule.step()
    samples = model.eval().sample(count=8000, steps=30, seed=0, at_once=8000)["rate"].double()
    # a rate of 0.5 is a scale of 2
    assert samples.mean().item() == pytest.approx(4, rel=0.05)
    # with plain logarithms the deviation is 15% and the quantile 20% too large
    assert samples.std().item() == pytest.approx(8**0.5, rel=0.08)
    exact = 2 * scipy.stats.gamma.ppf(0.99, 2)
    assert torch.quantile(samples, 0.99).item() == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize(("mean", "warns"), [(-30, True), (-20, False)])
def test_values_too_near_to_their_bound_to_be_distinguished_are_said(mean, warns):
    def program(t):
        k = t.sample("k", LogNormal(mean, 1))
        t.sample("y", Normal(np.log(k) - mean, 0.3))

    traced = unn.trace(program)
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.standardise(traced.draw(200, seed=0))
    texts = [str(w.message) for w in caught if "too near to a bound" in str(w.message)]
    assert len(texts) == warns
    assert all("variable 'k'" in text and "other units" in text for text in texts)


@pytest.mark.parametrize(
    ("distribution", "warns"),
    [
        (Beta(0.1, 0.1), 1),
        (Beta(0.5, 0.5), 0),
        (Dirichlet([0.05, 0.05, 0.05]), 1),
        (Dirichlet([0.5, 0.5, 0.5]), 0),
    ],
)
def test_shares_too_near_to_a_bound_to_be_distinguished_are_said(distribution, warns):
    traced = unn.trace(lambda t: t.sample("x", distribution))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model_of(traced).standardise(traced.draw(2000, seed=0))
    assert sum("too near to a bound" in str(w.message) for w in caught) == warns


def evidence_at(distribution, values, examples=20_000):
    """Standardised evidence of a variable in a model that has seen examples of it, and what it would be
    anywhere, shape ``(values, numbers)`` each."""
    traced = unn.trace(lambda t: t.sample("x", distribution))
    model = model_of(traced)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*too near to a bound")
        model.standardise(traced.draw(examples, seed=0))
    x = torch.tensor(values, dtype=torch.float64)
    condition = model.condition({"x": x}, len(x))
    return condition.rows, model._standard(condition.frame.flatten({"x": x}), condition.frame)


@pytest.mark.parametrize(
    ("distribution", "bounds", "largest"),
    [
        (Uniform(-1.0, 3.0), [-1.0, -0.9999, 2.9999, 3.0], 3.1),
        (Beta(2.0, 2.0), [0.0, 1.0], 5.0),
        (Exponential(2.0), [0.0, 1e-9, 1e-5], 3.1),
        (LogNormal(0.3, 0.5), [0.0, 1e-9], 9.0),
        (Dirichlet([1.0, 1.0, 1.0]), [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], 3.5),
    ],
)
def test_evidence_at_a_bound_is_no_farther_out_than_what_a_network_has_seen(distribution, bounds, largest):
    rows, anywhere = evidence_at(distribution, bounds)
    assert float(rows.abs().max()) < largest
    assert float(anywhere.abs().max()) > largest


@pytest.mark.parametrize(
    ("distribution", "values"),
    [
        (Uniform(-1.0, 3.0), [-0.99, 0.0, 2.99]),
        # far from examples, and far from a bound
        (Beta(1000.0, 1000.0), [0.4, 0.58]),
        (Gamma(400.0, 1.0), [250.0, 700.0]),
        (Poisson(1000.0), [800.0, 1200.0]),
        (LogNormal(0.0, 2.0), [2e-4, 5e3]),
        (Exponential(1.0), [0.01, 40.0]),
        # near a bound, as the examples are
        (Beta(0.1, 0.1), [1e-5, 1 - 1e-5]),
        (Dirichlet([0.05, 0.05, 0.05]), [[1.0 - 2e-6, 1e-6, 1e-6]]),
        (Dirichlet([1.0, 1.0, 1.0]), [[0.98, 0.01, 0.01], [0.2, 0.3, 0.5]]),
        (Normal(0.0, 1.0), [-8.0, 8.0]),
    ],
)
def test_evidence_elsewhere_is_taken_as_it_is(distribution, values):
    rows, anywhere = evidence_at(distribution, values)
    torch.testing.assert_close(rows, anywhere)


def test_evidence_at_a_bound_is_part_of_the_samples_as_it_was_given():
    traced = unn.trace(program)
    model = model_of(traced)
    model.standardise(traced.draw(200, seed=0))
    given = {"h": torch.tensor([[-1.0, 3.0]]), "w": torch.tensor([[0.5, 0.5, 0.0]])}
    samples = model.sample(given, 3, steps=2, seed=0)
    for name, x in given.items():
        assert torch.equal(samples[name], x.expand(3, -1))
