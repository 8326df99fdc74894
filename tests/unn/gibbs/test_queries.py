"""Draws, means and log-partitions by Markov chains, against exact ones."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from support.helpers import says

import unn
from factors import Different, Equation, Implicit, Multilinear, TreeEntropy
from unn.errors import ArgumentError, DeclarationError, DivergenceError, InferenceError, ObservationError
from unn.gibbs import GibbsModel, GibbsOptions, log_partition, marginals, sample

MANY = GibbsOptions(chains=500, burn_in=50, chain_draws=40)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def randomised(g, seed, scale=0.7):
    with torch.no_grad():
        for p in g.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=seeded(seed)))
    return g


def machine(seed=0):
    """A Boltzmann machine of every discrete kind, coupled within and between variables."""
    g = unn.FactorGraph("machine", n=3, k=3)
    x = g.variable("X", "n | k", unn.Entropy(temperature=2.0))
    s = g.variable("S", "n", unn.SignedEntropy())
    b = g.variable("B", "n", unn.BinaryEntropy())
    g.factor(Multilinear(x["i a"], g.parameter("W", "n k k")["i a b"], x["i+1 b"]))
    g.factor(Multilinear(s["i"], g.parameter("U", "n n")["i j"], b["j"]))
    g.factor(Multilinear(x["i a"], g.parameter("V", "n k")["i a"], s["i"]))
    g.factor(Multilinear(g.parameter("h", "n")["i"], b["i"]))
    return randomised(g, seed)


def grid(rows=3, columns=3, coupling=0.4, field=0.1):
    g = unn.FactorGraph("grid", r=rows, c=columns)
    s = g.variable("S", "r c", unn.SignedEntropy())
    j = g.constant("J", "", torch.tensor(coupling))
    h = g.constant("h", "", torch.tensor(field))
    g.factor(Multilinear(j[""], s["i j"], s["i+1 j"]))
    g.factor(Multilinear(j[""], s["i j"], s["i j+1"]))
    g.factor(Multilinear(h[""], s["i j"]))
    return g


def chain_of_trees(seed=0):
    g = unn.FactorGraph("trees", head=3, modifier=3)
    a = g.variable("A", "head modifier", TreeEntropy())
    b = g.variable("B", "modifier", unn.BinaryEntropy())
    g.factor(Multilinear(g.parameter("W", "head modifier")["i j"], a["i j"]))
    g.factor(Multilinear(g.parameter("V", "head modifier")["i j"], a["i j"], b["j"]))
    return randomised(g, seed)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000))
def test_means_equal_exact_ones_within_the_errors_that_are_stated(seed):
    g = machine(seed)
    answer, exact = marginals(g, options=MANY, generator=seeded(seed)), unn.exact.marginals(g)
    for name in g.variables:
        off = (answer[name] - exact[name].detach()).abs()
        assert bool((off <= 5 * answer.errors[name].nan_to_num(0) + 0.003).all())


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("tempering", [1, 3])
def test_joint_states_of_independent_chains_have_the_probabilities_of_the_energy(temperature, tempering):
    g = grid(2, 3, 0.5)
    options = GibbsOptions(
        chains=20_000, burn_in=40, chain_draws=1, temperature=temperature, tempering=tempering
    )
    x = sample(g, options=options, generator=seeded())["S"][0, :, 0]
    states = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6).view(-1, 2, 3)
    probability = torch.softmax(-g.energy({"S": states}) / temperature, 0)
    places = 2 ** torch.arange(5, -1, -1)
    counts = torch.bincount(((x > 0).flatten(1).long() * places).sum(1), minlength=64)
    expected = probability * len(x)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert chi2.sf(statistic, 63) > 1e-4


def test_chains_of_a_tree_and_its_labels_match_enumeration():
    g = chain_of_trees()
    answer = marginals(g, options=MANY, generator=seeded())
    labels = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
    scores = g.W[None] + g.V[None] * labels[:, None, :]
    weights = torch.softmax(TreeEntropy().conjugate(scores.double()), 0)
    trees = (weights[:, None, None] * TreeEntropy().mirror(scores.double())).sum(0)
    torch.testing.assert_close(answer["A"][0].double(), trees.detach(), atol=0.02, rtol=0)
    torch.testing.assert_close(
        answer["B"][0].double(), (weights @ labels.double()).detach(), atol=0.02, rtol=0
    )


def test_evidence_whole_and_in_part_conditions_the_chains():
    g = machine(3)
    whole = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])
    part = unn.Partial(
        torch.eye(3)[[0, 1, 2]].expand(2, 3, 3), torch.tensor([[True, False, False], [False, False, True]])
    )
    given = {"S": whole, "X": part}
    answer, exact = marginals(g, given, options=MANY, generator=seeded()), unn.exact.marginals(g, given)
    for name in g.variables:
        torch.testing.assert_close(answer[name].double(), exact[name].detach().double(), atol=0.02, rtol=0)
    assert torch.equal(answer["S"], whole)
    assert float(answer.errors["S"].amax()) == 0
    assert bool((answer.errors["X"][0, 0] == 0).all())


def gaussian(temperature=1.0):
    g = unn.FactorGraph("gaussian", n=3)
    x = g.variable("x", "n", unn.SquaredNorm())
    y = g.variable("y", "n", unn.SquaredNorm())
    a = 0.2 * torch.randn(3, 3, generator=seeded(5))
    g.factor(Multilinear(x["i"], g.constant("A", "n m", a)["i j"], y["j"]))
    g.factor(Multilinear(g.constant("b", "n", torch.tensor([1.0, -0.5, 0.2]))["i"], x["i"]))
    precision = torch.eye(6)
    precision[:3, 3:], precision[3:, :3] = -a, -a.T
    covariance = precision.inverse()
    mean = covariance @ torch.tensor([1.0, -0.5, 0.2, 0, 0, 0])
    return g, mean, temperature * covariance


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_real_variables_have_the_mean_and_covariance_of_the_energy(temperature):
    g, mean, covariance = gaussian()
    options = dataclasses.replace(MANY, temperature=temperature, chains=2000)
    draws = sample(g, options=options, generator=seeded())
    assert repr(draws).startswith("Draws(x (1, ") and repr(draws).endswith("free: x, y)")
    joint = torch.cat([draws["x"], draws["y"]], 3)[0].flatten(0, 1)
    torch.testing.assert_close(joint.mean(0), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(joint.T.cov(), temperature * covariance, atol=0.04, rtol=0)


def bent():
    """The same energy, of which nothing is known but its value."""
    g, mean, covariance = gaussian()
    a, b = (g.fixed_values()[name] for name in "Ab")
    h = unn.FactorGraph("bent", n=3)
    x, y = h.variable("x", "n", unn.SquaredNorm()), h.variable("y", "n", unn.SquaredNorm())
    h.factor(Implicit(lambda u, v: -((u @ a) * v).sum(1) - u @ b, x["i"], y["j"]))
    return h, mean, covariance


def test_langevin_dynamics_have_the_mean_and_covariance_of_a_normal_distribution():
    g, mean, covariance = bent()
    options = GibbsOptions(chains=1000, burn_in=300, chain_draws=50, thinning=4)
    draws = sample(g, options=options, generator=seeded())
    joint = torch.cat([draws["x"], draws["y"]], 3)[0].flatten(0, 1)
    torch.testing.assert_close(joint.mean(0), mean, atol=0.04, rtol=0)
    torch.testing.assert_close(joint.T.cov(), covariance, atol=0.06, rtol=0)


def coupled(axes, kinds, index, **sizes):
    g = unn.FactorGraph("pair", **sizes)
    a, b = (g.variable(name, axes, kind()) for name, kind in zip("ab", kinds, strict=True))
    g.factor(Multilinear(g.parameter("w", "", init=0.5)[""], a[index], b[index]))
    with torch.no_grad():
        g.w.fill_(0.6)
    return g


@pytest.mark.parametrize(
    "kinds",
    [(unn.SignedEntropy, unn.BinaryEntropy), (unn.SquaredNorm, unn.SquaredNorm)],
    ids=["discrete", "real"],
)
def test_variables_without_axes_are_those_with_one_entry(kinds):
    scalar, vector = coupled("", kinds, ""), coupled("o", kinds, "i", o=1)
    one = sample(scalar, options=MANY, generator=seeded())
    other = sample(vector, options=MANY, generator=seeded())
    for name in "ab":
        torch.testing.assert_close(one.values[name], other.values[name][..., 0])
    means, theirs = (marginals(g, options=MANY, generator=seeded()) for g in (scalar, vector))
    assert all(torch.equal(means[name], theirs[name][..., 0]) for name in "ab")
    totals = [log_partition(g, options=MANY, generator=seeded()).value for g in (scalar, vector)]
    torch.testing.assert_close(*totals)
    assert scalar.contraction().factor == vector.contraction().factor
    values = {name: torch.randn(5, generator=seeded()) for name in "ab"}
    if kinds[0] is unn.SquaredNorm:
        learning = GibbsOptions(learning="score-matching")
        losses = [
            GibbsModel(g, learning).loss({name: x.view(5, *shape) for name, x in values.items()}, {})
            for g, shape in ((scalar, ()), (vector, (1,)))
        ]
        torch.testing.assert_close(*losses)


def test_the_force_of_a_scalar_in_a_general_factor_is_followed():
    g = unn.FactorGraph("force")
    x = g.variable("x", "", unn.SquaredNorm())
    g.factor(Implicit(lambda values: (values - 1).square() / 2, x[""]))
    answer = marginals(g, options=GibbsOptions(chains=200, burn_in=200, chain_draws=50), generator=seeded())
    assert float(answer["x"]) == pytest.approx(0.5, abs=0.05)


def test_rows_of_a_constant_are_queries():
    g = unn.FactorGraph("field", n=3)
    s, h = g.variable("s", "n", unn.SignedEntropy()), g.constant("h", "n")
    g.factor(Multilinear(h["i"], s["i"]))
    fields = torch.randn(2, 3, generator=seeded())
    answer = marginals(g, {"h": fields}, options=MANY, generator=seeded())
    torch.testing.assert_close(answer["s"], fields.tanh(), atol=0.05, rtol=0)
    exact = unn.exact.log_partition(g, {"h": fields})
    torch.testing.assert_close(log_partition(g, {"h": fields}).value, exact, atol=0.02, rtol=0)


def test_langevin_dynamics_leave_what_is_observed():
    g, mean, covariance = bent()
    observed = unn.Partial(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[True, False, False]]))
    draws = sample(
        g, {"x": observed}, options=GibbsOptions(chains=500, burn_in=200, chain_draws=20), generator=seeded()
    )
    assert bool((draws["x"][..., 0] == 2).all())
    joint = torch.cat([draws["x"], draws["y"]], 3)[0].flatten(0, 1)
    expected = mean[1:] + covariance[1:, 0] / covariance[0, 0] * (2 - mean[0])
    torch.testing.assert_close(joint.mean(0)[1:], expected, atol=0.06, rtol=0)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000))
def test_annealed_log_partitions_meet_the_exact_one_between_their_bounds(seed):
    g = machine(seed)
    exact = float(unn.exact.log_partition(g).detach())
    estimate = log_partition(
        g, options=GibbsOptions(chains=200, burn_in=50), steps=60, generator=seeded(seed)
    )
    assert float(estimate.value) == pytest.approx(exact, abs=5 * float(estimate.error) + 0.01)
    assert float(estimate.lower) - 4 * float(estimate.lower_error) <= exact
    assert float(estimate.upper) + 4 * float(estimate.upper_error) >= exact
    assert float(estimate.upper - estimate.lower) < 1


def test_annealed_log_partitions_of_real_variables_are_integrals():
    g, mean, covariance = gaussian()
    joint = torch.cat([torch.tensor([1.0, -0.5, 0.2]), torch.zeros(3)])
    exact = 0.5 * float(mean @ joint) + 0.5 * float(torch.logdet(2 * math.pi * covariance))
    estimate = log_partition(g, options=GibbsOptions(chains=500, burn_in=50), steps=100, generator=seeded())
    assert float(estimate.value) == pytest.approx(exact, abs=5 * float(estimate.error))


def test_a_log_partition_given_a_part_counts_the_rest_alone():
    g = machine(2)
    given = {
        "S": torch.tensor([[1.0, -1.0, 1.0]]),
        "X": unn.Partial(torch.eye(3)[None], torch.tensor([[True, False, True]])),
    }
    estimate = log_partition(g, given, options=GibbsOptions(chains=400), steps=100, generator=seeded())
    exact = float(unn.exact.log_partition(g, given).detach())
    assert float(estimate.value) == pytest.approx(exact, abs=5 * float(estimate.error) + 0.01)


def test_exchanges_of_couplings_cross_barriers_that_plain_chains_do_not():
    g = grid(4, 4, 1.2, 0.0)
    start = GibbsOptions(chains=1, burn_in=20, chain_draws=200)
    alone = sample(g, options=start, generator=seeded())["S"].mean((3, 4))
    assert float(alone.amin()) > 0 or float(alone.amax()) < 0
    tempered = dataclasses.replace(start, tempering=12, chain_draws=1000)
    total = sample(g, options=tempered, generator=seeded())["S"].mean((3, 4))
    assert float(total.amin()) < -0.8
    assert float(total.amax()) > 0.8


def test_chains_that_never_meet_are_seen_in_the_diagnostics():
    answer = marginals(
        grid(4, 4, 1.5, 0.0), options=GibbsOptions(chains=20, burn_in=20, chain_draws=50), generator=seeded()
    )
    assert answer.worst_reduction > 1.5
    assert not answer.converged


def test_each_query_has_draws_of_its_own_evidence():
    g = grid()
    rows = torch.tensor([1.0, -1.0]).view(2, 1, 1).expand(2, 3, 3).contiguous()
    mask = torch.zeros(2, 3, 3, dtype=torch.bool)
    mask[:, 0] = True
    answer = marginals(g, {"S": unn.Partial(rows, mask)}, options=MANY, generator=seeded())
    for k in range(2):
        own = unn.Partial(rows[k : k + 1], mask[k : k + 1])
        alone = unn.exact.marginals(g, {"S": own})
        torch.testing.assert_close(answer["S"][k].double(), alone["S"][0], atol=0.02, rtol=0)


def test_everything_but_one_node_given_leaves_its_exact_conditional():
    g = grid()
    mask = torch.ones(1, 3, 3, dtype=torch.bool)
    mask[0, 1, 1] = False
    answer = marginals(g, {"S": unn.Partial(torch.ones(1, 3, 3), mask)}, options=MANY, generator=seeded())
    assert float(answer["S"][0, 1, 1]) == pytest.approx(math.tanh(4 * 0.4 + 0.1), abs=0.01)


def test_lengths_leave_padding_out():
    g = unn.FactorGraph("ragged")
    x = g.variable("X", "n", unn.SignedEntropy())
    g.factor(Multilinear(g.constant("J", "", torch.tensor(0.8))[""], x["i"], x["i+1"]))
    g.factor(Multilinear(g.constant("h", "", torch.tensor(0.3))[""], x["i"]))
    lengths = {"n": torch.tensor([2, 4])}
    answer = marginals(g, queries=2, sizes={"n": 4}, lengths=lengths, options=MANY, generator=seeded())
    for k, n in enumerate((2, 4)):
        exact = unn.exact.marginals(g, sizes={"n": n})["X"][0]
        torch.testing.assert_close(answer["X"][k, :n].double(), exact, atol=0.02, rtol=0)
    assert float(answer["X"][0, 2:].abs().amax()) == 0


def test_draws_are_the_same_under_the_same_seed():
    g = machine()
    options = GibbsOptions(chains=3, burn_in=3, chain_draws=4, tempering=3)
    first, second = (sample(g, options=options, generator=seeded(7)) for _ in range(2))
    for name in g.variables:
        assert torch.equal(first[name], second[name])


def test_infer_draws_blocks_with_the_update_sample():
    g = grid()
    out = unn.infer(
        g,
        {},
        initial={"S": torch.ones(4000, 3, 3)},
        update=unn.Sample(1.0),
        iterations=40,
        generator=seeded(),
    )
    assert set(out["S"].unique().tolist()) == {-1.0, 1.0}
    exact = unn.exact.marginals(g)["S"][0]
    torch.testing.assert_close(out["S"].mean(0).double(), exact, atol=0.08, rtol=0)


def test_networks_that_draw_blocks_repeat_them_under_a_seed():
    g = grid()
    network = unn.Unrolled(
        g, ["S"], "S", order=["S"], iterations=3, initial={"S": torch.ones(8, 3, 3)}, update=unn.Sample()
    )
    nothing = unn.Partial(torch.zeros(8, 3, 3), torch.zeros(8, 3, 3, dtype=torch.bool))
    first, second, other = (network(nothing, generator=seeded(k)) for k in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


# -- bad input -----------------------------------------------------------------------------------------------


def test_factors_without_an_energy_are_refused_by_name():
    g = unn.FactorGraph("counted", n=3)
    x = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Equation(x["i"], x["i"], within=0.5, name="one"))
    with pytest.raises(DeclarationError, match="'one'.*no energy"):
        sample(g)


def test_variables_without_a_sampler_are_refused_by_name():
    g = unn.FactorGraph("round", n=3)
    g.variable("X", "n", unn.Ball())
    with pytest.raises(DeclarationError, match="'X'.*Ball.*no exact sampler"):
        sample(g)


def test_bounded_variables_without_a_closed_form_are_refused_by_name():
    g = unn.FactorGraph("curved", n=3)
    x = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Implicit(lambda x: x.sum(1).cosh(), x["i"]))
    with pytest.raises(InferenceError, match="'X'.*BinaryEntropy.*Langevin"):
        sample(g)
    with pytest.raises(InferenceError, match="'X' has no closed form.*Sample"):
        unn.infer(g, {}, initial={"X": "uniform"}, update=unn.Sample())


def product(coupling):
    g = unn.FactorGraph("open", n=2)
    x, y = g.variable("x", "n", unn.SquaredNorm()), g.variable("y", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], coupling(g)[""], y["i"]))
    return g


@pytest.mark.parametrize("query", [sample, marginals, log_partition])
def test_energies_without_a_minimum_are_refused_with_what_to_bound(query):
    g = product(lambda g: g.constant("A", "", torch.tensor(3.0)))
    with pytest.raises(InferenceError, match="no finite sum.*unbounded below.*Bound one of x, y"):
        query(g)
    assert float(sample(g, {"x": torch.ones(1, 2)})["y"].mean()) == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("query", [sample, log_partition])
def test_chains_that_leave_for_infinity_are_reported(query):
    # whether there is a minimum depends on a weight, which the declaration does not know
    g = product(lambda g: g.parameter("A", "", init=torch.tensor(3.0)))
    with pytest.raises(DivergenceError, match="'x'.*chains.*energy"):
        query(g, options=GibbsOptions(chains=4))


def test_everything_given_is_returned_with_its_energy():
    g = grid()
    x = torch.tensor([1.0, -1.0]).repeat(5)[:9].view(1, 3, 3)
    answer = marginals(g, {"S": x}, options=GibbsOptions(chains=2, burn_in=1, chain_draws=4))
    assert torch.equal(answer["S"], x)
    assert float(answer.errors["S"].amax()) == 0
    estimate = log_partition(g, {"S": x})
    torch.testing.assert_close(estimate.value.float(), -g.energy({"S": x}))
    assert float(estimate.error) == 0


def test_log_partitions_of_variables_that_do_not_interact_are_exact():
    g = machine(4)
    given = {"S": torch.tensor([[1.0, -1.0, 1.0]]), "B": torch.tensor([[0.0, 1.0, 1.0]])}
    one = unn.Partial(torch.eye(3)[None], torch.tensor([[True, True, False]]))
    for evidence in ({**given, "X": one}, {"X": torch.eye(3)[None], "S": given["S"]}):
        estimate = log_partition(g, evidence, options=GibbsOptions(chains=300), generator=seeded())
        exact = unn.exact.log_partition(g, evidence).detach()
        torch.testing.assert_close(estimate.value, exact, atol=5 * float(estimate.error) + 1e-5, rtol=0)
    assert float(estimate.upper - estimate.lower) == 0


def test_given_real_values_count_with_their_own_energy():
    g, mean, covariance = gaussian()
    total = log_partition(g, options=GibbsOptions(chains=500, burn_in=50), steps=100, generator=seeded())
    x = torch.tensor([[0.3, -1.0, 0.8]])
    marginal = torch.distributions.MultivariateNormal(mean[:3], covariance[:3, :3])
    # a density is a ratio of partition functions
    estimate = log_partition(g, {"x": x})
    assert float(estimate.value - total.value) == pytest.approx(float(marginal.log_prob(x)), abs=0.05)
    part = unn.Partial(x, torch.tensor([[True, False, False]]))
    partial = log_partition(g, {"x": part}, options=GibbsOptions(chains=500), steps=100, generator=seeded())
    first = torch.distributions.Normal(mean[0], covariance[0, 0].sqrt())
    assert float(partial.value - total.value) == pytest.approx(float(first.log_prob(x[0, 0])), abs=0.05)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"chain_draws": 0}, "chain_draws"),
        ({"chains": 0}, "chains"),
        ({"burn_in": -1}, "burn_in"),
        ({"thinning": 0}, "thinning"),
        ({"tempering": 0}, "tempering"),
        ({"chain_draws": 2.5}, "chain_draws"),
        ({"learning": "magic"}, "magic"),
    ],
)
def test_options_out_of_range_are_named(options, match):
    with pytest.raises(ArgumentError, match=match):
        sample(grid(), options=GibbsOptions(**options))


def test_means_need_draws_enough_for_their_errors():
    with pytest.raises(ArgumentError, match="at least 4 draws"):
        marginals(grid(), options=GibbsOptions(chain_draws=3))


def test_annealing_starts_at_the_biases_so_that_few_steps_suffice_for_weak_couplings():
    g = grid(4, 4, coupling=0.05, field=3.0)
    estimate = log_partition(g, steps=5, options=GibbsOptions(chains=200), generator=seeded())
    exact = float(unn.exact.log_partition(g)[0])
    assert float(estimate.value[0]) == pytest.approx(exact, abs=0.01)
    # from spins without a field the gap is above 1
    assert float(estimate.upper[0] - estimate.lower[0]) < 0.05


@pytest.mark.parametrize("given", [{}, {"Y": torch.tensor([[1.0, 0.0]])}])
def test_constants_of_factors_that_are_affine_count_in_the_log_partition(given):
    g = unn.FactorGraph("equal", n=2)
    x, y = g.variable("X", "n", unn.BinaryEntropy()), g.variable("Y", "n", unn.BinaryEntropy())
    # the energy is that of the agreement of two bits, which is 1 where both are 0
    (energy,) = Different(x["i"], y["i"]).penalties(0.8)
    g.factor(energy)
    estimate = log_partition(g, given, options=GibbsOptions(chains=400), generator=seeded())
    pairs = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)
    if given:
        pairs = pairs[(pairs[:, 2:] == given["Y"]).all(1)]
    values = {"X": pairs[:, :2], "Y": pairs[:, 2:]}
    exact = float((-energy.energy(values)).logsumexp(0))
    assert float(estimate.value[0]) == pytest.approx(exact, abs=1e-5 if given else 0.02)


def test_annealing_refuses_levels_and_steps_below_one():
    with pytest.raises(ArgumentError, match="steps"):
        log_partition(grid(), steps=0)
    with pytest.raises(ArgumentError, match="tempering"):
        log_partition(grid(), options=GibbsOptions(tempering=2))


def test_evidence_that_does_not_fit_is_refused():
    g = machine()
    with pytest.raises(ObservationError, match="Y"):
        sample(g, {"Y": torch.ones(1, 3)})
    with pytest.raises(ObservationError, match="'S'"):
        sample(g, {"S": torch.ones(1, 4)})
    with pytest.raises(ObservationError, match="NaN"):
        sample(g, {"S": torch.tensor([[1.0, math.nan, 1.0]])})
    with pytest.raises(ObservationError, match="3 queries"):
        sample(g, {"S": torch.ones(2, 3)}, queries=3)


def test_values_between_those_of_a_discrete_variable_condition_by_their_energy():
    # a grey pixel pulls its neighbours by what it is, not by what it may be rounded to
    grey, mask = torch.full((1, 1, 3), 0.5), torch.tensor([[[True, False, True]]])
    answer = marginals(grid(1, 3), {"S": unn.Partial(grey, mask)}, options=MANY, generator=seeded())
    assert float(answer["S"][0, 0, 1]) == pytest.approx(math.tanh(0.4 * (0.5 + 0.5) + 0.1), abs=0.02)
    assert float(answer["S"][0, 0, 0]) == 0.5


def test_messages_about_evidence_count_queries_and_not_chains():
    with pytest.raises(ObservationError, match=says("2 of 3 batch elements")):
        sample(grid(1, 2), {"S": torch.tensor([[[1.0, 1.0]], [[2.0, 1.0]], [[2.0, 1.0]]])})


def test_an_axis_without_a_size_is_named():
    g = unn.FactorGraph("open")
    x = g.variable("X", "n", unn.SignedEntropy())
    g.factor(Multilinear(x["i"], x["i+1"]))
    with pytest.raises(ObservationError, match="'n'"):
        sample(g)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan, True, "hot"])
def test_the_update_sample_refuses_temperatures_that_are_none(temperature):
    with pytest.raises(InferenceError, match="temperature"):
        unn.Sample(temperature)


def pair(coupling, regularizer):
    g = unn.FactorGraph("pair", n=2)
    A, B = (g.variable(name, "n", regularizer) for name in "AB")
    g.factor(Multilinear(g.constant("w", "", torch.tensor(coupling))[""], A["i"], B["i"]))
    return g


def test_evidence_in_part_does_not_hide_an_energy_without_a_minimum():
    g = pair(1.05, unn.SquaredNorm())
    nothing = unn.Partial(torch.zeros(1, 2), torch.tensor([[False, False]]))
    with pytest.raises(InferenceError, match="exp.-E. has no finite sum"):
        unn.gibbs.marginals(g, {"A": nothing})
    half = unn.Partial(torch.zeros(1, 2), torch.tensor([[True, False]]))
    options = GibbsOptions(chains=10, burn_in=5, chain_draws=5)
    with pytest.warns(unn.ConvergenceWarning, match="without the observed entries of A"):
        unn.gibbs.marginals(g, {"A": half}, options=options)


def test_a_constant_without_a_batch_axis_is_one_query():
    g = unn.FactorGraph("fields", row=2, column=3)
    S = g.variable("S", "row column", unn.SignedEntropy())
    g.factor(Multilinear(g.constant("h", "row column")["i j"], S["i j"]))
    h = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    answer = unn.gibbs.marginals(g, {"h": h}, options=GibbsOptions(chains=10, burn_in=5, chain_draws=5))
    assert answer["S"].shape == (1, 2, 3)
    assert unn.gibbs.log_partition(g, {"h": h}).value.shape == (1,)


def test_a_chain_of_real_numbers_that_never_moves_has_not_converged():
    g = unn.FactorGraph("narrow", n=1)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Implicit(lambda v: 1e8 * v.square().sum(1), x["i"], bounded_below=True))
    options = GibbsOptions(chains=1, burn_in=0, chain_draws=50)
    answer = unn.gibbs.marginals(g, options=options, generator=torch.Generator().manual_seed(0))
    assert not answer.converged
    given = {"x": unn.Partial(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))}
    assert unn.gibbs.marginals(g, given, options=options).converged


def test_annealing_of_a_narrow_real_variable_has_adapted_steps():
    g = unn.FactorGraph("narrow", n=4)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Implicit(lambda v: 250 * v.square().sum(1), x["i"], bounded_below=True))
    answer = unn.gibbs.log_partition(
        g, steps=200, options=GibbsOptions(chains=200), generator=torch.Generator().manual_seed(0)
    )
    exact = 2 * math.log(2 * math.pi / 501)
    assert float(answer.value) == pytest.approx(exact, abs=0.5)
    assert float(answer.lower) - 0.5 < exact < float(answer.upper) + 0.5


@pytest.mark.parametrize("queries", [0, -1, 1.5])
def test_numbers_of_queries_below_one_are_refused(queries):
    with pytest.raises(ArgumentError, match="queries must be a whole number >= 1"):
        unn.gibbs.marginals(pair(0.1, unn.SquaredNorm()), queries=queries)


@pytest.mark.parametrize(
    ("evidence", "options", "error", "text"),
    [
        ({"H": torch.ones(2, 3)}, {}, ObservationError, "unknown variable 'H'"),
        ([1], {}, ObservationError, "given: a mapping"),
        ({}, {"generator": 3}, InferenceError, "generator: a torch.Generator"),
        (
            {"h": torch.ones(2, 3)},
            {"lengths": {"m": [2, 1]}},
            ObservationError,
            r"shape \(2,\), got \[2, 1\]",
        ),
        (
            {"h": torch.ones(2, 3)},
            {"lengths": {"m": torch.tensor([1])}},
            ObservationError,
            r"shape \(2,\), got torch.int64 of shape \(1,\)",
        ),
    ],
)
def test_evidence_and_options_of_the_wrong_kind_are_named(evidence, options, error, text):
    g = unn.FactorGraph("kinds", n=3)
    h, y = g.variable("h", "n", unn.SignedEntropy()), g.variable("y", "m | k", unn.Entropy())
    g.factor(Multilinear(h["i"], y["j a"], g.constant("W", "n k", torch.ones(3, 4))["i a"]))
    with pytest.raises(error, match=text):
        unn.gibbs.sample(g, evidence, sizes={"m": 2}, **options)
