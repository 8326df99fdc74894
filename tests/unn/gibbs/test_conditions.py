"""Chains that keep to constraints, against exact distributions among the values that satisfy them."""

import math
import warnings
from itertools import permutations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from support.helpers import says

import unn
from factors import AllDifferent, Among, Cardinality, Different, Equation, Multilinear, Table
from factors.attention.masked_entropy import MaskedEntropy
from unn.errors import ConvergenceWarning, DeclarationError, InferenceError, ObservationError
from unn.gibbs import GibbsModel, GibbsOptions, log_partition, marginals, sample

MANY = GibbsOptions(chains=300, burn_in=30, chain_draws=40)
INDEPENDENT = GibbsOptions(chains=10_000, burn_in=20, chain_draws=1)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def weights(*shape, seed=0, scale=0.7):
    return scale * torch.randn(*shape, generator=seeded(seed))


def assignment(n=4, seed=0):
    """Permutations, with a weight of each place of each item."""
    g = unn.FactorGraph("assignment", n=n, k=n)
    x = g.variable("X", "n | k", unn.Entropy())
    g.factor(Multilinear(g.constant("W", "n k", weights(n, n, seed=seed))["i v"], x["i v"]))
    g.factor(AllDifferent(x["i v"], each=""))
    return g


def team(bounds, n=6, seed=0):
    """Subsets, with a weight of each member and of each pair of neighbours."""
    g = unn.FactorGraph("team", n=n)
    x = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Multilinear(g.constant("J", "n", weights(n, seed=seed))["i"], x["i"], x["i+1"]))
    g.factor(Multilinear(g.constant("h", "n", weights(n, seed=seed + 1))["i"], x["i"]))
    g.factor(Cardinality(x["i"], each="", **bounds))
    return g


def colouring(colours=4, seed=0):
    g = unn.FactorGraph("colouring", r=2, c=3, k=colours)
    x = g.variable("X", "r c | k", unn.Entropy())
    g.factor(Multilinear(g.constant("W", "r c k", weights(2, 3, colours, seed=seed))["i j v"], x["i j v"]))
    g.factor(Different(x["i j v"], x["i+1 j v"]))
    g.factor(Different(x["i j v"], x["i j+1 v"]))
    return g


def walk(seed=0):
    """A chain of categories, of which a table allows some to follow one another, beside bits of which each
    category has its own."""
    g = unn.FactorGraph("walk", n=4, k=3)
    x = g.variable("X", "n | k", unn.Entropy())
    b = g.variable("B", "n", unn.BinaryEntropy())
    g.factor(Multilinear(g.constant("W", "n k", weights(4, 3, seed=seed))["i v"], x["i v"], b["i"]))
    g.factor(Table(x["i v"], x["i+1 w"], allowed=[(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 0), (1, 0)]))
    g.factor(Cardinality(b["i"], each="", at_most=2))
    return g


def agree(g, answer, exact):
    for name in g.variables:
        off = (answer[name] - exact[name].detach()).abs()
        assert bool((off <= 5 * answer.errors[name].nan_to_num(0) + 0.004).all()), (name, off)


@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 1000),
    make=st.sampled_from([assignment, colouring, walk, lambda seed: team({"equals": 3}, seed=seed)]),
)
def test_means_equal_exact_ones_among_the_values_that_satisfy_the_constraints(seed, make):
    g = make(seed=seed)
    answer = marginals(g, options=MANY, generator=seeded(seed))
    agree(g, answer, unn.exact.marginals(g))


