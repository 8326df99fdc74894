"""Posteriors of programs by sequential Monte Carlo, against closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from support.helpers import says

import unn
from unn.errors import ArgumentError, DeclarationError, ObservationError
from unn.programs import (
    Bernoulli,
    Binomial,
    Categorical,
    Dirichlet,
    Exponential,
    Gamma,
    MultivariateNormal,
    Normal,
    Permutation,
    Poisson,
    Uniform,
)

COUNT = 4000


def test_a_conjugate_normal_posterior_and_its_evidence_are_exact():
    def program(t):
        m = t.sample("m", Normal(0.0, 1.0))
        t.sample("x", Normal(m, 0.5), 4)

    x = torch.tensor([0.3, 1.2, 0.8, 0.1], dtype=torch.float64)
    result = unn.trace(program).posterior({"x": x}, COUNT, seed=0)
    precision = 1 + 4 / 0.25
    mean, deviation = float(x.sum()) / 0.25 / precision, precision**-0.5
    m = result["m"].numpy()
    assert stats.kstest(m, stats.norm(mean, deviation).cdf).statistic < 0.05
    assert abs(m.std() / deviation - 1) < 0.05
    covariance = np.eye(4) * 0.25 + 1
    assert (
        abs(result.log_evidence - stats.multivariate_normal(np.zeros(4), covariance).logpdf(x.numpy())) < 0.1
    )
    assert torch.equal(result["x"], x.expand(COUNT, 4))


def test_a_gamma_posterior_stays_in_its_support():
    def program(t):
        rate = t.sample("rate", Gamma(2.0, 1.0))
        t.sample("wait", Exponential(rate), 5)

    waits = torch.tensor([0.1, 0.2, 0.05, 0.4, 0.3])
    rate = unn.trace(program).posterior({"wait": waits}, COUNT, seed=0)["rate"].numpy()
    assert rate.min() > 0
    assert stats.kstest(rate, stats.gamma(7, scale=1 / (1 + float(waits.sum()))).cdf).statistic < 0.05


def test_both_modes_of_a_posterior_keep_their_shares():
    def program(t):
        a = t.sample("a", Normal(0.3, 1.0))
        t.sample("x", Normal(a**2, 0.1))

    a = unn.trace(program).posterior({"x": torch.tensor(4.0)}, COUNT, seed=0)["a"].numpy()
    grid = np.linspace(-4, 4, 8001)
    density = stats.norm.pdf(grid, 0.3) * stats.norm.pdf(4.0, grid**2, 0.1)
    share = density[grid > 0].sum() / density.sum()
    assert abs((a > 0).mean() - share) < 0.05
    assert abs(np.abs(a).mean() - (np.abs(grid) * density).sum() / density.sum()) < 0.01


def test_part_of_a_vector_that_is_drawn_at_once_can_be_given():
    covariance = torch.tensor([[1.0, 0.8, 0.2], [0.8, 1.0, 0.1], [0.2, 0.1, 1.0]], dtype=torch.float64)

    def program(t):
        t.sample("x", MultivariateNormal([1.0, 0.0, -1.0], covariance.numpy()))

    given = unn.Partial(torch.tensor([2.0, math.nan, 0.5]), torch.tensor([True, False, True]))
    result = unn.trace(program).posterior({"x": given}, COUNT, seed=0)
    own = covariance[1, [0, 2]] @ torch.linalg.inv(covariance[[0, 2]][:, [0, 2]])
    mean = float(own @ torch.tensor([1.0, 1.5], dtype=torch.float64))
    deviation = float(covariance[1, 1] - own @ covariance[[0, 2], 1]) ** 0.5
    assert stats.kstest(result["x"][:, 1].numpy(), stats.norm(mean, deviation).cdf).statistic < 0.05
    assert (result["x"][:, 0] == 2).all() and (result["x"][:, 2] == 0.5).all()


def test_what_the_evidence_does_not_depend_on_is_drawn_from_the_program():
    def program(t):
        p = t.sample("p", Uniform(0.0, 1.0))
        t.sample("n", Poisson(10 * p))
        t.sample("b", Bernoulli(p), 3)
        t.deterministic(p * 2, name="twice")

    result = unn.trace(program).posterior({"p": torch.tensor(0.25)}, COUNT, seed=0)
    assert (result["twice"] == 0.5).all() and result.powers == 1
    assert abs(result["n"].mean() - 2.5) < 0.15 and abs(result["b"].mean() - 0.25) < 0.03


def test_nothing_given_is_the_program_itself():
    result = unn.trace(lambda t: t.sample("x", Normal(1.0, 2.0))).posterior({}, COUNT, seed=0)
    assert stats.kstest(result["x"].numpy(), stats.norm(1, 2).cdf).statistic < 0.05
    assert result.log_evidence == 0


def test_the_evidence_of_a_vector_in_part_is_exact_whatever_depends_on_the_rest():
    def program(t):
        z = t.sample("z", MultivariateNormal([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]]))
        w = t.sample("w", Normal(z[1], 0.05), 3)
        t.sample("y", Normal(w, 1.0))

    z = unn.Partial(torch.tensor([2.0, 0.0]), torch.tensor([True, False]))
    y = torch.full((3,), -2.0)
    result = unn.trace(program).posterior({"z": z, "y": y}, 2000, seed=0)
    # y given z[0] = 2: z[1] ~ N(1, 0.75)
    covariance = 0.75 + (1 + 0.05**2) * np.eye(3)
    expected = stats.norm.logpdf(2.0) + stats.multivariate_normal(np.ones(3), covariance).logpdf(y.numpy())
    assert abs(result.log_evidence - expected) < 0.12


def test_equal_seeds_give_equal_samples():
    def program(t):
        t.sample("x", Normal(t.sample("m", Normal()), 1.0))

    traced = unn.trace(program)
    one, again, other = (traced.posterior({"x": torch.tensor(1.0)}, 100, seed=s)["m"] for s in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_the_component_of_a_mixture_and_its_mean_have_their_posterior():
    def program(t):
        component = t.sample("component", Categorical(3, [0.5, 0.3, 0.2]))
        mean = t.sample("mean", Normal(4.0 * component, 1.0))
        t.sample("x", Normal(mean, 1.0))

    result = unn.trace(program).posterior({"x": torch.tensor(3.0)}, COUNT, seed=0)
    joint = np.array([0.5, 0.3, 0.2]) * stats.norm.pdf(3.0, 4.0 * np.arange(3), 2**0.5)
    assert np.abs(result["component"].mean(0).numpy() - joint / joint.sum()).max() < 0.03
    means = (3.0 + 4.0 * np.arange(3)) / 2
    assert abs(result["mean"].mean() - (joint * means).sum() / joint.sum()) < 0.06
    assert abs(result.log_evidence - np.log(joint.sum())) < 0.05


def test_a_chain_of_truth_values_has_the_posterior_of_enumeration():
    def program(t):
        state = t.empty("state", 5)
        for k in range(5):
            state[k] = t.sample(Bernoulli(0.2 + 0.6 * state[k - 1] if k else 0.4))
        t.sample("x", Normal(1.0 * state[...], 0.7))

    x = torch.tensor([1.2, 0.4, 0.1, 0.6, 0.9])
    result = unn.trace(program).posterior({"x": x}, COUNT, seed=0)
    states = np.array(list(itertools.product([0, 1], repeat=5)))
    likely = np.where(states[:, 0] == 1, 0.4, 0.6)
    for k in range(1, 5):
        p = 0.2 + 0.6 * states[:, k - 1]
        likely = likely * np.where(states[:, k] == 1, p, 1 - p)
    likely = likely * stats.norm.pdf(x.numpy(), states, 0.7).prod(1)
    assert abs(result.log_evidence - np.log(likely.sum())) < 0.05
    codes = result["state"].numpy() @ 2 ** np.arange(4, -1, -1)
    shares = np.bincount(codes.astype(int), minlength=32) / COUNT
    assert 0.5 * np.abs(shares - likely / likely.sum()).sum() < 0.05


def test_an_unobserved_count_has_the_posterior_of_thinning():
    def program(t):
        rate = t.sample("rate", Gamma(2.0, 0.2))
        n = t.sample("n", Poisson(rate))
        t.sample("k", Binomial(n, 0.4))

    result = unn.trace(program).posterior({"k": torch.tensor(6)}, COUNT, seed=0)
    # of a gamma-Poisson number, the rest given the part k is negative binomial
    rest = stats.nbinom(2 + 6, (0.2 + 0.4) / (0.2 + 1.0))
    values = (result["n"] - 6).numpy().astype(int)
    assert values.min() >= 0
    shares = np.bincount(values, minlength=60) / COUNT
    assert 0.5 * np.abs(shares[:60] - rest.pmf(np.arange(60))).sum() < 0.06
    assert abs(result.log_evidence - stats.nbinom(2, 0.2 / 0.6).logpmf(6)) < 0.06


def test_proportions_have_their_conjugate_posterior():
    def program(t):
        shares = t.sample("shares", Dirichlet([0.5, 1.0, 2.0]))
        t.sample("n", Binomial(20, shares[0]))
        t.sample("m", Binomial(10, shares[1]))

    result = unn.trace(program).posterior({"n": torch.tensor(4), "m": torch.tensor(1)}, COUNT, seed=0)
    shares = result["shares"].numpy()
    assert np.abs(shares.sum(-1) - 1).max() < 1e-9
    draws = np.random.default_rng(0).dirichlet([0.5, 1.0, 2.0], 200_000)
    weights = stats.binom.pmf(4, 20, draws[:, 0]) * stats.binom.pmf(1, 10, draws[:, 1])
    exact = (weights[:, None] * draws).sum(0) / weights.sum()
    deviation = ((weights[:, None] * (draws - exact) ** 2).sum(0) / weights.sum()) ** 0.5
    assert np.abs(shares.mean(0) - exact).max() < 0.01
    assert np.abs(shares.std(0) / deviation - 1).max() < 0.08
    assert abs(result.log_evidence - np.log(weights.mean())) < 0.05


@pytest.mark.parametrize("concentration", [0.02, 0.1])
def test_sparse_proportions_keep_their_shares(concentration):
    def program(t):
        shares = t.sample("shares", Dirichlet([concentration] * 3))
        t.sample("y", Normal(shares[0], 0.2))

    result = unn.trace(program).posterior({"y": torch.tensor(0.5)}, COUNT, seed=0)
    first = np.random.default_rng(0).dirichlet([concentration] * 3, 400_000)[:, 0]
    weights = stats.norm.pdf(0.5, first, 0.2)
    exact = (weights * (first > 0.9)).sum() / weights.sum()
    assert abs(float((result["shares"][:, 0] > 0.9).double().mean()) - exact) < 0.05
    assert abs(result.log_evidence - np.log(weights.mean())) < 0.12


def test_counts_near_zero_have_their_posterior():
    def program(t):
        n = t.sample("n", Poisson(0.05), 5)
        t.sample("y", Normal(n.sum(), 1.0))

    result = unn.trace(program).posterior({"y": torch.tensor(2.0)}, 1000, seed=0)
    total = stats.poisson(0.25)
    weights = total.pmf(np.arange(20)) * stats.norm.pdf(2.0, np.arange(20))
    shares = np.bincount(result["n"].sum(1).numpy().astype(int), minlength=20) / 1000
    assert 0.5 * np.abs(shares[:20] - weights / weights.sum()).sum() < 0.06
    assert abs(result.log_evidence - np.log(weights.sum())) < 0.06


def test_what_cannot_be_sampled_is_refused_by_name():
    def program(t):
        x = t.sample("x", Normal(0.0, 1.0))
        t.sample("order", Permutation(3))
        t.sample("u", Uniform(0.0, 1.0))
        t.deterministic(x * 2, name="twice")

    traced = unn.trace(program)
    ranked = unn.trace(lambda t: t.sample("y", Normal(t.sample("order", Permutation(3))[0, 0] * 1.0, 0.6)))
    with pytest.raises(ArgumentError, match=says("'order'", "drawn jointly", "Give it")):
        ranked.posterior({"y": torch.tensor(1.0)}, 100)
    mask = torch.zeros(3, 3, dtype=torch.bool)
    mask[0] = True
    with pytest.raises(ArgumentError, match=says("'order'", "drawn jointly", "Give it")):
        traced.posterior({"order": unn.Partial(torch.eye(3), mask)}, 100)
    with pytest.raises(ObservationError, match=says("'twice'", "density zero")):
        traced.posterior({"twice": torch.tensor(1.0)}, 100)
    with pytest.raises(ObservationError, match=says("'u'", "from 0 to 1", "outside the support")):
        traced.posterior({"u": torch.tensor(2.0)}, 100)
    bounded = unn.trace(lambda t: t.sample("v", Uniform(t.sample("a", Uniform(2.0, 3.0)), 4.0)))
    with pytest.raises(ObservationError, match=says("'v'", "from 2 to 4", "outside the support")):
        bounded.posterior({"v": torch.tensor(1.0)}, 100)
    narrow = unn.trace(lambda t: t.sample("v", Uniform(t.sample("a", Uniform(2.0, 3.0)) * 1.0, 4.0)))
    with pytest.raises(ObservationError, match=says("density zero", "100 draws")):
        narrow.posterior({"v": torch.tensor(1.0)}, 100)
    with pytest.raises(ObservationError, match=says("'z'")):
        traced.posterior({"z": torch.tensor(1.0)}, 100)
    with pytest.raises(ObservationError, match=says("'x'", "NaN")):
        traced.posterior({"x": torch.tensor(math.nan)}, 100)
    for wrong in (torch.zeros(2), torch.zeros(1, 4), torch.zeros(2, 1)):
        with pytest.raises(ObservationError, match=says("'x'")):
            traced.posterior({"x": wrong}, 100)
    for wrong in (1.0, [1.0]):
        with pytest.raises(ObservationError, match=says("'x'", "tensor")):
            traced.posterior({"x": wrong}, 100)
    given = unn.Partial(torch.tensor([[1.0]]), torch.tensor([[True]]))
    with pytest.raises(ObservationError, match=says("'x'")):
        traced.posterior({"x": given}, 100)
    counts = unn.trace(lambda t: t.sample("n", Poisson(t.sample("r", Gamma(2.0))), 3))
    with pytest.raises(ObservationError, match=says("'n'", "whole")):
        counts.posterior({"n": torch.tensor([2.9, 3.0, 1.0])}, 100)
    with pytest.raises(ObservationError, match=says("number of samples")):
        traced.posterior({}, 0)


@pytest.mark.slow
def test_numbers_at_a_point_mass_stay_there_while_others_move():
    def program(t):
        a = t.sample("a", Normal(1.0, 0.0))
        b = t.sample("b", Normal())
        t.sample("y", Normal(a + b, 0.01))

    result = unn.trace(program).posterior({"y": torch.tensor(6.0)}, 2000, seed=0)
    b, gain = result["b"], 1 / 1.0001
    assert torch.equal(result["a"], torch.ones_like(result["a"]))
    assert abs(b.mean() - 5 * gain) < 0.001 and abs(b.std() / (0.01 * math.sqrt(gain)) - 1) < 0.1
    assert abs(result.log_evidence - stats.norm(1, math.sqrt(1.0001)).logpdf(6)) < 0.2
    given = {"a": torch.tensor(1.0), "y": torch.tensor(6.0)}
    both = unn.trace(program).posterior(given, 2000, seed=0)
    assert abs(both["b"].mean() - 5 * gain) < 0.001 and both.log_evidence == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_spike_and_a_slab_have_their_probabilities(seed):
    def program(t):
        spike = t.sample("spike", Bernoulli(0.5))
        b = t.sample("b", Normal(0.0, np.where(spike, 0.0, 1.0)))
        c = t.sample("c", Normal())
        t.sample("y", Normal(b + c, 0.1))

    result = unn.trace(program).posterior({"y": torch.tensor(3.0)}, 4000, seed=seed)
    one, two = (stats.norm(0, math.sqrt(k + 0.01)).pdf(3) for k in (1, 2))
    spike = result["spike"].bool()
    assert abs(spike.double().mean() - one / (one + two)) < 0.03
    assert abs(result.log_evidence - math.log((one + two) / 2)) < 0.1
    assert bool((result["b"][spike] == 0).all()) and len(result["c"][spike].unique()) > 100


@pytest.mark.slow
def test_counts_with_computed_bounds_index_arrays():
    def program(t):
        trials = t.sample("trials", Binomial(3, 0.5))
        successes = t.sample("successes", Binomial(trials, 0.5))
        t.sample("x", Normal(t.constant([0.0, 1.0, 2.0, 3.0])[successes], 0.5))

    traced = unn.trace(program)
    result = traced.posterior({"x": torch.tensor(2.7)}, 4000, seed=0)
    # of three trials each succeeds with the probability 1/4
    weights = stats.binom(3, 0.25).pmf(range(4)) * stats.norm(range(4), 0.5).pdf(2.7)
    counts = torch.bincount(result["successes"].long().flatten(), minlength=4) / 4000
    torch.testing.assert_close(counts.double(), torch.from_numpy(weights / weights.sum()), atol=0.03, rtol=0)
    outside = {"trials": torch.tensor([3.0]), "successes": torch.tensor([4.0]), "x": torch.tensor([0.0])}
    assert float(traced.log_prob(outside)) == -math.inf


def indexed(t):
    """Two flags of which at least one is 1 choose a mean; where both were 0 it would be out of bounds."""
    means = t.sample("means", Normal(), 2)
    first = t.sample("first", Bernoulli(0.5))
    second = t.sample("second", Bernoulli(1 - 0.5 * first))
    t.sample("x", Normal(means[first + second - 1], 1.0))


def test_an_index_that_is_out_of_bounds_where_the_probability_is_zero_is_no_error():
    traced = unn.trace(indexed)
    given = {"x": torch.tensor(2.5)}
    traced.require_possible(given)
    values = {name: x.clone() for name, x in traced.draw(5, seed=0).items()}
    assert traced.log_prob(values).isfinite().all()
    values["first"][:2], values["second"][:2] = 0, 0
    assert (traced.log_prob(values)[:2] == -math.inf).all() and traced.log_prob(values)[2:].isfinite().all()
    posterior = traced.posterior(given, 4000, seed=1)
    expected = stats.norm(0, math.sqrt(2)).logpdf(2.5)
    assert posterior.log_evidence == pytest.approx(expected, abs=0.06)
    # of (0, 1), (1, 0) and (1, 1), whose prior probabilities are 1/2, 1/4 and 1/4
    assert float(posterior.values["first"].double().mean()) == pytest.approx(0.5, abs=0.04)
    both = {**given, "second": torch.tensor(0.0)}
    assert traced.posterior(both, 4000, seed=1).log_evidence == pytest.approx(
        expected + math.log(0.25), abs=0.06
    )


def test_an_index_that_is_out_of_bounds_at_possible_values_is_an_error():
    def program(t):
        b = t.sample("b", Bernoulli(0.5))
        t.sample("x", Normal(t.sample("means", Normal(), 2)[b + 1], 1.0))

    traced = unn.trace(program)
    values = {"b": torch.ones(3), "means": torch.zeros(3, 2), "x": torch.zeros(3)}
    with pytest.raises(DeclarationError, match=says("index", "'b'", "is 2", "2 entries")):
        traced.log_prob(values)
    with pytest.raises(DeclarationError, match=says("index", "'b'", "is 2", "2 entries")):
        traced.draw(20, seed=0)
    assert traced.log_prob({**values, "b": torch.zeros(3)}).isfinite().all()


def test_posteriors_at_the_bound_of_a_parameter_are_sampled():
    def program(t):
        x = t.sample("x", Normal(0.7, 0.05))
        t.sample("y", Binomial(1000, x))

    result = unn.trace(program).posterior({"y": torch.tensor(1000.0)}, COUNT, seed=0)
    grid = np.linspace(0, 1, 100_001)[1:]
    logs = stats.norm.logpdf(grid, 0.7, 0.05) + 1000 * np.log(grid)
    weights = np.exp(logs - logs.max())
    mean = (grid * weights).sum() / weights.sum()
    deviation = math.sqrt(((grid - mean) ** 2 * weights).sum() / weights.sum())
    x = result["x"]
    assert x.max() <= 1
    assert abs(x.mean().item() - mean) < 0.1 * deviation
    assert abs(x.std().item() / deviation - 1) < 0.1


def test_whole_numbers_beyond_single_precision_are_kept_as_evidence():
    traced = unn.trace(lambda t: t.sample("n", Poisson(1.6e7)))
    assert traced.posterior({"n": torch.tensor(16_777_217)}, 8, seed=0)["n"].tolist() == [16_777_217.0] * 8


def test_bounds_of_large_numbers_hold_in_double_precision():
    def program(t):
        h = t.sample("h", Normal(1.7e9, 100.0))  # a time in seconds
        t.sample("x", Uniform(h, h + 60.0))

    given = {"x": torch.tensor(1.7e9, dtype=torch.float64)}
    result = unn.trace(program).posterior(given, COUNT, seed=0)
    h = result["h"] - 1.7e9
    assert -60.0001 < h.min() < -55 and -5 < h.max() < 0.0001
    evidence = (stats.norm.cdf(0) - stats.norm.cdf(-0.6)) / 60
    assert abs(result.log_evidence - math.log(evidence)) < 0.1