@pytest.mark.parametrize(
    "bounds", [{"equals": 2}, {"at_most": 2}, {"at_least": 4}, {"at_least": 1, "at_most": 3}]
)
def test_joint_states_of_independent_chains_have_their_probabilities(bounds):
    g = team(bounds, n=5)
    x = sample(g, options=INDEPENDENT, generator=seeded()).values["X"][0, :, 0]
    states = torch.tensor(list(product((0.0, 1.0), repeat=5)))
    low = bounds.get("at_least", bounds.get("equals", 0))
    high = bounds.get("at_most", bounds.get("equals", 5))
    states = states[(states.sum(1) >= low) & (states.sum(1) <= high)]
    assert bool((x.sum(1) >= low).all() and (x.sum(1) <= high).all())
    fixed = g.fixed_values()
    score = (states[:, :-1] * states[:, 1:] @ fixed["J"][:-1] + states @ fixed["h"]).double()
    expected = score.softmax(0) * len(x)
    counts = torch.stack([(x == state).all(1).sum() for state in states]).double()
    statistic = float(((counts - expected).square() / expected).sum())
    assert chi2.sf(statistic, len(states) - 1) > 1e-4


@pytest.mark.parametrize("tempering", [1, 3])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_permutations_have_their_probabilities_at_each_temperature(temperature, tempering):
    g = assignment(3)
    options = GibbsOptions(
        chains=5000, burn_in=20, chain_draws=1, temperature=temperature, tempering=tempering
    )
    x = sample(g, options=options, generator=seeded()).values["X"][0, :, 0]
    orders = list(permutations(range(3)))
    w = g.fixed_values()["W"].double()
    score = torch.stack([sum(w[i, v] for i, v in enumerate(order)) for order in orders])
    expected = (score / temperature).softmax(0) * len(x)
    drawn = x.argmax(-1)
    counts = torch.stack([(drawn == torch.tensor(order)).all(1).sum() for order in orders]).double()
    assert counts.sum() == len(x)
    statistic = float(((counts - expected).square() / expected).sum())
    assert chi2.sf(statistic, len(orders) - 1) > 1e-4


def test_evidence_of_every_kind_conditions_the_constraints():
    g = walk()
    value = torch.zeros(1, 4, 3)
    value[0, 2, 1] = 1
    known = torch.zeros(1, 4, dtype=torch.bool)
    known[0, 2] = True
    bits = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    for evidence in ({"X": unn.Partial(value, known)}, {"B": bits}):
        answer = marginals(g, evidence, options=MANY, generator=seeded())
        agree(g, answer, unn.exact.marginals(g, evidence))


def test_given_nodes_are_never_exchanged():
    g = assignment(4)
    value, known = torch.zeros(1, 4, 4), torch.zeros(1, 4, dtype=torch.bool)
    value[0, 1, 3], known[0, 1] = 1, True
    draws = sample(g, {"X": unn.Partial(value, known)}, options=MANY, generator=seeded())["X"]
    assert bool((draws[..., 1, :] == value[0, 1]).all())
    agree(
        g,
        marginals(g, {"X": unn.Partial(value, known)}, options=MANY, generator=seeded()),
        unn.exact.marginals(g, {"X": unn.Partial(value, known)}),
    )


def test_every_draw_satisfies_the_constraints():
    g = unn.FactorGraph("sudoku", r=4, c=4, k=4)
    x = g.variable("X", "r c | k", unn.Entropy())
    for each in ("r", "c"):
        g.factor(AllDifferent(x["r c v"], each=each))
    options = GibbsOptions(chains=30, burn_in=2, chain_draws=3)
    with pytest.warns(ConvergenceWarning, match="'sudoku'"):
        draws = sample(g, options=options, generator=seeded())["X"]
    for constraint in g.constraints:
        assert int(constraint.violations_of({"X": draws.flatten(0, 2)}).sum()) == 0


def latin():
    g = unn.FactorGraph("latin", r=3, c=3, k=3)
    x = g.variable("X", "r c | k", unn.Entropy())
    for each in ("r", "c"):
        g.factor(AllDifferent(x["r c v"], each=each))
    return g


@pytest.mark.parametrize("chains", [1, 8])
def test_chains_that_constraints_hold_in_place_are_reported(chains):
    options = GibbsOptions(chains=chains, burn_in=2, chain_draws=8)
    with pytest.warns(ConvergenceWarning, match=says("'latin'", "1 of 1 queries")):
        answer = marginals(latin(), options=options, generator=seeded())
    assert chains == 1 or (answer.worst_reduction == math.inf and not answer.converged)
    model = GibbsModel(latin(), options)
    with pytest.warns(ConvergenceWarning, match="'latin'"):
        model.infer_values({}, 1, {})


def test_chains_that_the_evidence_determines_are_not_reported():
    g = assignment(3)
    value, known = torch.eye(3)[None], torch.tensor([[True, True, False]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = sample(g, {"X": unn.Partial(value, known)}, options=GibbsOptions(chains=4, burn_in=2))
    assert bool((draws["X"] == torch.eye(3)).all())


def test_each_query_of_a_batch_has_its_own_distribution():
    g = team({"equals": 2}, n=5)
    known = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]], dtype=torch.bool)
    both = {"X": unn.Partial(torch.ones(2, 5), known)}
    agree(g, marginals(g, both, options=MANY, generator=seeded()), unn.exact.marginals(g, both))


def test_groups_over_several_variables_exchange_values_between_them():
    g = unn.FactorGraph("among", n=2, m=2)
    x, y = g.variable("X", "n", unn.BinaryEntropy()), g.variable("Y", "m", unn.BinaryEntropy())
    g.factor(Multilinear(g.constant("h", "n", torch.tensor([1.0, -0.5]))["i"], x["i"]))
    g.factor(Multilinear(g.constant("J", "n m", weights(2, 2))["i j"], x["i"], y["j"]))
    groups = [g.index(f"in_{a}", a, [0, 0], into="area") for a in ("n", "m")]
    g.factor(Among(x["i"], y["j"], group=groups, equals=1))
    agree(g, marginals(g, options=MANY, generator=seeded()), unn.exact.marginals(g))


def test_bounds_of_several_constraints_on_the_same_nodes_are_one_group():
    g = unn.FactorGraph("one", n=3)
    x = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Multilinear(g.constant("h", "n", torch.tensor([2.0, 0.0, -2.0]))["i"], x["i"]))
    g.factor(Cardinality(x["i"], each="", at_most=1))
    g.factor(Cardinality(x["i"], each="", at_least=1))
    agree(g, marginals(g, options=MANY, generator=seeded()), unn.exact.marginals(g))


def test_sizes_without_a_declaration_and_excluded_values_are_kept_to():
    g = unn.FactorGraph("sized", k=3)
    x = g.variable("X", "n | k", unn.Entropy())
    w = g.constant("w", "k", torch.tensor([0.5, -0.5, 1.0]))
    g.factor(Multilinear(w["v"], x["i v"]))
    g.factor(Table(x["i v"], x["i+1 w"], allowed=[(0, 0), (0, 1), (1, 0)]))
    answer = marginals(g, sizes={"n": 3}, options=MANY, generator=seeded())
    agree(g, answer, unn.exact.marginals(g, sizes={"n": 3}))
    assert float(answer["X"][..., 2].max()) == 0


def test_real_variables_beside_constrained_ones_have_their_means():
    g = unn.FactorGraph("mixed", n=3)
    x, z = g.variable("X", "n", unn.BinaryEntropy()), g.variable("z", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], g.constant("w", "n", torch.tensor([1.0, -1.0, 0.5]))["i"], z["i"]))
    g.factor(Cardinality(x["i"], each="", equals=1))
    answer = marginals(g, options=MANY, generator=seeded())
    # the integral over z leaves exp(w^2 / 2) for the node that is one
    share = torch.tensor([0.5, 0.5, 0.125]).exp()
    share = share / share.sum()
    assert bool(((answer["X"][0] - share).abs() < 5 * answer.errors["X"][0] + 0.004).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_values_of_other_precisions_keep_to_constraints(dtype):
    g = unn.FactorGraph("wide", n=600)
    x = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Multilinear(g.constant("h", "n", torch.zeros(600, dtype=dtype))["i"], x["i"]))
    g.factor(Cardinality(x["i"], each="", at_least=597))
    draws = sample(g, options=GibbsOptions(chains=2, burn_in=0, chain_draws=1), generator=seeded())["X"]
    assert draws.dtype == dtype and int(draws.double().sum(-1).min()) >= 597


def test_couplings_are_learned_among_states_that_satisfy_the_constraints():
    g = unn.FactorGraph("learned", n=5)
    x = g.variable("X", "n", unn.BinaryEntropy())
    h = g.parameter("h", "n", init=0.01)
    g.factor(Multilinear(h["i"], x["i"]))
    g.factor(Cardinality(x["i"], each="", equals=2))
    truth = torch.tensor([1.0, -1.0, 0.5, 0.0, -0.5])
    (parameter,) = g.parameters()
    with torch.no_grad():
        parameter.copy_(truth)
        examples = sample(g, options=INDEPENDENT, generator=seeded()).values["X"][0, :, 0]
        parameter.zero_()
    model = GibbsModel(g, GibbsOptions(chains=300, learning_sweeps=1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    torch.manual_seed(0)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss({"X": examples[:2000]}, {}).backward()
        optimizer.step()
    # a constant added to all fields changes nothing where the number of ones is fixed
    off = (parameter - parameter.mean()) - (truth - truth.mean())
    assert off.abs().max() < 0.25


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", ["persistent", "contrastive"])
def test_examples_that_violate_a_constraint_are_refused_by_number(learning):
    g = team({"equals": 2}, n=4)
    model = GibbsModel(g, GibbsOptions(chains=4, learning=learning))
    examples = torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 0]])
    with pytest.raises(ObservationError, match=says("example 1", g.constraints[0].name, "1 of 2")):
        model.loss({"X": examples}, {})


def test_evidence_between_zero_and_one_is_refused_by_name():
    g = team({"at_most": 2}, n=3)
    known = torch.tensor([[True, False, False]])
    for evidence in (torch.full((1, 3), 0.4), unn.Partial(torch.full((1, 3), 0.4), known)):
        with pytest.raises(ObservationError, match=says("'X'", "0 or 1")):
            sample(g, {"X": evidence})


def test_regularizers_that_exclude_values_are_refused_by_name():
    g = unn.FactorGraph("masked", n=2, k=2)
    allowed = torch.tensor([[True, False], [True, True]])
    x = g.variable("X", "n | k", MaskedEntropy(1.0, "k", allowed))
    g.factor(AllDifferent(x["i v"], each=""))
    with pytest.raises(DeclarationError, match=says("'X'", "all categories allowed")):
        sample(g)


def test_impossible_queries_are_named():
    g = team({"equals": 1}, n=3)
    known = torch.tensor([[True, False, False], [True, True, False]])
    with pytest.raises(InferenceError, match=says("query 1 of 2")):
        sample(g, {"X": unn.Partial(torch.ones(2, 3), known)}, options=GibbsOptions(chains=4))


def test_chains_start_where_constraints_hold_however_strong_the_scores_against_them():
    def subset():
        g = unn.FactorGraph("subset", n=6)
        x = g.variable("X", "n", unn.BinaryEntropy())
        g.factor(Multilinear(g.constant("h", "n", torch.linspace(30.0, 80.0, 6))["i"], x["i"]))
        g.factor(Cardinality(x["i"], each="", equals=2))
        return g

    def jobs():
        g = unn.FactorGraph("jobs", n=5, k=5)
        x = g.variable("X", "n | k", unn.Entropy())
        scores = torch.zeros(5, 5)
        scores[:, 0] = 100.0
        g.factor(Multilinear(g.constant("W", "n k", scores)["i v"], x["i v"]))
        g.factor(AllDifferent(x["i v"], each=""))
        return g

    def pairs():
        g = unn.FactorGraph("pairs", n=3, k=3)
        x = g.variable("X", "n | k", unn.Entropy())
        g.factor(Multilinear(g.constant("h", "k", torch.tensor([0.0, 40.0, 0.0]))["v"], x["i v"]))
        g.factor(Table(x["i v"], x["i+1 w"], allowed=[(0, 0)]))
        return g

    options = GibbsOptions(chains=50, burn_in=5, chain_draws=2)
    for g in (subset(), jobs(), pairs()):
        with warnings.catch_warnings():
            # the only value of the last graph cannot move
            warnings.simplefilter("ignore", ConvergenceWarning)
            draws = sample(g, options=options, generator=seeded())["X"].flatten(0, 2)
        assert all(int(c.violations_of({"X": draws}).sum()) == 0 for c in g.constraints)
    # the nearest rival of the best subset has exp(-10) of its probability
    draws = sample(subset(), options=GibbsOptions(chains=50, burn_in=30, chain_draws=2), generator=seeded())
    assert bool((draws["X"] == torch.tensor([0.0, 0, 0, 0, 1, 1])).all(-1).float().mean() > 0.95)


def test_constraints_that_do_not_count_are_refused_by_name():
    g = unn.FactorGraph("sum", n=3)
    x = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Equation(x["i"], x["i"], within=0.5, name="total"))
    with pytest.raises(DeclarationError, match=says("'total'", "Equation", "does not count")):
        sample(g)


def test_constrained_nodes_without_a_closed_form_are_refused_by_name():
    g = team({"at_most": 2}, n=3)
    x = g.variables["X"]
    g.factor(Multilinear(g.constant("K", "n n", torch.ones(3, 3))["i j"], x["i"], x["j"]))
    with pytest.raises(InferenceError, match=says("'X'", "no closed form")):
        sample(g)


def test_constraints_of_spins_are_refused_by_name():
    g = unn.FactorGraph("spins", n=3)
    s = g.variable("S", "n", unn.SignedEntropy())
    g.factor(Different(s["i"], s["i+1"], name="alternating"))
    with pytest.raises(DeclarationError, match=says("'alternating'", "Different", "does not count")):
        sample(g)


def test_evidence_that_contradicts_the_constraints_is_refused():
    g = assignment(3)
    value = torch.eye(3)[[0, 0, 1]][None]
    known = torch.tensor([[True, True, False]])
    for evidence in ({"X": unn.Partial(value, known)}, {"X": value}):
        with pytest.raises(InferenceError, match=says("'assignment'", "there may be none")):
            sample(g, evidence, options=GibbsOptions(chains=4))


def test_log_partitions_with_constraints_are_refused_with_an_alternative():
    with pytest.raises(InferenceError, match=says("constraints", "unn.exact.log_partition")):
        log_partition(assignment(3))


@pytest.mark.parametrize("learning", ["pseudolikelihood", "energy-discrepancy"])
def test_losses_without_constraints_are_refused_by_name(learning):
    g = assignment(3)
    model = GibbsModel(g, GibbsOptions(learning=learning))
    with pytest.raises(InferenceError, match=says(f"'{g.constraints[0].name}'", "persistent")):
        model.loss({"X": torch.eye(3)[None]}, {})


def test_lengths_with_constraints_are_refused():
    g = unn.FactorGraph("ragged")
    x = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Cardinality(x["i"], each="", at_most=1))
    with pytest.raises(InferenceError, match=says("'ragged'", "lengths")):
        sample(g, sizes={"n": 3}, lengths={"n": torch.tensor([2])})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constraints_do_not_depend_on_the_default_dtype(dtype):
    options = GibbsOptions(chains=20, burn_in=5, chain_draws=4)
    before = torch.get_default_dtype()

    def draws():
        return sample(assignment().to(dtype), options=options, generator=seeded())["X"]

    expected = draws()
    try:
        torch.set_default_dtype(torch.float64)
        g = assignment().to(dtype)
        ours = sample(g, options=options, generator=seeded())["X"]
    finally:
        torch.set_default_dtype(before)
    assert ours.dtype == expected.dtype == dtype
    assert bool((ours.sum(-2) == 1).all())
